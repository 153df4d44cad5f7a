#!/usr/bin/env python3
"""Packs a build with CUDA so that it runs on a machine with a GPU and the same torch, but no compiler.

usage: pack.py BUILD FOLDER [TEST...]

FOLDER/programs.tar.xz holds bin/ (floe, the benchmarks, the programs behind CTest's label gpu; stripped),
lib/ (the shared libraries they need that come neither with torch and CUDA nor with every Linux) and
gpu_tests.txt, a line per test: name, seconds it may take, words of its command, in which @BIN@ and
@SOURCE@ stand for folders; all tests, or those named. `FLOE_PREBUILT=FOLDER ./run ...` uses it.
"""

import json
import lzma
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

# Every Linux that torch runs on has these, and they must fit its kernel and loader.
OF_THE_SYSTEM = re.compile(
    r"^(linux-vdso|ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv|gcc_s|stdc\+\+|gomp))\.so")
# These come with torch, with the CUDA that it brings, or with the driver.
OF_TORCH = re.compile(r"^lib(torch|c10|cu|nv|nccl|shm|caffe2)")


class Refused(Exception):
    pass


def output_of(*words):
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


def cache_entry(build, name):
    cache = build / "CMakeCache.txt"
    if not cache.exists():
        raise Refused(f"'{build}' is no build folder: it has no CMakeCache.txt")
    found = re.search(rf"^{name}:\w+=(.*)$", cache.read_text(), re.MULTILINE)
    return found.group(1) if found else ""


def gpu_tests(build, source, wanted):
    """[(name, seconds, words of the command)] as CTest has them; and the programs' names."""
    listed = json.loads(output_of("ctest", "--test-dir", str(build), "-L", "^gpu$", "--show-only=json-v1"))["tests"]
    unknown = set(wanted) - {test["name"] for test in listed}
    if unknown:
        raise Refused(f"there is no GPU test {', '.join(unknown)}; there are {', '.join(t['name'] for t in listed)}")
    listed = [test for test in listed if not wanted or test["name"] in wanted]
    # CTest gives programs that are not there without a command, or with a bare name.
    missing = [test["name"] for test in listed if "command" not in test or "/" not in test["command"][0]]
    if missing:
        raise Refused(f"these tests are not built yet: {', '.join(missing)}; build first")
    if not listed:
        raise Refused(f"'{build}' has no test with the label gpu; configure with FLOE_CUDA=ON and FLOE_TESTS=ON")
    bin_folder = str(build / "bin")
    entries, programs = [], set()
    for test in listed:
        properties = {p["name"]: p["value"] for p in test["properties"]}
        command = list(test["command"])
        if command[0].startswith(bin_folder):
            programs.add(Path(command[0]).name)
        else:
            command[0] = Path(command[0]).name  # python3, wherever it is there
        words = ["env", *properties.get("ENVIRONMENT", []), *command]
        words = [w.replace(bin_folder, "@BIN@").replace(str(source), "@SOURCE@") for w in words]
        if any(re.search(r"\s", w) for w in words):
            raise Refused(f"the command of test {test['name']} has a word with a space in it: {words}")
        entries.append((test["name"], int(properties.get("TIMEOUT", 300)), words))
    return entries, programs


def libraries_of(programs):
    """What the programs load and the other machine may not have: {name: path}."""
    found = {}
    for program in programs:
        for line in output_of("ldd", str(program)).splitlines():
            name, _, rest = line.strip().partition(" => ")
            name = name.split()[0]
            path = rest.split(" (")[0]
            if OF_THE_SYSTEM.match(Path(name).name) or OF_TORCH.match(name):
                continue
            if path == "not found" or not path:
                raise Refused(f"{program.name} needs {name}, which is not found here")
            found[name] = Path(path)
    return found


def pack(build, folder, wanted):
    if cache_entry(build, "FLOE_CUDA") != "ON":
        raise Refused(f"'{build}' is a build without CUDA; use one with FLOE_CUDA=1")
    source = Path(cache_entry(build, "CMAKE_HOME_DIRECTORY"))
    tests, names = gpu_tests(build, source, wanted)
    # checkpoint_tool is what a test's script starts.
    names |= {"floe", "checkpoint_tool"} | {p.name for p in (build / "bin").glob("bench_*")}
    missing = [name for name in names if not (build / "bin" / name).exists()]
    if missing:
        raise Refused(f"these programs are not built yet: {', '.join(missing)}; build first")
    programs = [build / "bin" / name for name in sorted(names)]
    libraries = libraries_of(programs)

    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        root = Path(scratch)
        (root / "bin").mkdir()
        (root / "lib").mkdir()
        for program in programs:
            subprocess.run(["strip", "-o", root / "bin" / program.name, program], check=True)
        for name, path in libraries.items():
            shutil.copyfile(path, root / "lib" / name)
        (root / "gpu_tests.txt").write_text(
            "".join(f"{name} {seconds} {' '.join(words)}\n" for name, seconds, words in tests))
        # Programs share most of their code: a dictionary over all of them keeps one copy.
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 256 << 20}]
        with lzma.open(root / "programs", "wb", filters=filters) as file, tarfile.open(fileobj=file, mode="w|") as tar:
            for part in ("gpu_tests.txt", "bin", "lib"):
                tar.add(root / part, arcname=part)
        archive = (root / "programs").rename(folder / "programs.tar.xz")
    print(f"{archive}: {archive.stat().st_size / 2**20:.1f} MiB; {len(programs)} programs, {len(libraries)} libraries,"
          f" {len(tests)} GPU tests: {', '.join(name for name, _, _ in tests)}")


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    folder = Path(sys.argv[2]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        pack(Path(sys.argv[1]).resolve(), folder, sys.argv[3:])
    except Refused as refused:
        sys.exit(f"run: {refused}")


if __name__ == "__main__":
    main()
