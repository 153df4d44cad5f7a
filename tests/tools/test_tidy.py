"""tools/tidy.py looks at the right sources, remembers clean ones, and fails when it must."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("FLOE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "tools"))
import tidy  # noqa: E402

# Stands for clang-tidy: a finding for every line with BAD in the source and the headers beside it.
PROGRAM = """\
#!/bin/sh
if [ "$1" = --version ]; then echo "version 1"; exit; fi
for source; do :; done
echo "$source" >> "$LOOKED_AT"
grep -Hn BAD "$source" $(dirname $source)/*.h | sed 's/^\\([^:]*\\):\\([0-9]*\\):.*/\\1:\\2:1: error: is bad [bugprone-bad]/'
! grep -q BAD "$source" $(dirname $source)/*.h
"""


@pytest.fixture
def tree(tmp_path):
    root, build = tmp_path / "tree", tmp_path / "build"
    files = {
        "src/floe/core/a.h": "int a();\n",
        "src/floe/core/a.cc": '#include "floe/core/a.h"\n',
        "src/floe/core/only.h": "int only();\n",
        "src/floe/core/b.cc": '#include "floe/core/only.h"\n',
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git = ["git", "-C", str(root), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], check=True)
    build.mkdir()
    entries = [
        {"directory": str(build), "file": f"{root}/src/floe/core/{name}.cc",
         "command": f"/usr/bin/ccache /usr/bin/c++ -O3 -Winvalid-pch -include x/cmake_pch.hxx -c {root}/src/floe/core/{name}.cc"}
        for name in "ab"
    ]
    (build / "compile_commands.json").write_text(json.dumps(entries))
    program = tmp_path / "clang-tidy"
    program.write_text(PROGRAM)
    program.chmod(0o755)

    def run(*words):
        log = tmp_path / "looked_at"
        log.write_text("")
        done = subprocess.run(
            [sys.executable, ROOT / "tools/tidy.py", "--root", root, "--build", build, "--program", program, *words],
            env={**os.environ, "LOOKED_AT": str(log)}, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr, sorted(Path(line).name for line in log.read_text().split())

    return root, run


def test_commands_lose_what_only_gcc_knows():
    words = tidy.clean_command("/usr/bin/ccache c++ -Ix -fpch-preprocess -Winvalid-pch -include y/cmake_pch.hxx -include z.h -o a.o -c a.cc")
    assert words == ["c++", "-Ix", "-include", "z.h", "-c", "a.cc"]


def test_everything_once_then_nothing(tree):
    _, run = tree
    code, output, looked = run()
    assert (code, looked) == (0, ["a.cc", "b.cc"]), output
    code, output, looked = run()
    assert (code, looked) == (0, [])
    assert "2 known to be clean" in output


def test_sources_that_are_compiled_as_one(tree):
    root, run = tree
    build = root.parent / "build"
    unity = build / "Unity" / "floe_core.cc"
    unity.parent.mkdir()
    unity.write_text("".join(f'#include "floe/core/{name}.cc"\n' for name in "ab"))
    entries = [{"directory": str(build), "file": str(unity), "command": f"c++ -o unity.o -c {unity}"}]
    (build / "compile_commands.json").write_text(json.dumps(entries))
    code, output, looked = run()
    assert (code, looked) == (0, ["a.cc", "b.cc"]), output
    commands = json.loads((build / "tidy" / "compile_commands.json").read_text())
    assert [words["arguments"][-1] for words in commands] == [f"{root}/src/floe/core/{name}.cc" for name in "ab"]


def test_what_is_clean_is_looked_at_again_when_a_header_changes(tree):
    root, run = tree
    run()
    (root / "src/floe/core/only.h").write_text("int other();\n")
    assert run()[2] == ["b.cc"]


@pytest.mark.parametrize(("changed", "looked"), [("a.cc", ["a.cc"]), ("a.h", ["a.cc"]), ("only.h", ["b.cc"])])
def test_since_a_commit(tree, changed, looked):
    root, run = tree
    (root / "src/floe/core" / changed).write_text((root / "src/floe/core" / changed).read_text() + "// changed\n")
    assert run("--since", "HEAD")[2] == looked


def test_nothing_changed_is_nothing_to_look_at(tree):
    _, run = tree
    assert run("--since", "HEAD")[::2] == (0, [])


def test_a_finding_fails_is_shown_once_and_stays(tree):
    root, run = tree
    (root / "src/floe/core/a.h").write_text("BAD\n")
    for _ in range(2):
        code, output, _ = run()
        assert code == 1
        assert output.count("src/floe/core/a.h:1:1: error: is bad") == 1


def test_what_the_limit_leaves_is_counted(tree):
    _, run = tree
    code, output, looked = run("--limit", "0")
    assert (code, looked) == (0, [])
    assert "2 sources were not looked at" in output


def test_a_program_that_cannot_start_fails(tree):
    _, run = tree
    code, output, _ = run("--program", "/nowhere/clang-tidy")
    assert code == 1
    assert "cannot start" in output


def test_an_unknown_commit_fails(tree):
    _, run = tree
    assert run("--since", "no-such-tag")[0] != 0
