"""The program's front door: help, version, unknown commands, exit codes."""

import os
import re
import subprocess
from pathlib import Path

import pytest


def test_help_lists_the_commands(floe):
    done = floe("--help")
    assert done.returncode == 0
    for command in ("launch", "help", "version"):
        assert re.search(rf"^  {command} +\w", done.stdout, re.MULTILINE)
    assert floe("help").stdout == done.stdout == floe("-h").stdout
    assert done.stderr == ""


def test_every_listed_command_has_help(floe):
    listed = re.findall(r"^  (\w+)  ", floe("--help").stdout, re.MULTILINE)
    assert len(listed) >= 3
    for command in listed:
        done = floe(command, "--help")
        assert done.returncode == 0
        assert done.stdout.startswith(f"usage: floe {command}")
        assert floe("help", command).stdout == done.stdout


def test_version_is_the_projects(floe):
    root = Path(os.environ["FLOE_SOURCE_DIR"])
    version = re.search(r"project\(floe VERSION ([\d.]+)", (root / "CMakeLists.txt").read_text()).group(1)
    assert floe("version").stdout == f"floe {version}\n" == floe("--version").stdout


def test_nothing_said_shows_help_and_is_bad_usage(floe):
    done = floe()
    assert done.returncode == 2
    assert "usage: floe COMMAND" in done.stdout
    assert done.stderr == "floe: say what to do: floe COMMAND\n"


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["lunch"], "there is no command 'lunch'; did you mean 'launch'?"),
        (["qqqqqq"], "there is no command 'qqqqqq'; 'floe --help' lists the commands"),
        (["help", "vresion"], "there is no command 'vresion'; did you mean 'version'?"),
        (["version", "x"], "version takes no arguments, got 'x'"),
    ],
)
def test_bad_usage_is_one_sentence_and_exit_2(floe, args, sentence):
    done = floe(*args)
    assert done.returncode == 2
    assert done.stderr == f"floe: {sentence}\n"
    assert done.stdout == ""


def test_what_is_put_into_the_process_sees_its_end(floe, tmp_path, monkeypatch):
    """Profilers write what they have seen when the process ends as usual, which floe otherwise cuts short."""
    source, library, seen = tmp_path / "watch.c", tmp_path / "watch.so", tmp_path / "seen"
    source.write_text('#include <stdio.h>\n#include <stdlib.h>\n__attribute__((destructor)) static void end(void) {'
                      'fclose(fopen(getenv("SEEN"), "w")); }\n')
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setenv("SEEN", str(seen))
    monkeypatch.setenv("LD_PRELOAD", str(library))
    done = floe("--version")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("floe ") and seen.exists()
