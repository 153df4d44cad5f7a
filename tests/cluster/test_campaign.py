"""The campaign of faults: a dozen of them in every test run, hundreds in the long one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CAMPAIGN = Path(__file__).with_name("campaign.py")
# One after the other, most of them to the same start of the run.
DOZEN = ["save_now", "a_stranger", "stop_a_rank_for_a_moment", "lose_packets", "slow_link", "clock_jump", "slow_disk",
         "cut_a_link_for_a_moment", "terminate_all_twice", "damage_the_newest_checkpoint", "fill_the_disk",
         "kill_rank_0"]


def campaign(*words, timeout):
    words = [sys.executable, CAMPAIGN, *map(str, words)]
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=timeout)


@pytest.mark.timeout(600)
def test_a_dozen_faults(cluster, tmp_path):
    cluster(1)  # or the test is skipped
    done = campaign("--scenario", "full_shard 2x2", "--in-order", "--fault", *DOZEN, "--steps", 300,
                    "--cache", tmp_path / "cache", "--work", tmp_path, timeout=580)
    assert done.returncode == 0, done.stdout
    assert "12 events" in done.stdout and "went on with the same command: 12" in done.stdout, done.stdout


@pytest.mark.long
@pytest.mark.timeout(6 * 3600)
def test_hundreds_of_faults(cluster, tmp_path, capsys):
    """FLOE_EVENTS of them, chosen by FLOE_SEED."""
    cluster(1)
    words = ["--events", os.environ.get("FLOE_EVENTS", 300), "--seed", os.environ.get("FLOE_SEED", 1)]
    done = campaign(*words, "--work", tmp_path, timeout=6 * 3600)
    with capsys.disabled():
        print("\n" + done.stdout)
    assert done.returncode == 0, done.stdout
