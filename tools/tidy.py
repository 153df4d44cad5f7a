#!/usr/bin/env python3
"""clang-tidy over the sources of floe, with the checks of .clang-tidy.

usage: tidy.py --build DIR [--since COMMIT] [--limit SECONDS] [--jobs N] [--program CLANG-TIDY] [--root TREE] [FILE...]

Without FILE: every source that the build in DIR compiles; with --since only those that have changed
since that commit, committed or not. A changed header is looked at through a source that includes it.

- Sources that the build compiles as one (FLOE_UNITY) are looked at one by one.
- The compile commands of g++ name a precompiled header that clang cannot read. DIR/tidy has commands
  without it, so that a file must include what it uses.
- A source that was clean is not looked at again until it, a header of floe that it includes, its
  command, .clang-tidy or clang-tidy itself changes: DIR/tidy/clean remembers.
- --limit ends the work in time: what is left over is counted, never silently dropped.

Prints each finding once and returns 1 if there is any.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

FOLDERS = ("src", "tests", "examples", "bench")
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
UNITY = re.compile(r"/Unity/\w+\.cc$")
FINDING = re.compile(r"^(/[^:]+):(\d+):(\d+): (?:warning|error): ")
# Flags of g++ that clang does not know, or that bring in the precompiled header.
DROPPED = {"-fpch-preprocess", "-Winvalid-pch", "-Wno-restrict", "-Wno-maybe-uninitialized", "-Werror",
           "-Wno-error=array-bounds", "-Wno-error=stringop-overflow", "-Wno-error=stringop-overread",
           "-Wno-error=maybe-uninitialized", "-Wno-subobject-linkage"}


def clean_command(command):
    """The arguments of a compile command without its output, the precompiled header and what only g++ knows."""
    words, kept = shlex.split(command), []
    skip = False
    for i, word in enumerate(words):
        if skip:
            skip = False
        elif word == "-include" and words[i + 1].endswith("cmake_pch.hxx"):
            skip = True
        elif word == "-o":
            skip = True
        elif word not in DROPPED:
            kept.append(word)
    if Path(kept[0]).name == "ccache":
        kept.pop(0)
    return kept


def sources_of(file, root):
    """What a file of the compilation database compiles: itself, or the sources that it includes by their paths in the
    tree or in its folder src."""
    if not UNITY.search(file):
        return [file]
    names = INCLUDE.findall(Path(file).read_text(encoding="utf-8"))
    return [str(next(base / name for base in (root / "src", root) if (base / name).is_file())) for name in names]


def read_commands(build, root):
    """Source -> entry of the compilation database, for floe's own sources."""
    entries = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        arguments = clean_command(entry.pop("command"))
        if "-x" in arguments:
            continue
        for source in sources_of(entry["file"], root):
            own = [source if word == entry["file"] else word for word in arguments]
            if source.endswith(".cc"):
                entries.setdefault(Path(source), {"directory": entry["directory"], "file": source, "arguments": own})
    return entries


class Headers:
    """The files of the tree that a file includes, directly or not."""

    def __init__(self, root):
        self.root = root
        self.direct = {}
        self.digests = {}

    def of(self, path):
        if path not in self.direct:
            found = []
            for name in INCLUDE.findall(path.read_text(encoding="utf-8", errors="replace")):
                for base in (self.root / "src", self.root, path.parent):
                    if (base / name).is_file():
                        found.append(base / name)
                        break
            self.direct[path] = found
        return self.direct[path]

    def closure(self, path):
        seen, todo = {path}, [path]
        while todo:
            for header in self.of(todo.pop()):
                if header not in seen:
                    seen.add(header)
                    todo.append(header)
        return sorted(seen)

    def digest(self, path):
        if path not in self.digests:
            self.digests[path] = hashlib.sha256(path.read_bytes()).hexdigest()
        return self.digests[path]


