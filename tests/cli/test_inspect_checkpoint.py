"""`floe inspect` of checkpoints."""

import json
import pathlib
import shutil
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from checkpoints import GOLDENS, save_dcp

LIGHTNING = GOLDENS / "checkpoints/lightning_world2/lightning.ckpt"
FSDP2 = GOLDENS / "checkpoints/dcp_fsdp2_world2"


@pytest.fixture
def inspect(floe):
    def run(*words):
        done = floe("inspect", *map(str, words), "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_directory(inspect):
    found = inspect(FSDP2 / "dcp", "--verify")
    facts = found["checkpoint"]
    assert found["num_tensors"] == 153
    assert facts["format"] == "torch.distributed.checkpoint" and facts["ranks_with_files"] == 2
    assert facts["files"] == {name: (FSDP2 / "dcp" / name).stat().st_size for name in ("__0_0.distcp", "__1_0.distcp")}
    expected = json.loads((FSDP2 / "expected_objects.json").read_text())
    assert facts["objects"]["optimizer.param_groups.0.params"] == expected["param_groups"][0]["params"]
    assert facts["objects"]["optimizer.param_groups.0.betas"] == [0.9, 0.999]
    for part in ("model", "optimizer"):
        names = [name for name in found["tensors"] if name.startswith(part + ".")]
        assert facts["parts"][part]["num_tensors"] == len(names) > 70
    assert facts["health"].startswith("complete, every tensor could be read")


def test_lightning(inspect, floe):
    facts = inspect(LIGHTNING)["checkpoint"]
    assert (facts["written_by"], facts["step"], facts["epoch"]) == ("Lightning", 2, 1)
    text = floe("inspect", LIGHTNING).stdout
    assert "state_dict.net.perceiver.latents" in text and "health" in text and "__1_0.distcp" in text


def test_file(inspect):
    facts = inspect(GOLDENS / "models/neox_x2-train/checkpoint_0.pt")["checkpoint"]
    assert facts["format"] == "torch.save" and facts["epoch"] == 0
    assert set(facts["parts"]) == {"model_state_dict", "optimizer_state_dict"}


def test_run_folder(inspect, floe, tmp_path):
    for step in (5, 12):
        save_dcp({"model": {"w": torch.full((2,), step)}}, tmp_path / f"run/checkpoints/step_{step}")
    found = inspect(tmp_path / "run")
    assert found["path"].endswith("step_12") and found["run"]["checkpoints"] == ["step_12", "step_5"]
    assert "step" not in found["run"]  # there are only checkpoints

    (tmp_path / "run/config.yaml").write_text("train: {steps: 20}\n")
    lines = [{"step": step, "loss_text": 4 / step} for step in range(1, 13)]
    (tmp_path / "run/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = inspect(tmp_path / "run")["run"]
    assert (run["step"], run["planned_steps"], run["metrics"]) == (12, 20, {"loss_text": 4 / 12})
    text = floe("inspect", tmp_path / "run").stdout
    for part in ("planned steps     20", "step_5", "step_12: 1 tensors", "health            complete"):
        assert part in text, text
    assert "model.w " not in text  # tensors are listed of a checkpoint that is asked for


def test_a_run_without_a_checkpoint(inspect, floe, tmp_path):
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    (tmp_path / "run/metrics.jsonl").write_text('{"step": 3, "loss_text": 2.5}\n')
    assert inspect(tmp_path / "run")["run"]["step"] == 3
    done = floe("inspect", tmp_path / "run", "--verify")
    assert done.returncode == 1 and "no checkpoint to verify" in done.stderr


def test_damage_is_found(floe, tmp_path):
    folder = tmp_path / "ckpt"
    shutil.copytree(FSDP2 / "dcp", folder)
    (folder / "__0_0.distcp").unlink()
    done = floe("inspect", folder)
    assert done.returncode == 1 and "__0_0.distcp" in done.stderr
    done = floe("inspect", FSDP2 / "expected_full.safetensors", "--verify")
    assert done.returncode == 2 and "without checksums" in done.stderr
