"""Checkpoints of runs whose sets of parameters train in turn: values, the state of every set that has
some and the number of its updates come back bit for bit, wherever they were and whatever world size and
strategy the next run has."""

import itertools
import os
import pathlib
import signal
import subprocess

import numpy as np
import pytest
import runs

A, B = "layers.0.*,layers.1.*", "layers.1.*,layers.2.*,head.*"
SETS = dict(sets=f"a:{A} b:{B}", phase=2)  # a: steps 1, 2; b: 3, 4; a: 5, 6; ...
BREAK, STEPS = 3, 8  # b trains at the break and a rests
WAYS = [(1, "no_shard"), (2, "full_shard"), (2, "no_shard"), (2, "hybrid"), (3, "shard_grad_op")]
RESTS = ["keep", "offload", "drop"]


def arguments(way, **more):
    world, strategy = way
    return dict(world=world, strategy=strategy, hybrid=1, **more)


def folder_of(run):
    return pathlib.Path(run) / "checkpoints"


def expect_equal(found, expected):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert np.array_equal(found[key], value), key


def sets_with_state(dump):
    return {kind.split("/")[0] for kind, _ in dump if "/" in kind}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run that ended after its save and what was in memory then, by its arguments."""
    known = {}

    def get(way, **kind):
        key = (way, *sorted(kind.items()))
        if key not in known:
            folder = tmp_path_factory.mktemp("saved")
            runs.run(run=folder, steps=BREAK, save_every=BREAK, ema=0.9, dump=folder / "dump", **SETS,
                     **arguments(way, **kind))
            known[key] = folder, runs.read_dump(folder / "dump", way[0])
        return known[key]

    return get


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    known = {}

    def losses(**kind):
        key = tuple(sorted(kind.items()))
        if key not in known:
            known[key] = runs.run(2, run=tmp_path_factory.mktemp("unbroken"), steps=STEPS, **SETS, **kind).losses
        return known[key]

    return losses


def cases():
    """Each way on both sides, and each policy and precision, by default; all combinations in the long run."""
    whole = itertools.product(RESTS, (0, 1), enumerate(WAYS), enumerate(WAYS))
    for rest, mixed, (i, before), (j, after) in whole:
        marks = [] if (i + 3 * j + 5 * RESTS.index(rest) + 7 * mixed) % 16 == 0 else [pytest.mark.long]
        name = f"{rest}-{'bf16' if mixed else 'fp32'}-{before[0]}_{before[1]}-{after[0]}_{after[1]}"
        yield pytest.param(rest, mixed, before, after, marks=marks, id=name)


@pytest.mark.parametrize("rest, mixed, before, after", list(cases()))
def test_any_world_strategy_and_policy(rest, mixed, before, after, saved, tmp_path):
    folder, dump = saved(before, rest=rest, mixed=mixed)
    assert sets_with_state(dump) == ({"b"} if rest == "drop" else {"a", "b"})
    again = runs.run(run=tmp_path, steps=BREAK, ema=0.9, resume=folder, dump_loaded=tmp_path / "loaded",
                     **SETS, **arguments(after, rest=rest, mixed=mixed))
    assert again.resumed["resumed"] == BREAK and again.resumed["set"] == "b" and again.resumed["optimizer"]
    expect_equal(runs.read_dump(tmp_path / "loaded", after[0]), dump)
    if rest != "drop":  # layers.1 belongs to both: each has a count and moments of its own
        name = next(name for kind, name in dump if kind == "a/step" and name.startswith("layers.1."))
        assert (dump["a/step", name], dump["b/step", name]) == (2, 1)
        assert not np.array_equal(dump["a/exp_avg", name], dump["b/exp_avg", name])


@pytest.mark.parametrize("rest, mixed", [
    pytest.param("keep", 0, marks=pytest.mark.long), ("offload", 1), ("drop", 1)])
def test_goes_on_as_if_never_broken(rest, mixed, unbroken, tmp_path):
    kind = dict(run=tmp_path, rest=rest, mixed=mixed, **SETS)
    for turn in (3, 4, 5, STEPS):  # in the middle of both phases, and between them
        again = runs.run(2, steps=turn, save_every=1, **kind)
        assert again.losses == {s: unbroken(rest=rest, mixed=mixed)[s] for s in again.losses}
        assert max(again.losses) == turn


def test_a_set_that_never_trained(tmp_path):
    kind = dict(SETS, phase=99, rest="offload")
    runs.run(2, run=tmp_path, steps=2, save_every=2, dump=tmp_path / "dump", **kind)
    dump = runs.read_dump(tmp_path / "dump", 2)
    assert sets_with_state(dump) == {"a"}
    again = runs.run(3, run=tmp_path, steps=2, dump_loaded=tmp_path / "loaded", **kind)
    assert again.resumed["anew"] == [] and "anew" not in again.log
    expect_equal(runs.read_dump(tmp_path / "loaded", 3), dump)


def test_slices_that_several_ranks_hold_are_written_once(saved):
    sizes = {}
    for way in [(1, "no_shard"), (2, "no_shard"), (2, "hybrid")]:
        folder, _ = saved(way, rest="offload", mixed=0)
        sizes[way] = sum(path.stat().st_size for path in (folder_of(folder) / "step_3").glob("*.distcp"))
    assert max(sizes.values()) < 1.1 * min(sizes.values()), sizes  # items have headers


@pytest.mark.parametrize("rest", ["offload", "drop"])
def test_an_asynchronous_save_is_of_before_the_switch(rest, unbroken, tmp_path):
    """The switch comes right after save(), while its files are written."""
    kind = dict(rest=rest, mixed=1, ema=0.9, **SETS)
    runs.run(2, run=tmp_path / "until", steps=4, dump=tmp_path / "dump", **kind)
    runs.run(2, run=tmp_path / "on", steps=STEPS, save_every=4, keep=9, **kind, **{"async": 1})
    again = runs.run(2, run=tmp_path / "again", steps=STEPS, resume=folder_of(tmp_path / "on") / "step_4",
                     dump_loaded=tmp_path / "loaded", **kind)
    assert again.resumed["set"] == "b"
    expect_equal(runs.read_dump(tmp_path / "loaded", 2), runs.read_dump(tmp_path / "dump", 2))
    assert again.losses == {s: loss for s, loss in unbroken(rest=rest, mixed=1).items() if s > 4}


# ---- other sets ----


def weights_of(dump):
    return {key: value for key, value in dump.items() if key[0] == "model"}


def test_from_one_set_to_several_and_back(tmp_path):
    runs.run(2, run=tmp_path / "one", steps=2, save_every=2, trainable="layers.*", dump=tmp_path / "one_dump")
    sets = "a:layers.0.*,layers.1.* b:layers.1.*,layers.2.*"
    several = runs.run(3, run=tmp_path / "several", resume=tmp_path / "one", sets=sets, phase=2, steps=5, save_every=5,
                       dump_loaded=tmp_path / "loaded", dump=tmp_path / "several_dump")
    assert several.resumed["anew"] == ["a", "b"] and not several.resumed["optimizer"]
    assert "has no state of the optimizers of a, b, which start anew" in several.log
    loaded = runs.read_dump(tmp_path / "loaded", 3)
    expect_equal(weights_of(loaded), weights_of(runs.read_dump(tmp_path / "one_dump", 2)))
    assert not any(np.any(value) for (kind, _), value in loaded.items() if "/" in kind)
    back = runs.run(2, run=tmp_path / "back", resume=tmp_path / "several", steps=5, trainable="layers.*",
                    dump_loaded=tmp_path / "back_dump")
    assert back.resumed["anew"] == [""]
    assert "has no state of this run's optimizer, which starts anew" in back.log
    expect_equal(weights_of(runs.read_dump(tmp_path / "back_dump", 2)),
                 weights_of(runs.read_dump(tmp_path / "several_dump", 3)))


def test_a_set_that_the_checkpoint_does_not_know(saved, tmp_path):
    folder, dump = saved((2, "full_shard"), rest="offload", mixed=0)
    other = runs.run(2, run=tmp_path, resume=folder, sets=f"c:head.* a:{A}", rest="offload", phase=1, steps=5,
                     dump_loaded=tmp_path / "loaded")
    assert other.resumed["anew"] == ["c"] and "optimizers of c," in other.log
    loaded = runs.read_dump(tmp_path / "loaded", 2)
    for (kind, name), value in loaded.items():
        if kind.startswith("c/"):
            assert not np.any(value)
        elif kind == "model" or kind.startswith("a/"):
            assert np.array_equal(value, dump[kind, name]), (kind, name)
    assert sets_with_state(loaded) == {"a", "c"}


def test_a_set_with_more_than_was_saved_changes_nothing(saved, tmp_path):
    folder, _ = saved((2, "full_shard"), rest="offload", mixed=0)
    more = runs.run(2, run=tmp_path, resume=folder, sets=f"a:{A},head.* b:{B}", phase=2, steps=4, expect=1)
    assert "exp_avg in set 'a' of 'head.weight' is missing" in more.log


# ---- a failure in the middle of a switch ----


def fail(place, step, run, **kind):
    failed = runs.Ranks(2, run=run, steps=STEPS, save_every=3, fail=f"{place}:{step}:1", **kind, **SETS)
    failed.end_together() if place.startswith("die") else None
    failed.wait(60)
    assert failed.codes[1] == (-signal.SIGKILL if place.startswith("die") else 1), failed.log
    return failed


@pytest.mark.parametrize("place", ["switch", "die in switch"])
@pytest.mark.parametrize("strategy", ["full_shard", "no_shard"])
def test_half_a_switch_is_never_saved(place, strategy, unbroken, tmp_path):
    """Rank 1 ends when its state has left and that of the next set has not come."""
    kind = dict(rest="offload", strategy=strategy)
    failed = fail(place, 5, tmp_path, **kind)
    if place == "switch":
        assert "no emergency save: the failure came in the middle of an update" in failed.log
    again = runs.run(2, run=tmp_path, steps=STEPS, **kind, **SETS)
    # Rank 0 had switched; where it holds everything its set alone is whole. The others may have been
    # killed before it was written.
    if again.resumed["emergency"]:
        assert strategy == "no_shard"
        assert (again.resumed["resumed"], again.resumed["set"]) == (4, "a")
    else:
        assert (again.resumed["resumed"], again.resumed["set"]) == (3, "b")
        assert strategy == "full_shard" or place != "switch"
    assert again.losses == {s: loss for s, loss in unbroken(**kind).items() if s > again.resumed["resumed"]}


@pytest.mark.parametrize("strategy", ["full_shard", "no_shard"])
def test_ranks_on_two_sides_of_a_switch_do_not_mix(strategy, unbroken, tmp_path):
    """Both are of step 4, but only rank 0 has switched."""
    kind = dict(rest="drop", strategy=strategy)
    fail("boundary", 5, tmp_path, **kind)
    again = runs.run(2, run=tmp_path, steps=STEPS, **kind, **SETS)
    assert again.resumed["resumed"] == 3 and not again.resumed["emergency"]
    assert "only one of them had switched" in again.resumed["passed_over"][0]
    assert again.losses == {s: loss for s, loss in unbroken(**kind).items() if s > 3}


@pytest.mark.parametrize("place, step", [("forward", 5), ("boundary", 4)])
def test_an_emergency_set_with_a_set_away(place, step, unbroken, tmp_path):
    kind = dict(rest="offload", mixed=1)
    fail(place, step, tmp_path, **kind)
    again = runs.run(2, run=tmp_path, steps=STEPS, **kind, **SETS)
    assert again.resumed["emergency"] and again.resumed["resumed"] == step - 1
    assert again.resumed["set"] == ("a" if step == 5 else "b")
    assert again.losses == {s: loss for s, loss in unbroken(**kind).items() if s >= step}


# ---- the commands ----


def floe(*words):
    program = pathlib.Path(os.environ["FLOE_BIN_DIR"]) / "floe"
    ran = subprocess.run([program, *map(str, words)], capture_output=True, text=True, timeout=60)
    return ran.returncode, ran.stdout + ran.stderr


def test_inspect_export_and_diff(tmp_path):
    kind = dict(rest="drop", mixed=1, ema=0.5, config=0, **SETS)
    runs.run(2, run=tmp_path, steps=BREAK, save_every=1, keep=9, dump=tmp_path / "dump", **kind)
    dump = runs.read_dump(tmp_path / "dump", 2)
    first, last = (folder_of(tmp_path) / f"step_{step}" for step in (1, BREAK))
    code, text = floe("inspect", last, "--verify")
    assert code == 0 and "phase             b\n" in text, text
    assert "set               a  rests, without optimizer state\n" in text
    assert "set               b  trains, with optimizer state\n" in text

    from safetensors.numpy import load_file

    code, text = floe("export", last, tmp_path / "ema.safetensors", "--ema")
    assert code == 0, text
    averages = load_file(tmp_path / "ema.safetensors")
    expected = {name: value for (kind, name), value in dump.items() if kind == "ema"}
    assert averages.keys() == expected.keys()
    assert all(np.array_equal(averages[name], value) for name, value in expected.items())

    code, text = floe("diff", first, last)
    assert code == 1 and "layers.0." in text and "head.weight" in text, text
    assert floe("diff", last, last)[0] == 0
