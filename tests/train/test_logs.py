"""What `floe train` logs: the page about metrics names all of it, a full disk costs nothing of it, and W&B gets it
while the run goes on."""

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing import event_accumulator

from running import FLOE, command, environment, steps_of, wait_for_steps
from patience import patient

sys.path.insert(0, str(Path(__file__).parents[1] / "metrics"))
from test_wandb_reference import sync  # noqa: E402
from wandb_server import wandb_server  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def documented():
    """Names of the table of values, as regular expressions."""
    table = PAGE.read_text().split("## Values", 1)[1].split("\n## ", 1)[0]
    names = []
    for line in table.splitlines():
        if line.startswith("| `"):
            names += re.findall(r"`([^`]+)`", line.split("|")[1])
    assert "val_loss" in names and len(names) > 25
    return {name: re.compile(re.escape(name).replace("SOURCE", "[a-z0-9]+").replace("POINT", "[a-z_]+")) for name in names}


# Not in a short run on the CPU in fp32, without phases, stops, tasks and skipped steps: known to other tests.
ELSEWHERE = {"loss_scale", "gradient_noise_scale", "phase", "phase_switch_time", "memory_after_switch_bytes",
             "skipped_time", "validation_step", "val_TASK_METRIC"}


def test_the_page_names_everything_that_a_run_logs(train, golden):
    config = golden("neox_x2", world2=True)
    config["log"] = {"every_steps": 1, "tensorboard": False, "peak_tflops": 1}
    config["train"]["validation"] = {"every_steps": 1, "batches": config["data"]["batches"]}
    config["train"]["stop"] = {"patience": 8, "min_delta": 100.0}
    run = train(config, "checkpoint.every_steps=1", "train.steps=20", ranks=2)
    assert run.steps()[-1]["step"] == 9
    logged = {name for step in run.steps() for name in step}
    page = documented()
    unknown = {name for name in logged if not any(pattern.fullmatch(name) for pattern in page.values())}
    assert not unknown, f"docs/metrics.md does not name {unknown}"
    never = {name for name, pattern in page.items() if not any(map(pattern.fullmatch, logged))}
    assert never <= ELSEWHERE, f"docs/metrics.md names {never - ELSEWHERE}, which nothing logs"
    weights = {source: config["data"][source]["weight"] for source in ("laion", "mmc4")}
    for step in run.steps():
        expected = sum(weight * step[f"val_loss_{source}"] for source, weight in weights.items())
        assert step["val_loss"] == pytest.approx(expected, rel=1e-9)
        assert step["epoch"] == (step["step"] - 1) // 5


def test_a_log_on_the_cpu_does_not_speak_of_gpus(train, golden):
    config = golden("neox_x2")
    del config["log"]
    run = train(config, "train.steps=2")
    assert "laion" in run.stderr and "samples/s per rank" in run.stderr
    assert not re.search(r"\bGPUs?\b|\bCUDA\b", run.stderr)
    page = subprocess.run([FLOE, "report", run.folder], capture_output=True, text=True, env=environment())
    assert page.returncode == 0, page.stderr
    text = (run.folder / "report.html").read_text()
    assert "Samples per second and rank" in text and not re.search(r">[^<]*\bGPU\b[^<]*<", text)


def test_a_disk_that_is_full_for_a_while(golden, write, tmp_path):
    """The limit on the size of files is the full disk, and another process moves it."""
    config = golden("neox_x2")
    config["train"].update(steps=400)
    config["checkpoint"] = {"every_steps": 1000}
    config["log"] = {"every_steps": 100, "wandb": {"mode": "offline"}, "diagnostics": None}
    with open(tmp_path / "stderr", "w+") as stderr:
        process = subprocess.Popen(
            command([write(config), f"run.dir={tmp_path / 'runs'}"], 1), stdout=subprocess.DEVNULL, stderr=stderr,
            text=True, env=environment(), restore_signals=False,
            preexec_fn=lambda: signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
        )
        try:
            process.folder = tmp_path / "runs" / "run"
            wait_for_steps(process, 5)
            lines = process.folder / "metrics.jsonl"
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (lines.stat().st_size + 10, resource.RLIM_INFINITY))
            end = time.time() + patient(60)
            while f"'{lines}' cannot be written (File too large)" not in (tmp_path / "stderr").read_text():
                assert process.poll() is None and time.time() < end
                time.sleep(0.02)
            held = lines.read_text()
            assert held.endswith("}\n")
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            assert process.wait(120) == 0
        finally:
            process.kill()
            process.wait()
    said = (tmp_path / "stderr").read_text()
    assert "is written again; nothing is missing in it" in said
    steps = [line.split(",")[0] for line in lines.read_text().splitlines()]
    assert steps == [f'{{"step":{step}' for step in range(1, 401)]


