"""Checkpoints that a floe of before wrote are gone on from as if it had gone on itself."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from running import GOLDENS
from small_data import pairs_config

OLDER = GOLDENS.parent / "checkpoints" / "floe_2026-11-17"
LAION = GOLDENS.parent / "data" / "corpus" / "laion"


def configuration():
    """That of the run that wrote the checkpoint, in its step 3 of 6."""
    return pairs_config(
        "pipe:cat laion/{000000..000004}.tar", steps=6, cycle_phases=True, optimizer={"lr": 3e-3}, ema={"decay": 0.9},
    ) | {
        "phases": [
            {"name": "b", "train": ["*.gated_cross_attn_layer.*"], "steps": 2, "lr": 3e-3, "optimizer_state": "keep"},
            {"name": "a", "train": ["perceiver.*"], "steps": 2, "lr": 5e-3, "optimizer_state": "offload"},
        ],
    }


@pytest.fixture(autouse=True)
def shards_beside(tmp_path, monkeypatch):
    """A run goes on with shards of the same names only, wherever they are."""
    (tmp_path / "laion").symlink_to(LAION)
    monkeypatch.chdir(tmp_path)


def check_weights(run, tmp_path, bound):
    expected = load_file(OLDER / "final.safetensors")
    found = {"weights": run.trained(tmp_path), "averages": run.trained(tmp_path, "--ema")}
    for name, value in expected.items():
        kind, parameter = name.split(".", 1)
        assert (found[kind][parameter] - value).abs().max().item() <= bound, name
    before = load_file(OLDER / "final.safetensors")["weights.perceiver.latents"]
    return (found["averages"]["perceiver.latents"] - before).abs().max().item()


@pytest.mark.parametrize("strategy", ["full_shard", "shard_grad_op"])
def test_goes_on_where_it_was(train, tmp_path, strategy):
    """Slices were not multiples of 128 bytes then, states of ranks lay in floe.json, and files had no checksums of their
    parts. Weights, averages, the optimizers of both phases and the position in the shards are what that version itself
    went on with: a moment that is lost changes a weight by about the rate, 3e-3."""
    saved = tmp_path / "runs" / "run" / "checkpoints" / "step_3"
    shutil.copytree(OLDER / "step_3", saved)
    run = train(configuration(), f"strategy={strategy}", ranks=3)
    assert "continuing after step 3 from" in run.stderr and "starts anew" not in run.stderr
    expected = json.loads((OLDER / "metrics.json").read_text())["steps"]
    assert run.values("step") == [4, 5, 6]
    for ours, theirs in zip(run.steps(), expected, strict=True):
        assert ours["lr"] == pytest.approx(theirs["lr"], rel=1e-9)
        assert ours["loss_laion"] == pytest.approx(theirs["loss_laion"], rel=1e-6)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)
    averages_apart = check_weights(run, tmp_path, bound=1e-5)
    assert averages_apart > 1e-4, "averages and weights are the same, so that nothing was compared"


def read_with_torch(folder, tmp_path):
    """Every tensor of a directory, by its flat name."""
    dcp_to_torch_save(folder, tmp_path / "whole.pt")

    def flat(value, name):
        if isinstance(value, torch.Tensor):
            return {name: value}
        items = value.items() if isinstance(value, dict) else ()
        return {key: found for part, inner in items for key, found in flat(inner, f"{name}{part}.").items()}

    return flat(torch.load(tmp_path / "whole.pt", weights_only=False), "")


@pytest.mark.parametrize(
    "ranks, strategy", [(1, "full_shard"), (2, "full_shard"), (2, "no_shard"), (4, "hybrid")]
)
def test_any_number_of_ranks_reads_it(train, tmp_path, ranks, strategy):
    """A step without a rate leaves all weights as they were saved, and the optimizer of the phase that rests as well."""
    saved = read_with_torch(OLDER / "step_3", tmp_path)
    phases = [phase | {"lr": 1e-30} for phase in configuration()["phases"]]
    run = train(
        configuration() | {"phases": phases}, f"strategy={strategy}", "++strategy.hybrid_shard_size=2",
        f"run.resume={OLDER / 'step_3'}", "train.steps=4", ranks=ranks,
    )
    assert "continuing after step 3 from" in run.stderr and "starts anew" not in run.stderr
    found = read_with_torch(run.folder / "checkpoints" / "step_4", tmp_path)
    assert found.keys() == saved.keys()
    compared = [name for name in saved if name.startswith(("model.", "optimizers.b."))]
    assert len(compared) > 100
    for name in compared:
        assert found[name].equal(saved[name]), name
    moments = [name for name in saved if name.startswith("optimizers.a.") and name.endswith("exp_avg.")]
    assert any(not found[name].equal(saved[name]) for name in moments), "no step was made"
