"""A stop that leaves no time for a save: the ranks write what they have, each by itself, and nothing is lost."""

import json
import os
import signal
import subprocess
import time

import pytest
from running import rank_process, steps_of, wait_for_steps

SLOW_DISK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* While the file SLOW_DISK is there, the disk of the checkpoints takes its time. */
int fsync(int fd) {
  int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  char link[64], path[PATH_MAX] = "";
  const char* slow = getenv("SLOW_DISK");
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  if (readlink(link, path, sizeof path - 1) > 0 && strstr(path, "/checkpoints/") && slow && access(slow, F_OK) == 0)
    usleep(600000);
  return real(fd);
}
"""


@pytest.fixture
def slow_disk(tmp_path, monkeypatch):
    """While this file exists, a save takes more than 5 s."""
    source, library, switch = tmp_path / "slow.c", tmp_path / "slow.so", tmp_path / "slow"
    source.write_text(SLOW_DISK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    switch.touch()
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("SLOW_DISK", str(switch))
    return switch


def test_an_emergency_set_where_a_save_would_take_too_long(start, train, golden, slow_disk):
    config = golden("neox_x2", world2=True)
    config["train"]["steps"] = 1_000_000
    config["checkpoint"] = {"every_steps": 1_000_000}
    run = start(config, "run.stop_grace_s=4", ranks=2)
    wait_for_steps(run, 2)
    began = time.monotonic()
    os.kill(rank_process(run.pid, 1), signal.SIGUSR1)
    log = run.folder / "logs" / "rank_0.log"
    while "saved step" not in log.read_text():
        assert run.poll() is None and time.monotonic() < began + 90
        time.sleep(0.05)
    assert time.monotonic() - began > 5, "the disk is not slow"
    slow_disk.unlink()
    run.send_signal(signal.SIGTERM)
    text = run.communicate(timeout=60)[1]
    assert run.returncode == 75, text
    assert "there is no time for a save: the last one says that it takes " in text and "of run.stop_grace_s (4) " in text
    last = max(steps_of(run.folder))
    checkpoints = run.folder / "checkpoints"
    assert json.loads((checkpoints / "on_exception" / "floe.json").read_text().splitlines()[0])["step"] == last
    assert not (checkpoints / f"step_{last}").exists() and not list(checkpoints.glob(".emergency-*"))

    config["train"]["steps"] = last + 2
    again = train(config, ranks=2)
    assert f"continuing after step {last} from '{checkpoints}/on_exception'" in again.stderr
    assert [step["step"] for step in again.steps()][-3:] == [last, last + 1, last + 2]
    assert (checkpoints / f"step_{last + 2}").exists() and not (checkpoints / "on_exception").exists()


@pytest.mark.long
def test_emergency_sets_can_be_switched_off(start, golden, slow_disk):
    """Then there is a save, however long it takes."""
    config = golden("neox_x2", world2=True)
    config["train"]["steps"] = 1_000_000
    config["checkpoint"] = {"every_steps": 1_000_000, "on_exception": False}
    run = start(config, "run.stop_grace_s=4", ranks=2)
    wait_for_steps(run, 2)
    os.kill(rank_process(run.pid, 1), signal.SIGUSR1)
    log, end = run.folder / "logs" / "rank_0.log", time.monotonic() + 90
    while "saved step" not in log.read_text():
        assert run.poll() is None and time.monotonic() < end
        time.sleep(0.05)
    slow_disk.unlink()
    run.send_signal(signal.SIGTERM)
    text = run.communicate(timeout=60)[1]
    assert run.returncode == 75, text
    assert (run.folder / "checkpoints" / f"step_{max(steps_of(run.folder))}").is_dir()
