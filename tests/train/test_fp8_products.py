"""strategy.frozen.compute: fp8 through `floe train` on the CPU, where products in 8 bits are emulated: close to bf16,
what plain torch computes, the same on any number of ranks and under any strategy, resumed like any other run, and planned
for."""

import json
import math
import shutil
import subprocess
from fnmatch import fnmatchcase

import llama_twin
import pytest
import torch
from running import FLOE, environment

KEYS = ("loss_laion", "loss_mmc4", "grad_norm")
BF16 = ("strategy.mixed_precision.param=bf16",)
FP8 = (*BF16, "strategy.frozen.compute=fp8")


def losses(run):
    return [[step[key] for key in KEYS] for step in run.steps()]


def test_every_strategy_and_number_of_ranks_computes_the_same(train, golden):
    bf16 = losses(train(golden("neox_x2", same=True), *BF16, name="bf16"))
    one = train(golden("neox_x2", same=True), *FP8, name="one")
    assert "emulated on the CPU" in one.stderr
    for ours, theirs in zip(losses(one), bf16, strict=True):
        assert ours[:2] == pytest.approx(theirs[:2], rel=0.02) and ours[:2] != theirs[:2]
    ways = [
        (2, "strategy=full_shard"), (3, "strategy=shard_grad_op"), (2, "strategy.frozen.residency=resident"),
        (2, "strategy=cpu_offload"),
        (1, "strategy.activation_checkpointing=[DecoderLayer] strategy.activations.keep=products"),
    ]
    for i, (ranks, way) in enumerate(ways):
        run = train(golden("neox_x2", ranks=ranks, same=True), *way.split(), *FP8, ranks=ranks, name=f"way{i}")
        # bf16 gradients of the same numbers are summed in another order.
        for step, expected in zip(losses(run), losses(one), strict=True):
            assert step == pytest.approx(expected, rel=5e-3), way


def test_a_run_in_two_parts_equals_one_in_one_part(train, golden):
    config = golden("opt_x1", ranks=2)
    words = (*FP8, "checkpoint.every_steps=2", "checkpoint.keep=null")
    whole = train(config, *words, name="whole", ranks=2)
    first = train(config, *words, name="parts", ranks=2)
    for step in (4, 5):
        shutil.rmtree(first.folder / "checkpoints" / f"step_{step}")
    again = train(config, *words, name="parts", ranks=2)
    assert losses(again) == losses(whole)


