"""Small runs of `floe train` over prepared batches, and what becomes of them."""

import json
import subprocess

import torch
import yaml
from running import FLOE, command, environment
from safetensors.torch import save_file

RANKS = 2


def floe(*words):
    done = subprocess.run([FLOE, *map(str, words)], capture_output=True, text=True, timeout=120, env=environment())
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def write_batches(path, vocab, steps, seed=3):
    """Other texts on every rank; `path` has {rank} in it."""
    generator = torch.Generator().manual_seed(seed)
    for rank in range(RANKS):
        tensors = {}
        for step in range(steps):
            ids = torch.randint(3, vocab, (2, 13), generator=generator)
            for name, value in (("input_ids", ids), ("labels", ids.clone()), ("attention_mask", torch.ones_like(ids))):
                tensors[f"step{step}.text.{name}"] = value
        save_file(tensors, str(path).format(rank=rank))


class Trained:
    """A language model in a Hugging Face folder, trained for some steps; `run` is the folder of the run."""

    def __init__(self, folder, model, vocab, lr=2e-2, steps=3, **more):
        batches = folder / "batches{rank}.safetensors"
        write_batches(batches, vocab, steps)
        config = {
            "run": {"dir": str(folder / "runs"), "name": "a"},
            "model": {"type": "causal_lm", **model},
            "data": {"batches": str(batches)},
            "train": {"steps": steps, "optimizer": {"lr": lr}, "schedule": {"warmup_steps": 0}},
            "strategy": {"sharding": "full_shard", "mixed_precision": {"param": "fp32"}},
            "log": {"every_steps": 1, "tensorboard": False, "wandb": None, "diagnostics": None},
            **more,
        }
        (folder / "train.yaml").write_text(yaml.safe_dump(config))
        done = subprocess.run(
            command([folder / "train.yaml"], RANKS), capture_output=True, text=True, timeout=120, env=environment()
        )
        assert done.returncode == 0, done.stderr
        self.folder, self.run = folder, folder / "runs" / "a"
        self.newest = self.run / "checkpoints" / f"step_{steps}"

    def export(self, name, *words):
        floe("export", self.run, self.folder / name, *words)
        return self.folder / name

    def generate(self, prompts, *words):
        """New ids of each prompt."""
        ids = [word for prompt in prompts for word in ("--ids", ",".join(map(str, prompt)))]
        return json.loads(floe("generate", self.run, *ids, "--json", *words))["ids"]
