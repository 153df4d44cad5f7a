"""For all tests."""

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

patience.with_longer_limits()

# What a shell starts in the background ignores SIGINT, and so would every process of a test.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config, items):
    usual = float(config.getini("timeout"))
    for item in items:
        own = item.get_closest_marker("timeout")
        item.add_marker(pytest.mark.timeout(patience.patient(own.args[0] if own else usual)), append=False)
