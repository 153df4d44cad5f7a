"""Where commands write: what is no ordinary file is never replaced, and links are followed."""

import os
import shutil
import socket
import stat
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from checkpoints import GOLDENS, save_dcp

DATA = Path(__file__).parents[1] / "goldens" / "data"
CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(params=["export file", "export torch", "export folder", "report", "inspect html", "inspect png"])
def write(request, floe, tmp_path):
    """write(path): a command that writes there, told to replace what there is. `ending`: of its files."""
    kind = request.param
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1, "time": 1, "loss_laion": 2}\n')
    ckpt = save_dcp({"w": torch.ones(2)}, tmp_path / "ckpt") if "export" in kind else None

    def run(path):
        if "export" in kind:
            return floe("export", str(ckpt), str(path), "--force")
        if kind == "report":
            return floe("report", str(tmp_path / "run"), "--output", str(path))
        words = [str(DATA / "corpus" / "mmc4"), "--tokenizer", str(DATA / "tokenizers" / "llama"), "--limit", "2"]
        return floe("inspect", *words, f"--{kind.split()[1]}", str(path))

    run.ending = {"export file": ".safetensors", "export torch": ".pt", "export folder": "", "inspect png": ".png"}.get(kind, ".html")
    run.makes_folder = kind == "export folder"
    return run


def make_fifo(path):
    os.mkfifo(path)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def make_device(path):
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root may make devices")


@pytest.mark.parametrize("make", [make_fifo, make_socket, make_device])
def test_what_is_no_ordinary_file_stays(write, tmp_path, make):
    place, link = tmp_path / f"odd{write.ending}", tmp_path / f"link{write.ending}"
    make(place)
    link.symlink_to(place.name)
    before = os.lstat(place)
    for path in (place, link):
        done = write(path)
        assert done.returncode == 2, done.stdout + done.stderr
        assert "is no ordinary file" in done.stderr and "choose another name" in done.stderr
        assert sum("is no ordinary file" in line for line in done.stderr.splitlines()) == 1
    after = os.lstat(place)
    assert (after.st_mode, after.st_ino, after.st_rdev) == (before.st_mode, before.st_ino, before.st_rdev)
    assert link.is_symlink()
    assert not [path.name for path in tmp_path.iterdir() if ".tmp" in path.name]


def test_links_are_followed(write, tmp_path):
    (tmp_path / "there").mkdir()
    real, link = tmp_path / "there" / f"real{write.ending}", tmp_path / f"link{write.ending}"
    link.symlink_to(Path("there") / real.name)
    for _ in range(2):  # to what is to come, then to what is there
        done = write(link)
        assert done.returncode == 0, done.stderr
        assert link.is_symlink() and not real.is_symlink()
        assert real.is_dir() if write.makes_folder else real.is_file() and real.stat().st_size > 0
        if write.makes_folder:
            (real / "old").write_text("old")
        else:
            real.write_bytes(b"old")
    write(link)
    assert not (real / "old").exists() if write.makes_folder else real.read_bytes() != b"old"
    assert [path.name for path in (tmp_path / "there").iterdir()] == [real.name]


def test_a_folder_is_no_file(write, tmp_path):
    if write.makes_folder:
        pytest.skip("it makes folders")
    place = tmp_path / f"folder{write.ending}"
    (place / "mine").mkdir(parents=True)
    done = write(place)
    assert done.returncode == 2 and "is a folder; name a file in it" in done.stderr, done.stderr
    assert (place / "mine").is_dir()


def test_a_page_replaces_no_other_file(floe, tmp_path):
    """The name that was forgotten: what stands behind the option is what was to be looked at."""
    shards = [tmp_path / "a.tar", tmp_path / "b.tar"]
    for shard in shards:
        shutil.copy(next((DATA / "corpus" / "mmc4").glob("*.tar")), shard)
    before = shards[0].read_bytes()
    tokenizer = ["--tokenizer", str(DATA / "tokenizers" / "llama")]
    record = tmp_path / "run" / "metrics.jsonl"
    record.parent.mkdir()
    record.write_text('{"step": 1, "time": 1, "loss_laion": 2}\n')
    plan = [str(CONFIGS / "transformer-demo.yaml"), "--gpu", "h200", "--batch", "1x64", "--worlds", "1,2"]
    for words, option, ending in (
        (["inspect", "--html", *map(str, shards), *tokenizer], "--html", ".html"),
        (["inspect", "--png", *map(str, shards), *tokenizer], "--png", ".png"),
        (["report", str(record.parent), "--output", str(record)], "--output", ".html"),
        (["plan", *plan, "--html", str(record)], "--html", ".html"),
    ):
        done = floe(*words)
        assert done.returncode == 2 and done.stdout == "", done.stderr
        assert f"{option} '" in done.stderr and f"must end in {ending}, since what is there is replaced" in done.stderr
    assert shards[0].read_bytes() == before and record.read_text().startswith("{")


def test_the_numbers_of_forward(floe, tmp_path):
    golden = GOLDENS / "models" / "neox_x2"
    os.mkfifo(tmp_path / "out.safetensors")
    done = floe("forward", str(golden / "model.yaml"), str(golden / "forward.safetensors"), str(tmp_path / "out.safetensors"))
    assert done.returncode == 2 and "is no ordinary file" in done.stderr
    assert (tmp_path / "out.safetensors").is_fifo()
