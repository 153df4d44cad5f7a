"""bench/plan.py: what is planned beside what was measured, without a GPU."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(os.environ["FLOE_SOURCE_DIR"])


def compare(*arguments):
    done = subprocess.run([sys.executable, str(ROOT / "bench" / "plan.py"), *map(str, arguments)], capture_output=True,
                          text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def off(text):
    """Percent of time and memory of each row."""
    return [tuple(float(value) for value in re.findall(r"([+-][\d.]+)%", line)) for line in text.splitlines()
            if line.startswith("| of")]


def test_measured_steps_are_planned_within_the_bounds():
    rows = off(compare("--rows", "of4b W=8", "of9b W=1", "of3b W=8 fp8", "of3b W=8 checkpointed offloaded"))
    assert len(rows) >= 6
    for time, memory in rows:
        assert abs(time) <= 10 and abs(memory) <= 5


def test_the_table_takes_its_place_in_a_page(tmp_path):
    row = {"model": "tiny", "system": "floe W=8", "lengths": "natural", "step_ms": [4.0, 2.0, 3.0], "peak_bytes": 2**30}
    (tmp_path / "rows.json").write_text(json.dumps([row, row | {"system": "floe W=8 graphs"}, {"model": "x"}]))
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bench/plan.py -->\nold\n<!-- end of bench/plan.py -->\nafter\n")
    compare(tmp_path / "rows.json", "--write", page)
    text = page.read_text()
    assert "old" not in text and text.startswith("before\n") and text.endswith("after\n")
    assert "| tiny | W=8 | natural | 3 |" in text and "graphs" not in text
    assert re.search(r"1 rows?, \d{4}-\d\d-\d\d\. Worst in time: tiny, W=8", text)
