"""Runs a script of bench/ to its end."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(os.environ["FLOE_SOURCE_DIR"])


def output_of(script, *arguments, timeout=300):
    done = subprocess.run([sys.executable, ROOT / "bench" / script, *map(str, arguments)], capture_output=True, text=True,
                          check=False, timeout=timeout)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
