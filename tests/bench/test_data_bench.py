"""bench/data.py on few files: both pipelines do the same work.

Only what is counted is asserted, never a time.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(os.environ["FLOE_SOURCE_DIR"])


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench") / "data"
    command = [os.environ["FLOE_PYTHON"], ROOT / "bench/data.py", "--quick", "--configs", "laion-512,mmc4", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return json.loads(out.with_suffix(".json").read_text())


def test_every_system_did_its_work(results):
    pictures = {"laion-512": 1, "mmc4": 4}
    for name, result in results.items():
        assert set(result["systems"]) == {"decode", "openflamingo 1", "openflamingo 2", "floe 1", "floe 2"}
        for system, row in result["systems"].items():
            for measured in row["rounds"]:
                assert measured["images"] > 0 and measured["cpu_s"] > 0 and measured["wall_s"] > 0
                if system != "decode":  # no sample was dropped, no picture left out
                    assert measured["images"] == pictures[name] * measured["samples"], system
