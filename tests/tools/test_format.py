"""The format check finds what is not formatted, and comments that are too long; nothing passes by accident."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("FLOE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "tools"))
import comments  # noqa: E402

WORDS = "what a reader has to know before this line makes any sense at all to somebody who is new here, which is a lot"


def run_format(*arguments):
    done = subprocess.run([sys.executable, ROOT / "tools/format.py", *map(str, arguments)], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def file(tmp_path):
    (tmp_path / ".clang-format").write_text((ROOT / ".clang-format").read_text())
    return tmp_path / "planted.cc"


def test_what_is_formatted_passes(file):
    file.write_text("// Short.\nint main() { return 0; }\n")
    assert run_format("--check", file) == (0, "")


def test_what_is_not_formatted_is_found_and_mended(file):
    file.write_text("int main( ) {return 0;}\n")
    code, output = run_format("--check", file)
    assert code == 1
    assert "planted.cc: is not formatted" in output
    assert run_format(file) == (0, "")
    assert file.read_text() == "int main() { return 0; }\n"


@pytest.mark.parametrize("line", [f"// {WORDS}", f"  // {WORDS}", f"int x = 1;  // {WORDS}"])
def test_a_long_comment_is_found(file, line):
    file.write_text(f"int f();\n{line}\n")
    code, output = run_format("--check", file)
    assert code == 1
    assert "planted.cc:2: has a comment beyond column 100" in output


def test_a_long_comment_is_mended(file):
    file.write_text(f"// {WORDS}\nint f();\n")
    assert run_format(file) == (0, "")
    assert run_format("--check", file) == (0, "")


@pytest.mark.parametrize("program", ["/nowhere/clang-format", "/bin/false", ROOT / "README.md"])
def test_a_clang_format_that_cannot_start_fails(file, program):
    file.write_text("int main() { return 0; }\n")
    code, output = run_format("--check", "--program", program, file)
    assert code == 1
    assert "cannot start" in output or "ended with" in output


@pytest.mark.parametrize(
    "text",
    [
        "// Short.\n// Also short.\n",
        f"//   indented_code({'x' * 100}, y);\n",  # laid out by hand
        f"// https://example.org/{'x' * 100}\n",
        f'const char* kText = R"(\n// {WORDS}\n)";\n',
        "// | a table | with columns |\n",
    ],
)
def test_wrapping_leaves_what_is_laid_out(text):
    assert comments.wrap(text) == text


def test_wrapping_keeps_paragraphs_lists_headings_and_code():
    text = (
        "  // Note [A name]\n"
        f"  // {WORDS}\n"
        "  //\n"
        "  // - a short item\n"
        f"  // - an item about {WORDS}\n"
        "  //   and more of it\n"
        "  //     code(here);\n"
        "  // Ends early.\n"
        f"  // {WORDS}.\n"
        "  int x;\n"
    )
    wrapped = comments.wrap(text)
    lines = wrapped.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0] == "  // Note [A name]"
    assert "  // - a short item" in lines
    assert "  //     code(here);" in lines
    assert "  // Ends early." in lines
    assert [line for line in lines if line.startswith("  //   ") and not line.startswith("  //     ")]  # the item goes on
    assert wrapped.replace("//", "").split() == text.replace("//", "").split()
    assert comments.wrap(wrapped) == wrapped
