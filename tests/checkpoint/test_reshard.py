"""A run that is saved and continued at another world size and strategy has the losses of one that was
never broken."""

import itertools

import pytest
import runs

STEPS, BREAK = 8, 4
STRATEGIES = {
    1: ["full_shard", "no_shard"],
    2: ["full_shard", "no_shard", "hybrid"],
    3: ["full_shard", "shard_grad_op"],
    4: ["full_shard", "no_shard", "hybrid"],
}
WAYS = [(world, strategy) for world in STRATEGIES for strategy in STRATEGIES[world]]


def hybrid_size(world):
    return 2 if world == 4 else 1


def arguments(way, **more):
    world, strategy = way
    return dict(world=world, strategy=strategy, hybrid=hybrid_size(world), **more)


def expect_same(losses, reference):
    assert losses.keys() <= reference.keys()
    for step, loss in losses.items():
        assert abs(loss - reference[step]) <= 1e-6 * reference[step], step


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The losses without a break, by what changes them."""
    folder, known = tmp_path_factory.mktemp("unbroken"), {}

    def losses(**kind):
        key = tuple(sorted(kind.items()))
        if key not in known:
            known[key] = runs.run(1, run=folder / str(len(known)), steps=STEPS, **kind).losses
        return known[key]

    return losses


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run that ended after its save, by the way it was sharded."""
    known = {}

    def folder(way):
        if way not in known:
            known[way] = tmp_path_factory.mktemp("saved")
            runs.run(run=known[way], steps=BREAK, save_every=BREAK, ema=0.9, **arguments(way))
        return known[way]

    return folder


def pairs():
    """A part of all pairs in each test run, every way in it on both sides; all of them in the long one."""
    for (i, before), (j, after) in itertools.product(enumerate(WAYS), enumerate(WAYS)):
        marks = [] if (i + j) % 6 == 0 else [pytest.mark.long]
        yield pytest.param(before, after, marks=marks)


@pytest.mark.parametrize("before, after", list(pairs()))
def test_any_world_and_strategy_to_any_other(before, after, saved, unbroken, tmp_path):
    again = runs.run(run=tmp_path, steps=STEPS, ema=0.9, resume=saved(before), **arguments(after))
    assert again.resumed["resumed"] == BREAK
    assert again.resumed["optimizer"]
    assert [rank["rank"] for rank in again.resumed["ranks"]] == list(range(before[0]))
    assert sorted(again.losses) == list(range(BREAK + 1, STEPS + 1))
    expect_same(again.losses, unbroken())


@pytest.mark.parametrize("kind", [
    dict(tied=1), dict(trainable="*.adapter.*"), dict(optimizer="sgd"), dict(units="Linear"),
    dict(tied=1, content="full"), dict(trainable="*.adapter.*", content="full"),
    dict(layout="full"), dict(layout="trainable"), dict(layout="full", tied=1),
    dict(trainable="*.adapter.*", layout="trainable"), {"async": 1}, {"async": 1, "layout": "full"},
])
def test_other_runs(kind, unbroken, tmp_path):
    model = {key: kind[key] for key in ("tied", "trainable", "optimizer", "units") if key in kind}
    runs.run(2, run=tmp_path, steps=BREAK, save_every=2, **kind)
    again = runs.run(3, run=tmp_path, steps=STEPS, **kind)
    assert again.resumed["resumed"] == BREAK
    expect_same(again.losses, unbroken(**model))


def test_the_same_way_is_exact(tmp_path):
    """Same world size and strategy: bit for bit, averages and counts included."""
    whole = runs.run(2, run=tmp_path / "whole", steps=STEPS, ema=0.9, dump=tmp_path / "whole_end")
    runs.run(2, run=tmp_path / "broken", steps=BREAK, save_every=BREAK, ema=0.9)
    again = runs.run(2, run=tmp_path / "broken", steps=STEPS, ema=0.9, dump=tmp_path / "broken_end")
    assert again.losses == {s: loss for s, loss in whole.losses.items() if s > BREAK}
    a, b = (runs.read_dump(tmp_path / name, 2) for name in ("whole_end", "broken_end"))
    assert a.keys() == b.keys() and len(a) > 100
    for key in a:
        assert (a[key] == b[key]).all() if key[0] != "step" else a[key] == b[key], key


