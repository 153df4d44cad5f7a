"""Prometheus' own parser reads the file of `log.prometheus`, whatever the names and numbers of a run are, and at
every moment of it."""

import json
import math
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from exposition import parse, value
from logged_runs import START, TOOL, log, log_and_die, make_run, record, tool, values_of

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
from running import command, environment, golden_config  # noqa: E402
from patience import patient


def read(path):
    return parse(path.read_text(encoding="utf-8"))


def prometheus_run(tmp_path, folder="metrics", **info):
    (tmp_path / folder).mkdir(exist_ok=True)
    path = tmp_path / folder / "floe.prom"
    return make_run(tmp_path / "run", wandb_mode="disabled", log={"prometheus": str(path)}, **info), path


def test_the_latest_numbers_and_the_end(tmp_path):
    run, path = prometheus_run(tmp_path)
    log(run, 0, 12)
    found, last = read(path), values_of(12)
    of_run = {"run": "demo"}
    assert value(found, "floe_run_info", version="9.9", **of_run) == 1
    assert value(found, "floe_run_finished", **of_run) == 1
    assert value(found, "floe_run_exit_code", **of_run) == 0
    assert value(found, "floe_step", **of_run) == 12
    assert value(found, "floe_last_step_timestamp_seconds", **of_run) == record(12)[1]
    assert value(found, "floe_run_start_timestamp_seconds", **of_run) == START
    assert value(found, "floe_restarts", **of_run) == 0
    assert not any("_age_" in name for name, _ in found), "a file does not grow older by itself"
    for source in ("laion", "mmc4"):
        assert value(found, "floe_loss", source=source, **of_run) == last[f"loss_{source}"]
    assert value(found, "floe_learning_rate", **of_run) == last["lr"]
    assert value(found, "floe_gradient_norm", **of_run) == last["grad_norm"]
    assert value(found, "floe_tokens_per_second", **of_run) == last["tokens_per_second"]
    assert value(found, "floe_skipped_batches_total", **of_run) == last["skipped"]
    # Of step 10, the last one with a validation.
    assert value(found, "floe_source_validation_loss", source="laion", **of_run) == values_of(10)["val_loss_laion"]
    assert [entry.name for entry in path.parent.iterdir()] == ["floe.prom"]


def test_a_killed_run_is_not_finished_and_a_resumed_one_goes_on(tmp_path):
    run, path = prometheus_run(tmp_path)
    log_and_die(run, 0, 7)
    found = read(path)
    assert value(found, "floe_step", run="demo") == 7 and value(found, "floe_run_finished", run="demo") == 0
    assert not any(name == "floe_run_exit_code" for name, _ in found)
    log(run, 5, 9, exit_code=1)
    found = read(path)
    assert value(found, "floe_step", run="demo") == 9 and value(found, "floe_run_exit_code", run="demo") == 1


@pytest.mark.parametrize("name", ['a "b" \\ c', "two\nlines\\n", "\u6c34 & <ice>", "{}=,# HELP x", "tab\tand\x07bell", "\\"])
def test_any_name(tmp_path, name):
    run, path = prometheus_run(tmp_path, name=name)
    first = record(1, {"loss_laion": 1, "phase": name})
    assert tool("log", run, 0, 0, [first]).returncode == 0
    found = read(path)
    assert value(found, "floe_run_finished", run=name) == 1
    assert value(found, "floe_loss", run=name, phase=name, source="laion") == 1


def test_numbers_that_are_none(tmp_path):
    run, path = prometheus_run(tmp_path)
    odd = {"loss_laion": "NaN", "loss_mmc4": "Infinity", "lr": "-Infinity", "grad_norm": 5e-324, "memory_peak_bytes": 2**53}
    assert tool("log", run, 0, 0, [record(1, odd)]).returncode == 0
    text, found = path.read_text(), read(path)
    assert math.isnan(value(found, "floe_loss", run="demo", source="laion"))
    assert value(found, "floe_loss", run="demo", source="mmc4") == math.inf
    assert value(found, "floe_learning_rate", run="demo") == -math.inf
    assert value(found, "floe_gradient_norm", run="demo") == 5e-324
    assert value(found, "floe_memory_peak_bytes", run="demo") == 2**53
    assert " NaN\n" in text and " +Inf\n" in text and " -Inf\n" in text


def test_a_phase_that_is_over_is_not_shown(tmp_path):
    run, path = prometheus_run(tmp_path)
    rows = [record(1, {"loss_laion": 1, "loss_mmc4": 2, "skipped": 3, "phase": "a"}), record(2, {"loss_laion": 4, "phase": "b"})]
    assert tool("log", run, 0, 0, rows).returncode == 0
    found = read(path)
    assert {key: found[key] for key in found if key[0] == "floe_loss"} == {
        ("floe_loss", (("phase", "b"), ("run", "demo"), ("source", "laion"))): 4}
    assert value(found, "floe_skipped_batches_total", run="demo") == 3, "counts on through all phases"


def test_the_loss_scale_is_no_source(tmp_path):
    run, path = prometheus_run(tmp_path)
    assert tool("log", run, 0, 0, [record(1, {"loss_scale": 1024, "loss_laion": 2})]).returncode == 0
    found = read(path)
    assert value(found, "floe_loss_scale", run="demo") == 1024
    assert [dict(labels)["source"] for name, labels in found if name == "floe_loss"] == ["laion"]


