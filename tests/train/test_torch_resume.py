"""Runs of other trainers that floe goes on with, weights and optimizer state, beside what these trainers made of the
same checkpoint: OpenFlamingo's train.py and Lightning's Trainer."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from phase_loop import EPS, language_model
from running import GOLDENS

LIGHTNING = GOLDENS.parent / "checkpoints" / "lightning_resume"


def test_goes_on_from_a_checkpoint_of_openflamingo(train, golden, tmp_path):
    """The second epoch of OpenFlamingo's own run, from the file that its train.py saved. Its first update after a resume
    runs with the rate of step 0, which is 0: moments move, weights do not. floe has no such fault; told to have it, it
    must make the same five steps."""
    folder = GOLDENS / "neox_x2-train"
    saved = folder / "checkpoint_0.pt"
    expected = json.loads((folder / "metrics.json").read_text())["resume_epoch1_from_checkpoint_0"]
    first = train(golden("neox_x2"), f"run.resume={saved}", "train.steps=6", "train.optimizer.lr=1e-30", name="of")
    assert "continuing after step 5 from" in first.stderr and "starts anew" not in first.stderr
    run = train(golden("neox_x2"), "train.steps=10", name="of")
    assert run.values("step") == [6, 7, 8, 9, 10]
    for ours, theirs in zip(run.steps(), expected["steps"], strict=True):
        assert ours["lr"] == pytest.approx(theirs["lr"][0], rel=1e-9, abs=1e-20)
        for name in ("loss_laion", "loss_mmc4"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-5)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm_before_clip"], rel=1e-4)
    weights = run.trained(tmp_path)
    for name, (norm, total) in expected["final_l2_and_sum"].items():
        found = weights[name].double()
        assert found.norm().item() == pytest.approx(norm, rel=1e-5), name
        assert found.sum().item() == pytest.approx(total, abs=1e-4), name
    # With the weights alone the steps are others: the moments count.
    words = ("train.schedule={type: constant, warmup_steps: 0}", "train.optimizer.lr=3e-4", "train.steps=3")
    alone = train(golden("neox_x2"), f"model.weights={saved}", *words, name="alone").values("loss_mmc4")
    both = train(golden("neox_x2"), f"run.resume={saved}", *words[:2], "train.steps=8", name="both").values("loss_mmc4")
    assert alone[0] == pytest.approx(both[0], rel=1e-6) and alone[2] != pytest.approx(both[2], rel=1e-4)


def lightning_config(tmp_path, batches, accumulate=1):
    language_model(tmp_path / "lm")
    return {
        "model": {"type": "causal_lm", "lm": str(tmp_path / "lm")},
        "data": {"batches": str(batches)},
        "train": {
            "steps": 8, "optimizer": {"lr": 2e-3, "decay": [], "eps": EPS}, "clip": {"norm": None},
            "schedule": {"type": "linear", "warmup_steps": 0}, "gradient_accumulation": accumulate,
        },
        "strategy": {"mixed_precision": {"param": "fp32"}},
        "log": {"every_steps": 1, "tensorboard": False, "wandb": None, "diagnostics": None},
    }


@pytest.mark.parametrize("saved, ranks", [("file.ckpt", 2), ("sharded.ckpt", 2), ("file.ckpt", 1)])
def test_goes_on_from_a_checkpoint_of_lightning(train, tmp_path, saved, ranks):
    """A LightningModule whose network is `self.model`, trained by two processes: one file of DDP, and a directory of FSDP2
    (ModelParallelStrategy). Lightning itself went on for four steps."""
    batches = LIGHTNING / "batches{rank}.safetensors"
    if ranks == 1:  # one rank takes the batches of both as one update
        both = {}
        for rank in (0, 1):
            for name, value in load_file(str(batches).format(rank=rank)).items():
                step, rest = name.split(".", 1)
                both[f"step{2 * int(step[4:]) + rank}.{rest}"] = value
        batches = tmp_path / "both.safetensors"
        save_file(both, batches)
    config = lightning_config(tmp_path, batches, accumulate=2 // ranks)
    run = train(config, f"run.resume={LIGHTNING / saved}", ranks=ranks)
    assert "continuing after step 4 from" in run.stderr and "starts anew" not in run.stderr
    assert run.values("step") == [5, 6, 7, 8]
    if ranks == 2:  # the loss of several batches of a rank is that of all their tokens
        losses = json.loads((LIGHTNING / "metrics.json").read_text())["losses"]
        assert run.values("loss_text") == pytest.approx(losses, rel=2e-6)
    weights, expected = run.trained(tmp_path), load_file(LIGHTNING / "final.safetensors")
    assert weights.keys() == expected.keys()
    began = dict(language_model(tmp_path / "again").named_parameters())
    for name, value in expected.items():
        assert (weights[name] - value).abs().max().item() <= 1e-6, name
    assert max((began[name] - value).abs().max().item() for name, value in expected.items()) > 2e-3


@pytest.mark.parametrize("what, said", [
    ("weights", "'lm_head.weight' has shape [70, 24], the model's has [64, 24]"),
    ("two optimizers", "are both the state of 'model.embed_tokens.weight'"),
    ("groups", "the optimizer's state is numbered over groups of 2, 19 parameters, but those of this run have 21"),
], ids=["weights", "two optimizers", "groups"])
def test_what_does_not_fit_is_said(train, tmp_path, what, said):
    state = torch.load(LIGHTNING / "file.ckpt", weights_only=False)
    if what == "weights":
        weights = state["state_dict"]
        weights["model.lm_head.weight"] = torch.cat([weights["model.lm_head.weight"], torch.ones(6, 24)])
    elif what == "groups":
        group = state["optimizer_states"][0]["param_groups"][0]
        state["optimizer_states"][0]["param_groups"] = [group | {"params": list(range(2))},
                                                        group | {"params": list(range(2, 21))}]
    else:
        state["optimizer_states"] *= 2
    torch.save(state, tmp_path / "changed.ckpt")
    run = train(lightning_config(tmp_path, LIGHTNING / "batches0.safetensors"), f"run.resume={tmp_path / 'changed.ckpt'}",
                expect=1)
    assert said in run.stderr, run.stderr
    assert not (run.folder / "metrics.jsonl").exists() or not run.steps()
