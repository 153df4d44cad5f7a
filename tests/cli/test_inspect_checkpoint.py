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
    assert inspect(tmp_path / "run")["path"].endswith("step_12")
    assert "step_5" in floe("inspect", tmp_path / "run").stdout


def test_damage_is_found(floe, tmp_path):
    folder = tmp_path / "ckpt"
    shutil.copytree(FSDP2 / "dcp", folder)
    (folder / "__0_0.distcp").unlink()
    done = floe("inspect", folder)
    assert done.returncode == 1 and "__0_0.distcp" in done.stderr
    done = floe("inspect", FSDP2 / "expected_full.safetensors", "--verify")
    assert done.returncode == 2 and "without checksums" in done.stderr
