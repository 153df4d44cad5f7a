"""The site of `./run docs`: complete, without anything from elsewhere, with a search that works from a folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT, pages

sys.path.insert(0, str(ROOT / "tests/report"))
import browser  # noqa: E402


def build(root, folder):
    """mkdocs as ./run docs starts it, with the packages of these tests."""
    return subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", root / "mkdocs.yml", "--site-dir", folder],
                          capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def place(page):
    """Where a page of the tree is on the site."""
    return {"README.md": "index.html"}.get(page, page.removeprefix("docs/").replace(".md", ".html"))


def test_every_page_is_there(site):
    front = (site / "index.html").read_text()
    for page in pages():
        assert (site / place(page)).exists(), page
        assert f'href="{place(page)}"' in front or page == "README.md", f"{page} is not in the navigation"


def test_links_lead_to_files_of_the_site(site):
    """Also those to sources: they are pages of the site."""
    assert (site / "tree/tests/consumer/consumer.cc.html").exists()
    wrong = []
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # for a server, from whose root it links
            continue
        for target in re.findall(r'(?:href|src)="([^"#?]+)', page.read_text()):
            if not re.match(r"[a-z]+:", target) and not (page.parent / target).exists():
                wrong.append(f"{page.relative_to(site)}: {target}")
    assert not wrong, "\n".join(wrong[:20])


def test_lists_and_tables_are_such(site):
    """Not lines of a paragraph, as they are where mkdocs reads a page otherwise than a code host does."""
    wrong = []
    for page in site.rglob("*.html"):
        for paragraph in re.findall(r"<p>(.*?)</p>", page.read_text(), re.DOTALL):
            if re.search(r"^(?:[-*+] |\d+\. |\||#+ |```)", paragraph, re.MULTILINE):
                wrong.append(f"{page.relative_to(site)}: {paragraph[:200]}")
    assert not wrong, "\n".join(wrong)


def test_nothing_comes_from_elsewhere(site):
    for page in site.rglob("*.html"):
        for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", page.read_text()):
            assert not re.search(r'(?:src|href)=["\']?(?:https?:)?//', tag) or 'rel="canonical"' in tag, f"{page.name}: {tag}"
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import) *[\"']?(?:https?:)?//", style.read_text()), style.name


def chromium(page, profile, *options):
    program, reason = browser.find()
    if program is None and not os.environ.get("FLOE_NEED_BROWSER"):
        pytest.skip(reason)
    assert program, reason
    words = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={profile}",
             "--enable-logging=stderr", "--virtual-time-budget=10000", *options, page]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


def test_search_works_from_a_folder(site, tmp_path):
    dom = chromium((site / "index.html").as_uri() + "?q=emergency", tmp_path, "--dump-dom")
    found = re.findall(r'<a href="([^"]+)" class="md-search-result__link"', dom)
    assert any("checkpoints.html" in link for link in found), found


def copy_of_the_pages(folder):
    (folder / "tools").mkdir()
    for name in ("mkdocs.yml", "tools/site.py", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        (folder / name).write_text((ROOT / name).read_text())
    for top in ("docs", "tests", "examples", "bench", "LICENSE"):
        if top != "docs":
            (folder / top).symlink_to(ROOT / top)
    (folder / "docs").mkdir()
    for path in (ROOT / "docs").rglob("*"):
        target = folder / path.relative_to(ROOT)
        if path.is_file():
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(path.read_bytes())


@pytest.mark.parametrize("text, said", [("[x](nowhere.md)", "nowhere.md"), ("[x](training.md#nothing-here)", "nothing-here"),
                                        ("[x](../src/nothing.cc)", "nothing.cc")])  # fmt: skip
def test_a_link_that_leads_nowhere_fails(tmp_path, text, said):
    root = tmp_path / "root"
    root.mkdir()
    copy_of_the_pages(root)
    with (root / "docs/data.md").open("a") as page:
        page.write(f"\n{text}\n")
    done = build(root, tmp_path / "site")
    assert done.returncode != 0 and said in done.stderr + done.stdout


def test_a_page_outside_of_the_navigation_fails(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    copy_of_the_pages(root)
    (root / "docs/lost.md").write_text("# Lost\n")
    done = build(root, tmp_path / "site")
    assert done.returncode != 0 and "lost.md" in done.stderr + done.stdout


def run(folder, *words, **settings):
    return subprocess.run(["bash", folder / "run", "docs", *words], capture_output=True, text=True, timeout=120,
                          cwd=folder, env={**os.environ, **settings})  # fmt: skip


def test_run_docs(tmp_path):
    """./run docs with its packages in place: the site is where it says."""
    root = tmp_path / "root"
    root.mkdir()
    copy_of_the_pages(root)
    (root / "run").write_text((ROOT / "run").read_text())
    # What it would install is there: the packages of these tests.
    tools = [line for line in (ROOT / "tests/requirements.txt").read_text().splitlines()
             if re.match(r"(mkdocs|mkdocs-material|pymdown-extensions)==", line)]  # fmt: skip
    assert len(tools) == 3
    (root / ".deps/docs/bin").mkdir(parents=True)
    python = root / ".deps/docs/bin/python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (root / ".deps/docs/.floe-tools").write_text(" ".join(tools) + "\n")
    done = run(root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "==> Open build/docs/index.html"
    assert (root / "build/docs/index.html").exists()
    with (root / "docs/data.md").open("a") as page:
        page.write("\n[x](nowhere.md)\n")
    done = run(root)  # over the first one
    assert done.returncode == 1 and "nowhere.md" in done.stderr
    (root / "docs/data.md").write_text((ROOT / "docs/data.md").read_text())
    assert run(root, tmp_path / "other").returncode == 0 and (tmp_path / "other/search/search_index.json").exists()
    assert run(root, tmp_path / "other").returncode == 0, "a site is made anew in its folder"
    (tmp_path / "theirs/search").mkdir(parents=True)
    (tmp_path / "theirs/search/search_index.json").touch()  # another site of mkdocs
    for words, sentence in ((["a", "b"], "docs takes the folder to make the site in, got 2 words"),
                            (["--serve"], "docs takes a folder, not options, got '--serve'"),
                            (["run"], "'run' is a file; docs takes the folder to make the site in"),
                            ([tmp_path / "theirs"], f"'{tmp_path / 'theirs'}' holds something that is no site of ./run docs; name another folder"),
                            (["docs"], "'docs' holds something that is no site of ./run docs; name another folder")):  # fmt: skip
        done = run(root, *words)
        assert (done.returncode, done.stderr) == (2, f"run: {sentence}\n")
    assert (root / "docs/data.md").exists() and (tmp_path / "theirs/search/search_index.json").exists()
