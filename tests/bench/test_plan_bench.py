"""bench/plan.py: what is planned beside what was measured, without a GPU."""

import json
import re
import statistics
import subprocess
import sys

from bench_script import ROOT, output_of


def off(text):
    """Percent of time and memory of each row."""
    return [tuple(float(value) for value in re.findall(r"([+-][\d.]+)%", line)) for line in text.splitlines()
            if line.startswith("| of")]


def test_measured_steps_are_planned_within_the_bounds():
    rows = off(output_of("plan.py", "--rows", "of4b W=8", "of9b W=1", "of3b W=8 fp8", "of3b W=8 checkpointed offloaded"))
    assert len(rows) >= 6
    for time, memory in rows:
        assert abs(time) <= 10 and abs(memory) <= 5


def test_the_table_takes_its_place_in_a_page(tmp_path):
    row = {"model": "tiny", "system": "floe W=8", "lengths": "natural", "step_ms": [4.0, 2.0, 3.0], "peak_bytes": 2**30}
    (tmp_path / "rows.json").write_text(json.dumps([row, row | {"system": "floe W=8 graphs"}, {"model": "x"}]))
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bench/plan.py -->\nold\n<!-- end of bench/plan.py -->\nafter\n")
    output_of("plan.py", tmp_path / "rows.json", "--write", page)
    text = page.read_text()
    assert "old" not in text and text.startswith("before\n") and text.endswith("after\n")
    assert "| tiny | W=8 | natural | 3 |" in text and "graphs" not in text
    assert re.search(r"1 rows?, \d{4}-\d\d-\d\d\. Worst in time: tiny, W=8", text)


def test_adapters_are_planned():
    """As bench/h200_lora.py runs them: they take memory and time, recomputing takes less of the one and more of the other."""
    script = """
import argparse, json, h200_lora
from h200_models import ask_floe
settings = argparse.Namespace(device="cpu", seed=0, warmup=0, steps=0, profile=False)
configs = {name: h200_lora.config_of("llama3-8b", "2x4096", settings, h200_lora.FLOE_SYSTEMS[name])
           for name in ("floe", "floe checkpointed", "floe fp8 products")}
print(json.dumps({name: ask_floe(config | {"task": "plan", "machine": "h200"}) for name, config in configs.items()}))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300, cwd=ROOT / "bench")
    plans = json.loads(done.stdout)
    assert not any("error" in plan for plan in plans.values()), plans
    rows = json.loads((ROOT / "bench/results/2026-11-18-h200-lora.json").read_text())
    for name, plan in plans.items():
        (measured,) = [row for row in rows if (row["model"], row["lengths"], row["system"]) == ("llama3-8b", "2x4096", name)]
        assert abs(plan["peak_bytes"] / measured["peak_bytes"] - 1) <= 0.05, name
        assert abs(plan["step_ms"] / statistics.median(measured["step_ms"]) - 1) <= 0.10, name
    whole, again, codes = plans.values()
    assert again["peak_bytes"] < 0.6 * whole["peak_bytes"] and again["step_ms"] > whole["step_ms"]
    assert codes["step_ms"] < 0.85 * whole["step_ms"]


def test_the_best_strategy_is_the_same_each_time_and_says_why(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bench/plan_best.py -->\nold\n<!-- end of bench/plan_best.py -->\nafter\n")
    rows = []
    for _ in range(2):
        said = output_of("plan_best.py", "--models", "tiny", "--worlds", 8, 64, "--write", page)
        rows.append([line for line in said.splitlines() if line.startswith("| a tiny")])
    assert rows[0] == rows[1] and len(rows[0]) == 3, "one node, and two networks between eight"
    fast, slow = (float(row.split("|")[5]) for row in rows[0][1:])
    assert slow >= fast, "a slower network makes nothing faster"
    text = page.read_text()
    assert "old" not in text and text.endswith("after\n") and all(row in text for row in rows[0])


def test_a_choice_is_run_beside_what_one_would_try(tmp_path):
    """Who wins on this machine is no concern of a test; that all were run, and the choice of each budget with them."""
    command = [sys.executable, ROOT / "bench/h200_best.py", "--model", "tiny", "--device", "cpu", "--budgets", "1", "140", "--steps", "2",
               "--warmup", "1", "--out", tmp_path]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    (raw,) = tmp_path.glob("*-h200-best.json")
    found = json.loads(raw.read_text())
    assert set(found["choices"]) == {"1.0", "140.0"}, done.stderr
    assert {choice["words"].removeprefix("one rank, ") for choice in found["choices"].values()} <= set(found["rows"])
    assert len(found["rows"]) >= 8 and not any("error" in row for row in found["rows"].values())
    # A quarter of the batch at a time keeps less of it.
    assert found["rows"]["nothing recomputed, in 4 passes"]["peak_bytes"] < found["rows"]["nothing recomputed"]["peak_bytes"]
    (page,) = tmp_path.glob("*.md")
    assert page.read_text().count("GiB | ") >= 2
