"""What the pages say about the code is there: the map of modules, the walks, paths and links."""

import os
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("FLOE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "tools"))
import check_modules  # noqa: E402

FLOE = ROOT / "src/floe"
PAGES = sorted(ROOT.glob("docs/*.md")) + [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()
MODULES = check_modules.read_map((FLOE / "CMakeLists.txt").read_text())[0]
MOST_HOPS = 26
HOP = re.compile(r"`([\w/]+\.(?:h|cc|cu|cuh)):([\w:~]+)`")


def section(title):
    found = re.search(rf"^### {re.escape(title)}\n(.*?)(?=^##|\Z)", ARCHITECTURE, re.MULTILINE | re.DOTALL)
    assert found, f"docs/architecture.md has no walk '{title}'"
    return found.group(1)


WALKS = ["A step, from tar to update", "A save", "A start"]


@pytest.mark.parametrize("title", WALKS)
def test_a_walk_is_short_and_its_names_are_real(title):
    hops = re.findall(r"^\d+\. (.*(?:\n   .*)*)", section(title), re.MULTILINE)
    assert 5 <= len(hops) <= MOST_HOPS
    missing = []
    for hop in hops:
        names = HOP.findall(hop)
        assert names, f"no `file:function` in: {hop}"
        for path, function in names:
            name = function.split("::")[-1]
            file = FLOE / path
            if not file.is_file():
                missing.append(f"{path} does not exist")
            elif not re.search(rf"\b{re.escape(name)}\s*[(<]", file.read_text()):
                missing.append(f"{path} has no {function}")
    assert not missing, "\n".join(missing)


def test_a_walk_is_numbered_in_order():
    for title in WALKS:
        numbers = [int(number) for number in re.findall(r"^(\d+)\. ", section(title), re.MULTILINE)]
        assert numbers == list(range(1, len(numbers) + 1)), title


def test_the_table_of_modules_is_the_map():
    rows = re.findall(r"^\| `([\w/]+)` \| .* \| ([^|]*) \|$", ARCHITECTURE, re.MULTILINE)
    listed = {name: set() if uses.strip() == "–" else {word.strip() for word in uses.split(",")} for name, uses in rows}
    assert listed == {module.name: set(module.uses) for module in MODULES.values()}


def test_the_picture_has_every_module():
    picture = (ROOT / "docs/architecture.svg").read_text()
    shown = set(re.findall(r'class="t">([\w/]+)</text>', picture))
    assert {name.removeprefix("observe/") for name in MODULES} <= shown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_paths_and_links_of_a_page_exist(page):
    text = page.read_text()
    tops = {name.split("/")[0] for name in MODULES}
    missing = []
    for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in link and not (page.parent / link).exists():
            missing.append(f"link to {link}")
    for quoted in re.findall(r"`([^`\n]+)`", text):
        word = quoted.split(":")[0]
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)+", word) or re.search(r"\b[A-Z]{3,}", word):  # not NAME.cc
            continue
        top = word.split("/")[0]
        if top in ("src", "tests", "bench", "docs", "tools", "examples", "cmake", "configs"):
            places = [ROOT / word]
        elif top == "floe":
            places = [ROOT / "src" / word, ROOT / "src" / f"{word}.in"]  # the second: a header that is generated
        elif top in tops:
            # A module's part (`comm/gloo_stub`), a header with its source (`core/log`), or a file.
            places = [FLOE / word, *FLOE.glob(word + ".*"), ROOT / "tests" / word]
        else:
            continue
        if not any(place.exists() for place in places):
            missing.append(f"`{quoted}`")
    assert not missing, "\n".join(missing)
