"""PyTorch and Lightning load the checkpoints that `floe train` itself wrote on two ranks with full_shard: weights and
optimizer state are bit for bit those that `floe export` gives."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch
import torch.distributed.checkpoint as dcp
import yaml
from phase_loop import language_model
from running import FLOE, command, environment, golden_config
from safetensors import safe_open
from safetensors.torch import load_file
from small_runs import RANKS, Trained, floe

SIDE = pathlib.Path(__file__).parent / "torch_side.py"
STEPS, LR = 3, 2e-2
JOBS = [("dcp", 2), ("dcp", 3), ("fabric", 2), ("fabric file", 2)]


class Loaded:
    """Tensors and words that a job of torch_side.py wrote."""

    def __init__(self, path):
        self.tensors = load_file(path)
        with safe_open(path, "pt") as file:
            self.about = json.loads(file.metadata()["about"])


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A run with folders, one with files, and what each loader found in them: {job: Loaded}."""
    folder = tmp_path_factory.mktemp("runs")
    language_model(folder / "lm")
    (folder / "file").mkdir()
    run = Trained(folder, {"lm": str(folder / "lm")}, 64, lr=LR, steps=STEPS)
    file = Trained(folder / "file", {"lm": str(folder / "lm")}, 64, lr=LR, steps=STEPS, checkpoint={"state_dict_type": "full"})
    outs = {job: folder / f"{job[0].replace(' ', '_')}{job[1]}.safetensors" for job in JOBS}
    jobs = [
        [ranks, kind, file.newest.with_suffix(".pt") if kind == "fabric file" else run.newest, folder / "lm", outs[kind, ranks]]
        for kind, ranks in JOBS
    ]
    # Several at once: starting Python's torch takes longer than any of them.
    done = subprocess.run([sys.executable, SIDE, json.dumps(jobs, default=str)], timeout=240, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, env=dict(os.environ, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES=""))  # fmt: skip
    assert done.returncode == 0, done.stdout
    return run, {job: Loaded(path) for job, path in outs.items()}


@pytest.mark.parametrize("job", JOBS, ids=[f"{kind} {ranks}" for kind, ranks in JOBS])
def test_weights_and_optimizer_state(job, world):
    run, loaded = world
    found = loaded[job]
    exported = load_file(run.export(f"{job}.safetensors"))
    before = load_file(run.folder / "lm/model.safetensors")
    raw = load_file(run.export(f"{job}_raw.safetensors", "--raw"))
    assert {f"model.{name}" for name in exported} == {name for name in found.tensors if name.startswith("model.")}
    for name, value in exported.items():
        assert torch.equal(found.tensors[f"model.{name}"], value), name
        assert (value - before[name]).abs().max() > LR, name  # it was trained
    moments = {name for name in found.tensors if name.startswith("optimizer.state.")}
    assert moments == {f"optimizer.state.{name}.{key}" for name in exported for key in ("exp_avg", "exp_avg_sq", "step")}
    for name in moments:
        assert torch.equal(found.tensors[name], raw[name].reshape(found.tensors[name].shape)), name
        assert not name.endswith(".step") or found.tensors[name].item() == STEPS
    assert set(found.about["lr"]) == {LR}


@pytest.mark.parametrize("job", JOBS[2:], ids=["folder", "file"])
def test_fabric_finds_the_step(job, world):
    """In meta.pt, or in the file."""
    about = world[1][job].about
    assert about["global_step"] == STEPS and "epoch" in about["rest"]


def test_a_flamingo_with_what_it_trains(tmp_path):
    """Plain `dcp.load` into a dict; the table has the trained rows in their places."""
    config = golden_config("neox_x2", world2=True)
    config["run"] = {"dir": str(tmp_path), "name": "a"}
    config["strategy"]["sharding"] = "full_shard"
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(config))
    done = subprocess.run(command([tmp_path / "train.yaml"], RANKS), capture_output=True, text=True, timeout=120, env=environment())
    assert done.returncode == 0, (FLOE, done.stderr)
    newest = (tmp_path / "a/checkpoints/last").resolve()
    floe("export", tmp_path / "a", tmp_path / "part.safetensors", "--trainable-only")
    exported = load_file(tmp_path / "part.safetensors")
    state = {"model": {name: torch.full_like(value, -7.0) for name, value in exported.items()}}
    dcp.load(state, checkpoint_id=newest)
    before = load_file(config["model"]["weights"])
    for name, value in exported.items():
        assert torch.equal(state["model"][name], value), name
    moved = [name for name, value in exported.items() if not torch.equal(value, before[name])]
    assert len(moved) > 10 and any("embed_in" in name for name in moved)
