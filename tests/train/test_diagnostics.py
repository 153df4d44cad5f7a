"""What `floe train` says about itself, from the command line to the files."""

import json

import pytest

POINTS = ["batch_start", "after_forward", "after_backward", "before_optimizer_step", "batch_end"]


@pytest.fixture
def config(golden):
    config = golden("neox_x2", world2=True)
    config["log"]["diagnostics"] = {"batches": 2, "trace_steps": 2}
    return config


@pytest.mark.parametrize("packed", [True, False])
def test_a_run_explains_itself(train, config, packed):
    config["train"]["packed"] = packed
    run = train(config, "strategy.prefetch=2", ranks=2)
    for line in (
        "strategy: 2 units are gathered ahead of the one that computes (strategy.prefetch, command line 'strategy.prefetch=2')",
        "strategy: parameters are gathered and computed with in fp32 (strategy.mixed_precision.param, ",
        "this rank (0 of 2) holds ",
        "this rank (1 of 2) holds ",
        "dtypes: in memory: trainable slices fp32, frozen slices fp32",
        "memory: batch 2 ",
        "memory: the peak of memory is ",
        "times: a step takes ",
        "trace: the first 2 batches are in ",
    ):
        assert line in run.stderr, run.stderr
    assert "memory: batch 3" not in run.stderr

    found = json.loads((run.folder / "diagnostics.json").read_text())
    assert set(found) == {"strategy", "units", "ranks", "memory", "notes", "times"}
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    seen = [(at["rank"], at["batch"], at["point"]) for at in found["memory"]]
    assert seen == [(rank, batch, point) for rank in (0, 1) for batch in (1, 2) for point in POINTS]
    assert all(at["peak_bytes"] >= at["current_bytes"] > 0 and at["hint"] for at in found["memory"])
    per_rank = sum(group["shard_bytes"] for unit in found["units"] for group in unit["groups"])
    assert per_rank == found["ranks"][0]["trainable_bytes"] + found["ranks"][0]["frozen_bytes"]
    assert {unit["unit"] for unit in found["times"]} == {unit["name"] for unit in found["units"]}

    first, second, third = run.steps()[:3]
    assert first["memory/after_forward_peak_mib"] > 0
    assert second["time/compute_s"] > 0
    assert not any(name.startswith("time/") for name in third)


def test_batches_that_are_skipped_are_not_those_that_are_looked_at(train, config):
    """With fp16 the first ones often are: gradients overflow until the scale fits."""
    config["train"]["max_skipped"] = 40
    run = train(config, "strategy.mixed_precision.param=fp16", "precision.loss_scale=1e11", ranks=2)
    assert "skipped" in run.stderr, run.stderr
    found = json.loads((run.folder / "diagnostics.json").read_text())
    seen = [(at["rank"], at["batch"], at["point"]) for at in found["memory"]]
    assert seen == [(rank, batch, point) for rank in (0, 1) for batch in (1, 2) for point in POINTS]
    assert "memory: batch 3" not in run.stderr
    trace = json.loads((run.folder / "trace" / "rank_0.json").read_text())
    assert {event["name"] for event in trace["traceEvents"] if event["name"].startswith("batch ")} == {"batch 1", "batch 2"}


def test_the_trace_nests(train, config):
    run = train(config, ranks=2)
    for rank in (0, 1):
        trace = json.loads((run.folder / "trace" / f"rank_{rank}.json").read_text())
        spans = sorted(
            ((e["ts"], -e["dur"], e["name"]) for e in trace["traceEvents"] if e["ph"] == "X"), key=lambda s: s[:2]
        )
        assert sum(name.startswith("batch ") for _, _, name in spans) == 2
        open_until = []
        for begin, negative, name in spans:
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or begin - negative <= open_until[-1] + 1e-3, name
            open_until.append(begin - negative)


def test_off_is_off(train, config):
    config["log"]["diagnostics"] = None
    run = train(config, ranks=2)
    assert not (run.folder / "diagnostics.json").exists()
    assert not (run.folder / "trace").exists()
    assert "memory: " not in run.stderr and "units: " not in run.stderr
    assert not any(name.startswith("memory/") for name in run.steps()[0])


@pytest.mark.parametrize("diagnostics, about", [({"batches": 1}, "strategy"), (None, "precision")])
def test_number_types_are_told_once_with_diagnostics_or_without(train, config, diagnostics, about):
    config["log"]["diagnostics"] = diagnostics
    run = train(config, "strategy.mixed_precision.param=fp16", "precision.loss_scale=1024", "train.steps=1", ranks=2)
    for line in (
        "parameters are gathered and computed with in fp16 (strategy.mixed_precision.param, command line ",
        "forwards run without autocast (precision.autocast, default)",
        "the loss is scaled, at first by 1024 (precision.loss_scale, command line 'precision.loss_scale=1024')",
    ):
        assert run.stderr.count(line) == 1 and f"{about}: {line}" in run.stderr, run.stderr
