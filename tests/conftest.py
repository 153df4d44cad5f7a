"""For all tests."""

import collections
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))
import patience  # noqa: E402

# TensorBoard brings gRPC into this process. Its handlers around fork() would restart its threads in the
# child, where they abort before the program of the test is executed.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# Tests run side by side: threads that wait for each other would take the cores of other tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")

patience.with_longer_limits()

# What a shell starts in the background ignores SIGINT, and so would every process of a test.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# What takes longest begins first: a worker takes whole files, and a long one at the end would leave cores idle.
LONGEST = [
    "tools/test_wheel.py",
    "cluster/test_campaign.py",
    "docs/test_commands.py",
    "cluster/test_faults.py",
    "train/test_nothing_lost.py",
    "cluster/test_elastic.py",
    "cluster/test_two_hosts.py",
    "examples/test_examples.py",
    "docs/test_troubles.py",
    "tools/test_package.py",
    "cluster/test_many_ranks.py",
    "cluster/test_launchers.py",
    "interop/test_checkpoints.py",
    "bench/test_h200_bench.py",
    "bench/test_engine_bench.py",
    "bench/test_phases_bench.py",
    "bench/test_checkpoint_bench.py",
    "train/test_stop_in_time.py",
    "checkpoint/test_crash.py",
    "cluster/test_doctor.py",
    "cluster/test_hosts.py",
    "train/test_hangs.py",
    "metrics/test_wandb_online.py",
    "tools/test_mutants.py",
]


def longest_first(items):
    """By file, in the order of LONGEST, then those with the most tests; the tests of a file stay together."""
    files = [str(item.path.relative_to(Path(__file__).parent)) for item in items]
    count = collections.Counter(files)
    place = {file: number for number, file in enumerate([*LONGEST, *(file for file, _ in count.most_common())][::-1])}
    return [item for _, item in sorted(zip(files, items, strict=True), key=lambda pair: -place[pair[0]])]


def pytest_collection_modifyitems(config, items):
    usual = float(config.getini("timeout"))
    for item in items:
        own = item.get_closest_marker("timeout")
        item.add_marker(pytest.mark.timeout(patience.patient(own.args[0] if own else usual)), append=False)
    items[:] = longest_first(items)
