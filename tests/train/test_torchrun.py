"""Under the real torchrun: ranks meet at the store of its agent, and after a failure it starts them again, which
goes on from the newest checkpoint."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from running import FLOE, environment, rank_process, steps_of
from patience import patient

STEPS = 150


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.mark.parametrize("launcher", ["floe", "torchrun"])
def test_a_run_that_begins_anew_goes_on_when_its_job_is_started_again(launcher, golden, train, write, tmp_path):
    """run.resume=never is for the start that somebody makes, not for those that a launcher makes after a failure."""
    config = golden("neox_x2", world2=True)
    config["train"]["steps"] = STEPS
    config["checkpoint"] = {"every_steps": 10, "on_exception": False}
    config["dist"] = {"timeout_s": 60}
    train(config, "train.steps=3", ranks=2, name="again")  # an earlier run, of another job

    run, log = tmp_path / "runs" / "again", tmp_path / "log"
    words = ["train", write(config), "run.name=again", "run.resume=never"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1",
                "--monitor-interval=0.2", f"--master-port={free_port()}", "--no-python", FLOE, *words]
    floe = [FLOE, "launch", "-n", "2", "--max-restarts", "1", "--", *words]
    starter = subprocess.Popen(torchrun if launcher == "torchrun" else floe, stdout=log.open("w"),
                               stderr=subprocess.STDOUT, env=environment())
    try:
        end = time.time() + patient(90)
        while time.time() < end and not (run.with_name("again.1").exists() and (run / "checkpoints" / "last").exists()):
            assert starter.poll() is None, log.read_text()
            time.sleep(0.01)
        os.kill(rank_process(starter.pid, 1), signal.SIGKILL)
        starter.wait(timeout=100)
    finally:
        starter.terminate()
        starter.wait()
    assert starter.returncode == 0, log.read_text()
    assert "this job began the run itself and is started again" in log.read_text()
    assert "continuing after step" in log.read_text()
    assert sorted(path.name for path in run.parent.iterdir()) == ["again", "again.1"]
    assert sorted(steps_of(run)) == list(range(1, STEPS + 1))


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
