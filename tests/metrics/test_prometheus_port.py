"""`log.prometheus: PORT`: the numbers of a run at a port of the loopback device, read as Prometheus reads them."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from exposition import parse, value
from logged_runs import START, TOOL, make_run, record, tool, values_of
from patience import wait_until

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
from running import command, default_signals, environment, golden_config, rank_process, wait_for_steps  # noqa: E402


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(port, method="GET", path="/metrics"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer, answer.read().decode()
    finally:
        connection.close()


def scrape(port):
    answer, text = ask(port)
    assert answer.status == 200 and answer.getheader("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"
    return parse(text)


def listeners(port):
    """Local addresses, as the kernel has them, of all sockets that listen at this port."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [row[1].split(":")[0] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port]


@pytest.fixture
def logging(tmp_path):
    """metrics_tool, which waits for records."""
    started = []

    def begin(place, port):
        run = make_run(tmp_path / "run", wandb_mode="disabled", log={"prometheus": place})
        process = subprocess.Popen([TOOL, "log", run, "0", "0"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1)
        started.append(process)
        wait_until(lambda: process.poll() is not None or listeners(port))
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("place", ["{}", "127.0.0.1:{}"])
def test_the_latest_numbers_with_ages_that_grow(logging, place):
    port = free_port()
    process = logging(place.format(port), port)
    assert listeners(port) == ["0100007F"], "127.0.0.1 and nothing else"
    found, of_run = scrape(port), {"run": "demo"}
    assert value(found, "floe_step", **of_run) == 0 and value(found, "floe_run_finished", **of_run) == 0
    assert value(found, "floe_last_step_age_seconds", **of_run) >= time.time() - START - 60, "no step: since the start"
    assert not any(name == "floe_last_step_timestamp_seconds" for name, _ in found)

    process.stdin.write(json.dumps(record(3)) + "\n")
    found = wait_until(lambda: now if value(now := scrape(port), "floe_step", **of_run) == 3 else None)
    assert value(found, "floe_loss", source="laion", **of_run) == values_of(3)["loss_laion"]
    assert value(found, "floe_last_step_timestamp_seconds", **of_run) == record(3)[1]
    for name in ("floe_last_step_age_seconds", "floe_last_checkpoint_age_seconds"):
        first = value(found, name, **of_run)
        assert abs(first - (time.time() - (record(3)[1] if "step" in name else START))) < 60
        wait_until(lambda: value(scrape(port), name, **of_run) > first + 0.2)
    assert value(scrape(port), "floe_step", **of_run) == 3

    stderr = process.communicate(timeout=60)[1]
    assert process.returncode == 0 and f"http://127.0.0.1:{port}/metrics" in stderr
    assert not listeners(port)


def test_what_else_is_asked_and_by_whom(logging):
    port = free_port()
    process = logging(str(port), port)
    assert [ask(port, path=path)[0].status for path in ("/", "/metricsx", "/metrics?x=1")] == [404, 404, 200]
    assert ask(port, "POST")[0].status == 405
    answer, text = ask(port, "HEAD")
    assert (answer.status, text) == (200, "") and int(answer.getheader("Content-Length")) > 100
    with socket.create_connection(("127.0.0.1", port)) as talker:  # without an end
        talker.sendall(b"GET /metrics HTTP/1.1\r\n" + b"x: y\r\n" * 2000)
        assert talker.recv(100).startswith(b"HTTP/1.1 431 ")
    with socket.create_connection(("127.0.0.1", port)) as odd:
        odd.sendall(b"\xff\x00\r\n\r\n")
        assert odd.recv(100).startswith(b"HTTP/1.1 405 ")
    # Those who say nothing, or leave early, hold nobody up for long.
    silent = socket.create_connection(("127.0.0.1", port))
    socket.create_connection(("127.0.0.1", port)).close()
    assert value(scrape(port), "floe_step", run="demo") == 0
    silent.close()
    # Nor the end of the run.
    with socket.create_connection(("127.0.0.1", port)):
        process.communicate(timeout=60)
        assert process.returncode == 0


@pytest.mark.parametrize("place", ["0.0.0.0:9400", "localhost:9400", "10.0.0.1:9400", "[::1]:9400", ":9400", "127.0.0.1:",
                                   "0", "65536", "-9400", "9400x", "127.0.0.1:94 00", 9400.5])
def test_nobody_else_is_answered(tmp_path, place):
    run = make_run(tmp_path / "run", wandb_mode="disabled", log={"prometheus": place})
    done = tool("log", run, 0, 0, [])
    assert done.returncode == 2 and "must end in .prom" in done.stderr and "or be a port of the loopback device" in done.stderr


@pytest.fixture
def start(tmp_path):
    started = []

    def begin(place, *words, ranks=2, **variables):
        config = golden_config("neox_x2", world2=ranks == 2)
        config["train"]["steps"] = 1_000_000
        config["checkpoint"] = {"every_steps": 1_000_000}
        config["log"]["prometheus"] = place
        config["run"] = {"dir": str(tmp_path / "runs"), "name": "run"}
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        process = subprocess.Popen(command([path, *words], ranks), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                   env=environment(**variables), preexec_fn=default_signals)
        process.folder = tmp_path / "runs" / "run"
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def test_a_real_run_that_hangs(start):
    """Ages grow while nothing happens; a save that is done in the background is told before the next one."""
    port, of_run = free_port(), {"run": "run"}
    process = start(port, SLURM_RESTART_COUNT="3")
    wait_for_steps(process, 3)
    assert listeners(port) == ["0100007F"], "rank 0 alone"
    found = scrape(port)
    assert value(found, "floe_step", **of_run) >= 3 and value(found, "floe_tokens_per_second", **of_run) > 0
    assert value(found, "floe_memory_peak_bytes", **of_run) > 0 and value(found, "floe_loss", source="laion", **of_run) > 0
    assert value(found, "floe_skipped_batches_total", **of_run) == 0 and value(found, "floe_restarts", **of_run) == 3
    assert value(found, "floe_slowest_own_seconds", **of_run) > 0
    assert value(found, "floe_last_step_age_seconds", **of_run) < 30
    assert not any(name == "floe_last_checkpoint_timestamp_seconds" for name, _ in found)

    asked = time.time()
    os.kill(rank_process(process.pid, 1), signal.SIGUSR1)  # saves and goes on
    saved = ("floe_last_checkpoint_timestamp_seconds", (("run", "run"),))
    found = wait_until(lambda: now if saved in (now := scrape(port)) else None)
    assert asked - 1 <= found[saved] <= time.time() and value(found, "floe_last_checkpoint_age_seconds", **of_run) < 30

    stopped = rank_process(process.pid, 1)
    os.kill(stopped, signal.SIGSTOP)
    try:
        last = wait_until(lambda: now if value(now := scrape(port), "floe_last_step_age_seconds", **of_run) > 1.5 else None)
        later = wait_until(lambda: now if value(now := scrape(port), "floe_last_step_age_seconds", **of_run) > 2.5 else None)
        assert value(later, "floe_step", **of_run) == value(last, "floe_step", **of_run)
        for name in ("floe_last_step_age_seconds", "floe_last_checkpoint_age_seconds"):
            assert value(later, name, **of_run) > value(last, name, **of_run)
    finally:
        os.kill(stopped, signal.SIGCONT)
    wait_until(lambda: value(scrape(port), "floe_step", **of_run) > value(later, "floe_step", **of_run))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 75 and not listeners(port)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_port_in_use_is_one_sentence_before_anything_is_made(start, ranks):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        process = start(f"127.0.0.1:{port}", ranks=ranks)
        stderr = process.communicate(timeout=60)[1]
    assert process.returncode == 2, stderr
    assert f"log.prometheus: nobody can listen at port {port} of " in stderr and "Address already in use" in stderr
    assert "choose another" in stderr and not (process.folder / "metrics.jsonl").exists()
    assert not (process.folder / "config.yaml").exists()
