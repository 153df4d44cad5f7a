"""bench/plan_cpu.py: steps of Gloo ranks on this machine beside their plans."""

import json
import re

from bench_script import output_of


def compare(*arguments):
    output_of("plan_cpu.py", *arguments, timeout=600)


def test_steps_of_ranks_are_planned(tmp_path):
    """Memory within 7% (of a small model one tensor of logits is 5.8%: docs/plan.md), collectives one for one. What time it takes says
    nothing here, where other tests use the same cores; that ranks which share cores are planned to take longer does."""
    out = tmp_path / "out.json"
    compare("--rounds", 1, "--steps", 4, "--models", "adapters", "flamingo", "--ranks", 1, 2, 3, "--out", out)
    rows = json.loads(out.read_text())["rows"]
    assert len(rows) == 6
    for row in rows:
        name = f"{row['model']} on {row['ranks']}"
        assert abs(row["planned_peak_bytes"] / row["measured_peak_bytes"] - 1) <= 0.07, name
        assert row["planned_gathers"] == row["measured_gathers"], name
        assert row["planned_reduces"] == row["measured_reduces"], name
    for model in ("adapters", "flamingo"):
        times = [row["planned_step_ms"] for row in sorted(rows, key=lambda row: row["ranks"]) if row["model"] == model]
        assert 0 < times[0] < times[1] < times[2], model


def test_the_table_takes_its_place_in_a_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bench/plan_cpu.py -->\nold\n<!-- end of bench/plan_cpu.py -->\nafter\n")
    machine = tmp_path / "machine.yaml"
    machine.write_text("device: cpu\ncores: 2\n")
    compare("--quick", "--rounds", 1, "--steps", 2, "--models", "decoder", "--ranks", 1, 2, "--machine", machine, "--out", tmp_path / "out.json",
            "--write", page)
    text = page.read_text()
    assert "old" not in text and text.startswith("before\n") and text.endswith("after\n")
    assert len(re.findall(r"^\| decoder \| [12] \| \d+ \| \d+ \| [+-][\d.]+% \|", text, re.M)) == 2
    assert re.search(r"^2 rows, \d{4}-\d\d-\d\d, \d+ cores", text, re.M)
    assert json.loads((tmp_path / "out.json").read_text())["machine"] == machine.read_text()