def test_a_file_that_cannot_be_written_is_a_warning(tmp_path):
    path = tmp_path / "missing" / "floe.prom"
    run = make_run(tmp_path / "run", wandb_mode="disabled", log={"prometheus": str(path)})
    done = tool("log", run, 0, 0, map(record, range(1, 6)))
    assert done.returncode == 0
    warnings = [line for line in done.stderr.splitlines() if "warning" in line]
    assert len(warnings) == 1 and f"'{path}' cannot be written (No such file or directory)" in warnings[0]
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 5


def test_a_full_disk_leaves_the_last_whole_file(tmp_path):
    run, path = prometheus_run(tmp_path)
    process = subprocess.Popen(
        [TOOL, "log", run, "0", "0"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1,
        preexec_fn=lambda: signal.signal(signal.SIGXFSZ, signal.SIG_IGN), restore_signals=False,
    )

    def write(step):
        process.stdin.write(json.dumps(record(step)) + "\n")

    def wait_for_lines(count):
        end = time.time() + patient(30)
        while len((run / "metrics.jsonl").read_text().splitlines()) < count:
            assert time.time() < end and process.poll() is None
            time.sleep(0.01)

    try:
        write(1)
        end = time.time() + patient(30)
        while not path.exists() or value(read(path), "floe_step", run="demo") < 1:
            assert time.time() < end
            time.sleep(0.01)
        # The JSON lines still fit, the whole of this file does not.
        limit = (run / "metrics.jsonl").stat().st_size + 600
        assert limit < path.stat().st_size
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        write(2)
        write(3)
        wait_for_lines(3)
        assert value(read(path), "floe_step", run="demo") == 1
        assert [entry.name for entry in path.parent.iterdir()] == ["floe.prom"]
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        write(4)
        stderr = process.communicate(timeout=60)[1]
        assert process.returncode == 0, stderr
    finally:
        process.kill()
        process.communicate()
    assert value(read(path), "floe_step", run="demo") == 4
    said = [line for line in stderr.splitlines() if str(path) in line]
    assert len(said) == 2 and "cannot be written (File too large)" in said[0] and "is written again" in said[1]


def test_the_collector_reads_only_prom_files(tmp_path):
    run = make_run(tmp_path / "run", wandb_mode="disabled", log={"prometheus": str(tmp_path / "floe.txt")})
    done = tool("log", run, 0, 0, [])
    assert done.returncode == 2 and "prometheus is " in done.stderr and "must end in .prom" in done.stderr


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_real_run(tmp_path, ranks):
    """Also while it goes on: a reader at any moment sees a whole file."""
    config = golden_config("neox_x2", world2=ranks == 2)
    config["phases"] = [
        {"name": "resampler", "train": ["perceiver.*"], "steps": 2},
        {"name": "gates", "train": ["*gated_cross_attn*"], "steps": 2},
    ]
    config["train"]["cycle_phases"] = True
    config["train"]["steps"] = 40
    path = tmp_path / "metrics" / "floe.prom"
    path.parent.mkdir()
    config["log"]["prometheus"] = str(path)
    name = 'r "1" \u6c34'
    config["run"] = {"dir": str(tmp_path / "runs"), "name": name}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    began = time.time()
    # A launcher's own count comes on top of the scheduler's.
    counts = {"SLURM_RESTART_COUNT": "3", "FLOE_RESTARTS": "1"} if ranks == 1 else {"SLURM_RESTART_COUNT": "4"}
    process = subprocess.Popen(command([tmp_path / "config.yaml"], ranks), stderr=subprocess.PIPE, text=True,
                               env=environment(**counts))
    seen = []
    try:
        while process.poll() is None:
            if path.exists():
                found = read(path)
                seen.append((value(found, "floe_step", run=name), value(found, "floe_run_finished", run=name)))
            time.sleep(0.01)
    finally:
        process.kill()
        stderr = process.communicate()[1]
    assert process.returncode == 0, stderr
    assert seen == sorted(seen) and len(set(seen)) > 3

    last = json.loads((tmp_path / "runs" / name / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 40 and last["phase"] == "gates"
    found = read(path)
    of_step = {"run": name, "phase": last["phase"]}
    assert value(found, "floe_step", run=name) == 40
    assert value(found, "floe_run_finished", run=name) == 1 and value(found, "floe_run_exit_code", run=name) == 0
    assert value(found, "floe_last_step_timestamp_seconds", run=name) == last["time"]
    saved = value(found, "floe_last_checkpoint_timestamp_seconds", run=name)
    assert began <= saved <= time.time() and value(found, "floe_restarts", run=name) == 4
    if ranks == 2:
        assert value(found, "floe_slowest_own_seconds", **of_step) == last["slowest_own_time"] > 0
        assert value(found, "floe_slowest_rank", **of_step) == last["slowest_own_rank"]
    assert value(found, "floe_learning_rate", **of_step) == last["lr"]
    assert value(found, "floe_gradient_norm", **of_step) == last["grad_norm"]
    assert value(found, "floe_tokens_per_second", **of_step) == last["tokens_per_second"]
    assert value(found, "floe_memory_peak_bytes", **of_step) == last["memory_peak_bytes"] > 0
    assert value(found, "floe_skipped_batches_total", run=name) == last["skipped"]
    assert value(found, "floe_bad_samples_total", run=name) == last["bad_samples"]
    for source in ("laion", "mmc4"):
        assert value(found, "floe_loss", source=source, **of_step) == last[f"loss_{source}"]
        assert value(found, "floe_samples_per_second", source=source, **of_step) == last[f"{source}_samples_per_second"]
    assert [entry.name for entry in path.parent.iterdir()] == ["floe.prom"]