def test_the_plan_knows_what_is_held_and_moved(write, golden):
    def plan(*words):
        done = subprocess.run(
            [FLOE, "plan", write(golden("neox_x2")), "world=2", *BF16, *words, "--json"], capture_output=True, text=True,
            env=environment(),
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    stored, products = plan("strategy.frozen.dtype=fp8"), plan("strategy.frozen.compute=fp8")
    groups = [group for group in products["groups"] if group["name"].endswith(" fp8 products")]
    assert groups
    for group in groups:
        assert group["storage_dtype"] == "fp8" and group["moved_bytes"] == 2 * group["shard_bytes"]
        copies = 2 if group["needed_in_backward"] else 1
        assert copies * group["numel"] < group["gathered_bytes"] < copies * group["numel"] * 1.3
    assert {group["needed_in_backward"] for group in groups} == {True, False}, "decoder and image tower"
    assert products["moves"]["all_gathered_bytes"] == stored["moves"]["all_gathered_bytes"]


@pytest.fixture
def small_llama(tmp_path):
    """The twin's model as a configuration for so many ranks; every rank has other data, or (`same`) all have the same.
    With its weights and the batches by rank."""

    def make(ranks=1, steps=8, same=False, **train):
        weights = llama_twin.write_model(tmp_path / "lm")
        path = tmp_path / "batches{rank}.safetensors"
        batches = llama_twin.write_batches(path, steps, ranks)
        for rank in range(1, ranks if same else 0):
            shutil.copy(str(path).format(rank=0), str(path).format(rank=rank))
        config = {
            "model": {"type": "causal_lm", "lm": str(tmp_path / "lm")},
            "data": {"batches": str(path)},
            "train": {"steps": steps, "trainable": llama_twin.PATTERNS, "clip": {"norm": None},
                      "optimizer": {"lr": llama_twin.LR, "eps": llama_twin.EPS, "decay": []},
                      "schedule": {"warmup_steps": 0}, **train},
            "log": {"every_steps": 1, "tensorboard": False, "wandb": None, "diagnostics": {"batches": 1}},
        }
        return config, weights, batches

    return make


def curve(run):
    return [run.values("loss_text"), run.values("grad_norm")]


def apart(ours, theirs):
    """The root of the mean square of relative differences, of losses and of norms."""
    return [math.sqrt(sum((a / b - 1) ** 2 for a, b in zip(x, y, strict=True)) / len(y)) for x, y in zip(ours, theirs)]


def units_of(run):
    units = json.loads((run.folder / "diagnostics.json").read_text())["units"]
    return [group["name"] for unit in units for group in unit["groups"]]


def plan_of(write, config, *words):
    done = subprocess.run(
        [FLOE, "plan", write(config), *words, "--json"], capture_output=True, text=True, env=environment(),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_as_far_from_exact_as_products_of_plain_torch(train, small_llama, tmp_path):
    """The twin makes codes of the files' weights and of rows by itself, and shares no product with floe. One rounding to bf16
    that falls otherwise makes other codes, those make more of them in the layers behind, and in the end errors of activations
    have nothing in common but their size: the twin in bf16 is as far from itself in fp32 as floe is from it. So what is
    compared is how far weights move away from where fp32, weights in 8 bits alone, and the twin bring them."""
    torch.set_num_threads(1)
    config, weights, batches = small_llama(ranks=2, steps=2)
    run = train(config, *FP8, ranks=2)
    assert sum(name.endswith(" fp8 products") for name in units_of(run)) == llama_twin.LAYERS
    found = run.trained(tmp_path)
    names = sorted(filter(llama_twin.trains, weights))

    def moved(ends):
        return torch.cat([(ends[name].float() - weights[name]).flatten() for name in names])

    def twin(**how):
        return moved(llama_twin.train(weights, batches, len(batches[0]), "cpu", **how).weights)

    low = {"dtype": torch.bfloat16}
    exact, stored, bf16 = twin(), twin(storage="fp8", **low), twin(**low)
    ours, theirs, in_fp32 = moved(found), twin(products=True, **low), twin(products=True)

    def far(one, other):
        return (one - other).norm().item()

    for reference in (exact, stored, bf16):
        assert far(ours, reference) == pytest.approx(far(theirs, reference), rel=0.08)
    assert far(ours, theirs) == pytest.approx(far(theirs, in_fp32), rel=0.08)
    # What is not multiplied in 8 bits would be found.
    for wrong in (stored, bf16):
        assert far(wrong, exact) < 0.88 * far(theirs, exact)


def test_adapters_beside_products(train, small_llama, write, tmp_path):
    config, _, _ = small_llama(ranks=2, steps=6, same=True, trainable=None)
    config["model"]["lora"] = {"targets": ["*.q_proj", "*.down_proj"], "rank": 4, "alpha": 8}
    one, bf16 = train(config, *FP8, name="one"), train(config, *BF16, name="bf16")
    assert min(apart(curve(one), curve(bf16))) > 1e-4, "8 bits must show"
    for i, words in enumerate(((), ("strategy=shard_grad_op",))):
        two = train(config, *FP8, *words, ranks=2, name=f"two{i}")
        assert max(apart(curve(two), curve(one))) < 1e-3, words
    groups = plan_of(write, config, "world=2", *FP8)["groups"]
    multiplied = {name for group in groups if group["name"].endswith(" fp8 products") for name in group["parameters"]}
    trained = {name for group in groups if group["trainable"] for name in group["parameters"]}
    assert len(multiplied) == 7 * llama_twin.LAYERS, "every matrix of a layer, those with adapters too"
    assert len(trained) == 2 * 2 * llama_twin.LAYERS and all("lora" in name for name in trained)


def test_another_number_of_ranks_and_another_strategy_go_on(train, golden, tmp_path):
    configs = {ranks: golden("neox_x2", ranks=ranks, same=True) for ranks in (1, 2, 3)}
    words = (*FP8, "checkpoint.every_steps=1", "checkpoint.keep=null")

    def weights(run, step):
        values = run.trained(tmp_path, step=f"step_{step}")
        return torch.cat([values[name].float().flatten() for name in sorted(values)])

    whole = train(configs[2], *words, name="whole", ranks=2)
    middle = f"run.resume={whole.folder / 'checkpoints' / 'step_2'}"
    first, second = weights(whole, 2), weights(whole, 3)
    for ranks, way in ((3, "strategy=shard_grad_op"), (1, "strategy=full_shard"), (2, "strategy=no_shard")):
        again = train(configs[ranks], *words, middle, *way.split(), ranks=ranks, name=f"on{ranks}")
        ours, theirs = losses(again), losses(whole)[2:]
        # The same codes, masters, moments and batch; gradients are summed in another order.
        assert ours[0][:2] == pytest.approx(theirs[0][:2], rel=1e-6), way
        assert (weights(again, 3) - second).norm() < 1e-4 * (second - first).norm(), way
        for step, expected in zip(ours, theirs, strict=True):
            assert step == pytest.approx(expected, rel=5e-3), way


def test_what_any_phase_trains_is_never_stored_in_8_bits(train, small_llama, write):
    config, _, _ = small_llama(ranks=2, cycle_phases=True)
    del config["train"]["trainable"]
    phases = {"first": ["*.layers.0.mlp.*"], "second": ["*.layers.1.self_attn.q_proj.*", "*norm*"]}
    config["phases"] = [{"name": name, "train": patterns, "steps": 2} for name, patterns in phases.items()]
    plan = plan_of(write, config, "world=2", *FP8)
    seen = set()
    for group in plan["groups"]:
        for name in group["parameters"]:
            trains = any(fnmatchcase(name, pattern) for patterns in phases.values() for pattern in patterns)
            matrix = "_proj." in name
            kind = "fp32" if trains else "fp8" if matrix else "bf16"
            assert (group["storage_dtype"], group["trainable"]) == (kind, trains), name
            assert group["name"].endswith(" fp8 products") == (matrix and not trains), name
            seen.add((kind, matrix))
    assert seen == {("fp32", True), ("fp32", False), ("fp8", True), ("bf16", False)}
    run = train(config, *FP8, ranks=2)
    assert sorted(units_of(run)) == sorted(group["name"] for group in plan["groups"])
    assert run.switches() == [(2, "first", "second"), (4, "second", "first"), (6, "first", "second")]
    assert all(math.isfinite(value) for values in curve(run) for value in values)


UPPER = ["*.layers.2.*", "lm_head.*"]
LOWER = ["*.layers.0.mlp.*", "*.layers.1.*norm*"]


def in_turn(config, state="offload"):
    """Two sets, two steps each; layer 1's matrices never train."""
    config["train"] = config["train"] | {"trainable": None, "cycle_phases": True}
    config["phases"] = [{"name": name, "train": patterns, "steps": 2, "optimizer_state": state}
                        for name, patterns in (("upper", UPPER), ("lower", LOWER))]
    return config


def test_what_rests_is_multiplied_in_8_bits(train, small_llama, write, tmp_path):
    """Both sets move away from where fp32 and bf16 bring them as far as the twin's do, which freezes by hand, has an
    optimizer for each, and makes codes of what rests anew in every step."""
    torch.set_num_threads(1)
    config, weights, batches = small_llama(ranks=2, steps=4)
    run = train(in_turn(config), *FP8, ranks=2)
    assert run.switches() == [(2, "upper", "lower")]
    kept = train(in_turn(config, "keep"), *FP8, ranks=2, name="kept")
    sets = [lambda name, patterns=patterns: any(fnmatchcase(name, pattern) for pattern in patterns)
            for patterns in (UPPER, LOWER)]

    def moved(ends, in_set):
        return torch.cat([(ends[name].float() - weights[name]).flatten() for name in sorted(weights) if in_set(name)])

    def twin(**how):
        return llama_twin.train(weights, batches, 4, "cpu", sets=sets, turn=2, **how).weights

    low = {"dtype": torch.bfloat16}
    exact, bf16, theirs, in_fp32 = twin(), twin(**low), twin(products=True, **low), twin(products=True)
    ours, without = run.trained(tmp_path), kept.trained(tmp_path)
    for in_set in sets:
        def far(one, other):
            return (moved(one, in_set) - moved(other, in_set)).norm().item()

        for reference in (exact, bf16):
            assert far(ours, reference) == pytest.approx(far(theirs, reference), rel=0.03)
        assert far(ours, theirs) == pytest.approx(far(theirs, in_fp32), rel=0.08)
        # With `keep` only what no phase trains is multiplied in 8 bits.
        assert far(without, exact) < 0.94 * far(theirs, exact)
    plans = [plan_of(write, in_turn(config, state), "world=2", *FP8)["phases"] for state in ("offload", "drop")]
    for offload, drop in zip(*plans, strict=True):
        assert offload["moves"]["all_gathered_bytes"] < 0.9 * drop["moves"]["all_gathered_bytes"]
    text = subprocess.run([FLOE, "plan", write(in_turn(config)), "world=2", *FP8], capture_output=True, text=True,
                          env=environment()).stdout
    assert text.count("fp32→bf16, rests fp8 ") == 2
    assert "A switch of phases moves 8 bytes of each rank for every group that rests in 8 bits, and no parameter." in text


def test_runs_whose_sets_rest_in_8_bits_are_resumed(train, small_llama):
    config, _, _ = small_llama(ranks=3, steps=7, same=True, ema={"decay": 0.5})
    words = (*FP8, "checkpoint.every_steps=1", "checkpoint.keep=null")
    whole = train(in_turn(config), *words, ranks=2, name="whole")
    for step in (1, 2, 3, 4):  # in a turn and at its end, of either set
        saved = f"run.resume={whole.folder / 'checkpoints' / f'step_{step}'}"
        again = train(config, *words, saved, ranks=2, name=f"from{step}")
        assert curve(again) == [values[step:] for values in curve(whole)], step
        for ranks, way in ((1, "full_shard"), (3, "shard_grad_op"), (2, "no_shard")):
            other = train(config, *words, saved, f"strategy={way}", "train.steps=7", ranks=ranks, name=f"from{step}{way}")
            expected = [values[step:] for values in curve(whole)]
            assert max(apart(curve(other), expected)) < 5e-3, (step, way)


def test_autocast_is_refused(train, golden):
    run = train(golden("neox_x2"), *FP8, "precision.autocast=bf16", expect=2)
    assert "strategy.frozen.compute is fp8, which autocast knows nothing of" in run.stderr
