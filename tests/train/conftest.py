"""`train(config, *words, ranks=n)` runs `floe train` for real, on real ranks; `golden(name)` is a
configuration that repeats a golden training run of OpenFlamingo."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parent))  # helpers of several tests are plain modules
from running import FLOE, command, default_signals, environment, golden_config  # noqa: E402
from small_data import pairs_config, write_shards  # noqa: E402


class Run:
    """What a run left behind."""

    def __init__(self, folder, process):
        self.folder = folder
        self.returncode = process.returncode
        self.stderr = process.stderr

    def steps(self):
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def switches(self):
        """With the step before."""
        found = [(step["step"] - 1, step["phase_switch"]) for step in self.steps() if "phase_switch" in step]
        return [(step, switch["from"], switch["to"]) for step, switch in found]

    def values(self, name):
        return [step[name] for step in self.steps()]

    def trained(self, tmp, *options, step="last"):
        """The trained part under OpenFlamingo's names."""
        out = tmp / "trained.safetensors"
        done = subprocess.run(
            [FLOE, "export", self.folder / "checkpoints" / step, out, "--trainable-only", "--force", *options],
            capture_output=True, text=True, env=environment(),
        )
        assert done.returncode == 0, done.stderr
        return load_file(out)


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """The configuration of a small run over tar shards that goes on until somebody ends it."""
    folder = tmp_path_factory.mktemp("endless")
    shards = write_shards(folder / "data", 4, 16)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(pairs_config(folder / "data" / shards, steps=100000)))
    return path


@pytest.fixture
def write(tmp_path):
    """Writes a configuration; its run lies in the test's own folder."""

    def to(config, name="config.yaml"):
        config = dict(config)
        config["run"] = {"dir": str(tmp_path / "runs"), **config.get("run", {})}
        path = tmp_path / name
        path.write_text(yaml.safe_dump(config))
        return path

    return to


@pytest.fixture
def train(tmp_path, write):
    def run(config, *words, ranks=1, timeout=120, expect=0, name="run", **more):
        path = write(config) if isinstance(config, dict) else config
        words = [path, f"run.dir={tmp_path / 'runs'}", f"run.name={name}", *words]
        done = subprocess.run(
            command(words, ranks), capture_output=True, text=True, timeout=timeout, env=environment(**more)
        )
        assert done.returncode == expect, done.stderr
        return Run(tmp_path / "runs" / name, done)

    return run


@pytest.fixture
def start(tmp_path, write):
    """Leaves it running."""
    started = []

    def begin(config, *words, ranks=1, name="run", **more):
        path = write(config) if isinstance(config, dict) else config
        words = [path, f"run.dir={tmp_path / 'runs'}", f"run.name={name}", *words]
        process = subprocess.Popen(
            command(words, ranks), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment(**more), preexec_fn=default_signals, start_new_session=True,
        )
        process.folder = tmp_path / "runs" / name
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def golden(tmp_path):
    """With `ranks`, every rank has a file of its own with the golden batches: each begins at another one, or
    (`same`) all have the same, as one rank would that reads the golden file. Four ranks with `world2` have the batches of
    two: their mean is the same, and whichever two are averaged apart from the others have different ones."""

    def config(name, world2=False, ranks=1, same=False):
        made = golden_config(name, world2)
        if world2 and ranks == 4:
            for rank, of_rank in enumerate((0, 1, 1, 0)):
                (tmp_path / f"{name}_{rank}.safetensors").symlink_to(made["data"]["batches"].format(rank=of_rank))
            made["data"]["batches"] = str(tmp_path / f"{name}_{{rank}}.safetensors")
        if ranks == 1 or world2:
            return made
        tensors = load_file(made["data"]["batches"])
        steps = 1 + max(int(key.split(".")[0][4:]) for key in tensors)
        for rank in range(ranks):
            turned = {}
            for key, value in tensors.items():
                step, rest = key.split(".", 1)
                turned[f"step{(int(step[4:]) + (0 if same else rank)) % steps}.{rest}"] = value
            save_file(turned, tmp_path / f"{name}{'_same' if same else ''}_{rank}.safetensors")
        made["data"]["batches"] = str(tmp_path / f"{name}{'_same' if same else ''}_{{rank}}.safetensors")
        return made

    return config


@pytest.fixture
def job(tmp_path):
    """A small language model, its data and a configuration; `labels`: how many tokens have one, by rank and step."""
    from phase_loop import EPS, language_model, write_batches  # transformers takes seconds

    def make(ranks=1, steps=8, labels=None, **train):
        model = language_model(tmp_path / "lm")
        path = tmp_path / "batches{rank}.safetensors"
        batches = write_batches(path, steps, ranks, labels=labels)
        optimizer = {"lr": 2e-3, "decay": [], "eps": EPS, **train.pop("optimizer", {})}
        config = {
            "model": {"type": "causal_lm", "lm": str(tmp_path / "lm")},
            "data": {"batches": str(path)},
            "train": {"steps": steps, "optimizer": optimizer, "schedule": {"warmup_steps": 0}, **train},
            "strategy": {"mixed_precision": {"param": "fp32"}},
            "log": {"every_steps": 1, "tensorboard": False, "wandb": None, "diagnostics": None},
        }
        return config, model, batches

    return make
