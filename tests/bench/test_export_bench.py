"""bench/export.py with a small checkpoint: it runs, the weights are right and memory stays in its limit."""

import json
import os
import subprocess
from pathlib import Path

ROOT = Path(os.environ["FLOE_SOURCE_DIR"])


def test_a_small_checkpoint(tmp_path):
    out = tmp_path / "export"
    command = [os.environ["FLOE_PYTHON"], ROOT / "bench/export.py", "--quick", "--folder", tmp_path, "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.with_suffix(".json").read_text())
    assert [row["files"] for row in rows] == [rows[0]["files"], 1] and rows[0]["files"] > 4
    assert all(row["bytes"] > 60_000_000 for row in rows)
