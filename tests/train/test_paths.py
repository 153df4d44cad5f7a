"""Relative paths: beside the file that names them, else in the working directory; on the command line the
working directory alone; and the configuration that a run keeps means the same files from any folder."""

import shutil
import subprocess

import pytest
import yaml

from running import FLOE, GOLDENS, environment
from small_data import TOKENIZER, pairs_config, write_shards


def floe(cwd, *words, expect=0):
    done = subprocess.run(
        [FLOE, *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=60, env=environment()
    )
    assert done.returncode == expect, done.stderr
    return done


def resolved(cwd, *words):
    return yaml.safe_load(floe(cwd, "train", *words, "--print-config").stdout)


@pytest.fixture
def project(tmp_path):
    """conf/a.yaml with everything that it names beside it, and an empty folder to work in."""
    conf, work = tmp_path / "conf", tmp_path / "work"
    work.mkdir()
    for name in ("lm", "vision"):
        shutil.copytree(GOLDENS / "neox_x2" / name, conf / name)
    shutil.copytree(TOKENIZER, conf / "tokenizer")
    write_shards(conf / "data", 4, 8)
    write_shards(conf / "data", 2, 2, name="v")
    config = pairs_config("data/t{0..3}.tar", validation={"every_steps": 2, "shards": {"laion": "data/v*.tar"}})
    config["model"] |= {"lm": "lm", "vision": "vision", "tokenizer": "./tokenizer"}
    (conf / "a.yaml").write_text(yaml.safe_dump(config))
    return conf, work


def test_everything_is_looked_for_beside_the_file_that_names_it(project, tmp_path):
    conf, work = project
    floe(work, "train", "../conf/a.yaml")
    kept = yaml.safe_load((work / "runs" / "run" / "config.yaml").read_text())
    assert kept["model"]["lm"] == str(conf / "lm") and kept["model"]["tokenizer"] == str(conf / "tokenizer")
    assert kept["data"]["laion"]["shards"] == f"{conf}/data/t{{0..3}}.tar"
    assert kept["train"]["validation"]["shards"] == {"laion": f"{conf}/data/v*.tar"}
    assert kept["run"]["dir"] == str(work / "runs")
    # What the run keeps works from any folder, and is the same run.
    again = floe(tmp_path, "train", work / "runs" / "run" / "config.yaml", "train.steps=4")
    assert "step_3" in again.stderr and "step 4/4" in again.stderr
    assert not (tmp_path / "runs").exists()


def test_else_in_the_working_directory(project):
    conf, work = project
    shutil.move(conf / "data", work / "data")
    shutil.move(conf / "lm", work / "lm")
    kept = resolved(work, "../conf/a.yaml")
    assert kept["data"]["laion"]["shards"] == f"{work}/data/t{{0..3}}.tar"
    assert kept["model"]["lm"] == str(work / "lm") and kept["model"]["vision"] == str(conf / "vision")
    # Beside the file comes first.
    write_shards(conf / "data", 1, 1)
    assert resolved(work, "../conf/a.yaml")["data"]["laion"]["shards"] == f"{conf}/data/t{{0..3}}.tar"


def test_each_value_belongs_to_the_file_that_it_is_written_in(project, tmp_path):
    conf, work = project
    other = tmp_path / "other" / "experiment"
    write_shards(other / "data", 4, 8)
    (other / "more.yaml").write_text('data: {laion: {shards: "data/t{0..3}.tar"}}\n')
    kept = resolved(work, "../conf/a.yaml", "../other/experiment/more.yaml")
    assert kept["data"]["laion"]["shards"] == f"{other}/data/t{{0..3}}.tar"
    assert kept["model"]["lm"] == str(conf / "lm")


def test_the_command_line_means_the_working_directory_alone(project):
    conf, work = project
    words = ("data.laion.shards=data/t{0..3}.tar", "model.weights=w.safetensors", "run.resume=ckpt")
    kept = resolved(work, "../conf/a.yaml", *words)
    assert kept["data"]["laion"]["shards"] == "data/t{0..3}.tar"
    done = floe(work, "train", "../conf/a.yaml", words[0], expect=2)
    assert f"data.laion.shards: there is no 'data/t{{0..3}}.tar', not in the working directory ({work}/data/" in done.stderr
    write_shards(work / "data", 4, 8)
    (work / "w.safetensors").write_bytes(b"")
    (work / "ckpt").mkdir()
    kept = resolved(work, "../conf/a.yaml", *words)
    assert kept["data"]["laion"]["shards"] == f"{work}/data/t{{0..3}}.tar"
    assert kept["model"]["weights"] == str(work / "w.safetensors") and kept["run"]["resume"] == str(work / "ckpt")


@pytest.mark.parametrize("key, value", [
    ("model.lm", "nowhere"), ("model.weights", "nowhere.pt"), ("model.tokenizer", "nowhere"),
    ("data.laion.shards", "nowhere/{0..3}.tar"), ("data.laion.shards", "@nowhere.txt"),
    ("train.validation.shards.laion", "nowhere*.tar"), ("run.resume", "nowhere"),
])
def test_what_is_nowhere_is_named_with_both_places(project, key, value):
    conf, work = project
    config = yaml.safe_load((conf / "a.yaml").read_text())
    block, name = config, key.split(".")
    for part in name[:-1]:
        block = block.setdefault(part, {})
    block[name[-1]] = value
    (conf / "a.yaml").write_text(yaml.safe_dump(config))
    done = floe(work, "train", "../conf/a.yaml", expect=2)
    bare = value.removeprefix("@")
    assert f"{key}: there is no '{bare}', neither beside ../conf/a.yaml ({conf}/{bare}) nor in the working " \
           f"directory ({work}/{bare})" in done.stderr
    assert not (work / "runs").exists()


def test_batches_lists_and_commands(project, golden, tmp_path):
    conf, work = project
    config = golden("neox_x2")
    for rank in (0, 1):
        shutil.copy(GOLDENS / "neox_x2-train-world2" / f"batches_rank{rank}.safetensors", conf / f"b{rank}.safetensors")
    config["data"]["batches"] = "b{rank}.safetensors"
    config["train"]["validation"] = {"every_steps": 5, "batches": "./b{rank}.safetensors"}
    (conf / "b.yaml").write_text(yaml.safe_dump(config))
    kept = resolved(work, "../conf/b.yaml")
    assert kept["data"]["batches"] == kept["train"]["validation"]["batches"] == f"{conf}/b{{rank}}.safetensors"
    # A list names its shards beside itself; commands are left alone.
    (conf / "lists").mkdir()
    (conf / "lists" / "l.txt").write_text("../data/t{0..1}.tar\n")
    config = yaml.safe_load((conf / "a.yaml").read_text())
    config["data"]["laion"]["shards"] = f"@lists/l.txt::data/t2.tar::pipe:cat {conf}/data/t3.tar"
    (conf / "a.yaml").write_text(yaml.safe_dump(config))
    kept = resolved(work, "../conf/a.yaml")
    assert kept["data"]["laion"]["shards"] == \
        f"@{conf}/lists/l.txt::{conf}/data/t2.tar::pipe:cat {conf}/data/t3.tar"
    floe(work, "train", "../conf/a.yaml")


def test_the_model_of_a_plan_and_of_a_forward_follows_the_same_rule(project):
    conf, work = project
    assert "flamingo" in floe(work, "plan", "../conf/a.yaml").stdout
    shutil.move(conf / "lm", work / "lm")
    assert "flamingo" in floe(work, "plan", "../conf/a.yaml").stdout
    shutil.rmtree(work / "lm")
    done = floe(work, "plan", "../conf/a.yaml", expect=2)
    assert f"neither beside ../conf/a.yaml ({conf}/lm) nor in the working directory ({work}/lm)" in done.stderr
