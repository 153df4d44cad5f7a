"""Frozen matrices in 8 bits through `floe train`: close to the goldens, the same on any number of ranks and
under any strategy, and resumed like any other run."""

import json
import shutil
import subprocess

import pytest
import torch
from running import FLOE, environment
from safetensors.torch import load_file, save_file

KEYS = ("loss_laion", "loss_mmc4", "grad_norm")


def losses(run):
    return [[step[key] for key in KEYS] for step in run.steps()]


MATRICES = ("query_key_value.weight", "dense.weight", "dense_h_to_4h.weight", "dense_4h_to_h.weight",
            "in_proj_weight", "out_proj.weight", "c_fc.weight", "c_proj.weight")


def rounded(value, dtype):
    """By hand: one scale per row, a row's largest magnitude becomes the largest code."""
    value = value.float()
    most = 127 if dtype == "int8" else 448
    scale = (value.abs().amax(1, keepdim=True) / most).clamp_min(torch.finfo(torch.float32).tiny)
    codes = (value / scale).round() if dtype == "int8" else (value / scale).to(torch.float8_e4m3fn).float()
    return codes * scale


def with_rounded_files(config, dtype, folder):
    """The same model whose files have the rounded matrices."""
    for key, file in (("lm", "model.safetensors"), ("vision", "open_clip_visual.safetensors")):
        copy = folder / f"{key}_{dtype}"
        shutil.copytree(config["model"][key], copy)
        tensors = load_file(copy / file)
        wanted = [name for name in tensors if name.endswith(MATRICES)]
        assert wanted
        save_file({name: rounded(value, dtype) if name in wanted else value for name, value in tensors.items()}, copy / file)
        config["model"][key] = str(copy)
    return config


@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_every_strategy_and_number_of_ranks_computes_with_the_rounded_weights(train, golden, tmp_path, dtype):
    """Ranks have different batches. Reference: fp32 with files that were rounded by hand."""
    exact = losses(train(golden("neox_x2", world2=True), name="exact", ranks=2))
    by_hand = losses(train(with_rounded_files(golden("neox_x2", world2=True), dtype, tmp_path), name="hand", ranks=2))
    ways = [
        (2, "strategy=full_shard"), (4, "strategy=shard_grad_op"), (2, "strategy=no_shard"), (2, "strategy=cpu_offload"),
        (2, "strategy.frozen.residency=resident"), (4, "strategy=hybrid strategy.hybrid_shard_size=2"),
    ]
    apart = max(abs(a / b - 1) for ours, theirs in zip(by_hand, exact) for a, b in zip(ours, theirs))
    configs = {ranks: golden("neox_x2", world2=True, ranks=ranks) for ranks in (2, 4)}
    for i, (ranks, way) in enumerate(ways):
        run = train(configs[ranks], *way.split(), f"strategy.frozen.dtype={dtype}", ranks=ranks, name=f"way{i}")
        for step, expected in zip(losses(run), by_hand, strict=True):
            assert step == pytest.approx(expected, rel=1e-5), way
    assert apart > 100 * 1e-5, "8 bits must show"


def test_a_run_in_two_parts_equals_one_in_one_part(train, golden):
    config = golden("opt_x1", ranks=2)
    words = ("strategy.frozen.dtype=fp8", "checkpoint.every_steps=2", "checkpoint.keep=null")
    whole = train(config, *words, name="whole", ranks=2)
    first = train(config, *words, name="parts", ranks=2)
    for step in (4, 5):
        shutil.rmtree(first.folder / "checkpoints" / f"step_{step}")
    again = train(config, *words, name="parts", ranks=2)
    assert "step_2" in again.stderr
    assert losses(again) == losses(whole)


def test_a_full_checkpoint_of_another_run_can_be_gone_on_from(train, golden, tmp_path):
    """Its frozen matrices are stored in 8 bits then, as those of the files would be."""
    full = train(golden("neox_x2"), "checkpoint.content=full", "checkpoint.every_steps=2", "checkpoint.keep=null",
                 name="full")
    path = full.folder / "checkpoints" / "step_2"
    eight = ("strategy.frozen.dtype=int8", f"run.resume={path}")
    runs = [
        train(golden("neox_x2", ranks=ranks, same=True), *eight, ranks=ranks, name=f"eight{ranks}") for ranks in (1, 3)
    ]
    assert runs[0].values("step") == [3, 4, 5]
    for one, other, plain in zip(losses(runs[0]), losses(runs[1]), losses(full)[2:]):
        assert one == pytest.approx(other, rel=1e-5)
        assert one[:2] == pytest.approx(plain[:2], rel=0.01)


def test_the_plan_knows_what_is_held_and_moved(write, golden):
    def plan(*words):
        done = subprocess.run(
            [FLOE, "plan", write(golden("neox_x2")), "world=2", *words, "--json"], capture_output=True, text=True,
            env=environment(),
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    plain, eight = plan(), plan("strategy.frozen.dtype=int8")
    of_matrices = [group for group in eight["groups"] if group["storage_dtype"] == "int8"]
    assert of_matrices and all(group["name"].endswith("frozen int8") for group in of_matrices)
    assert all(group["moved_bytes"] == 2 * group["shard_bytes"] for group in of_matrices)
    assert eight["moves"]["all_gathered_bytes"] < 0.7 * plain["moves"]["all_gathered_bytes"]
    assert eight["holds"]["frozen_shard_bytes"] < 0.7 * plain["holds"]["frozen_shard_bytes"]
