"""The model card of `floe export`, read by the package that reads it on the Hugging Face hub."""

import json
import os
import pathlib
import sys

import pytest
import torch
from huggingface_hub import ModelCard, metadata_load
from huggingface_hub.repocard_data import model_index_to_eval_results

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from checkpoints import make_model, save_dcp
from test_export import write_manifest

TRAIN = {
    "optimizer": {"type": "adamw", "lr": 0.0003, "weight_decay": 0.1}, "schedule": {"type": "cosine", "warmup_steps": 10},
}  # fmt: skip


@pytest.fixture
def run(tmp_path):
    """A run of 7 steps whose checkpoint, and another one, were evaluated."""
    base = make_model("llama")
    base.config._name_or_path = "someone/small-llama"
    base.save_pretrained(tmp_path / "lm")
    file = tmp_path / "lm" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"_name_or_path": "someone/small-llama"}))
    folder = tmp_path / "runs" / "demo"
    (folder / "checkpoints").mkdir(parents=True)
    checkpoint = save_dcp({"model": {"model.layers.0.mlp.down_proj.weight": torch.randn(32, 48)}}, folder / "checkpoints/step_7")
    config = {
        "model": {"type": "causal_lm", "lm": str(tmp_path / "lm")}, "run": {"seed": 11}, "phases": [], "train": TRAIN,
        "data": {"text": {"shards": "/secret/place/{0..7}.tar", "batch_size": 16, "num_samples": 1000}},
    }  # fmt: skip
    write_manifest(checkpoint, shared={"config": config}, world_size=4, ranks=[None] * 4, metrics={"val_loss": 2.25})

    def result(task, metric, mean, step=7, shots=0, interval=None):
        return {
            "model": "runs/demo", "checkpoint": str(folder / f"checkpoints/step_{step}"), "step": step, "task": task,
            "metric": metric, "shots": shots, "mean": mean, "stddev": None, "interval": interval, "trials": [],
        }  # fmt: skip

    results = [
        result("odd | task: \"x\"", "accuracy", 0.625, shots=4, interval=[0.5, 0.75]), result("wikitext", "perplexity", 31.5),
        result("wikitext", "perplexity", 99.0, step=3), result("nothing", "cider", None),
    ]  # fmt: skip
    (folder / "eval").mkdir()
    (folder / "eval" / "results.json").write_text(json.dumps({"results": results}))
    return folder


def exported(floe, *words, **more):
    done = floe("export", *words, **more)
    assert done.returncode == 0, done.stderr
    return done


def test_the_hub_reads_the_card(floe, run, tmp_path):
    exported(floe, run, tmp_path / "out", "--license", "apache-2.0")
    card = ModelCard.load(tmp_path / "out/README.md")
    data = card.data
    assert (data.library_name, data.license, data.base_model) == ("transformers", "apache-2.0", "someone/small-llama")
    assert data.pipeline_tag == "text-generation" and data.tags == ["floe"] and data.model_name == "out"
    found = {(one.dataset_name, one.metric_type, one.metric_name, one.metric_value) for one in data.eval_results}
    assert found == {
        ('odd | task: "x"', "accuracy", "accuracy, 4 shots", 0.625), ("wikitext", "perplexity", None, 31.5),
    }  # fmt: skip
    # What it writes of what it has read is the same again.
    again = ModelCard(f"---\n{data.to_yaml()}\n---\n").data
    assert again.to_dict() == data.to_dict()
    name, results = model_index_to_eval_results(metadata_load(tmp_path / "out/README.md")["model-index"])
    assert name == "out" and len(results) == 2

    text = card.text
    for row in ("| steps | 7 |", "| ranks | 4 |", "| val\\_loss | 2.25 |", "| seed | seed 11 |"):
        assert row in text
    assert "text (batch\\_size 16, num\\_samples 1000)" in text and "type adamw, lr 0.0003, weight\\_decay 0.1" in text
    assert "type cosine, warmup\\_steps 10" in text
    assert '| odd \\| task: "x" | accuracy | 4 shots | 0.625 | 0.5 to 0.75 |' in text
    assert "99" not in text and "nothing" not in text
    version = floe("--version").stdout.split()[1]
    assert f"exported by floe {version}" in text and "`apache-2.0`" in text
    assert str(tmp_path) not in card.content and "/secret" not in card.content


def test_a_run_that_has_moved_keeps_its_scores_and_averages_have_none(floe, run, tmp_path):
    moved = tmp_path / "elsewhere" / "demo"
    moved.parent.mkdir()
    run.rename(moved)
    exported(floe, moved, tmp_path / "out")
    assert len(ModelCard.load(tmp_path / "out/README.md").data.eval_results) == 2
    (moved / "eval/results.json").write_text("{}")
    done = exported(floe, moved, tmp_path / "without")
    assert "the model card has no scores" in done.stderr
    card = ModelCard.load(tmp_path / "without/README.md")
    assert card.data.eval_results is None and card.data.license is None and "Not stated" in card.text


@pytest.mark.parametrize("name", [
    b'quo"te \\ back: {x} #1 | *', "größe 模型 😀".encode(), b"bytes \xff\xfe", b"bell\x07 del\x7f \xc2\x85next", b"- ---", b"null",
])  # fmt: skip
def test_any_name_gives_valid_front_matter(floe, run, tmp_path, name):
    out = os.path.join(os.fsencode(tmp_path), name)
    exported(floe, os.fsencode(run), out, errors="replace")
    readme = os.path.join(out, b"README.md")
    (tmp_path / "card.md").write_bytes(open(readme, "rb").read())
    card = ModelCard.load(tmp_path / "card.md")
    assert card.data.library_name == "transformers" and len(card.data.eval_results) == 2
    try:
        assert card.data.model_name == name.decode()
    except UnicodeDecodeError:
        assert card.data.model_name.startswith("bytes ")


def test_a_card_that_somebody_wrote_stays(floe, run, tmp_path):
    out = tmp_path / "out"
    exported(floe, run, out)
    assert "was not written by floe" not in exported(floe, run, out, "--force", "--license", "mit").stderr
    assert ModelCard.load(out / "README.md").data.license == "mit"
    (out / "README.md").write_text("My own words.\n")
    for words in ([], ["--no-card"]):
        done = exported(floe, run, out, "--force", *words)
        assert f"'{out}/README.md' was not written by floe and stays as it is" in done.stderr
        assert (out / "README.md").read_text() == "My own words.\n" and (out / "config.json").exists()


def test_a_card_can_be_left_out(floe, run, tmp_path):
    exported(floe, run, tmp_path / "out", "--no-card")
    assert not (tmp_path / "out/README.md").exists()
    exported(floe, run, tmp_path / "raw", "--raw")
    assert not (tmp_path / "raw/README.md").exists()
    for words, said in (
        (["out2", "--no-card", "--license", "mit"], "--no-card and --license exclude each other"),
        (["out2", "--no-card", "--hub-layout"], "--no-card and --hub-layout exclude each other"),
        (["out2", "--raw", "--license", "mit"], "--raw and --license exclude each other"),
        (["one.safetensors", "--license", "mit"], "--license is for a folder"),
        (["out2", "--license", "My licence: v2"], "must be an identifier of the hub"),
        (["out2", "--license", ""], "must be an identifier of the hub"),
    ):
        done = floe("export", run, tmp_path / words[0], *words[1:])
        assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
        assert not (tmp_path / words[0]).exists()
