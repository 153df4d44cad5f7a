"""The save on the way out: it exists when it can, and is used only when it is whole and of one step."""

import json
import os
import pathlib
import re
import signal
import time
import zlib

import pytest
import runs


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return runs.run(2, run=tmp_path_factory.mktemp("unbroken"), steps=10).losses


def folder_of(run):
    return pathlib.Path(run) / "checkpoints"


def fail(world, run, place, step=6, rank=1, **more):
    begin = time.time()
    ranks = runs.Ranks(world, run=run, steps=10, save_every=4, fail=f"{place}:{step}:{rank}", **more).wait(60)
    assert time.time() - begin < 30, "the ranks did not end in time"
    assert all(code in (1, -signal.SIGKILL) for code in ranks.codes), ranks.log
    return ranks


def expect_same(ranks, reference):
    assert ranks.losses
    for step, loss in ranks.losses.items():
        assert abs(loss - reference[step]) <= 1e-6 * reference[step], step


@pytest.mark.parametrize("asynchronous", [0, 1], ids=["sync", "async"])
@pytest.mark.parametrize("place", ["data", "forward", "backward"])
def test_a_throw_outside_the_update(place, asynchronous, unbroken, tmp_path):
    kind = {"async": asynchronous}
    fail(2, tmp_path, place, **kind)
    again = runs.run(3, run=tmp_path, steps=10, **kind)  # also at another world size
    assert again.resumed["emergency"] and again.resumed["resumed"] == 5
    assert [rank["next_batch"] for rank in again.resumed["ranks"]] == [5, 5]
    assert sorted(again.losses) == [6, 7, 8, 9, 10]
    expect_same(again, unbroken)


def test_a_throw_in_the_update(unbroken, tmp_path):
    failed = fail(2, tmp_path, "update")
    assert "no emergency save: the failure came in the middle of an update" in failed.log
    again = runs.run(2, run=tmp_path, steps=10)
    assert again.resumed["resumed"] == 4 and not again.resumed["emergency"]
    assert again.losses == {s: loss for s, loss in unbroken.items() if s > 4}


def test_a_throw_after_which_the_others_update(unbroken, tmp_path):
    """All ranks have agreed on the update; one of them does not make it."""
    fail(2, tmp_path, "before update")
    again = runs.run(2, run=tmp_path, steps=10)
    assert again.resumed["resumed"] == 4 and not again.resumed["emergency"]
    assert "rank 0 is of step 6 and rank 1 of step 5" in again.resumed["passed_over"][0]
    assert again.losses == {s: loss for s, loss in unbroken.items() if s > 4}


def test_in_the_step_of_a_save_the_emergency_wins_and_is_retired(unbroken, tmp_path):
    fail(2, tmp_path, "forward", step=5)
    again = runs.run(2, run=tmp_path, steps=7)
    assert again.resumed["emergency"] and again.resumed["resumed"] == 4
    assert (folder_of(tmp_path) / "on_exception").exists()
    newer = runs.run(2, run=tmp_path, steps=9, save_every=3)
    assert newer.resumed["emergency"]
    assert not (folder_of(tmp_path) / "on_exception").exists()
    last = runs.run(2, run=tmp_path, steps=10)
    assert last.resumed["resumed"] == 9 and not last.resumed["emergency"]
    assert last.losses == {10: unbroken[10]}


def test_killed_after_a_newer_save(unbroken, tmp_path):
    fail(2, tmp_path, "forward", step=6)
    killed = runs.Ranks(2, {"FLOE_TEST_STOP_AT": "linked@0"}, run=tmp_path, steps=10, save_every=8).end_together().wait()
    assert killed.resumed["resumed"] == 5 and killed.codes[0] == -signal.SIGKILL
    again = runs.run(2, run=tmp_path, steps=10)
    assert again.resumed["resumed"] == 8 and not again.resumed["emergency"]


@pytest.mark.parametrize("world, strategy, whole", [
    (2, "full_shard", False), (2, "no_shard", True), (4, "hybrid", True), (3, "shard_grad_op", False)])
def test_a_rank_dies(world, strategy, whole, unbroken, tmp_path):
    failed = fail(world, tmp_path, "die", rank=1, strategy=strategy, hybrid=2)
    assert failed.codes[1] == -signal.SIGKILL
    again = runs.run(world, run=tmp_path, steps=10, strategy=strategy, hybrid=2)
    assert again.resumed["emergency"] == whole
    assert again.resumed["resumed"] == (5 if whole else 4)
    if whole:
        assert again.resumed["ranks"][1] is None and again.resumed["ranks"][0] == {"rank": 0, "next_batch": 5}
    else:
        assert "is not used" in again.resumed["passed_over"][0]
    expect_same(again, unbroken)


def unfinished(run):
    """The set as ranks leave it when the last of them had no time to put it together."""
    folder = folder_of(run) / ".emergency-set"
    (folder_of(run) / "on_exception").rename(folder)
    for name in (".metadata", "floe.json", "meta.pt"):
        (folder / name).unlink()
    return folder


