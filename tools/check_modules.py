#!/usr/bin/env python3
"""Holds the includes of floe to the map of modules in src/floe/CMakeLists.txt.

usage: check_modules.py [ROOT]

- A module uses only modules that stand above it in the map.
- A file includes headers of its own module and of those that the module uses, directly or not.
- Modules without TORCH include nothing of LibTorch.
- Only comm includes c10d (tests of comm may as well).
- Nothing includes <torch/torch.h>: it costs tens of seconds per file.
- Includes of floe's headers are rooted: "floe/core/error.h".

Prints one line per violation and returns 1 if there is any.
"""

import fnmatch
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
MODULE = re.compile(r"^\s*floe_module\(([^)]*)\)", re.MULTILINE)
KEYWORDS = {"TORCH", "FROM", "EXCEPT", "USES", "LIBS"}
TORCH = ("torch/", "ATen/", "c10/", "caffe2/")
C10D = ("torch/csrc/distributed/", "c10d/", "gloo/", "nccl.h")
SOURCES = (".h", ".cc", ".cu", ".cuh")


@dataclass
class Module:
    name: str
    torch: bool = False
    pattern: str = ""  # of its files, relative to src/floe; empty: its whole folder
    uses: list = field(default_factory=list)
    reach: set = field(default_factory=set)  # itself and all that it uses, directly or not


def read_map(text):
    """The modules by name, and what is wrong with the map itself."""
    modules, problems = {}, []
    for match in MODULE.finditer(re.sub(r"#.*", "", text)):
        words = match.group(1).split()
        module = Module(words[0])
        keyword = None
        for word in words[1:]:
            if word in KEYWORDS:
                keyword = word
                module.torch |= word == "TORCH"
            elif keyword == "FROM":
                module.pattern = word.removesuffix(".cc") + ".*"
            elif keyword == "USES":
                module.uses.append(word)
        module.reach = {module.name}
        for used in module.uses:
            if used not in modules:
                problems.append(f"src/floe/CMakeLists.txt: {module.name} uses {used}, which does not stand above it")
                continue
            if modules[used].torch and not module.torch:
                problems.append(f"src/floe/CMakeLists.txt: {module.name} uses {used}, which needs torch, but is not TORCH itself")
            module.reach |= modules[used].reach
        modules[module.name] = module
    return modules, problems


def module_of(path, modules):
    """The name of the module that a path relative to src/floe belongs to."""
    for module in modules.values():
        if module.pattern and fnmatch.fnmatch(path, module.pattern):
            return module.name
    return path.split("/")[0] if "/" in path else None


def includes(path):
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if match := INCLUDE.match(line):
            yield number, match.group(1) == '"', match.group(2)


def sources(folder):
    return sorted(path for path in folder.rglob("*") if path.suffix in SOURCES and path.is_file())


def check(root):
    floe = root / "src" / "floe"
    modules, problems = read_map((floe / "CMakeLists.txt").read_text(encoding="utf-8"))

    for folder in ("src", "tests", "examples", "bench", "apps", "cmake"):
        for path in sources(root / folder):
            shown = path.relative_to(root).as_posix()
            inside = path.is_relative_to(floe)
            own = module_of(path.relative_to(floe).as_posix(), modules) if inside else None
            if own is not None and own not in modules:
                problems.append(f"{shown}: there is no floe_module({own} ...) in src/floe/CMakeLists.txt")
                continue
            module = modules.get(own)
            may_use_c10d = own == "comm" or shown.startswith("tests/comm/")
            for number, quoted, header in includes(path):
                where = f"{shown}:{number}"
                if header == "torch/torch.h":
                    problems.append(f"{where}: includes torch/torch.h; include the narrowest torch header that works")
                elif header.startswith(C10D) and not may_use_c10d:
                    problems.append(f"{where}: includes {header}; only comm may, use floe/comm/group.h")
                elif header.startswith(TORCH) and module and not module.torch:
                    problems.append(f"{where}: includes {header}, but {own} is without torch")
                elif header.startswith("floe/") and module:
                    used = module_of(header.removeprefix("floe/"), modules)
                    if used not in module.reach:
                        allowed = ", ".join(sorted(module.reach - {own})) or "nothing else"
                        problems.append(f"{where}: includes {header}, but {own} may use only {allowed}")
                elif quoted and inside and not header.startswith("floe/") and "gloo_stub" not in shown:
                    problems.append(f'{where}: includes "{header}"; write it as "floe/MODULE/..."')
    return problems


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    problems = check(root)
    for problem in problems:
        print(problem)
    if not problems:
        print("the includes follow the map of modules")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
