"""Where floe init and floe migrate write: nothing is replaced that was not meant, and nothing is lost silently."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from small_llama import make_llama

FLOE = Path(os.environ["FLOE_BIN_DIR"]) / "floe"


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return make_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(params=["init", "migrate"])
def write(request, floe, llama, tmp_path):
    """write(*words): one of the commands, which reads tmp_path/input."""
    (tmp_path / "lightning.yaml").write_text("trainer: {max_steps: 5, precision: bf16-mixed}\n")
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": f"a b c {i}"}) + "\n" for i in range(20)))
    words = {
        "init": [str(llama), "--data", "texts.jsonl"],
        "migrate": ["lightning.yaml"],
    }[request.param]

    def run(*more):
        return floe(request.param, *words, *more, cwd=tmp_path)

    run.command = request.param
    run.input = "texts.jsonl" if request.param == "init" else "lightning.yaml"
    return run


@pytest.fixture
def refused(write):
    def check(sentence, *words):
        done = write(*words)
        assert done.returncode == 2, done.stdout + done.stderr
        assert len(done.stderr.splitlines()) == 1 and sentence in done.stderr
        assert done.stdout == ""

    return check


def test_a_new_file_and_one_that_is_replaced(write, refused, tmp_path):
    assert write("--output", "a.yaml").returncode == 0
    first = (tmp_path / "a.yaml").read_text()
    (tmp_path / "a.yaml").write_text("mine")
    refused("'a.yaml' exists; choose another name with --output, or replace it with --force", "--output", "a.yaml")
    assert (tmp_path / "a.yaml").read_text() == "mine"
    assert write("--output", "a.yaml", "--force").returncode == 0
    assert (tmp_path / "a.yaml").read_text() == first


def test_what_is_no_ordinary_file_stays(refused, tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    refused("is no ordinary file", "--output", "pipe.yaml", "--force")
    assert (tmp_path / "pipe.yaml").is_fifo()
    (tmp_path / "null.yaml").symlink_to("/dev/null")
    refused("is no ordinary file", "--output", "null.yaml", "--force")
    assert Path("/dev/null").is_char_device()
    (tmp_path / "folder.yaml").mkdir()
    refused("is a folder; name a file in it", "--output", "folder.yaml", "--force")
    refused("there is no folder", "--output", "gone/a.yaml")
    refused("--output names no file", "--output", "")
    refused("must end in .yaml", "--output", "config")
    refused("has a line break", "--output", "a\nb.yaml")


def test_links_are_followed(write, refused, tmp_path):
    (tmp_path / "real.yaml").write_text("old")
    (tmp_path / "link.yaml").symlink_to("real.yaml")
    refused("exists", "--output", "link.yaml")
    assert write("--output", "link.yaml", "--force").returncode == 0
    assert (tmp_path / "link.yaml").is_symlink() and (tmp_path / "real.yaml").read_text() != "old"
    (tmp_path / "to_come.yaml").symlink_to("there/new.yaml")
    refused("there is no folder", "--output", "to_come.yaml")
    (tmp_path / "there").mkdir()
    assert write("--output", "to_come.yaml").returncode == 0
    assert (tmp_path / "to_come.yaml").is_symlink() and (tmp_path / "there/new.yaml").exists()


def test_an_input_is_not_replaced(write, refused, tmp_path):
    before = (tmp_path / write.input).read_bytes()
    (tmp_path / "same.yaml").symlink_to(write.input)
    refused("would replace what the command reads", "--output", "same.yaml", "--force")
    if write.command == "migrate":
        refused("would replace what the command reads", "--output", write.input, "--force")
    assert (tmp_path / write.input).read_bytes() == before


def test_names_that_look_like_options(write, tmp_path):
    done = write("--output=-x.yaml")
    assert done.returncode == 0 and (tmp_path / "-x.yaml").exists()
    assert " ./-x.yaml" in done.stdout


def test_a_dash_is_stdout(write, tmp_path):
    done = write("--output", "-")
    assert done.returncode == 0 and not (tmp_path / "-").exists()
    assert "mixed_precision:" in done.stdout or "strategy:" in done.stdout


@pytest.mark.parametrize("words", [["completion", "bash"], ["train", "--help"], ["version"]])
def test_a_result_that_is_lost_is_a_failure(words):
    with open("/dev/full", "w") as full:
        done = subprocess.run([FLOE, *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("floe: the result could not be written to standard output") and done.stderr.count("\n") == 1


def test_a_reader_that_has_seen_enough_is_none():
    done = subprocess.run(f"trap '' PIPE; {{ {FLOE} train --help; echo $? >&2; }} | head -n 1", shell=True,
                          executable="/bin/bash", capture_output=True, text=True)  # fmt: skip
    assert done.stderr == "0\n"
