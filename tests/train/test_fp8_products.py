"""strategy.frozen.compute: fp8 through `floe train` on the CPU, where products in 8 bits are emulated: close to bf16,
the same on any number of ranks and under any strategy, resumed like any other run, and planned for."""

import json
import shutil
import subprocess

import pytest
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


def test_autocast_is_refused(train, golden):
    run = train(golden("neox_x2"), *FP8, "precision.autocast=bf16", expect=2)
    assert "strategy.frozen.compute is fp8, which autocast knows nothing of" in run.stderr
