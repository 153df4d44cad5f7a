"""The program and how it is started; helpers of several tests of training."""

import json
import os
import signal
import time
from pathlib import Path

import yaml
from patience import patient

FLOE = Path(os.environ["FLOE_BIN_DIR"]) / "floe"
GOLDENS = Path(__file__).resolve().parents[1] / "goldens" / "models"


def environment(**more):
    """Without what an outer launcher or the user may have set."""
    ours = ("FLOE_L", "OMP_NUM_THREADS", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return dict(clean, OMP_NUM_THREADS="1", **more)


def default_signals():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def command(words, ranks):
    words = [str(word) for word in words]
    return [FLOE, "train", *words] if ranks == 1 else [FLOE, "launch", "-n", str(ranks), "--", "train", *words]


def children_of(parent):
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if int((path / "stat").read_text().rsplit(")", 1)[1].split()[1]) == parent:
                found.append(int(path.name))
        except OSError:  # it has ended
            continue
    return found


def rank_process(launcher, rank):
    """The process of one rank, by its environment."""
    for pid in children_of(launcher):
        try:
            if f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return pid
        except OSError:
            continue
    raise AssertionError(f"rank {rank} is not there")


def steps_of(run):
    """The last line of every step, also of a run that was resumed or has not begun."""
    path = run / "metrics.jsonl"
    whole = (line for line in path.read_text().splitlines() if line.endswith("}")) if path.exists() else ()
    return {line["step"]: line for line in map(json.loads, whole)}


def wait_for_steps(process, count, seconds=60):
    """Until the run has logged so many steps."""
    path = process.folder / "metrics.jsonl"
    end = time.time() + patient(seconds)
    while time.time() < end:
        assert process.poll() is None, process.communicate()[1]
        if path.exists() and len(path.read_text().splitlines()) >= count:
            return
        time.sleep(0.02)
    raise AssertionError(f"the run has not made {count} steps in {seconds} s")


def golden_config(name, world2=False):
    """A configuration that repeats a golden training run of OpenFlamingo."""
    folder = GOLDENS / (name + ("-train-world2" if world2 else "-train"))
    settings = json.loads((GOLDENS / f"{name}-train" / "train_config.json").read_text())
    model = yaml.safe_load((GOLDENS / name / "model.yaml").read_text())
    for key in ("lm", "vision", "weights"):
        model[key] = str(GOLDENS / name / model[key])
    file = "batches_rank{rank}.safetensors" if world2 else "batches.safetensors"
    return {
        "model": model,
        "data": {
            "batches": str(folder / file),
            "laion": {"weight": settings["ml"]},
            "mmc4": {"weight": settings["mm"]},
        },
        "train": {
            "steps": settings["num_steps"],
            "optimizer": {"lr": settings["lr"], "weight_decay": settings["wd"]},
            "schedule": {"type": settings["sched"], "warmup_steps": settings["warmup"]},
        },
        "strategy": {"mixed_precision": {"param": "fp32"}},
        "log": {"every_steps": 1, "tensorboard": False, "wandb": None, "diagnostics": None},
    }
