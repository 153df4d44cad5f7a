"""floe plan --data: the batches of a run's own data, counted beside it from what OpenFlamingo's own code made of the same
shards, and strategy=auto in a plan."""

import json
import math
import os
import sys
from pathlib import Path

import pytest
import yaml

TESTS = Path(os.environ["FLOE_SOURCE_DIR"]) / "tests"
GOLDENS = TESTS / "goldens" / "data"
sys.path.insert(0, str(TESTS / "train"))
from small_data import pairs_config  # noqa: E402

SHARD, PAGES = "000001.tar", "000000000.tar"
ON = ("world=1", "--gpu", "h200")


def golden(name):
    return json.loads((GOLDENS / "golden" / name).read_text())


def pairs():
    """Tokens of the pairs that are kept, in the order of the shard; and how many are dropped."""
    samples = [sample for sample in golden("laion_samples.json")["samples"] if sample["shard"] == SHARD]
    kept = [len(sample["ids"]["neox"]) for sample in samples if sample["status"] == "kept"]
    return kept, len(samples) - len(kept)


def pages():
    """Tokens and images of the documents that are kept, whatever the coin says."""
    rows = [row["result"]["neox"] for row in golden("mmc4_docs.json")["docs"] if row["shard"] == PAGES]
    return [(row["n_attended"], len(row["images_used"])) for row in rows if row["status"] == "kept"]


@pytest.fixture
def write(tmp_path):
    def to(name="my.yaml", **changes):
        config = pairs_config(GOLDENS / "corpus" / "laion" / SHARD, steps=3)
        config["data"] |= {"shuffle": {"samples": 1, "initial": 1}, "max_bad_fraction": 1, **changes.pop("data", {})}
        config["data"]["laion"] |= {"batch_size": 4, **changes.pop("laion", {})}
        config |= changes
        path = tmp_path / name
        path.write_text(yaml.safe_dump(config))
        return str(path)

    return to


