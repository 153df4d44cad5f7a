#!/usr/bin/env python3
"""Applies the code format, or checks it: clang-format with .clang-format, and comments within 100 columns.

usage: format.py [--check] [FILE...]

Without FILE: all C++ and CUDA sources of the tree. --check changes nothing, names what is not formatted
and returns 1 if there is anything, or if clang-format cannot start.
"""

import argparse
import concurrent.futures
import os
import subprocess
import sys
from pathlib import Path

import comments

FOLDERS = ("src", "tests", "examples", "bench", "cmake")
FORMATTED = (".h", ".cc", ".cu")
UNFORMATTED = ": error: code should be clang-formatted"
COMMENTED = (*FORMATTED, ".cuh", ".inc")  # tables and tensor-core code are laid out by hand


def sources(root):
    return [path for folder in FOLDERS for path in sorted((root / folder).rglob("*")) if path.suffix in COMMENTED]


def clang_format(program, files, *options):
    """What it says about the files; exits with one sentence when it cannot be run, or fails silently."""
    def run(some):
        return subprocess.run([program, *options, *some], capture_output=True, text=True)

    said = ""
    try:
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for done in pool.map(run, [files[i : i + 40] for i in range(0, len(files), 40)]):
                if done.returncode and UNFORMATTED not in done.stderr:
                    sys.exit(f"format.py: {program} ended with {done.returncode}: {(done.stdout + done.stderr).strip()[:1000]}")
                said += done.stderr
    except OSError as error:
        sys.exit(f"format.py: {program} cannot start: {error.strerror}; './run test' installs it")
    return said


def unformatted(program, files):
    said = clang_format(program, files, "--dry-run", "-Werror")
    return sorted({line.split(":", 1)[0] for line in said.splitlines() if UNFORMATTED in line})


def check(program, files, show):
    problems = [f"{show(path)}: is not formatted" for path in unformatted(program, [f for f in files if f.suffix in FORMATTED])]
    for path in files:
        for number in comments.long_lines(path.read_text(encoding="utf-8")):
            problems.append(f"{show(path)}:{number}: has a comment beyond column {comments.WIDTH}")
    for problem in problems:
        print(problem)
    if problems:
        print("'./run format' mends formats; comments behind code and in tables want a hand")
    return 1 if problems else 0


def apply(program, files):
    for path in files:
        before = path.read_text(encoding="utf-8")
        after = comments.wrap(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
    clang_format(program, [path for path in files if path.suffix in FORMATTED], "-i")
    return 0


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--program", default=str(Path(sys.executable).parent / "clang-format"))
    parser.add_argument("files", nargs="*", type=Path)
    arguments = parser.parse_args()
    root = Path(__file__).resolve().parent.parent
    files = [path.resolve() for path in arguments.files if path.suffix in COMMENTED] or sources(root)
    if arguments.files and not any(path.suffix in COMMENTED for path in arguments.files):
        return 0

    def show(path):
        path = Path(path)
        return path.relative_to(root) if path.is_relative_to(root) else path

    return check(arguments.program, files, show) if arguments.check else apply(arguments.program, files)


if __name__ == "__main__":
    sys.exit(main())
