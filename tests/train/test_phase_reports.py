"""What a run says about its phases: whose memory it is at each switch, in the log and in metrics.jsonl."""

import subprocess

import pytest
from running import FLOE

PHASES = [
    {"name": "resampler", "train": ["perceiver.*"], "steps": 1, "optimizer_state": "offload"},
    {"name": "gates", "train": ["*gated_cross_attn*"], "steps": 1, "optimizer_state": "drop"},
]


@pytest.mark.parametrize("ranks", [1, 2])
def test_memory_by_owner_at_each_switch(train, golden, ranks):
    config = golden("neox_x2", world2=ranks == 2)
    config["phases"] = PHASES
    config["train"] |= {"cycle_phases": True, "ema": {"decay": 0.9}}
    config["train"]["optimizer"]["decay"] = []
    run = train(config, ranks=ranks)
    switches = [step["phase_switch"] for step in run.steps() if "phase_switch" in step]
    assert [(line["from"], line["to"]) for line in switches][:2] == [("resampler", "gates"), ("gates", "resampler")]
    assert len(switches) == len(run.steps()) - 1

    first, back = switches[0]["memory"], switches[1]["memory"]
    assert first["before"]["optimizer_state.resampler"] == 2 * first["before"]["parameters.trainable"]
    assert first["after"]["host.optimizer_state.resampler"] == first["before"]["optimizer_state.resampler"]
    assert "optimizer_state.resampler" not in first["after"]
    assert first["after"]["optimizer_state.gates"] == 2 * first["after"]["parameters.trainable"]
    assert "optimizer_state.gates" not in back["after"] and "host.optimizer_state.gates" not in back["after"]
    assert back["after"]["parameters.trainable"] == first["before"]["parameters.trainable"]
    assert back["after"]["rest"] <= first["before"]["rest"] + 2**20

    assert "phase 'gates' trains from step 2 on, after 'resampler'" in run.stderr
    assert "memory:   the optimizer state of set 'resampler', in host memory" in run.stderr
    assert run.stderr.count("memory: owner") == 2 < len(switches), "once for every pair of phases"
    assert "expected" not in run.stderr, "no owner holds more than the plan says"
    assert all(("phase_switch_time" in step) == (number > 0) for number, step in enumerate(run.steps()))
    assert [step["phase"] for step in run.steps()][:3] == ["resampler", "gates", "resampler"]

    done = subprocess.run([FLOE, "report", run.folder], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    page = (run.folder / "report.html").read_text()
    assert "<h2>Phases</h2>" in page and "optimizer state of resampler, in host memory" in page
