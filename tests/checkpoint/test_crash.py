"""Whatever happens during a save, the last good checkpoint is there and a run continues from it with
the losses of one that was never broken."""

import os
import pathlib
import random
import re
import shutil
import signal
import tempfile
import time

import pytest
import runs

BOTH = ["writing", "data written", "all written"]
FIRST = ["folder made", "meta written", "manifest written", "metadata written", "renamed", "link made", "linked",
         "removing"]
FILE = ["file written", "manifest of file written", "renamed"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return runs.run(2, run=tmp_path_factory.mktemp("unbroken"), steps=12).losses


def folder_of(run):
    return pathlib.Path(run) / "checkpoints"


def leftovers(run):
    return [path.name for path in folder_of(run).iterdir() if ".tmp" in path.name]


def points():
    for point in BOTH:
        for rank in (0, 1):
            yield point, rank, "sharded"
    for point in FIRST:
        yield point, 0, "sharded"
    for point in FILE:
        yield point, 0, "full"


def points_and_ways():
    """Every point in each test run, every other one of them asynchronously; both ways in the long one."""
    for i, (point, rank, layout) in enumerate(points()):
        for asynchronous in (0, 1):
            marks = [] if i % 2 == asynchronous else [pytest.mark.long]
            name = f"{point}-{rank}-{layout}-{'async' if asynchronous else 'sync'}"
            yield pytest.param(point, rank, layout, asynchronous, marks=marks, id=name)


@pytest.mark.parametrize("point, rank, layout, asynchronous", list(points_and_ways()))
def test_killed_at_every_point_of_the_commit(point, rank, layout, asynchronous, unbroken, tmp_path):
    kind = {"run": tmp_path, "layout": layout, "async": asynchronous, "keep": 1}
    runs.run(2, steps=2, save_every=2, **kind)
    environment = {"FLOE_TEST_STOP_AT": f"{point}@{rank}"}
    killed = runs.Ranks(2, environment, steps=4, save_every=2, **kind).end_together().wait()
    assert killed.codes[rank] == -signal.SIGKILL, killed.log
    again = runs.run(2, steps=8, save_every=2, **kind)
    committed = point in ("renamed", "link made", "linked", "removing")
    if (point, rank) != ("all written", 1):  # then rank 0 needs nobody any more and may finish
        assert again.resumed["resumed"] == (4 if committed else 2)
    assert again.losses == {s: loss for s, loss in unbroken.items() if again.resumed["resumed"] < s <= 8}
    assert not leftovers(tmp_path)
    assert os.readlink(folder_of(tmp_path) / "last") == ("step_8" if layout == "sharded" else "step_8.pt")


def test_programs_of_users_know_no_commit_points():
    """The variable that stops a save at a point is compiled into the tool of these tests alone."""
    variable = b"FLOE_TEST_STOP_AT"
    assert variable in pathlib.Path(runs.TOOL).read_bytes()
    assert variable not in pathlib.Path(runs.TOOL).with_name("floe").read_bytes()


def test_a_rank_that_never_comes_ends_the_save(tmp_path):
    """Without a launcher that kills the others: they notice themselves."""
    begin = time.time()
    killed = runs.Ranks(2, {"FLOE_TEST_STOP_AT": "data written@1"}, run=tmp_path, steps=2, save_every=2,
                        timeout=5).wait(60)
    assert killed.codes == [1, -signal.SIGKILL] and time.time() - begin < 30
    assert "the save of step 2 was given up because of rank 1: its process has ended without a word" in killed.log
    killed = runs.Ranks(2, {"FLOE_TEST_STOP_AT": "meta written@0"}, run=tmp_path, steps=2, save_every=2,
                        timeout=60).wait(60)
    assert killed.codes == [-signal.SIGKILL, 1]
    assert "the save of step 2 was given up because of rank 0: its process has ended without a word" in killed.log


def kill_at_random(tmp_path, kills, seed):
    generator = random.Random(seed)
    kind = {"run": tmp_path, "save_every": 3, "ema": 0.9}
    saved, losses, resumed_at = 0, {}, []
    # On a machine that has much else to do, all of it takes longer, and the kills come later.
    begin = time.time()
    runs.run(2, run=tmp_path / "first", steps=3, save_every=3)
    latest = max(2.0, 2 * (time.time() - begin))
    for turn in range(kills):
        way = {"async": generator.randrange(2), "layout": generator.choice(["sharded", "sharded", "full"])}
        ranks = runs.Ranks(2, steps=10**6, **kind, **way)
        time.sleep(generator.uniform(0.2, latest))
        generator.choice(ranks.processes).kill()
        time.sleep(generator.choice([0, 0.05, 0.3]))
        for process in ranks.processes:
            process.kill()
        ranks.wait()
        if ranks.resumed:
            resumed_at.append(ranks.resumed["resumed"])
            assert ranks.resumed["resumed"] >= saved, "a finished save was lost"
        elif ranks.losses:
            assert saved == 0, ranks.log
        for step, loss in ranks.losses.items():
            assert losses.setdefault(step, loss) == loss, "a loss differs from the first time"
        committed = [int(step) for step in re.findall(r"saved step (\d+) to", ranks.log)]
        saved = max([saved, *committed])
    assert saved > 0 and len(resumed_at) > kills / 3
    end = runs.run(2, steps=saved + 7, **kind)
    whole = runs.run(2, run=tmp_path / "whole", steps=saved + 7, ema=0.9, timeout=600).losses
    losses.update(end.losses)
    assert all(whole[step] == loss for step, loss in losses.items() if step in whole)
    assert not leftovers(tmp_path)


def test_ten_kills(tmp_path):
    kill_at_random(tmp_path, 10, 1)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_two_hundred_kills(tmp_path):
    kill_at_random(tmp_path, 200, 2)


# ---- disks ----


def limited(kilobytes):
    """Files cannot grow beyond this: the disk is full."""
    return ["bash", "-c", f'trap "" XFSZ; ulimit -f {kilobytes}; exec "$@"', "--"]


@pytest.mark.parametrize("layout", ["sharded", "full", "trainable"])
@pytest.mark.parametrize("asynchronous", [0, 1], ids=["sync", "async"])
def test_full_disk(layout, asynchronous, unbroken, tmp_path):
    kind = {"run": tmp_path, "layout": layout, "async": asynchronous}
    runs.run(2, steps=2, save_every=2, **kind)
    before = sorted(path.name for path in folder_of(tmp_path).iterdir())
    full = runs.Ranks(2, prefix=limited(64), steps=6, save_every=2, on_exception=0, **kind).wait()
    assert full.codes == [1, 1], full.log
    assert "the save of step 4 failed: " in full.log and "File too large" in full.log
    assert "; older checkpoints are as they were" in full.log
    assert sorted(path.name for path in folder_of(tmp_path).iterdir()) == before
    on = runs.Ranks(2, prefix=limited(64), steps=8, save_every=2, on_failure="continue", **kind).wait()
    assert on.codes == [0, 0], on.log
    assert [line["save_failed"] for line in on.lines if "save_failed" in line] != []
    assert on.losses == {s: loss for s, loss in unbroken.items() if 2 < s <= 8}
    assert sorted(path.name for path in folder_of(tmp_path).iterdir()) == before
    assert runs.run(2, steps=12, **kind).losses == {s: loss for s, loss in unbroken.items() if s > 2}


def test_folder_that_cannot_be_written():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="floe-read-only-"))
    try:
        folder.chmod(0o755)
        runs.run(2, run=folder, steps=2, save_every=2)
        for path in [folder, *folder.rglob("*")]:
            if not path.is_symlink():
                path.chmod(0o555 if path.is_dir() else 0o444)
        # Root may write everywhere, unless that one right is taken away; it may still enter every folder,
        # which another user may not where the programs are root's own.
        prefix = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"] if os.geteuid() == 0 else []
        refused = runs.Ranks(2, prefix=prefix, run=folder, steps=4, save_every=2).wait()
        assert refused.codes == [1, 1] and "Permission denied" in refused.log, refused.log
        assert refused.resumed["resumed"] == 2
        assert not leftovers(folder)
    finally:
        for path in [folder, *folder.rglob("*")]:
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
        shutil.rmtree(folder)


