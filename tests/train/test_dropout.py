"""Dropout of a run: every step and every rank drops out another part, and a resumed run what the unbroken one would.

Nothing else can change a loss here: every step of every rank has the same batch, and nothing is learned."""

import json
import shutil

import pytest
from running import GOLDENS
from safetensors.torch import load_file, save_file


@pytest.fixture
def config(golden, tmp_path):
    """With a share of 0.3 in the language model's own configuration."""
    made = golden("opt_x1")
    lm = tmp_path / "lm"
    shutil.copytree(GOLDENS / "opt_x1" / "lm", lm)
    settings = json.loads((lm / "config.json").read_text())
    (lm / "config.json").write_text(json.dumps({**settings, "dropout": 0.3}))
    first = {key.split(".", 1)[1]: value for key, value in load_file(made["data"]["batches"]).items() if key.startswith("step0.")}
    for rank in (0, 1):
        save_file({f"step{step}.{key}": value.clone() for step in range(6) for key, value in first.items()},
                  tmp_path / f"batches{rank}.safetensors")
    made["model"].update(lm=str(lm), dropout="config")
    made["data"]["batches"] = str(tmp_path / "batches{rank}.safetensors")
    made["train"].update(steps=6, schedule={"type": "constant", "warmup_steps": 0}, optimizer={"lr": 0.0})
    return made


def test_steps_and_ranks_drop_out_different_parts(train, config):
    alone, two = train(config).values("loss_mmc4"), train(config, ranks=2, name="two").values("loss_mmc4")
    assert len(set(alone)) == len(set(two)) == 6
    # Rank 0 drops out as before; the mean is another, so rank 1 does not.
    assert all(abs(ours - theirs) > 1e-4 for ours, theirs in zip(two, alone))
    # Without dropout all of them are the same.
    whole = train(config, "model.dropout=0", ranks=2, name="whole").values("loss_mmc4")
    assert whole == pytest.approx([whole[0]] * 6, rel=1e-6)


def test_a_resumed_run_drops_out_what_the_unbroken_one_would(train, config):
    straight = train(config, name="straight").values("loss_mmc4")
    train(config, "train.steps=3")
    assert train(config).values("loss_mmc4") == straight


def test_validation_drops_out_nothing(train, config):
    config["train"]["validation"] = {"every_steps": 3, "batches": config["data"]["batches"]}
    found = [[step["val_loss_mmc4"] for step in run.steps() if "val_loss_mmc4" in step]
             for run in (train(config), train(config, "model.dropout=0", name="whole"))]
    assert len(found[0]) == 2 and found[0] == found[1]
