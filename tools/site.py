"""Hooks of mkdocs.yml. README, CHANGELOG and CONTRIBUTING are pages of the site; a file of the tree that a page
links to is one too, so that no link leads out of the site. Links stay as they are in the files, where they
work in an editor and on a code host; what they lead to on the site is worked out here."""

import os
import re
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
INDEX = ROOT / "README.md"
PAGES = {INDEX: "index.md", ROOT / "CHANGELOG.md": "CHANGELOG.md", ROOT / "CONTRIBUTING.md": "CONTRIBUTING.md"}
LANGUAGES = {".cc": "cpp", ".h": "cpp", ".py": "python", ".yaml": "yaml", ".sh": "sh", ".json": "json"}
FENCE = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
ITEM = re.compile(r"( *)(?:[-*+]|\d+\.) ")
LINK = re.compile(r"(?<!`)(\]\()([^)\s#]+)(#[^)\s]*)?(\))")


def place_of(path):
    """Where a file of the tree stands among the sources of the site."""
    if path in PAGES:
        return PAGES[path]
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    place = "tree/" + path.relative_to(ROOT).as_posix()
    return place if path.suffix in (".md", ".png", ".svg") else place + ".md"


def outside_of_fences(text, change):
    """The text with `change` made to every part of it that is no code block."""
    result, end = "", 0
    for fence in FENCE.finditer(text):
        result += change(text[end : fence.start()]) + fence.group(0)
        end = fence.end()
    return result + change(text[end:])


def set_apart(text):
    """Lists and tables as mkdocs wants them, which a code host takes as they are: after an empty line (behind a
    code block too, where a text begins with the end of its line), and the second level of a list four columns in."""
    if re.match(r"\n[^\n]", text):
        text = "\n" + text
    lines, before = [], ""
    for line in text.split("\n"):
        item = ITEM.match(line)
        begins = (item and not item.group(1) and not ITEM.match(before)) or (line.startswith("|") and not before.startswith("|"))
        if begins and before.strip() and not before.startswith(" "):
            lines.append("")
        lines.append("  " + line if item and item.group(1) == "  " else line)
        before = line
    return "\n".join(lines)


def linked(path, link):
    """The file of the tree that a link of a file leads to; None: it leads elsewhere, or nowhere."""
    if "://" in link or link.startswith(("mailto:", "/")):
        return None
    target = Path(os.path.normpath(path.parent / link))
    return target if target.is_file() and target.is_relative_to(ROOT) else None


def with_links(path, text):
    """A page of the tree as it stands on the site, and the files that it links to."""
    here, found = place_of(path), []

    def change(link):
        target = linked(path, link.group(2))
        if target is None:
            return link.group(0)  # strict: mkdocs says that it leads nowhere
        found.append(target)
        place = os.path.relpath(place_of(target), os.path.dirname(here) or ".")
        anchor = link.group(3) if link.group(3) and target.suffix == ".md" else ""
        return link.group(1) + place + anchor + link.group(4)

    return outside_of_fences(text, lambda part: set_apart(LINK.sub(change, part))), found


def as_page(path):
    """A source file as a page of its own."""
    text = path.read_text(encoding="utf-8")
    fence = "`" * (3 + max((len(run) for run in re.findall(r"`{3,}", text)), default=0))
    return f"# {path.relative_to(ROOT)}\n\n{fence}{LANGUAGES.get(path.suffix, 'text')}\n{text.rstrip()}\n{fence}\n"


def on_files(files, config):
    """Adds the pages that are not in docs/: those that have their place in the navigation, then what is
    linked from any page, and from what was added for that."""
    waiting = list(PAGES) + sorted(DOCS.rglob("*.md"))
    seen = set(waiting)
    while waiting:
        path = waiting.pop(0)
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".md":
            text, targets = with_links(path, text)
            new = [target for target in dict.fromkeys(targets) if target not in seen]
            seen.update(new)
            waiting += [target for target in new if target.suffix not in (".png", ".svg")]
            for target in new:
                if target.suffix in (".png", ".svg") and not target.is_relative_to(DOCS):
                    files.append(File.generated(config, place_of(target), abs_src_path=str(target)))
        else:
            text = as_page(path)
        place = place_of(path)
        if path.is_relative_to(DOCS):
            if files.get_file_from_path(place) is None:
                raise PluginError(f"{path.relative_to(ROOT)} is no page of the site")
            files.remove(files.get_file_from_path(place))
        page = File.generated(config, place, content=text)
        if place.startswith("tree/"):
            page.inclusion = page.inclusion.NOT_IN_NAV
        files.append(page)
    return files