def test_hybrid_to_other_to_hybrid(unbroken, tmp_path):
    ways = [(4, "hybrid"), (3, "full_shard"), (2, "no_shard"), (4, "hybrid")]
    for turn, way in enumerate(ways):
        again = runs.run(run=tmp_path, steps=2 * (turn + 1), save_every=2, **arguments(way))
        expect_same(again.losses, unbroken())
    assert again.resumed["resumed"] == 6


def test_frozen_slices_inside_a_node_and_back(unbroken, tmp_path):
    """Frozen parameters are saved too, by whoever holds them: two copies, or one over all ranks."""
    kind = dict(trainable="*.adapter.*", content="full")
    for turn, (world, frozen) in enumerate([(4, "node"), (3, "all"), (4, "node"), (2, "node")]):
        again = runs.run(world, run=tmp_path, steps=2 * (turn + 1), save_every=2, frozen_sharding=frozen,
                         hybrid=2 if world % 2 == 0 else 1, **kind)
        expect_same(again.losses, unbroken(trainable="*.adapter.*"))
    assert again.resumed["resumed"] == 6


def test_the_memory_of_the_first_save_is_there_before_it(tmp_path):
    """Made beside the training, as large as saves need it; direct saves need none."""
    run = runs.run(2, run=tmp_path / "behind", steps=4, save_every=4, ema=0.9, prepare=1, **{"async": 1})
    prepared = next(line["prepared_bytes"] for line in run.lines if "prepared_bytes" in line)
    assert prepared == run.lines[-1]["host_bytes"] > 0
    assert runs.run(2, run=tmp_path / "behind", steps=5, ema=0.9).resumed["resumed"] == 4
    direct = runs.run(2, run=tmp_path / "direct", steps=4, save_every=4, prepare=1)
    assert direct.lines[-1]["host_bytes"] == 0


def test_mixed_precision_keeps_its_masters(unbroken, tmp_path):
    whole = runs.run(2, run=tmp_path / "whole", steps=STEPS, mixed=1)
    runs.run(2, run=tmp_path / "broken", steps=BREAK, save_every=BREAK, mixed=1, content="full")
    again = runs.run(2, run=tmp_path / "broken", steps=STEPS, mixed=1, content="full")
    assert again.losses == {s: loss for s, loss in whole.losses.items() if s > BREAK}


def test_each_rank_writes_an_equal_part(tmp_path):
    for world, strategy in [(4, "no_shard"), (4, "hybrid"), (3, "full_shard")]:
        folder = tmp_path / strategy
        runs.run(run=folder, steps=1, save_every=1, dim=96, **arguments((world, strategy)))
        sizes = [path.stat().st_size for path in (folder / "checkpoints/step_1").glob("*.distcp")]
        assert len(sizes) == world
        assert max(sizes) < 1.35 * min(sizes), sizes


def test_another_model_is_refused(tmp_path):
    runs.run(2, run=tmp_path, steps=1, save_every=1)
    other = runs.run(2, run=tmp_path, steps=2, dim=48, expect=1)
    assert "is of another model" in other.log and "run.resume" in other.log


def test_another_frozen_base_is_refused(tmp_path):
    runs.run(2, run=tmp_path, steps=1, save_every=1, trainable="*.adapter.*", base="aaa")
    other = runs.run(2, run=tmp_path, steps=2, trainable="*.adapter.*", base="bbb", expect=1)
    assert "'base' (digest aaa)" in other.log and "bbb" in other.log
    assert runs.run(2, run=tmp_path, steps=2, trainable="*.adapter.*", base="aaa").resumed["resumed"] == 1


def test_more_that_trains_than_was_saved_is_refused(tmp_path):
    runs.run(2, run=tmp_path, steps=1, save_every=1, trainable="*.adapter.*")
    more = runs.run(2, run=tmp_path, steps=2, trainable="layers.0.*", expect=1)
    assert "'layers.0.norm1.weight' is missing" in more.log


def test_never_starts_anew(tmp_path):
    first = runs.run(2, run=tmp_path, steps=2, save_every=2)
    again = runs.run(2, run=tmp_path, steps=2, resume="never")
    assert again.resumed is None and again.losses == first.losses
