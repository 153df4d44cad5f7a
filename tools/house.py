#!/usr/bin/env python3
"""How a tree of floe is laid out, as a Markdown table: one column per tree.

usage: house.py TREE [TREE...]

Counts what lies in src/floe: files and lines by module, files by folder, files under 60 lines, the longest
functions, and edges of the module map that are not declared or not used.
"""

import fnmatch
import re
import sys
from collections import Counter
from pathlib import Path

import check_modules

SOURCES = (".h", ".cc", ".cu", ".cuh", ".inc")
SMALL = 60
TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|^[ \t]*#(?:[^\n\\]|\\\n|\\.)*|[{};]',
    re.DOTALL | re.MULTILINE,
)
SCOPE = re.compile(r"\b(?:namespace|class|struct|union|enum|extern)\b")
NAME = re.compile(r"([~\w:]+|operator[^\s(]+)\s*\(")


def blank(text):
    """Comments, strings and preprocessor lines as spaces, so that braces are those of the code."""
    return TOKEN.sub(lambda match: match.group(0) if match.group(0) in "{};" else re.sub(r"[^\n]", " ", match.group(0)), text)


def functions(text):
    """(lines, name, first line) of every function body that is not inside another one."""
    code = blank(text)
    found, stack, head = [], [], 0
    for match in re.finditer(r"[{};]", code):
        at = match.start()
        if match.group(0) == "{":
            before = code[head:at]
            inside = "function" in stack
            outline = re.sub(r"<[^<>]*>", "", re.sub(r"\([^()]*\)", "()", before))
            if inside:
                stack.append("block")
            elif "(" in outline and not re.match(r"\s*(?:template\s*)?(?:namespace|enum)\b", outline) and not outline.rstrip().endswith(("=", ",")):
                stack.append("function")
                names = [name for name in NAME.findall(before) if not name.startswith("__")]
                found.append([at, names[0] if names else "?"])
            elif SCOPE.search(outline):
                stack.append("scope")
            else:
                stack.append("block")
            if "function" not in stack:
                head = at + 1
        elif match.group(0) == "}":
            if stack and stack.pop() == "function":
                begin, name = found.pop()
                lines = code.count("\n", begin, at) + 1
                found.append((lines, name, code.count("\n", 0, begin) + 1))
            if "function" not in stack:
                head = at + 1
        elif "function" not in stack:
            head = at + 1
    return [entry for entry in found if isinstance(entry, tuple)]


class House:
    def __init__(self, root):
        self.floe = root / "src" / "floe"
        self.texts = {
            path.relative_to(self.floe).as_posix(): path.read_text(encoding="utf-8", errors="replace")
            for path in sorted(self.floe.rglob("*"))
            if path.suffix in SOURCES and path.is_file()
        }
        text = (self.floe / "CMakeLists.txt").read_text(encoding="utf-8")
        self.modules = check_modules.read_map(text)[0]
        # Before modules were folders, some were named by a pattern of files.
        self.patterns = {}
        for match in re.finditer(r"floe_module\((\w+)[^)]*?FROM\s+(\S+)", text):
            self.patterns[match.group(1)] = match.group(2).removesuffix(".cc") + ".*"

    def module_of(self, path):
        for name, pattern in self.patterns.items():
            if fnmatch.fnmatch(path, pattern):
                return name
        return check_modules.module_of(path, self.modules)

    def lines(self):
        counted = Counter()
        for path, text in self.texts.items():
            counted[self.module_of(path) or "."] += text.count("\n")
        return counted

    def folders(self):
        return Counter(path.rpartition("/")[0] or "." for path in self.texts)

    def small(self):
        return sum(text.count("\n") < SMALL for text in self.texts.values())

    def longest(self, count):
        found = [(lines, f"{path}:{name.split('::')[-1]}") for path, text in self.texts.items()
                 if not path.endswith(".inc") for lines, name, _ in functions(text)]
        return sorted(found, reverse=True)[:count]

    def edges(self):
        used = set()
        for path, text in self.texts.items():
            own = self.module_of(path)
            for header in re.findall(r'^\s*#\s*include\s*"floe/([^"]+)"', text, re.MULTILINE):
                other = self.module_of(header)
                if own in self.modules and other in self.modules and own != other:
                    used.add((own, other))
        declared = {(module.name, name) for module in self.modules.values() for name in module.uses}
        return used - declared, declared - used


def rows(house):
    undeclared, unused = house.edges()
    folders = house.folders()

    def arrows(edges):
        return f"{len(edges)}" + (f" ({', '.join(sorted(f'{a}→{b}' for a, b in edges))})" if edges else "")

    yield "source files", len(house.texts)
    yield f"of them under {SMALL} lines", house.small()
    yield "lines", sum(house.lines().values())
    yield "modules", len(house.modules)
    yield "folders with sources", len(folders)
    yield "folders with more than 25 files", sum(count > 25 for count in folders.values())
    yield "largest folders", ", ".join(f"{name} {count}" for name, count in folders.most_common(5))
    yield "longest functions (lines)", "<br>".join(f"{lines} {name}" for lines, name in house.longest(3))
    yield "functions over 60 lines", sum(lines > 60 for lines, _ in house.longest(10**6))
    yield "edges that are not declared", arrows(undeclared)
    yield "edges that nobody uses", arrows(unused)


def table(heads, lines):
    print("| " + " | ".join(heads) + " |")
    print("| --- " * len(heads) + "|")
    for line in lines:
        print("| " + " | ".join(str(cell) for cell in line) + " |")
    print()


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    houses = [House(Path(word)) for word in sys.argv[1:]]
    names = ["before", "after"] if len(houses) == 2 else sys.argv[1:]
    columns = [list(rows(house)) for house in houses]
    table(["", *names], [[row[0][0], *(cell[1] for cell in row)] for row in zip(*columns)])
    for title, counts in (("lines by module", [h.lines() for h in houses]), ("files by folder", [h.folders() for h in houses])):
        table([title, *names], [[key, *(count[key] or "–" for count in counts)] for key in sorted(set().union(*counts))])
    return 0


if __name__ == "__main__":
    sys.exit(main())
