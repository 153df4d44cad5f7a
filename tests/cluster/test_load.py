"""The load of the control plane: what rank 0 is asked in a run that trains, and what it can stand."""

import os
import re
import resource
import subprocess

from jobs import RUN_S
from running import FLOE

TWO_BY_TWO = (0, 0, 1, 1)
RANKS = 256


def requests_of(run):
    assert run.by_hand(FLOE_LOG="debug").wait(RUN_S) == [0] * len(run.hosts), run.story()
    return int(re.search(r"rank 0 was asked and told (\d+) times", run.processes[0].said()).group(1))


def test_steps_ask_nothing_of_rank_0(start):
    """Ranks meet, compare and save over the control plane; between that not a message travels."""
    fewer = start("train.steps=20", places=TWO_BY_TWO, name="fewer")
    more = start("train.steps=220", on=fewer, places=TWO_BY_TWO, name="more")
    few = requests_of(fewer)
    assert few > len(fewer.hosts)
    assert requests_of(more) <= few + 4


def test_hundreds_of_ranks(capsys):
    """Rank 0 alone on one side, 255 connections on the other."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard >= 4 * RANKS
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4 * RANKS), hard))
    done = subprocess.run([FLOE.parent / "control_load", str(RANKS), "2"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    parts = dict(re.findall(r"^(.+?)  +(\d+) messages", done.stdout, re.M))
    assert parts["between steps: nothing"] == "0", done.stdout
    assert int(parts["all at once, as fast as they can"]) >= 100 * (RANKS - 1), done.stdout
    if "FLOE_SHOW_LOAD" in os.environ:
        with capsys.disabled():
            print("\n" + done.stdout)