# -------------------------------------------------------------------------------------------- W&B


@pytest.fixture
def path_with(tmp_path):
    def make(script):
        folder = tmp_path / "programs"
        folder.mkdir()
        (folder / "wandb").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "wandb").chmod(0o755)
        return f"{folder}:{os.environ['PATH']}"

    return make


def test_wandb_and_tensorboard_have_the_numbers_of_a_resumed_run(train, golden, tmp_path):
    """As the packages themselves read them: TensorBoard's reader, and what `wandb sync` brings to a server."""
    config = golden("neox_x2", world2=True)
    config["log"].update(tensorboard=True, wandb={"mode": "offline", "project": "ice"})
    config["train"]["validation"] = {"every_steps": 2, "batches": config["data"]["batches"]}
    words = ("train.schedule={type: constant, warmup_steps: 0}", "checkpoint.every_steps=2")
    train(config, *words, "train.steps=3", ranks=2)
    shutil.rmtree(tmp_path / "runs" / "run" / "checkpoints" / "step_3")  # step 3 is made twice
    run = train(config, *words, "train.steps=6", ranks=2)
    logged = {step: numbers_of(line) for step, line in steps_of(run.folder).items()}
    assert list(logged) == [1, 2, 3, 4, 5, 6] and "val_loss_mmc4" in logged[4] and "val_loss_mmc4" not in logged[3]

    reader = event_accumulator.EventAccumulator(str(run.folder / "tensorboard"), size_guidance={"scalars": 0})
    reader.Reload()
    shown = {step: {} for step in logged}
    for name in reader.Tags()["scalars"]:
        for event in reader.Scalars(name):
            assert name not in shown[event.step], f"{name} of step {event.step} is there twice"
            shown[event.step][name] = event.value
    for step, numbers in logged.items():
        assert shown[step] == {name: np.float32(value) for name, value in numbers.items()}, step

    with wandb_server() as server:
        uploaded = sync(server, run.folder)
        rows = {row["_step"]: numbers_of(row) for row in uploaded.history}
        assert rows == logged and uploaded.exit_code == 0
        assert uploaded.config["train"]["steps"] == 6


def numbers_of(line):
    """What is measured, by name."""
    return {name: value for name, value in line.items()
            if name not in ("step", "time") and not name.startswith("_") and isinstance(value, (int, float))}


def test_wandb_is_off_unless_asked(train, golden):
    config = golden("neox_x2")
    del config["log"]
    run = train(config, "train.steps=1", "log.diagnostics=null")
    assert not (run.folder / "wandb").exists()
    named = train(config, "train.steps=1", "log.diagnostics=null", "log.wandb.project=ice", name="named")
    assert "log.wandb.mode is disabled; set it to offline or online" in named.stderr
    assert not (named.folder / "wandb").exists()


@pytest.mark.parametrize("ranks", [1, 2])
def test_wandb_online_uploads_at_the_first_step_and_at_the_end(train, golden, path_with, tmp_path, ranks):
    config = golden("neox_x2", world2=ranks == 2)
    config["log"]["wandb"] = {"mode": "online"}
    path = path_with(f'echo "$@" >> {tmp_path}/calls; cat "$3"/*.wandb | wc -c >> {tmp_path}/sizes')
    run = train(config, "train.steps=3", ranks=ranks, PATH=path)
    (folder,) = (run.folder / "wandb").glob("offline-run-*")
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == [f"sync --include-synced {folder}"] * 2
    sizes = [int(size) for size in (tmp_path / "sizes").read_text().split()]
    assert sizes[-1] == next(folder.glob("*.wandb")).stat().st_size  # with the run's end
    assert "warning" not in run.stderr


def test_wandb_online_that_fails_costs_nothing(train, golden, path_with):
    config = golden("neox_x2")
    config["log"]["wandb"] = {"mode": "online"}
    run = train(config, PATH=path_with("echo you are not logged in >&2; exit 1"))
    assert run.stderr.count("the upload to W&B") == 1 and "you are not logged in" in run.stderr
    assert run.values("step") == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("ranks", [1, 2])
def test_wandb_online_without_the_program(train, golden, ranks):
    config = golden("neox_x2", world2=ranks == 2)
    config["log"]["wandb"] = {"mode": "online"}
    run = train(config, expect=2, ranks=ranks, PATH="/usr/bin:/bin")
    assert "the program 'wandb', which uploads the run, is not in PATH" in run.stderr
    assert "pip install wandb" in run.stderr
    assert not (run.folder / "config.yaml").exists()
