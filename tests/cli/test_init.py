"""floe init: what it writes is planned and trained as it is, whatever the model and the data; wrong inputs are
one sentence each."""

import json
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_file
from tars import write_tar

sys.path.insert(0, str(Path(__file__).parent))
from small_llama import TOKENIZER, llama_config, llama_shapes, make_llama

FLOE = Path(os.environ["FLOE_BIN_DIR"]) / "floe"
ROOT = Path(os.environ["FLOE_SOURCE_DIR"])
GOLDENS = ROOT / "tests" / "goldens"
CORPUS = GOLDENS / "data" / "corpus"
LM, VISION = GOLDENS / "models" / "opt_x1" / "lm", GOLDENS / "models" / "opt_x1" / "vision"
QUIET = ("log.tensorboard=false", "log.diagnostics=null")
SMALL = ("model.perceiver={depth: 1, dim_head: 8, heads: 2, num_latents: 4, ff_mult: 1}",
         "model.cross_attn={dim_head: 8, heads: 2, ff_mult: 1}")  # fmt: skip


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return make_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """The headers of a model of 7 B parameters: a file with nothing in it takes no room."""
    folder = tmp_path_factory.mktemp("models") / "7b"
    shutil.copytree(TOKENIZER, folder)
    config = llama_config(vocab=32000, dim=4096, layers=32, heads=32, mlp=11008, positions=4096)
    (folder / "config.json").write_text(json.dumps(config))
    header, at = {}, 0
    for name, shape in llama_shapes(config).items():
        size = 2
        for length in shape:
            size *= length
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
    return folder


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def texts(count, first=0):
    numbers = range(first, first + count)
    return [{"text": f"Story {i}: the ice drifts south and the sea is calm. " * (1 + i % 5)} for i in numbers]


def tasks(count):
    return [{"prompt": f"What is {i} and {i}?", "response": f" It is {2 * i}."} for i in range(count)]


@pytest.fixture
def floe():
    """On one thread: tests and ranks share the cores."""
    ours = ("FLOE_L", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}

    def run(*args, timeout=120, **more):
        return subprocess.run([FLOE, *args], capture_output=True, text=True, timeout=timeout,
                              env=dict(clean, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES=""), **more)  # fmt: skip

    return run


