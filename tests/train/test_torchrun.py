"""Under the real torchrun: ranks meet at the store of its agent, and after a failure it starts them again, which
goes on from the newest checkpoint."""

import os
import signal
import subprocess
import sys
import time

import pytest
from running import FLOE, environment, rank_process, steps_of
from patience import patient

STEPS = 150


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.long), 1])
def test_starts_again_after_a_rank_was_killed(victim, golden, train, write, tmp_path):
    config = golden("neox_x2", world2=True)
    config["train"]["steps"] = STEPS
    config["checkpoint"] = {"every_steps": 10}
    config["dist"] = {"timeout_s": 60}
    unbroken = train(config, ranks=2, name="unbroken")

    run, log = tmp_path / "runs" / "again", tmp_path / "log"
    agent = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1",
         "--monitor-interval=0.2", "--no-python", FLOE, "train", write(config), "run.name=again"],
        stdout=log.open("w"), stderr=subprocess.STDOUT, env=environment())
    try:
        end = time.time() + patient(90)
        while time.time() < end and not (run / "checkpoints" / "last").exists():
            assert agent.poll() is None, log.read_text()
            time.sleep(0.01)
        os.kill(rank_process(agent.pid, victim), signal.SIGKILL)
        killed_after = len(steps_of(run))
        agent.wait(timeout=100)
    finally:
        agent.terminate()  # its ranks go with it
        agent.wait()
    assert agent.returncode == 0, log.read_text()
    assert killed_after < STEPS, "the run was over before a rank was killed"
    found = steps_of(run)
    assert sorted(found) == list(range(1, STEPS + 1))
    for line in unbroken.steps():
        for name in ("loss_laion", "loss_mmc4", "grad_norm"):
            assert found[line["step"]][name] == pytest.approx(line[name], rel=1e-5), (line["step"], name)
