"""RUN/status.json and `floe status`: how far a run is, and how and why it ended."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from running import FLOE, environment, rank_process, wait_for_steps  # noqa: E402
from patience import wait_until


@pytest.fixture
def start(start, endless):
    return lambda *words, ranks=2: start(endless, *words, ranks=ranks)


def status(folder, *words):
    return subprocess.run([FLOE, "status", folder, *words], capture_output=True, text=True, env=environment())


def status_json(folder):
    done = status(folder, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_from_the_first_step_to_a_stop_and_the_end(start):
    run = start("checkpoint.every_steps=20")
    wait_for_steps(run, 30)
    wait_until(lambda: status_json(run.folder)["step"] >= 20)
    now = status_json(run.folder)
    assert now["state"] == "training" and now["alive"] and now["total_steps"] == 100000
    assert len(now["ranks"]) == 2 and now["ranks"][1].startswith("rank 1: ") and "laion" in now["losses"]
    assert now["checkpoint"].endswith(f"step_{now['step'] // 20 * 20}") or now["saved"] > 0
    assert "of its own" in now["slowest"] and abs(now["stepped"] - time.time()) < 30
    said = status(run.folder).stdout
    assert f"step {now['step']} of" in said or "of 100000" in said, said
    assert "state       training\n" in said and "left" in said and "rank 1: " in said

    refused = subprocess.run(run.args, env=environment(), capture_output=True, text=True)
    assert refused.returncode == 2 and "another run is at work" in refused.stderr
    assert status_json(run.folder)["alive"], "the one that is at work keeps its status"

    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=60)
    ended = status_json(run.folder)
    assert (ended["state"], ended["exit_code"], ended["alive"]) == ("stopped", 75, False)
    assert ended["reason"] == "stopped by a signal"
    assert Path(ended["checkpoint"]).name == f"step_{ended['step']}"

    again = start(f"train.steps={ended['step'] + 2}")
    assert again.wait(timeout=60) == 0
    ended = status_json(run.folder)
    assert (ended["state"], ended["exit_code"], ended["step"]) == ("done", 0, ended["total_steps"])
    assert "state       done (exit code 0)\n" in status(run.folder).stdout


def test_the_reason_of_a_failure(start):
    run = start("train.optimizer.lr=1e30", "train.max_skipped=1", "checkpoint.on_exception=false")
    assert run.wait(timeout=60) == 1
    ended = status_json(run.folder)
    assert (ended["state"], ended["exit_code"]) == ("failed", 1)
    assert "steps in a row had a loss or gradient that is not finite" in ended["reason"]
    assert "reason      " + ended["reason"] in status(run.folder).stdout


def test_killed_without_a_word(start):
    run = start()
    wait_for_steps(run, 3)
    ranks = [rank_process(run.pid, rank) for rank in (0, 1)]
    run.kill()
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in ranks))
    found = status_json(run.folder)
    assert found["state"] == "training" and not found["alive"]
    assert f"process {ranks[0]} on " in found["reason"] and "is gone without a word" in found["reason"]
    assert "state       gone\n" in status(run.folder).stdout


@pytest.mark.long
def test_what_the_ranks_do_when_there_is_no_step(start):
    run = start("dist.timeout_s=600")
    wait_for_steps(run, 3)
    stopped = rank_process(run.pid, 1)
    os.kill(stopped, signal.SIGSTOP)
    try:
        wait_until(lambda: "doing" in status_json(run.folder), 90)
        first, second = status_json(run.folder)["doing"]
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert first.startswith("rank 0: waits") and second == "rank 1: does not answer"
    wait_until(lambda: "doing" not in status_json(run.folder), 60)


def test_what_has_no_status(tmp_path):
    for folder, words in ((tmp_path, "has no status.json"), (tmp_path / "none", "there is no folder")):
        done = status(folder)
        assert done.returncode == 2 and words in done.stderr, done.stderr
    assert status(tmp_path, tmp_path).returncode == 2
    (tmp_path / "status.json").write_text('{"state": "flying"}')
    done = status(tmp_path)
    assert done.returncode == 1 and "is no status of a run: there is no state 'flying'" in done.stderr
