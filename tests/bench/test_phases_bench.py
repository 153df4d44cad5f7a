"""bench/phases.py on a tiny model: what two sets that train in turn cost, next to one set alone, DDP and
FSDP2.

Only what is counted is asserted, never a time.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(os.environ["FLOE_SOURCE_DIR"])
SETS = ("A", "B")
AWAY = ("floe-offload", "floe-drop", "floe-no-shard-offload", "floe-no-shard-drop")


@pytest.fixture(scope="module")
def systems(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench") / "phases"
    command = [os.environ["FLOE_PYTHON"], ROOT / "bench/phases.py", "--quick", "--out", out,
               "--systems", ",".join((*AWAY, "fsdp2", "fsdp2-drop", "ddp"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.with_suffix(".json").read_text())["systems"]
    assert not [(name, row["failed"]) for name, row in rows.items() if "failed" in row]  # differing losses fail
    return rows


def peak(row, name, how="turns"):
    return row[how][name]["peak_bytes"]


def test_both_sets_have_learned(systems):
    for row in systems.values():
        for losses in row["losses"]:
            for first in (0, 2):  # the first step of A and of B, and the last of each
                assert losses[first + 5] < losses[first] - 1e-3


@pytest.mark.parametrize("system", AWAY)
def test_a_resting_set_costs_nothing(systems, system):
    for name in SETS:
        assert peak(systems[system], name) <= 1.01 * peak(systems[system], name, "alone")


def test_the_others_pay_for_the_resting_set(systems):
    """What the claim is about: it would hold trivially if nobody paid."""
    for system in ("fsdp2", "ddp"):
        assert peak(systems[system], "A") > 1.1 * peak(systems[system], "A", "alone")


@pytest.mark.parametrize("floe, peer", [*zip(AWAY, ("fsdp2", "fsdp2", "ddp", "ddp"))])
def test_floe_needs_less_than(systems, floe, peer):
    for name in SETS:
        assert peak(systems[floe], name) < peak(systems[peer], name)


@pytest.mark.parametrize("system", AWAY)
def test_a_switch_moves_nothing_between_ranks_and_needs_no_memory(systems, system):
    for name in SETS:
        switch = systems[system]["switches"][name]
        assert switch["moved_bytes"] == 0
        assert switch["extra_bytes"] <= 0  # never above what was in use before or after it


@pytest.mark.parametrize("system", AWAY)
def test_a_step_moves_what_it_moves_alone(systems, system):
    for name in SETS:
        for what in ("gathered_bytes", "reduced_bytes"):
            assert systems[system]["turns"][name][what] <= systems[system]["alone"][name][what]


def test_the_store_holds_exactly_the_moments_of_the_resting_set(systems):
    for system, row in systems.items():
        for name, other in (SETS, SETS[::-1]):
            stored = row["turns"][name]["stored_bytes"]
            reduced = row["alone"][other]["reduced_bytes"]  # the resting set's size, all of it
            ranks = 2 if system == "floe-offload" else 1
            assert stored == (2 * reduced // ranks if system.endswith("offload") else 0), (system, name)
