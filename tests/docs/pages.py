"""What README and the pages of docs/ hold: code blocks, commands, links, headings."""

import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(os.environ.get("FLOE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
FENCE = re.compile(r"^( *)(`{3,}|~{3,})(.*)$")


def pages():
    """Paths from the root of the tree, in the order of a reader."""
    front = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return [path.relative_to(ROOT).as_posix() for path in front + sorted((ROOT / "docs").rglob("*.md"))]


@dataclass
class Block:
    page: str
    line: int  # of the fence
    language: str
    lines: list = field(default_factory=list)

    @property
    def place(self):
        return f"{self.page}:{self.line}"

    @property
    def text(self):
        return "\n".join(self.lines) + "\n"


@dataclass
class Command:
    block: Block
    line: int
    text: str
    output: list = field(default_factory=list)  # lines that the page shows below it

    @property
    def place(self):
        return f"{self.block.page}:{self.line}"


def split(page):
    """The blocks of a page, and its prose: the lines around them, numbered from 1."""
    found, prose, end = [], [], None
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1):
        fence = FENCE.match(line)
        if end is None and fence:
            found.append(Block(page, number, fence.group(3).strip()))
            indent, end = len(fence.group(1)), fence.group(2)
        elif end is not None and line.strip() == end:
            end = None
        elif end is not None:
            found[-1].lines.append(line[min(indent, len(line) - len(line.lstrip(" "))) :])
        else:
            prose.append((number, line))
    assert end is None, f"{page}: a code block has no end"
    return found, prose


def blocks(page):
    return split(page)[0]


def is_whole(text):
    """Whether bash takes this for commands that are complete."""
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    return not done.stderr and not text.endswith("\\\n")


def commands(block):
    """In a block `sh` every line is one, or a part of one that goes on in the next; in a block `console` those
    after "$ ", and what follows is their output."""
    found, text = [], ""
    for number, line in enumerate(block.lines, block.line + 1):
        if block.language == "console":
            if text or line.startswith("$ "):
                line = line if text else line[2:]
            else:
                assert found, f"{block.place}: output before the first command"
                found[-1].output.append(line)
                continue
        if not text:
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            begin = number
        text += line + "\n"
        if is_whole(text):
            found.append(Command(block, begin, text.strip()))
            text = ""
    assert not text, f"{block.place}: the last command is not complete: {text}"
    return found


def code_spans(page):
    """Code inside of prose, with the number of its line."""
    for number, line in split(page)[1]:
        for _, span in re.findall(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", line):
            yield number, span.strip()


def slug(heading, taken):
    """The anchor that a code host gives a heading."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = re.sub(r"[`*]", "", text).strip().lower()
    text = "".join(c for c in text if c.isalnum() or c in " -_").replace(" ", "-")
    taken[text] = taken.get(text, -1) + 1
    return text if taken[text] == 0 else f"{text}-{taken[text]}"


def anchors(page):
    taken, found = {}, set()
    for _, line in split(page)[1]:
        if heading := re.match(r"#{1,6} +(.*?)#*$", line):
            found.add(slug(heading.group(1), taken))
    return found


def links(page):
    """(line, target, anchor) of every link and picture; code is no link."""
    for number, line in split(page)[1]:
        line = re.sub(r"(`+)(.+?)\1", lambda span: "`" * len(span.group(0)), line)
        for target in re.findall(r"\]\(<?([^)\s>]+)>?(?: +\"[^\"]*\")?\)", line):
            path, _, anchor = target.partition("#")
            yield number, path, anchor
