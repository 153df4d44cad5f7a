"""Limits guard against hangs and measure nothing: a machine that does other work as well may take its time. They are
written as a quiet machine would need them, and all of them are longer by one factor, FLOE_TEST_PATIENCE (3)."""

import functools
import os
import subprocess
import threading
import time

FACTOR = float(os.environ.get("FLOE_TEST_PATIENCE") or 3)


def patient(seconds):
    return seconds * FACTOR


def wait_until(condition, seconds=60):
    """What the condition has found; an AssertionError if that is nothing for so long."""
    end = time.monotonic() + patient(seconds)
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {patient(seconds):.0f} s"
        time.sleep(0.02)
    return found


def with_longer_limits():
    """The limits of subprocess, wherever tests give one."""
    inside = threading.local()  # communicate calls wait

    def longer(method, *names):
        @functools.wraps(method)
        def call(self, *arguments, **more):
            more.update(zip(names, arguments))
            if getattr(inside, "yes", False) or more.get("timeout") is None:
                return method(self, **more)
            inside.yes = True
            try:
                return method(self, **{**more, "timeout": patient(more["timeout"])})
            finally:
                inside.yes = False

        return call

    subprocess.Popen.communicate = longer(subprocess.Popen.communicate, "input", "timeout")
    subprocess.Popen.wait = longer(subprocess.Popen.wait, "timeout")
