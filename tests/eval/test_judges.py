"""The comparisons with lm-eval-harness and with OpenFlamingo's evaluate.py, whose packages are too large for every day."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@pytest.fixture(scope="session")
def packages():
    """A folder with what judges.txt lists, installed once for each state of that file."""
    folder = ROOT / ".deps" / "judges"
    wanted = (HERE / "judges.txt").read_text()
    stamp = folder / ".floe-judges"
    if not stamp.exists() or stamp.read_text() != wanted:
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--upgrade", "--target", folder, "-r", HERE / "judges.txt"]
        subprocess.run(command, check=True)
        stamp.write_text(wanted)
    return folder


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("script", ["compare_lm_eval.py", "compare_openflamingo.py"])
def test_scores_are_those_of_the_judge(script, packages):
    done = subprocess.run([sys.executable, HERE / script, packages], capture_output=True, text=True, env=dict(os.environ, OMP_NUM_THREADS="1"))
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
