"""Bytes that are not UTF-8: refused in a configuration at once, and no trouble in names on the disk."""

import json
import os
import subprocess
import tarfile

import pytest
import yaml

from running import FLOE, GOLDENS, environment, steps_of

DATA = GOLDENS.parent / "data"


def floe(*words, cwd=None):
    return subprocess.run([FLOE, *words], capture_output=True, env=environment(), timeout=120, cwd=cwd)


@pytest.mark.parametrize("word, shown", [
    (b"run.name=a\xffb", "run.name is 'a\\xffb', which is not UTF-8"),
    (b"run.dir=/tmp/\xc3(", "run.dir is '/tmp/\\xc3(', which is not UTF-8"),
    (b"data.laion.shards=\xe9/{0..3}.tar", "data.laion.shards is '\\xe9/{0..3}.tar', which is not UTF-8"),
    (b'train.trainable=["perceiver.*", "\xff"]', "train.trainable[1] is '\\xff', which is not UTF-8"),
])
def test_a_configuration_is_utf8(write, golden, tmp_path, word, shown):
    done = floe("train", write(golden("neox_x2")), f"run.dir={tmp_path}/runs", word)
    assert done.returncode == 2
    text = done.stderr.decode()  # and so is what is said about it
    assert shown in text and len(text.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_so_is_a_file(golden, tmp_path):
    path = tmp_path / "odd.yaml"
    path.write_bytes(yaml.safe_dump(golden("neox_x2")).encode() + b"run: {name: a\xff}\n")
    done = floe("train", path, f"run.dir={tmp_path}/runs")
    assert done.returncode == 2 and done.stderr.decode() and not (tmp_path / "runs").exists()


def test_and_the_folder_that_a_relative_path_is_in(golden, tmp_path):
    odd = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(odd)
    for part in ("lm", "vision"):
        os.symlink(GOLDENS / "neox_x2" / part, odd + b"/" + part.encode())
    config = golden("neox_x2")
    config["model"].update(lm="lm", vision="vision")
    with open(odd + b"/a.yaml", "w") as file:
        yaml.safe_dump(config, file)
    done = floe("train", "a.yaml", cwd=odd)
    assert done.returncode == 2 and "model.lm is '" in done.stderr.decode() and "\\xff" in done.stderr.decode()


@pytest.fixture
def shards(tmp_path):
    """Two shards with odd names, full of samples with odd keys; the glob that finds them."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(2):
        source = tarfile.open(DATA / f"corpus/laion/00000{number}.tar")
        out = tarfile.open(os.fsencode(folder) + b"/\xff%d.tar" % number, "w", format=tarfile.GNU_FORMAT,
                           encoding="utf-8", errors="surrogateescape")
        for member in source.getmembers():
            content = source.extractfile(member)
            member.name = "\udcfe" + member.name
            member.pax_headers = {}
            out.addfile(member, content)
        out.close()
    return folder


@pytest.fixture
def config(golden, shards):
    config = golden("neox_x2")
    del config["model"]["weights"], config["model"]["media_token_id"], config["model"]["endofchunk_token_id"]
    config["model"]["tokenizer"] = str(DATA / "tokenizers/neox")
    config["data"] = {"laion": {"shards": f"{shards}/*.tar", "batch_size": 2, "num_samples": 40},
                      "shuffle": {"samples": 8, "initial": 2}}
    config["train"].update(steps=6, schedule={"type": "constant", "warmup_steps": 0})
    config["log"].update(tensorboard=True, wandb={"mode": "offline"}, diagnostics={"batches": 1})
    config["checkpoint"] = {"every_steps": 2}
    return config


def test_names_on_the_disk_may_have_any_bytes(train, config):
    whole = train(config, name="whole", ranks=2)
    train(config, "train.steps=4", name="parts", ranks=2)
    parts = train(config, name="parts", ranks=2)
    assert "step_4" in parts.stderr
    losses = [[steps_of(run.folder)[step]["loss_laion"] for step in range(1, 7)] for run in (whole, parts)]
    assert losses[0] == losses[1]


def test_also_where_a_step_is_skipped_and_where_the_run_fails(train, config):
    """The keys of a skipped step's samples are logged, and the emergency save works."""
    config["train"]["max_skipped"] = 1
    failed = train(config, "train.optimizer.lr=1e38", "train.clip.norm=null", expect=1, name="parts")
    assert (failed.folder / "checkpoints/on_exception").is_dir(), failed.stderr
    lines = (failed.folder / "skipped.jsonl").read_text(errors="strict").splitlines()
    assert lines and all("samples" in json.loads(line) for line in lines)
