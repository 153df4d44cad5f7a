"""Faults while `floe train` runs over two hosts: nobody waits for long for a rank or a host that is
gone, everybody's last sentence names it, and the run goes on from what was saved."""

import resource
import signal
import time

import pytest

from jobs import AGAIN_S, GONE_S, RUN_S, START_S, names_rank, sentence

pytestmark = pytest.mark.timeout(900)
TWO_BY_TWO = (0, 0, 1, 1)
ENDLESS = "train.steps=1000000"
# Long enough to be disturbed in the middle, with something to go on from.
LONG = 200
SAVED = (f"train.steps={LONG}", "checkpoint.every_steps=20")
# With what goes before it, the last sentence fits on a screen.
MOST_LINES = 40
LONG_ONE = pytest.mark.long
FULL_BYTES = 32 << 10  # logs are smaller, slices of a checkpoint are not


def assert_told(run, rank, missing):
    """Its last sentence, on the terminal and in its log, names one of those that are missing and
    the host of it."""
    said, log = run.last_words(rank), run.log(rank)
    named = any(names_rank(said, other, run.hosts[other]) for other in missing)
    assert named, f"rank {rank} says: {said}\n{run.story()}"
    logged = log and sentence(log[-1]) == said
    assert logged, f"logs/rank_{rank}.log ends with: {log[-1:]}\n{run.story()}"


def train_some(run):
    run.by_hand()
    run.wait_for_steps(5)
    return {rank: len(process.said().splitlines()) for rank, process in run.processes.items()}


# --------------------------------------------------------------------------- ranks that are gone


@pytest.mark.parametrize("victim", [pytest.param(0, marks=LONG_ONE), 3])
def test_a_rank_is_killed(start, victim):
    run = start(ENDLESS, "dist.timeout_s=600", places=TWO_BY_TWO)
    before = train_some(run)
    run.signal(victim, signal.SIGKILL)
    codes = run.wait(GONE_S)
    assert codes.pop(victim) == 128 + signal.SIGKILL and 0 not in codes, run.story()
    for rank in before.keys() - {victim}:
        assert_told(run, rank, [victim])
        lines = len(run.processes[rank].said().splitlines()) - before[rank]
        assert lines <= MOST_LINES, f"rank {rank} says {lines} lines about it\n{run.story()}"


@pytest.mark.long
@pytest.mark.parametrize("victim", [0, 3])
def test_the_same_command_goes_on_after_a_rank_was_killed(start, job, victim):
    run = start(*SAVED, "dist.timeout_s=60", places=TWO_BY_TWO).by_hand()
    run.wait_until(run.has_saved, RUN_S, "a checkpoint")
    run.signal(victim, signal.SIGKILL)
    assert 0 not in run.wait(60 + GONE_S), run.story()
    again = start(*SAVED, "dist.timeout_s=60", on=run, places=TWO_BY_TWO).by_hand()
    assert again.wait(AGAIN_S) == [0] * 4, again.story()
    assert again.losses() == job.undisturbed(4, *SAVED)


@pytest.mark.parametrize("victim", [pytest.param(0, marks=LONG_ONE), 1])
def test_agents_of_torchrun_start_again_after_a_rank_was_killed(start, job, victim):
    run = start(*SAVED, "dist.timeout_s=60").torchrun(max_restarts=3)
    run.wait_until(run.has_saved, START_S, "a checkpoint")
    run.signal(victim, signal.SIGKILL)
    done = len(run.losses())
    assert run.wait(AGAIN_S) == [0, 0], run.story()
    assert done < LONG, "the run was over before a rank was killed"
    assert run.losses() == job.undisturbed(2, *SAVED)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_dies_while_joining(start, victim):
    """The third rank never comes, so that the others wait for it."""
    run = start(ENDLESS, "dist.timeout_s=120", places=(0, 1, 1))
    run.start_rank(0)
    run.start_rank(1)
    run.wait_until(lambda: run.hosts[1].connections() > 0, START_S, "rank 1 has reached rank 0")
    time.sleep(1)  # both are in the middle of it
    run.signal(victim, signal.SIGKILL)
    survivor = 1 - victim
    assert run.wait(GONE_S)[survivor] not in (0, 128 + signal.SIGKILL), run.story()
    assert names_rank(run.last_words(survivor), victim, run.hosts[victim]), run.story()


@pytest.mark.parametrize("victim", [0, pytest.param(2, marks=LONG_ONE)])
def test_a_rank_is_stopped(start, victim):
    """It neither works nor ends; its connections stand."""
    run = start(ENDLESS, "dist.timeout_s=10", places=TWO_BY_TWO)
    train_some(run)
    run.signal(victim, signal.SIGSTOP)
    assert 0 not in run.wait(10 + GONE_S, but=[victim]), run.story()
    for rank in run.processes.keys() - {victim}:
        assert_told(run, rank, [victim])
        # Nobody waits for those who wait themselves.
        assert not any("others wait for this rank" in line for line in run.log(rank)), run.story(60)


def test_a_rank_cannot_save(start):
    """Its disk is full (files may not grow): the others learn whose, and what is the matter."""
    run = start(ENDLESS, "checkpoint.every_steps=50", "dist.timeout_s=60")
    train_some(run)
    run.wait_until(run.has_saved, RUN_S, "a checkpoint")
    resource.prlimit(run.pid(1), resource.RLIMIT_FSIZE, (FULL_BYTES, FULL_BYTES))
    assert 0 not in run.wait(GONE_S), run.story()
    for rank in run.processes:
        assert_told(run, rank, [1])
        assert "File too large" in run.last_words(rank), run.story()


# --------------------------------------------------------------------------------------- links


@pytest.mark.parametrize("number", [pytest.param(0, marks=LONG_ONE), 1])
def test_the_link_of_a_host_is_cut_for_good(start, number):
    """Both sides end, and each names the other one."""
    run = start(ENDLESS, "dist.timeout_s=600", places=TWO_BY_TWO)
    train_some(run)
    run.cluster[number].cut()
    assert 0 not in run.wait(GONE_S), run.story()
    for rank in run.processes:
        here = run.hosts[rank]
        assert_told(run, rank, [other for other in run.processes if run.hosts[other] is not here])


@pytest.mark.long
def test_the_link_of_a_host_is_cut_for_a_moment(start, job):
    run = start(*SAVED).by_hand()
    run.wait_for_steps(5)
    run.cluster[1].cut()
    time.sleep(4)
    run.cluster[1].mend()
    assert len(run.losses()) < LONG, "the run was over before its link was cut"
    assert run.wait(RUN_S) == [0, 0], run.story()
    assert run.losses() == job.undisturbed(2, *SAVED)


@pytest.mark.long
def test_a_link_that_is_slow_and_loses_packets(start, job):
    run = start()
    run.cluster[1].slow(20)
    run.cluster[1].lose(5)
    run.by_hand()
    assert run.wait(RUN_S) == [0, 0], run.story()
    assert run.losses() == job.undisturbed(2)