def changed_files(root, since):
    """Files of the tree that differ from a commit, with those that git does not know yet."""
    git = ["git", "-C", str(root)]
    changed = subprocess.run([*git, "diff", "--name-only", "--diff-filter=d", since, "--"], check=True, capture_output=True, text=True)
    new = subprocess.run([*git, "ls-files", "--others", "--exclude-standard"], check=True, capture_output=True, text=True)
    return [root / name for name in (changed.stdout + new.stdout).splitlines()]


def sources_for(changed, entries, headers):
    """The sources to look at for these changed files: themselves, and for a header one that includes it."""
    wanted = {path for path in changed if path in entries}
    for header in (path for path in changed if path.suffix in (".h", ".inc")):
        own = header.with_suffix(".cc")
        if own in entries:
            wanted.add(own)
            continue
        users = [path for path in entries if header in headers.of(path)]
        users = users or [path for path in entries if header in headers.closure(path)]
        if users and not wanted.intersection(users):
            wanted.add(min(users))
    return wanted


def tidy(program, database, path):
    done = subprocess.run([program, "--quiet", "-p", database, str(path)], capture_output=True, text=True)
    findings, lines = {}, []
    for line in done.stdout.splitlines():
        if FINDING.match(line):
            lines = findings.setdefault(line, [])
        elif lines is not None and findings:
            lines.append(line)
    if done.returncode and not findings:
        findings[f"{path}:1:1: error: clang-tidy ended with {done.returncode}"] = (done.stdout + done.stderr).splitlines()[-20:]
    return path, findings


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--since")
    parser.add_argument("--limit", type=float, default=float("inf"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--program", default=str(Path(sys.executable).parent / "clang-tidy"))
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("files", nargs="*", type=Path)
    arguments = parser.parse_args()

    root = arguments.root.resolve()
    began = time.monotonic()
    try:
        version = subprocess.run([arguments.program, "--version"], check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"tidy.py: {arguments.program} cannot start: {error}; './run test' installs it")
    entries = {path: entry for path, entry in read_commands(arguments.build.resolve(), root).items()
               if path.is_relative_to(root) and path.relative_to(root).parts[0] in FOLDERS}
    database = arguments.build.resolve() / "tidy"
    (database / "clean").mkdir(parents=True, exist_ok=True)
    (database / "compile_commands.json").write_text(json.dumps(list(entries.values()), indent=1))

    headers = Headers(root)
    wanted = set(entries)
    if arguments.files:
        wanted = sources_for([path.resolve() for path in arguments.files], entries, headers)
    elif arguments.since:
        wanted = sources_for(changed_files(root, arguments.since), entries, headers)

    settings = "".join(path.read_text() for path in sorted(root.glob("**/.clang-tidy")) if ".deps" not in path.parts)

    def stamp(path):
        key = hashlib.sha256((version + settings + json.dumps(entries[path])).encode())
        for file in headers.closure(path):
            key.update(headers.digest(file).encode())
        return database / "clean" / key.hexdigest()

    todo = [path for path in sorted(wanted) if not stamp(path).exists()]
    print(f"{len(wanted)} sources, {len(wanted) - len(todo)} known to be clean")
    seen, left = set(), 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        def look(path):
            return tidy(arguments.program, database, path) if time.monotonic() - began < arguments.limit else (path, None)

        for path, findings in pool.map(look, todo):
            if findings is None:
                left += 1
                continue
            if not findings:
                stamp(path).touch()
            for finding, lines in findings.items():
                if finding not in seen:
                    seen.add(finding)
                    print("\n".join([finding.removeprefix(f"{root}/"), *lines]), flush=True)
    if left:
        print(f"{left} sources were not looked at within {arguments.limit:.0f} s; './run test long' looks at all")
    print(f"{len(seen)} findings in {len(todo) - left} sources, {time.monotonic() - began:.0f} s")
    return 1 if seen else 0


if __name__ == "__main__":
    sys.exit(main())