@pytest.fixture
def init(floe, tmp_path):
    """Runs it in the test's own folder; the configuration that it wrote."""

    def run(*args, output="my.yaml", expect_warning=False):
        done = floe("init", *map(str, args), "--output", str(output), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert expect_warning or done.stderr == "", done.stderr
        assert f"wrote    {output}" in done.stdout
        text = (tmp_path / output).read_text()
        assert max(map(len, text.splitlines())) <= 100 or "{" in text or "/" in text
        run.stdout, run.stderr, run.text = done.stdout, done.stderr, text
        run.comments = re.sub(r"\n *# ", " ", text)  # without the breaks of their lines
        return yaml.safe_load(text)

    return run


@pytest.fixture
def trained(floe, tmp_path):
    """Plans and trains a configuration; the steps that it made."""

    def run(*words, config="my.yaml", name="my", ranks=1, cwd=None):
        place = cwd or tmp_path
        planned = floe("plan", config, f"world={ranks}", cwd=place)
        assert planned.returncode == 0, planned.stderr
        launcher = ["launch", "-n", str(ranks), "--"] if ranks > 1 else []
        done = floe(*launcher, "train", config, *QUIET, *words, cwd=place)
        assert done.returncode == 0, done.stderr
        run.stderr = done.stderr
        lines = (Path(place) / "runs" / name / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    return run


def losses(steps, source):
    values = [step[f"loss_{source}"] for step in steps]
    assert all(value == value and abs(value) < 100 for value in values)
    return values


# ---- what it writes, trains ----


def test_a_flamingo_with_pairs(init, trained):
    words = (LM, "--tokenizer", TOKENIZER, "--vision", VISION)
    config = init(*words, "--data", CORPUS / "laion/00000{0..1}.tar", expect_warning=True)
    assert config["model"]["type"] == "flamingo" and config["model"]["cross_attn_every_n_layers"] == 1
    laion = config["data"]["laion"]
    assert laion["weight"] == 1.0 and laion["num_samples"] % laion["batch_size"] == 0
    assert config["strategy"] == {"sharding": "no_shard", "mixed_precision": {"param": "fp32"}}
    assert "laion: 2 shards" in init.stdout and "1 picture each" in init.stdout
    steps = trained()
    epoch = laion["num_samples"] // laion["batch_size"]
    assert len(steps) == epoch * config["train"]["epochs"]
    assert len(losses(steps, "laion")) >= 3
    # What was said to be needed is needed, and little more is said.
    said = re.search(r"a rank needs about ([\d.]+) MiB", init.comments)
    peak = max(step["memory_peak_bytes"] for step in steps) / 2**20
    assert peak / 1.05 < float(said[1]) < 3 * peak
    # With a rate for so small a model the loss falls.
    more = trained("run.name=more", *SMALL, "train.optimizer.lr=2e-2", "train.schedule.warmup_steps=0", name="more")
    values = losses(more, "laion")
    assert values[-1] < values[0]


def test_pairs_and_documents_agree_on_their_batches(init, trained):
    config = init(LM, "--tokenizer", TOKENIZER, "--vision", VISION, "--data", CORPUS / "laion", "--data",
                  f"{CORPUS}/mmc4/*.tar", expect_warning=True)  # fmt: skip
    laion, mmc4 = config["data"]["laion"], config["data"]["mmc4"]
    assert laion["num_samples"] // laion["batch_size"] == mmc4["num_samples"] // mmc4["batch_size"]
    assert (laion["weight"], mmc4["weight"]) == (0.2, 1.0)
    assert mmc4["max_tokens"] == 96  # the model has no more positions
    assert "all sources must have as many batches" in init.comments
    # A seventh of the corpus is damaged, and the run shall not stop at that.
    assert config["data"]["max_bad_fraction"] > 0.2 and "bad_image 8" in init.stderr
    assert "Left out by the rules: few_images 4" in init.comments
    steps = trained("train.epochs=1", *SMALL)
    assert len(steps) == laion["num_samples"] // laion["batch_size"]
    losses(steps, "laion"), losses(steps, "mmc4")


@pytest.mark.parametrize("name", ["opt_x1", "neox_x2"])
def test_a_flamingo_with_adapters(init, trained, name):
    model = GOLDENS / "models" / name
    config = init(model / "lm", "--tokenizer", TOKENIZER, "--vision", model / "vision", "--lora", "--data",
                  CORPUS / "laion/000000.tar", expect_warning=True)  # fmt: skip
    fused = ["*.attention.query_key_value"]
    separate = ["*.self_attn.q_proj", "*.self_attn.v_proj"]
    assert config["model"]["lora"]["targets"] == (fused if name == "neox_x2" else separate)
    losses(trained("train.epochs=1", *SMALL), "laion")


@pytest.mark.parametrize("tars", [False, True])
def test_a_language_model_with_text(init, trained, llama, tmp_path, tars):
    rows = texts(60)
    if tars:
        files = {f"{i:03d}.txt": row["text"].encode() for i, row in enumerate(rows)}
        write_tar(tmp_path / "texts" / "0.tar", files)
    else:
        write_lines(tmp_path / "texts" / "0.jsonl", rows)
    config = init(llama, "--data", "texts")
    assert config["model"] == {"type": "causal_lm", "lm": str(llama)}
    text = config["data"]["text"]
    assert text["files"] == ("texts/*.tar" if tars else "texts/*.jsonl*")
    assert text["num_tokens"] % text["tokens"] == 0 and 64 <= text["tokens"] <= 512
    assert config["train"]["optimizer"]["lr"] == 2e-5
    steps = trained("train.optimizer.lr=1e-2")
    values = losses(steps, "text")
    assert values[-1] < values[0] - 0.5


def test_instructions_with_adapters_on_two_ranks(init, trained, llama, tmp_path):
    for number in range(3):
        write_lines(tmp_path / f"tasks-{number}.jsonl", tasks(20))
    config = init(llama, "--data", "tasks-{0..2}.jsonl", "--lora", "--ranks", 2)
    assert config["model"]["lora"]["targets"] == ["*.self_attn.q_proj", "*.self_attn.v_proj"]
    assert config["train"]["optimizer"] == {"lr": 2e-4, "weight_decay": 0.0}
    assert "floe launch -n 2 -- train my.yaml" in init.stdout
    instruct = config["data"]["instruct"]
    assert instruct["max_tokens"] == 512 and "resampled" not in config["data"]
    steps = trained("train.optimizer.lr=3e-2", ranks=2)
    epoch = instruct["num_samples"] // (2 * instruct["batch_size"])
    assert len(steps) == epoch * config["train"]["epochs"]
    values = losses(steps, "instruct")
    assert sum(values[-3:]) < sum(values[:3])
    assert steps[0]["loss_instruct"] > 0


def test_one_file_for_two_ranks_is_drawn_from(init, trained, llama, tmp_path):
    write_lines(tmp_path / "a.jsonl", tasks(30))
    config = init(llama, "--data", "a.jsonl", "--ranks", 2)
    assert config["data"]["resampled"] is True and "too few shards for each of the 2 ranks" in init.comments
    assert len(trained("train.epochs=1", ranks=2)) >= 1


def test_prepared_batches(init, trained, llama, tmp_path):
    tensors = {}
    for step in range(4):
        ids = torch.randint(0, 100, (2, 8))
        tensors |= {f"step{step}.text.input_ids": ids, f"step{step}.text.attention_mask": torch.ones_like(ids),
                    f"step{step}.text.labels": ids.clone()}  # fmt: skip
    for rank in range(2):
        save_file(tensors, tmp_path / f"b{rank}.safetensors")
    config = init(llama, "--data", "b0.safetensors")
    assert config["data"] == {"batches": "b0.safetensors"} and "4 steps of text" in init.stdout
    assert len(trained()) == 12  # three epochs
    again = init(llama, "--data", "b{rank}.safetensors", "--ranks", 2, output="two.yaml")
    assert again["data"] == {"batches": "b{rank}.safetensors"}
    assert len(trained(config="two.yaml", name="two", ranks=2)) == 12


def test_two_patterns_of_one_kind_are_one_source(init, llama, tmp_path):
    write_lines(tmp_path / "a.jsonl", texts(20))
    write_lines(tmp_path / "b.jsonl", texts(20, 20))
    config = init(llama, "--data", "a.jsonl", "--data", "b.jsonl")
    assert config["data"]["text"]["files"] == "a.jsonl::b.jsonl" and "2 shards" in init.stdout


# ---- what it says ----


def test_every_comment_is_the_schema_s_own(init, llama, tmp_path):
    write_lines(tmp_path / "a.jsonl", tasks(20))
    init(llama, "--data", "a.jsonl")
    reference = (ROOT / "docs" / "configuration.md").read_text()
    meanings = {}
    section = ""
    for line in reference.splitlines():
        if heading := re.match(r"## `(.*)`", line):
            section = heading[1] + "."
        elif row := re.match(r"\| `([^`]+)` \|.*\| ([^|]+) \|$", line):
            meanings[section + row[1]] = row[2].strip()
    path, seen = [], 0
    comment = []
    for line in init.text.splitlines():
        entry = re.match(r"( *)(# )?([a-z_0-9]+):( .*)?$", line)
        if entry and entry[2] and not re.match(" [\\[{]", entry[4] or ""):
            entry = None
        if line.strip().startswith("#") and not entry:
            comment.append(line.strip()[1:].strip())
        elif entry:
            depth = len(entry[1]) // 2
            path = [*path[:depth], entry[3]]
            key = ".".join(path)
            if key in meanings and entry[4]:
                said = " ".join(comment)
                assert meanings[key].replace("\\", "") in said, (key, said)
                seen += 1
            comment = []
        else:
            comment = []
    assert seen >= 15


def test_suggestions_can_be_taken(init, floe, llama, tmp_path):
    write_lines(tmp_path / "a.jsonl", tasks(20))
    write_lines(tmp_path / "held-out" / "instruct-0.jsonl", tasks(4))
    init(llama, "--data", "a.jsonl")
    taken, count = re.subn(r"^( *)# ([a-z_]+: [\[{].*)$", r"\1\2", init.text, flags=re.MULTILINE)
    assert count == 4  # adapters, validation, activation checkpointing, W&B
    (tmp_path / "my.yaml").write_text(taken)
    done = floe("train", "my.yaml", *QUIET, "train.epochs=1", "log.wandb.mode=offline", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    last = json.loads((tmp_path / "runs/my/metrics.jsonl").read_text().splitlines()[-1])
    assert last["val_loss"] > 0


def test_a_large_model_is_fitted_to_the_gpus(init, large, tmp_path):
    write_lines(tmp_path / "a.jsonl", tasks(40))
    one = init(large, "--data", "a.jsonl", "--gpu-memory", "80GiB", "--ranks", 1)
    assert "lora" in one["model"] and "all of the model would not fit" in init.comments
    assert one["strategy"]["sharding"] == "no_shard" and one["strategy"]["mixed_precision"]["param"] == "bf16"
    assert "8.39 M of 6.75 B parameters train (adapters)" in init.stdout
    assert "threads" not in one["data"]  # the cores here say nothing of those there
    eight = init(large, "--data", "a.jsonl", "--gpu-memory", "80GiB", "--ranks", 8, output="eight.yaml")
    assert "lora" not in eight["model"] and eight["strategy"]["sharding"] in ("shard_grad_op", "full_shard")
    assert eight["data"]["instruct"]["batch_size"] >= 2
    write_lines(tmp_path / "b.jsonl", [{"text": "The ice drifts south. " * 2000}] * 20)
    less = init(large, "--data", "b.jsonl", "--gpu-memory", "16GiB", "--ranks", 16, "--full", output="less.yaml")
    assert less["strategy"]["activation_checkpointing"] == ["DecoderLayer"]
    assert less["strategy"]["sharding"] == "full_shard"
    offloaded = init(large, "--data", "a.jsonl", "--gpu-memory", "8GiB", "--ranks", 1, output="host.yaml")
    assert offloaded["strategy"]["cpu_offload"] is True and "lora" in offloaded["model"]


def test_what_does_not_fit_says_so(init, floe, large, tmp_path):
    write_lines(tmp_path / "a.jsonl", tasks(40))
    init(large, "--data", "a.jsonl", "--gpu-memory", "16GiB", "--ranks", 1, "--full", expect_warning=True)
    assert "this does not fit" in init.stderr and "such ranks it would fit (--ranks" in init.stderr
    assert "DOES NOT FIT" in init.text
    ranks = int(re.search(r"--ranks (\d+)", init.stderr)[1])
    init(large, "--data", "a.jsonl", "--gpu-memory", "16GiB", "--ranks", ranks, "--full", output="more.yaml")
    assert "DOES NOT FIT" not in init.text
    done = floe("plan", "my.yaml", "world=1", cwd=tmp_path)  # and yet it is a configuration
    assert done.returncode == 0


def test_a_sample_of_many_shards_is_looked_at_and_that_is_said(init, llama, tmp_path):
    for number in range(600):
        write_lines(tmp_path / "many" / f"{number:03d}.jsonl", texts(3, number))
    config = init(llama, "--data", "many")
    assert "600 shards" in init.stdout and "by 4 of the shards" in init.stdout
    assert "about 1" in init.stdout or "about 2" in init.stdout
    assert config["data"]["text"]["num_tokens"] > 10000


def test_commands_are_looked_at_once(init, floe, llama, tmp_path):
    write_lines(tmp_path / "a.jsonl", tasks(20))
    config = init(llama, "--data", "pipe:cat a.jsonl # {0..3}.jsonl")
    assert config["data"]["instruct"]["files"] == "pipe:cat a.jsonl # {0..3}.jsonl"
    assert "4 shards, about 80 samples" in init.stdout and config["data"]["workers"] == 4
    done = floe("init", str(llama), "--data", "pipe:false # {0..3}.jsonl", "--output", "no.yaml", cwd=tmp_path)
    assert done.returncode == 2 and "say what it is with --data KIND=" in done.stderr
    assert not (tmp_path / "no.yaml").exists()
    config = init(llama, "--data", "instruct=pipe:false # {0..3}.jsonl", output="un.yaml", expect_warning=True)
    assert "could not be looked at" in init.stderr and config["train"]["steps"] == 1000
    assert "num_samples" not in config["data"]["instruct"]


def test_damage_is_said(init, llama, tmp_path):
    write_lines(tmp_path / "a.jsonl", tasks(20))
    with open(tmp_path / "a.jsonl", "a") as file:
        file.write('broken\n{"prompt": "x", "response": ""}\n')
    init(llama, "--data", "{a,gone}.jsonl", expect_warning=True)
    assert "bad_json 1" in init.stderr and "Left out by the rules: empty_text 1." in init.comments
    assert "1 of the 2 shards" in init.stderr and "22 samples, 20 usable" in init.stdout


def test_every_rank_gets_shards_that_are_there(init, trained, llama, tmp_path):
    for number in (0, 1, 2, 4):
        write_lines(tmp_path / f"{number}.jsonl", tasks(12))
    config = init(llama, "--data", "{0..5}.jsonl", "--ranks", 2, expect_warning=True)
    assert config["data"]["max_bad_fraction"] == 0.67  # a third of the shards is missing
    assert len(trained("train.epochs=2", ranks=2)) > 2
    alone = init(llama, "--data", "{0,3,5}.jsonl", "--ranks", 2, expect_warning=True, output="alone.yaml")
    assert alone["data"]["resampled"] is True  # one of two ranks would have nothing
    assert trained("train.epochs=1", config="alone.yaml", name="alone", ranks=2)


# ---- files ----


def test_nothing_is_overwritten_without_force(init, floe, llama, tmp_path):
    write_lines(tmp_path / "a.jsonl", texts(30))
    (tmp_path / "my.yaml").write_text("mine")
    done = floe("init", str(llama), "--data", "a.jsonl", "--output", "my.yaml", cwd=tmp_path)
    assert done.returncode == 2 and "replace it with --force" in done.stderr and done.stderr.count("\n") == 1
    assert (tmp_path / "my.yaml").read_text() == "mine"
    init(llama, "--data", "a.jsonl", "--force")
    done = floe("init", str(llama), "--data", "a.jsonl", "--output", "-", cwd=tmp_path)
    assert done.returncode == 0 and "floe plan FILE" in done.stderr
    assert yaml.safe_load(done.stdout)["run"]["name"] == "train"
    done = floe("init", str(llama), "--data", "a.jsonl", cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "train.yaml").exists()


def test_a_run_of_that_name_is_left_alone(init, llama, tmp_path):
    write_lines(tmp_path / "a.jsonl", texts(30))
    (tmp_path / "runs" / "my").mkdir(parents=True)
    assert init(llama, "--data", "a.jsonl")["run"]["name"] == "my-2"


def test_a_file_elsewhere_means_the_same_data(init, trained, llama, tmp_path):
    write_lines(tmp_path / "a.jsonl", texts(30))
    shutil.copytree(llama, tmp_path / "lm")
    (tmp_path / "configs").mkdir()
    config = init("lm", "--data", "a.jsonl", output="configs/my.yaml")
    assert config["model"]["lm"] == str(tmp_path / "lm")
    assert config["data"]["text"]["files"] == str(tmp_path / "a.jsonl")
    other = tmp_path / "other"
    other.mkdir()
    assert trained("train.epochs=1", config=str(tmp_path / "configs/my.yaml"), cwd=other)
    here = init("lm", "--data", "a.jsonl", output="here.yaml")
    assert here["model"]["lm"] == "lm" and here["data"]["text"]["files"] == "a.jsonl"
    assert trained("train.epochs=1", config=str(tmp_path / "here.yaml"), name="here", cwd=other)


ODD = "o d#d: \"x\" 'y' {1,2} %s ü [a] ${run.dir} *&!"


def test_odd_names(init, floe, trained, llama, tmp_path):
    shutil.copytree(llama, tmp_path / ODD)
    write_lines(tmp_path / f"{ODD}.jsonl", texts(30))
    config = init(ODD, "--data", f"{ODD}.jsonl", output=f"{ODD}.yaml")
    assert config["model"]["lm"] == ODD.replace("${", "$${")
    name = yaml.safe_load(init.text)["run"]["name"].replace("$${", "${")
    assert name == ODD
    planned = subprocess.run(
        f"PATH={FLOE.parent}:$PATH; " + re.search(r"next +(.*)", init.stdout)[1],
        shell=True, cwd=tmp_path, capture_output=True, text=True, executable="/bin/bash",
    )  # fmt: skip
    assert planned.returncode == 0, planned.stderr
    assert trained("train.epochs=1", config=f"./{ODD}.yaml", name=ODD)
    folder = tmp_path / "data {a,b} [c]"
    write_lines(folder / "0.jsonl", texts(30))
    init(llama, "--data", folder.name, output="f.yaml")
    assert trained("train.epochs=1", config="f.yaml", name="f")


def test_bytes_that_are_not_utf8(floe, llama, tmp_path):
    done = subprocess.run(
        [FLOE, "init", llama, "--data", b"a\xff.jsonl"], capture_output=True, cwd=tmp_path
    )
    assert done.returncode == 2 and b"--data 'a\\xff.jsonl' is not UTF-8" in done.stderr


# ---- wrong inputs ----


@pytest.fixture
def wrong(floe, tmp_path):
    def run(*args):
        done = floe("init", *map(str, args), cwd=tmp_path)
        assert done.returncode == 2, (done.stdout, done.stderr)
        assert done.stdout == "" and done.stderr.startswith("floe: ") and done.stderr.count("\n") == 1, done.stderr
        assert not (tmp_path / "train.yaml").exists()
        return done.stderr

    return run


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ([], "name one model folder"),
        (["LM"], "say what to train on with --data"),
        (["LM", "b", "--data", "a.jsonl"], "(a pattern stands in quotes)"),
        (["nowhere", "--data", "a.jsonl"], "there is no folder 'nowhere'; name a Hugging Face folder"),
        (["facebook/opt-125m", "--data", "a.jsonl"], "'hf download facebook/opt-125m --local-dir opt-125m'"),
        (["empty", "--data", "a.jsonl"], "it has no config.json"),
        (["LM", "--data", "gone.jsonl"], "there is no shard 'gone.jsonl'"),
        (["LM", "--data", "*.gone"], "no shard matches '*.gone'"),
        (["LM", "--data", "empty"], "has nothing in it"),
        (["LM", "--data", "mixed"], "has *.jsonl* and *.tar; name one of them"),
        (["LM", "--data", "odd"], "no .tar and no .jsonl, but 1 file such as 'a.csv'"),
        (["LM", "--data", "odd/a.csv"], "floe reads tars of pictures"),
        (["LM", "--data", "odd.jsonl"], "has JSON with 'content', 'id'; floe reads"),
        (["LM", "--data", "odd.tar"], "has samples of .cls, .npy; floe reads"),
        (["LM", "--data", "pairs.tar"], "name its image tower with --vision"),
        (["LM", "--data", "empty.tar"], "has no sample to look at"),
        (["LM", "--data", "a.jsonl", "--vision", "gone"], "there is no image tower 'gone'"),
        (["LM", "--data", "a.jsonl", "--vision", "VISION"], "which a Flamingo is not trained on; leave out --vision"),
        (["LM", "--data", "a.jsonl", "--tokenizer", "gone"], "there is no tokenizer 'gone'"),
        (["LM", "--data", "useless.jsonl"], "nothing of 'useless.jsonl' can be used"),
        (["LM", "--data", "a.jsonl", "--lora", "--full"], "--lora and --full say opposite things"),
        (["LM", "--data", "pairs.tar", "--vision", "VISION", "--full"], "--full is for a model that reads text alone"),
        (["LM", "--data", "a.jsonl", "--ranks", "0"], "--ranks is '0', but must be a whole number"),
        (["LM", "--data", "a.jsonl", "--gpu-memory", "much"], "--gpu-memory"),
        (["LM", "--data", "a.jsonl", "--gpu-memory", "1MiB"], "must be 1GiB or more"),
        (["LM", "--data", "a.jsonl", "--output", "gone/a.yaml"], "there is no folder"),
        (["LM", "--data", "a.jsonl", "--output", "empty"], "is a folder; name a file in it"),
        (["LM", "--data", "a.jsonl", "--vison", "x"], "did you mean '--vision'?"),
        (["LM", "--data", "x.safetensors"], "there is no 'x.safetensors'"),
        (["LM", "--data", "a.jsonl", "--data", "LM/model.safetensors"], "prepared batches holds every source"),
        (["LM", "--data", "LM/model.safetensors"], "has no prepared batches"),
    ],
)
def test_wrong_inputs_are_one_sentence(wrong, llama, tmp_path, args, sentence):
    for name in ("empty", "mixed", "odd"):
        (tmp_path / name).mkdir()
    write_lines(tmp_path / "a.jsonl", texts(10))
    write_lines(tmp_path / "mixed/a.jsonl", texts(10))
    write_tar(tmp_path / "mixed/b.tar", {"a.txt": b"text"})
    (tmp_path / "odd/a.csv").write_text("a,b\n" * 300)
    write_lines(tmp_path / "odd.jsonl", [{"id": 1, "content": "x"}] * 3)
    write_lines(tmp_path / "useless.jsonl", [{"text": ""}] * 3)
    write_tar(tmp_path / "odd.tar", {"a.cls": b"1", "a.npy": b"x"})
    write_tar(tmp_path / "empty.tar", {})
    shutil.copy(CORPUS / "laion/000000.tar", tmp_path / "pairs.tar")
    assert sentence in wrong(*[arg.replace("LM", str(llama)).replace("VISION", str(VISION)) for arg in args])


def test_models_that_cannot_be_trained(wrong, llama, tmp_path):
    write_lines(tmp_path / "a.jsonl", texts(10))
    for file in ("model.safetensors", "tokenizer.json", "config.json"):
        folder = tmp_path / f"without-{file}"
        shutil.copytree(llama, folder)
        (folder / file).unlink()
    assert "has no weights to begin from" in wrong("without-model.safetensors", "--data", "a.jsonl")
    assert "has no tokenizer (tokenizer.json" in wrong("without-tokenizer.json", "--data", "a.jsonl")
    assert "has no config.json" in wrong("without-config.json", "--data", "a.jsonl")
    config = json.loads((llama / "config.json").read_text())
    for name, change, sentence in (
        ("other", {"model_type": "falcon"}, "'model_type' is 'falcon'; floe has bert, gpt_neox, llama"),
        ("deep", {"num_hidden_layers": 3}, "model.layers.2"),
        ("few", {"vocab_size": 100}, "of another model: name the right one with --tokenizer"),
    ):
        folder = tmp_path / name
        shutil.copytree(llama, folder)
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        assert sentence in wrong(name, "--data", "a.jsonl")
    (tmp_path / "other" / "config.json").write_text("{")
    assert "other/config.json" in wrong("other", "--data", "a.jsonl")
    (tmp_path / "clip").mkdir()
    assert wrong(llama, "--vision", "clip", "--data", "a.jsonl")
    shutil.copy(VISION / "open_clip_config.json", tmp_path / "clip")
    assert "no weights" in wrong(llama, "--vision", "clip", "--data", "a.jsonl")


def test_captions_that_have_no_positions(wrong, tmp_path):
    folder = tmp_path / "lm"
    shutil.copytree(LM, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 16}))
    data = CORPUS / "laion/000000.tar"
    assert "has positions for 16 tokens" in wrong("lm", "--tokenizer", TOKENIZER, "--vision", VISION, "--data", data)


def test_an_encoder_takes_prepared_batches_alone(wrong, tmp_path):
    write_lines(tmp_path / "a.jsonl", texts(10))
    folder = tmp_path / "bert"
    shutil.copytree(TOKENIZER, folder)
    config = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 3040, "hidden_size": 32,
              "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 64}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"x": torch.zeros(1)}, folder / "model.safetensors")
    assert "learns masked tokens" in wrong("bert", "--data", "a.jsonl")


def test_help_lists_every_option(floe):
    text = floe("init", "--help").stdout
    names = ("data", "vision", "tokenizer", "lora", "full", "ranks", "gpu-memory", "output", "force")
    assert all(f"  --{name}" in text for name in names)
    assert "init" in floe("--help").stdout