@pytest.fixture
def plan(floe):
    def run(*args):
        done = floe("plan", *args, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_tokens_and_images_are_those_of_the_shard(plan, write, floe):
    tokens, dropped = pairs()
    expected = [sum(tokens[at:at + 4]) for at in range(0, len(tokens) - 3, 4)]
    config = write()
    data = plan(config, *ON, "--data", "--batches", str(len(expected)))["data"]
    assert data["batches"] == len(expected) == 3
    assert data["mean"]["tokens"] == pytest.approx(sum(expected) / len(expected))
    assert data["mean"]["images"] == data["worst"]["images"] == data["p99"]["images"] == 4
    assert data["worst"]["tokens"] == max(expected) and data["worst"]["batch"] == expected.index(max(expected))
    source = data["sources"]["laion"]
    assert source["samples"] - source["used"] == sum(source["dropped"].values()) <= dropped
    assert data["mean"]["needed_bytes"] < data["worst"]["needed_bytes"]
    assert data["mean"]["seconds"] <= 1.0001 * data["worst"]["seconds"]
    assert data["worst"]["fits"]

    text = floe("plan", config, *ON, "--data", "--batches", "3").stdout
    for part in ("Batches of rank 0, the first 3 of its data:", "laion: ", "samples read", "damaged: ", "99th percentile",
                 "All of them fit into the 131 GiB of a h200."):
        assert part in text, text
    table = text[text.index("99th percentile"):].splitlines()
    assert max(map(len, table)) <= 100


def test_the_worst_of_them_is_planned_as_a_batch_of_its_lengths_is(plan, write):
    """Every row is the step of a real batch: the same lengths, said with --batch, need nearly the same."""
    tokens, _ = pairs()
    config = write()
    data = plan(config, *ON, "--data", "--batches", "3")["data"]
    first = 4 * data["worst"]["batch"]
    said = ",".join(f"1x{count}x1" for count in tokens[first:first + 4])
    step = plan(config, *ON, "--batch", said)["step"]
    assert step["tokens"] == data["worst"]["tokens"]
    assert data["worst"]["peak_bytes"] == pytest.approx(step["memory"]["peak_bytes"], rel=0.02)
    assert data["worst"]["seconds"] == pytest.approx(step["time"]["seconds"], rel=0.02)


def test_percentiles_are_of_memory(plan, write):
    data = plan(write(laion={"batch_size": 1}), *ON, "--data", "--batches", "200")["data"]
    tokens, _ = pairs()
    assert data["batches"] == 200  # the shard repeats without end
    assert data["worst"]["tokens"] == max(tokens)
    ordered = sorted((tokens * 200)[:200])
    assert data["p99"]["tokens"] == ordered[math.ceil(0.99 * 200) - 1]
    # An epoch that is shorter is all there is to look at.
    short = plan(write(laion={"batch_size": 1, "num_samples": 7}), *ON, "--data")["data"]
    assert short["batches"] == 7 and short["mean"]["tokens"] == pytest.approx(sum(tokens[:7]) / 7)


def test_sources_in_one_pass_or_one_after_the_other(plan, write):
    mmc4 = {"shards": str(GOLDENS / "corpus" / "mmc4" / PAGES), "batch_size": 2, "max_tokens": 256}
    both = {"data": {"mmc4": mmc4, "rules": "openflamingo"}}
    packed = plan(write(**both), *ON, "--data", "--batches", "2")
    apart = plan(write(**both), *ON, "--data", "--batches", "2", "train.packed=false")
    assert (packed["passes_per_update"], apart["passes_per_update"]) == (1, 2)
    lengths, images = {row[0] for row in pages()}, {row[1] for row in pages()}
    tokens, _ = pairs()
    for planned in (packed, apart):
        mean = planned["data"]["mean"]
        assert mean["sequences"] == 6
        of_pages = mean["tokens"] * 2 - sum(tokens[:8])
        assert 4 * min(lengths) <= of_pages <= 4 * max(lengths)
        assert 4 * min(images) <= mean["images"] * 2 - 8 <= 4 * max(images)
    assert packed["data"]["worst"]["tokens"] == apart["data"]["worst"]["tokens"]
    # A pass of one source needs less than one of both; two of them take longer.
    assert apart["data"]["worst"]["peak_bytes"] < packed["data"]["worst"]["peak_bytes"]
    assert apart["data"]["mean"]["seconds"] > packed["data"]["mean"]["seconds"]


def test_the_best_strategy_for_ones_own_data(plan, write):
    config = write()
    best = plan(config, "world=4", "--gpu", "h200", "data.resampled=true", "--data", "--batches", "3", "--best")["best"]
    assert len(best) == 3
    chosen = yaml.safe_load(best[0]["yaml"])["strategy"]
    words = [f"strategy.{key}={json.dumps(value)}" for key, value in chosen.items()]
    data = plan(config, "world=4", "--gpu", "h200", "data.resampled=true", "--data", "--batches", "3", *words)["data"]
    assert best[0]["needed_bytes"] == data["worst"]["needed_bytes"]
    assert best[0]["seconds"] == pytest.approx(data["mean"]["seconds"], rel=0.05)


@pytest.mark.parametrize(
    ("changes", "args", "sentence"),
    [
        ({}, ["--batch", "4x32x1", "--data"], "plan: --batch and --data both say what is computed; keep one of them"),
        ({}, ["--data", "--worlds", "8..64"], "plan: --data and --worlds do not go together"),
        ({}, ["--batch", "4x32x1", "--batches", "3"], "plan: --batches is how many batches --data looks at"),
        ({}, ["--data", "--batches", "0"], "--batches is '0', but must be a whole number"),
        ({}, ["--data", "world=2"], "data.laion.shards names 1 shard, too few for 2 ranks"),
        ({"laion": {"shards": "nowhere/{0..3}.tar"}}, ["--data"], "data.laion.shards: there is no 'nowhere/{0..3}.tar'"),
        ({"laion": {"shard": "x"}}, ["--data"], "unknown key 'data.laion.shard'"),
        ({"data": {"laion": None}}, ["--data"], "data.laion is not set"),
    ],
)
def test_wrong_questions_about_data(floe, write, changes, args, sentence):
    if "data" in changes:
        path = write()
        config = yaml.safe_load(Path(path).read_text())
        config["data"].pop("laion")
        Path(path).write_text(yaml.safe_dump(config))
    else:
        path = write(**changes)
    done = floe("plan", path, "--gpu", "h200", *args)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr and done.stdout == ""


def test_no_data_and_data_that_cannot_be_read(floe, write, tmp_path):
    path = write()
    config = yaml.safe_load(Path(path).read_text())
    config.pop("data")
    Path(path).write_text(yaml.safe_dump(config))
    done = floe("plan", path, *ON, "--data")
    assert done.returncode == 2 and "the configuration has no block data" in done.stderr
    done = floe("plan", str(TESTS.parent / "configs" / "transformer-demo.yaml"), "--gpu", "h200", "--data")
    assert done.returncode == 2 and "has no data; say --batch" in done.stderr
    bad = tmp_path / "bad.tar"
    bad.write_bytes(b"this is no tar" * 1000)
    done = floe("plan", write(laion={"shards": str(bad)}), *ON, "--data")
    assert done.returncode != 0 and "bad.tar" in done.stderr and done.stdout == ""
    assert len(done.stderr.strip().splitlines()) <= 2


def test_auto_shows_what_would_be_chosen(plan, floe, write):
    config = write("auto.yaml", strategy={"auto": {}, "mixed_precision": {"param": "fp32"}})
    shown = plan(config, "world=16", "data.resampled=true", "--gpu", "h200")
    chosen = shown["auto"]
    assert chosen["chosen_for"].startswith("16 ranks on h200, 131 GiB each, batch 4x32x1 (")
    assert chosen["sentence"].startswith(f"strategy.auto takes {chosen['words']}: ")
    best = plan(config, "world=16", "--gpu", "h200", "--batch", "4x32x1", "--best")["best"][0]
    assert (chosen["words"], chosen["yaml"]) == (best["words"], best["yaml"])
    assert shown["step"]["time"]["seconds"] == best["seconds"]
    assert shown["strategy"] == yaml.safe_load(best["yaml"])["strategy"]["sharding"]
    # On the command line as in the file; with a batch of one's own; with a budget that decides.
    plain = write("plain.yaml")
    assert plan(plain, "strategy=auto", "world=16", "--gpu", "h200", "--batch", "4x32x1")["auto"]["yaml"] == best["yaml"]
    less = f"strategy.auto.memory={best['needed_bytes'] - 1}"
    other = plan(config, less, "world=16", "--gpu", "h200", "--batch", "4x32x1")
    assert other["auto"]["yaml"] != best["yaml"]
    assert other["step"]["memory"]["needed_bytes"] < best["needed_bytes"]
    assert "strategy.auto takes" in floe("plan", config, "world=16", "--gpu", "h200", "--batch", "4x32x1").stdout


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ([], "strategy.auto has not chosen yet"),
        (["--gpu", "h200", "--batch", "4x32x1", "--worlds", "8..64"], "plan: --worlds plans one strategy"),
        (["--gpu", "h200", "--batch", "4x32x1", "strategy.sharding=hybrid"], "strategy.sharding is what strategy.auto chooses"),
        (["--gpu", "h200", "--batch", "4x32x1", "strategy.auto.memory=1MiB"], "strategy.auto finds nothing that fits"),
    ],
)
def test_wrong_questions_about_auto(floe, write, args, sentence):
    done = floe("plan", write(), "strategy=auto", *args)
    assert done.returncode == 2
    assert sentence in done.stderr and done.stdout == ""
