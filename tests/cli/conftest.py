"""The real program: `floe(*args)` runs it, `start(*args)` leaves it running."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

FLOE = Path(os.environ["FLOE_BIN_DIR"]) / "floe"


def clean_environment():
    """Without what an outer launcher or the user may have set."""
    ours = ("FLOE_L", "OMP_NUM_THREADS", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def default_signals():
    """Signals that whoever started the tests ignores would stay ignored in the launcher."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def floe():
    def run(*args, timeout=60, **more):
        return subprocess.run(
            [FLOE, *args], capture_output=True, text=True, timeout=timeout, env=clean_environment(), **more
        )

    return run


@pytest.fixture
def start():
    started = []

    def begin(*args):
        process = subprocess.Popen(
            [FLOE, *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(),
            preexec_fn=default_signals,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
