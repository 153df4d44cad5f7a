"""Runs that metrics_tool logs, for the tests that read its files with the systems that they are for."""

import json
import math
import os
import subprocess
from pathlib import Path

TOOL = Path(os.environ["FLOE_BIN_DIR"]) / "metrics_tool"
START = 1_750_000_000.0

CONFIG = {
    "run": {"name": "demo", "seed": 7},
    "train": {"optimizer": {"lr": 1e-4, "betas": [0.9, 0.999]}, "packed": True, "epochs": None},
    "model": {"type": "flamingo", "lm": "models/\u6c34 & <ice>"},
}


def make_run(folder, wandb_mode="offline", project="ice", entity=None, log=None, **info):
    """`log`: settings of sinks beside W&B's, as in the block `log:`."""
    folder.mkdir(parents=True, exist_ok=True)
    wandb = {"mode": wandb_mode}
    if wandb_mode != "disabled":
        wandb |= {"project": project, "entity": entity, "checkpoints": True}
    info = {"name": "demo", "config": CONFIG, "version": "9.9", "start_time": START, "log": {"wandb": wandb} | (log or {})} | info
    (folder / "info.json").write_text(json.dumps(info))
    return folder


def values_of(step):
    values = {
        "loss_laion": 3 + math.sin(step) / 7,
        "loss_mmc4": 4 / step,
        "lr": 1e-4 * step,
        "grad_norm": 1e-3 * step**2,
        "tokens_per_second": 51234.5 + step,
        "skipped": step // 5,
        "memory/0/peak_bytes": 12345678901 + step,
    }
    if step % 10 == 0:
        values["val_loss_laion"] = 2.5 / step
    return values


def record(step, values=None):
    return [step, START + 60 + step * 0.25, values_of(step) if values is None else values]


def tool(mode, run, first_step, last_word, records):
    text = "".join(json.dumps(line) + "\n" for line in records)
    words = [TOOL, mode, run, str(first_step), str(last_word)]
    return subprocess.run(words, input=text, capture_output=True, text=True, timeout=120)


def log(run, first_step, last_step, exit_code=0):
    done = tool("log", run, first_step, exit_code, map(record, range(first_step + 1, last_step + 1)))
    assert done.returncode == 0, done.stderr
    return done


def log_and_die(run, first_step, last_step):
    """Killed right after the record of last_step was written."""
    records = map(record, range(first_step + 1, last_step + 100))
    done = tool("kill", run, first_step, last_step - first_step, records)
    assert done.returncode == -9, done.stderr
