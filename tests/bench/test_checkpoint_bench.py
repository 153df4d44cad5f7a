"""The benchmark of checkpoints runs, compares the same number of bytes and prints its table."""

import os
import re
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench/checkpoint.py"


def test_quick(tmp_path):
    done = subprocess.run([sys.executable, BENCH, "--quick", "--folder", tmp_path], capture_output=True, text=True,
                          timeout=240, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    floe, torch = map(int, re.search(r"(\d+) MiB \(floe\) and (\d+) MiB \(torch\)", done.stdout).groups())
    assert floe > 5 and abs(floe - torch) <= 1, "the two saved different things"
    for what in ("save", "load, verified", "pause of an asynchronous save", "the same, torch by default"):
        assert re.search(rf"\| {what} \| \d+\.\d+ \| \d+\.\d+ \| \d+\.\d+× \|", done.stdout), done.stdout
    assert not list(tmp_path.iterdir()), "it cleans up behind itself"
