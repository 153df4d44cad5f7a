"""`floe launch` over several hosts: ranks and hosts that are lost, hosts that come (back), launchers
that do not belong together."""

import signal
import sys

import pytest

from jobs import AGAIN_S, AGENTS_PORT, GONE_S, RUN_S, START_S

pytestmark = pytest.mark.timeout(900)
LONG = 200
SAVED = (f"train.steps={LONG}", "checkpoint.every_steps=20", "dist.timeout_s=60")
ENDLESS = ("train.steps=1000000", "checkpoint.every_steps=20", "dist.timeout_s=60")
STOPPED = 75


def said(run, host=0):
    return run.processes[run.hosts[host].name].said()


def wait_for(run, words, seconds, host=0):
    run.wait_until(lambda: words in said(run, host), seconds, f"'{words}'")


def test_all_start_again_after_a_rank_was_killed(start, job):
    run = start(*SAVED).floe_launch("2", "--max-restarts", 3)
    first, second = (host.name for host in run.hosts)
    run.wait_until(run.has_saved, START_S, "a checkpoint")
    run.signal(1, signal.SIGKILL)
    done = len(run.losses())
    assert run.wait(AGAIN_S) == [0, 0], run.story()
    assert done < LONG, "the run was over before a rank was killed"
    assert run.losses() == job.undisturbed(2, *SAVED)
    assert said(run).count(f"starting 2 ranks on {first}, {second}") == 2, run.story()
    assert f"on {second} rank 1 of 2 failed first: it was ended by SIGKILL; starting again (1 of 3)" in said(run)


def test_a_host_is_lost_and_comes_back(start):
    """With one to two hosts the run goes on with one, and with two again at the next start."""
    run = start(*ENDLESS).floe_launch("1:2", "--max-restarts", 5)
    first, second = (host.name for host in run.hosts)
    run.wait_until(run.has_saved, START_S, "a checkpoint")
    run.hosts[1].kill()
    wait_for(run, f"starting 1 rank on {first}\n", GONE_S + START_S)
    steps = len(run.losses())
    run.wait_for_steps(steps + 5)
    run.floe_launch("1:2", "--max-restarts", 5, on=run.hosts[1])
    wait_for(run, f"{second} has come: it waits until the job is started again", START_S)
    run.signal(0, signal.SIGKILL)
    run.wait_until(lambda: said(run).count(f"starting 2 ranks on {first}, {second}") == 2, AGAIN_S, "the second host")
    steps = max(run.losses())
    run.wait_until(lambda: max(run.losses()) > steps + 5, AGAIN_S, "steps of both")
    for host in run.hosts:  # as a scheduler does it
        run.processes[host.name].send_signal(signal.SIGTERM)
    assert run.wait(RUN_S) == [STOPPED, STOPPED], run.story()
    assert f"step_{max(run.losses())}" in run.checkpoints()
    assert "the same command goes on" in said(run) and "the same command goes on" in said(run, 1)


@pytest.mark.long
def test_a_host_that_cannot_be_reached_any_more_is_left_behind(start):
    run = start(*ENDLESS).floe_launch("1:2", "--max-restarts", 1, "--grace", 5)
    run.wait_until(run.has_saved, START_S, "a checkpoint")
    run.hosts[1].cut()
    wait_for(run, "its host or the network is gone", 2 * GONE_S)
    wait_for(run, f"starting 1 rank on {run.hosts[0].name}\n", 2 * GONE_S)
    steps = max(run.losses())
    run.wait_until(lambda: max(run.losses()) > steps + 3, START_S, "steps of one")
    # The one that was left behind ends by itself.
    run.wait_until(lambda: run.processes[run.hosts[1].name].poll() == 1, 2 * GONE_S, "the end of the other")
    assert "where the hosts meet, is gone" in said(run, 1)
    run.processes[run.hosts[0].name].send_signal(signal.SIGTERM)
    assert run.wait(RUN_S) == [STOPPED, 1], run.story()


def test_the_last_restart_is_the_last(start):
    run = start("train.optimizer.lr=1e30", "train.max_skipped=1").floe_launch("2", "--max-restarts", 1)
    assert run.wait(RUN_S) == [1, 1], run.story()
    for host in (0, 1):
        assert "it has been started again 1 time (--max-restarts)" in said(run, host)


def test_what_is_refused_is_not_started_again(start):
    run = start("train.optimizer.nonsense=1").floe_launch("2", "--max-restarts", 5)
    assert run.wait(RUN_S) == [2, 2], run.story()
    assert "starting again" not in said(run)


def test_strangers_are_sent_away_and_the_job_begins(start):
    run = start("train.steps=3", places=(0, 1))
    run.floe_launch("2", on=run.hosts[0])
    wait_for(run, "hosts meet here", START_S)
    talk = f"import socket; s = socket.create_connection(('{run.hosts[0].name}', {AGENTS_PORT})); " \
        "s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n'); s.recv(100)"
    run.hosts[1].run(sys.executable, "-c", talk)
    wait_for(run, "something that is no launcher has connected", START_S)
    other = start("train.steps=4", on=run, name="other")
    other.floe_launch("2", on=run.hosts[1])
    code = other.processes[run.hosts[1].name].wait(timeout=START_S)
    assert code == 2 and "give the same command on all hosts" in said(other, 1), other.story()
    run.floe_launch("2", on=run.hosts[1])
    assert run.wait(RUN_S) == [0, 0], run.story()
    assert sorted(run.losses()) == [1, 2, 3]


def test_too_few_hosts(start):
    run = start()
    run.floe_launch("2", "--host-wait", 2, on=run.hosts[0])
    assert run.wait(START_S) == [1], run.story()
    assert f"only 1 host of at least 2 came within 2 s: {run.hosts[0].name}" in said(run)
    alone = start(on=run)
    alone.floe_launch("2", "--host-wait", 2, on=run.hosts[1])
    assert alone.wait(START_S) == [1], alone.story()
    assert "no launcher answers at" in said(alone, 1)
