#!/usr/bin/env python3
"""Holds the includes of floe to the map of modules in src/floe/CMakeLists.txt.

usage: check_modules.py [ROOT]

- A module is a folder, or a folder in a folder (observe/sinks). Every folder in src/floe is a module or
  part of one.
- A module uses only modules that stand above it in the map.
- A module includes headers of its own and of exactly those modules that it says it uses: an include of
  another one is an error, and so is a use that no include needs.
- Modules without TORCH include nothing of LibTorch.
- Only comm includes c10d (tests of comm may as well).
- Nothing includes <torch/torch.h>: it costs tens of seconds per file.
- Modules that say ENGINE, of which the library floe::engine is made, use only such modules.
- Includes of floe's headers are rooted, and the header exists: "floe/core/error.h". One that is generated
  (version.h of version.h.in) belongs to no module.
- No folder has more than 25 source files: a larger one wants folders that name its parts.

Prints one line per violation and returns 1 if there is any.
"""

import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

MAP = "src/floe/CMakeLists.txt"
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
MODULE = re.compile(r"^\s*floe_module\(([^)]*)\)", re.MULTILINE)
KEYWORDS = {"TORCH", "ENGINE", "SEPARATE", "USES", "LIBS"}
TORCH = ("torch/", "ATen/", "c10/", "caffe2/")
C10D = ("torch/csrc/distributed/", "c10d/", "gloo/", "nccl.h")
SOURCES = (".h", ".cc", ".cu", ".cuh", ".inc")
MOST_FILES = 25


@dataclass
class Module:
    name: str  # its folder in src/floe
    torch: bool = False
    engine: bool = False
    uses: list = field(default_factory=list)


def read_map(text):
    """The modules by name, in the order of the map, and what is wrong with the map itself."""
    modules, problems = {}, []
    for match in MODULE.finditer(re.sub(r"#.*", "", text)):
        words = match.group(1).split()
        module = Module(words[0])
        keyword = None
        for word in words[1:]:
            if word in KEYWORDS:
                keyword = word
                module.torch |= word == "TORCH"
                module.engine |= word == "ENGINE"
            elif keyword == "USES":
                module.uses.append(word)
        if module.name in modules:
            problems.append(f"{MAP}: {module.name} stands there twice")
        for used in module.uses:
            if used not in modules:
                problems.append(f"{MAP}: {module.name} uses {used}, which does not stand above it")
            elif modules[used].torch and not module.torch:
                problems.append(f"{MAP}: {module.name} uses {used}, which needs torch, but is not TORCH itself")
            elif module.engine and not modules[used].engine:
                problems.append(f"{MAP}: {module.name} is of the ENGINE, but uses {used}, which is not")
        modules[module.name] = module
    return modules, problems


def module_of(path, modules):
    """The name of the module whose folder holds a path relative to src/floe: the innermost one."""
    folders = path.split("/")[:-1]
    for depth in range(len(folders), 0, -1):
        if "/".join(folders[:depth]) in modules:
            return "/".join(folders[:depth])
    return None


def includes(path):
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if match := INCLUDE.match(line):
            yield number, match.group(1) == '"', match.group(2)


def sources(folder):
    return sorted(path for path in folder.rglob("*") if path.suffix in SOURCES and path.is_file())


def check_folders(root, floe, modules):
    problems = []
    files = sources(floe)
    for name in modules:
        if not any(path.is_relative_to(floe / name) for path in files):
            problems.append(f"{MAP}: {name} is no folder with sources in it")
    for folder, count in sorted(Counter(path.parent for path in files).items()):
        shown = folder.relative_to(root).as_posix()
        if folder != floe and module_of(f"{folder.relative_to(floe).as_posix()}/", modules) is None:
            problems.append(f"{shown}: is neither a module nor part of one: there is no floe_module for it in {MAP}")
        if count > MOST_FILES:
            problems.append(f"{shown}: has {count} source files; more than {MOST_FILES} want folders that name their parts")
    return problems


def check_includes(root, floe, modules):
    problems = []
    used_edges = set()
    for folder in ("src", "tests", "examples", "bench", "cmake"):
        for path in sources(root / folder):
            shown = path.relative_to(root).as_posix()
            inside = path.is_relative_to(floe)
            own = module_of(path.relative_to(floe).as_posix(), modules) if inside else None
            module = modules.get(own)
            may_use_c10d = own == "comm" or shown.startswith("tests/comm/")
            for number, quoted, header in includes(path):
                where = f"{shown}:{number}"
                if header.startswith("floe/"):
                    if (root / "src" / f"{header}.in").is_file():
                        continue
                    if not (root / "src" / header).is_file():
                        problems.append(f"{where}: includes {header}, which does not exist")
                    elif module:
                        used = module_of(header.removeprefix("floe/"), modules)
                        used_edges.add((own, used))
                        if used != own and used not in module.uses:
                            allowed = ", ".join(module.uses) or "nothing else"
                            problems.append(f"{where}: includes {header}, but {own} uses only {allowed}")
                elif header == "torch/torch.h":
                    problems.append(f"{where}: includes torch/torch.h; include the narrowest torch header that works")
                elif header.startswith(C10D) and not may_use_c10d:
                    problems.append(f"{where}: includes {header}; only comm may, use floe/comm/group.h")
                elif header.startswith(TORCH) and module and not module.torch:
                    problems.append(f"{where}: includes {header}, but {own} is without torch")
                elif quoted and inside and "gloo_stub" not in shown:
                    problems.append(f'{where}: includes "{header}"; write it as "floe/MODULE/..."')
    for module in modules.values():
        for used in module.uses:
            if used in modules and (module.name, used) not in used_edges:
                problems.append(f"{MAP}: {module.name} says that it uses {used}, but includes nothing of it")
    return problems


def check(root):
    floe = root / "src" / "floe"
    modules, problems = read_map((root / MAP).read_text(encoding="utf-8"))
    return problems + check_folders(root, floe, modules) + check_includes(root, floe, modules)


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
