"""`cluster(n)` makes n hosts, `start(*words)` a run of a small training job on new ones; `job`
knows the losses of an undisturbed one."""

import os
import sys
from pathlib import Path

import pytest

# Helpers of several tests are plain modules; those of tests/train have the program and the data.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "train")]
import hosts  # noqa: E402
import jobs  # noqa: E402


def need_hosts():
    """Skips the test where there can be no hosts; with FLOE_NEED_CLUSTER that is a failure."""
    reason = hosts.why_not()
    if reason and not os.environ.get("FLOE_NEED_CLUSTER"):
        pytest.skip(reason)
    assert reason is None, reason


@pytest.fixture
def cluster(tmp_path):
    made = []

    def make(count):
        need_hosts()
        made.append(hosts.Cluster(count, tmp_path / f"cluster{len(made)}"))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="session")
def job(tmp_path_factory):
    return jobs.Job(tmp_path_factory.mktemp("job"))


@pytest.fixture
def start(cluster, job, tmp_path):
    """It is not started yet: `by_hand`, `torchrun` and others do that. With `on` it is on the hosts
    of another run."""

    def begin(*words, places=(0, 1), on=None, **more):
        nodes = on.cluster if on else cluster(max(places) + 1)
        return jobs.Run(nodes, job, tmp_path, *words, places=places, **more)

    return begin
