"""Links of the pages lead somewhere: to files that are part of the tree, to headings that are there."""

import subprocess
from pathlib import Path

import pytest
from pages import ROOT, anchors, links, pages

# Pages of folders as well: what one reads beside the code.
OTHERS = sorted(path.relative_to(ROOT).as_posix() for top in ("tests", "bench", "examples", "python", "configs")
                for path in (ROOT / top).rglob("*.md"))  # fmt: skip


@pytest.fixture(scope="module")
def tracked():
    """Files that git knows; None outside of a checkout, where nothing says what belongs to the tree."""
    done = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True)
    return set(done.stdout.decode().split("\0")) if done.returncode == 0 else None


@pytest.mark.parametrize("page", pages() + OTHERS)
def test_links_lead_somewhere(page, tracked):
    wrong = []
    for line, path, anchor in links(page):
        if "://" in path or path.startswith("mailto:"):
            continue
        target = (ROOT / page).parent / path if path else ROOT / page
        inside = Path(target).resolve()
        if path.startswith("/") or not inside.is_relative_to(ROOT):
            wrong.append(f"{page}:{line}: {path} leads out of the tree")
        elif not inside.exists():
            wrong.append(f"{page}:{line}: there is no {path}")
        elif tracked is not None and inside.is_file() and inside.relative_to(ROOT).as_posix() not in tracked:
            wrong.append(f"{page}:{line}: {path} is no file of the tree: git ignores it")
        elif anchor and inside.suffix == ".md" and anchor not in anchors(inside.relative_to(ROOT).as_posix()):
            wrong.append(f"{page}:{line}: {path or page} has no heading #{anchor}")
    assert not wrong, "\n".join(wrong)


def test_every_page_is_reached_from_the_readme():
    """By one link or a chain of them."""
    reached, waiting = {"README.md"}, ["README.md"]
    while waiting:
        page = waiting.pop()
        for _, path, _ in links(page):
            target = ((ROOT / page).parent / path).resolve()
            if path.endswith(".md") and "://" not in path and target.is_relative_to(ROOT):
                name = target.relative_to(ROOT).as_posix()
                if name not in reached and target.exists():
                    reached.add(name)
                    waiting.append(name)
    assert set(pages()) <= reached, sorted(set(pages()) - reached)
