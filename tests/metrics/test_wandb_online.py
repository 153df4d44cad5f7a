"""`log.wandb.mode: online`: the run's folder is handed to `wandb sync` while the run goes on. The real package
uploads to a server on loopback; a script in its place shows how it is called, and what its failures cost."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from logged_runs import TOOL, make_run, record
from test_wandb_reference import check_rows, run_folder, run_id
from wandb_server import wandb_server
from patience import wait_until

REAL = str(Path(sys.executable).parent)


@pytest.fixture
def online(tmp_path):
    """Starts a run; `script` is the program `wandb`, `path` where else programs are looked for."""
    started = []

    def start(script=None, path="/usr/bin:/bin", **environment):
        folder = tmp_path / "programs"
        folder.mkdir(exist_ok=True)
        if script is not None:
            (folder / "wandb").write_text(f"#!/bin/sh\n{script}\n")
            (folder / "wandb").chmod(0o755)
        run = make_run(tmp_path / "run", wandb_mode="online", upload_every=0.1)
        process = subprocess.Popen(
            [TOOL, "log", run, "0", "0"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1,
            cwd=tmp_path, env={"PATH": f"{folder}:{path}", "HOME": str(tmp_path), "CALLS": str(tmp_path / "calls"), **environment},
        )
        process.run_folder, process.calls = run, tmp_path / "calls"
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def write(process, first, last, pause=0.0):
    for step in range(first, last + 1):
        process.stdin.write(json.dumps(record(step)) + "\n")
        time.sleep(pause)


def end(process):
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    return stderr


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


def test_the_real_program_uploads_while_the_run_goes_on(online):
    with wandb_server() as server:
        secrets = {
            "WANDB_BASE_URL": server.url, "WANDB_API_KEY": "a" * 40, "WANDB_ERROR_REPORTING": "false",
            "NO_PROXY": "127.0.0.1",
        }
        process = online(path=f"{REAL}:/usr/bin:/bin", **secrets)
        write(process, 1, 5)
        wait_until(lambda: any(run.history for run in server.runs.values()))
        write(process, 6, 31, pause=0.02)
        stderr = end(process)
        assert "warning" not in stderr
        (uploaded,) = server.runs.values()
        check_rows(uploaded.history, range(1, 32))
        assert uploaded.exit_code == 0
        assert list(server.runs) == [run_id(process.run_folder)]
        assert not (process.run_folder.parent / "wandb").exists()  # its own logs are in the run's folder


def test_how_the_program_is_called(online):
    process = online('echo "$@" >> "$CALLS"; ls -l /proc/$$/fd >> "$CALLS.fds"')
    write(process, 1, 20, pause=0.03)
    end(process)
    calls = lines(process.calls)
    assert set(calls) == {f"sync --include-synced {run_folder(process.run_folder)}"}
    assert 2 <= len(calls) <= 8  # never two at a time, and the last one at the end
    fds = (process.calls.parent / "calls.fds").read_text()
    assert "metrics.jsonl" not in fds and "tfevents" not in fds and "socket" not in fds


def test_a_slow_upload_holds_nothing_and_is_not_started_twice(online):
    process = online('echo begin >> "$CALLS"; sleep 1; echo end >> "$CALLS"')
    begin = time.time()
    write(process, 1, 50)
    path = process.run_folder / "metrics.jsonl"
    wait_until(lambda: len(lines(path)) == 50)
    assert time.time() - begin < 0.9
    end(process)
    calls = lines(process.calls)
    assert calls == ["begin", "end"] * (len(calls) // 2) and len(calls) >= 4


@pytest.mark.parametrize(
    "script, said",
    [("echo no key, please log in; exit 3", "failed (exit code 3), and said: no key, please log in"),
     ("kill -9 $$", "was ended by signal 9")],
)
def test_a_failure_is_a_warning_once(online, script, said):
    process = online(f'echo >> "$CALLS"; {script}')
    write(process, 1, 30, pause=0.03)
    stderr = end(process)
    assert len(lines(process.calls)) >= 2
    (warning,) = [line for line in stderr.splitlines() if "warning" in line]
    assert said in warning and "the run goes on, and 'wandb sync --include-synced" in warning
    assert len(lines(process.run_folder / "metrics.jsonl")) == 30


def children(pid):
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(words[1]) == pid:
            found.append((int(path.parent.name), words[0]))
    return found


def test_no_process_is_left_behind(online):
    process = online('echo $$ >> "$CALLS"; exec sleep 0.05')
    write(process, 1, 20, pause=0.05)
    write(process, 21, 21)
    time.sleep(0.3)
    write(process, 22, 22)  # takes note of the last one's end
    assert sum(state == "Z" for _, state in children(process.pid)) == 0
    end(process)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_upload_ends_with_a_run_that_is_killed(online, number):
    process = online('echo $$ >> "$CALLS"; exec sleep 100')
    write(process, 1, 2)
    wait_until(lambda: lines(process.calls))
    pid = int(lines(process.calls)[0])
    process.send_signal(number)
    process.wait(20)

    def gone():
        stat = Path(f"/proc/{pid}/stat")
        try:
            return stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"
        except OSError:
            return True

    wait_until(gone)


def test_without_the_program(online):
    process = online(script=None)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 2
    assert "log.wandb.mode is online, but the program 'wandb'" in stderr
    assert "pip install wandb" in stderr and "mode: offline" in stderr
    assert len(stderr.splitlines()) == 1