def reseal(path, change):
    content = json.loads(path.read_text().splitlines()[0])
    change(content)
    line = json.dumps(content) + "\n"
    path.write_text(line + '{"crc32":"%08x"}\n' % zlib.crc32(line.encode()))


@pytest.mark.parametrize("change, reason", [
    (lambda c: c.update(step=6), "rank 0 is of step 5 and rank 1 of step 6"),
    (lambda c: c.update(run="other"), "different runs"),
    (lambda c: c["tensors"].pop(), r"'\S+' "),
])
def test_sets_that_do_not_fit_together(change, reason, tmp_path):
    fail(2, tmp_path, "forward")
    folder = unfinished(tmp_path)
    reseal(folder / "floe_rank_1.json", change)
    again = runs.run(2, run=tmp_path, steps=6)
    assert again.resumed["resumed"] == 4
    assert re.search(reason, again.resumed["passed_over"][0]), again.resumed["passed_over"]


def test_the_last_rank_puts_the_set_together_or_the_next_start_does(unbroken, tmp_path):
    fail(2, tmp_path, "forward")
    assert (folder_of(tmp_path) / "on_exception" / ".metadata").exists()
    assert not list(folder_of(tmp_path).glob(".emergency-*"))
    unfinished(tmp_path)
    again = runs.run(2, run=tmp_path, steps=10)
    assert again.resumed["resumed"] == 5
    expect_same(again, unbroken)


def test_an_older_set_does_not_replace_a_newer_one(unbroken, tmp_path):
    """Parts that an earlier start left, which nobody put together then."""
    fail(2, tmp_path / "older", "forward", step=3)
    fail(2, tmp_path, "forward", step=6)
    unfinished(tmp_path / "older").rename(folder_of(tmp_path) / ".emergency-older")
    again = runs.run(2, run=tmp_path, steps=7)
    assert again.resumed["emergency"] and again.resumed["resumed"] == 5
    assert again.losses == {step: unbroken[step] for step in (6, 7)}


def test_a_damaged_set_does_not_hold_up_a_newer_one(unbroken, tmp_path):
    fail(2, tmp_path, "forward", step=3)
    damaged = tmp_path / "on_exception"
    (folder_of(tmp_path) / "on_exception").rename(damaged)
    fail(2, tmp_path, "forward", step=6)
    unfinished(tmp_path)
    (damaged / "floe.json").write_text("cut off")
    damaged.rename(folder_of(tmp_path) / "on_exception")
    again = runs.run(2, run=tmp_path, steps=10)
    assert again.resumed["emergency"] and again.resumed["resumed"] == 5
    assert again.losses == {s: loss for s, loss in unbroken.items() if s > 5}


def test_a_disk_that_is_full_at_the_next_start_is_no_reason_to_leave_a_set_out(unbroken, tmp_path):
    """The next save would remove it."""
    fail(2, tmp_path, "forward")
    unfinished(tmp_path)
    full = ["bash", "-c", 'trap "" XFSZ; ulimit -f 0; exec "$@"', "--"]
    refused = runs.Ranks(2, prefix=full, run=tmp_path, steps=10, timeout=5).wait()
    assert 0 not in refused.codes and "cannot be put together now: " in refused.log, refused.log
    assert not refused.losses
    again = runs.run(2, run=tmp_path, steps=10)
    assert again.resumed["emergency"] and again.resumed["resumed"] == 5


@pytest.mark.parametrize("whole", [True, False])
def test_a_damaged_set(whole, unbroken, tmp_path):
    fail(2, tmp_path, "forward")
    folder = folder_of(tmp_path) / "on_exception" if whole else unfinished(tmp_path)
    data = bytearray((folder / "__1_0.distcp").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "__1_0.distcp").write_bytes(data)
    again = runs.run(2, run=tmp_path, steps=10)
    assert again.resumed["resumed"] == 4 and "is damaged" in again.resumed["passed_over"][0]
    assert again.losses == {s: loss for s, loss in unbroken.items() if s > 4}


def test_switched_off(tmp_path):
    fail(2, tmp_path, "forward", on_exception=0)
    assert not list(folder_of(tmp_path).glob(".emergency-*"))


def test_a_failed_resume_saves_nothing(tmp_path):
    runs.run(2, run=tmp_path, steps=2, save_every=2)
    data = folder_of(tmp_path) / "step_2/meta.pt"
    data.write_bytes(data.read_bytes()[:-1])
    failed = runs.run(2, run=tmp_path, steps=4, expect=1)
    assert "meta.pt" in failed.log
    assert sorted(os.listdir(folder_of(tmp_path))) == ["last", "step_2"]


def test_before_the_first_save(unbroken, tmp_path):
    fail(2, tmp_path, "forward", step=2)
    again = runs.run(2, run=tmp_path, steps=4)
    assert again.resumed["emergency"] and again.resumed["resumed"] == 1
    fail(2, tmp_path / "other", "update", step=2)
    anew = runs.run(2, run=tmp_path / "other", steps=3)
    assert anew.resumed is None and anew.losses == {s: unbroken[s] for s in (1, 2, 3)}