def without_rights():
    """Root may read and write everywhere, unless that right is taken away."""
    rights = "-dac_override,-dac_read_search"
    return ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}"] if os.geteuid() == 0 else []


@pytest.mark.parametrize("hidden", ["__1_0.distcp", "floe.json", "."])
def test_what_cannot_be_read_is_not_damaged(hidden):
    """Passed over, it would be removed: the run goes back behind it, and keeps the newest."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="floe-hidden-"))
    newest = folder_of(folder) / "step_4"
    try:
        folder.chmod(0o755)
        kind = {"run": folder, "save_every": 2, "keep": 2, "timeout": 5}
        runs.run(2, steps=4, **kind)
        (newest / hidden).chmod(0)
        refused = runs.Ranks(2, prefix=without_rights(), steps=6, **kind).wait()
        assert 0 not in refused.codes and "Permission denied; the checkpoint may be whole" in refused.log, refused.log
        assert not refused.losses
        (newest / hidden).chmod(0o755)
        assert runs.run(2, steps=6, **kind).resumed["resumed"] == 4
    finally:
        (newest / hidden).chmod(0o755)
        shutil.rmtree(folder)


# ---- what stays ----


def test_a_copy_that_followed_links(tmp_path, unbroken):
    """scp -r makes a folder of `last`, and may bring nothing else."""
    runs.run(2, run=tmp_path / "first", steps=4, save_every=2)
    whole, alone = tmp_path / "whole", tmp_path / "alone"
    shutil.copytree(tmp_path / "first", whole, symlinks=False)
    shutil.copytree(folder_of(tmp_path / "first") / "last", folder_of(alone) / "last")
    for run in (whole, alone):
        again = runs.run(2, run=run, steps=8, save_every=2)
        assert again.resumed["resumed"] == 4
        assert again.losses == {s: loss for s, loss in unbroken.items() if 4 < s <= 8}
        assert os.readlink(folder_of(run) / "last") == "step_8"
        assert (folder_of(run) / "last.1" / ".metadata").exists()
        assert "'last' was no link" in again.log.replace(f"{folder_of(run)}/", "")


def test_keep_and_keep_best(tmp_path):
    run = runs.run(2, run=tmp_path, steps=9, save_every=1, keep=2, keep_best=2)
    best = sorted(run.losses, key=run.losses.get)[:2]
    kept = {path.name for path in folder_of(tmp_path).iterdir()}
    assert kept == {"last", "step_8", "step_9", *(f"step_{step}" for step in best)}


def test_a_file_goes_with_its_manifest(tmp_path):
    runs.run(1, run=tmp_path, steps=3, save_every=1, keep=1, layout="full")
    assert {path.name for path in folder_of(tmp_path).iterdir()} == {"last", "step_3.pt", "step_3.pt.floe.json"}


def test_asynchronous_saves_end_in_order(tmp_path, unbroken):
    run = runs.run(2, run=tmp_path, steps=9, save_every=1, keep=9, **{"async": 1})
    saved = [int(step) for step in re.findall(r"saved step (\d+) to", run.log)]
    assert saved == list(range(1, 10))
    # Every one holds the step it was made for, though training went on while it was written.
    for step in (1, 5, 8):
        again = runs.run(2, run=tmp_path / "other", steps=9, resume=folder_of(tmp_path) / f"step_{step}")
        assert again.losses == {s: loss for s, loss in unbroken.items() if step < s <= 9}
