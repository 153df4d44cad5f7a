"""`train.validation.tasks`: scores of tasks while a run trains are those that `floe eval` finds on its checkpoints, on any
number of ranks, and nothing of the training depends on them."""

import json
import math
import shutil
import signal
import subprocess
import time

import pytest
from PIL import Image

from running import FLOE, environment, steps_of, wait_for_steps
from small_data import pairs_config, write_shards

WORDS = ["red", "green", "blue", "round", "small", "a picture", "t0-001", "of"]


@pytest.fixture
def tasks(tmp_path):
    """Classes of pictures, what is said of pictures, and texts: 13 samples each, 5 of which are asked."""
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    classes, captions, texts = [], [], []
    for i in range(13):
        name = pictures / f"{i}.png"
        Image.new("RGB", (20 + i, 24), ((37 * i) % 256, (91 * i) % 256, 128)).save(name)
        chosen = [WORDS[(i + k) % len(WORDS)] for k in range(3)]
        classes.append({"images": [f"pictures/{i}.png"], "choices": chosen, "label": i % 3, "id": i})
        captions.append({"images": [f"pictures/{i}.png"], "caption": f"a picture of {i}", "answers": ["nothing"], "id": i})
        texts.append({"text": " ".join(WORDS[(i * k) % len(WORDS)] for k in range(1, 4 + i % 5))})
    for name, lines in (("classes", classes), ("captions", captions), ("texts", texts)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def data(name, layout="jsonl"):
        return {"layout": layout, "train": {"annotations": f"{name}.jsonl"}, "test": {"annotations": f"{name}.jsonl"}}

    files = {
        "classes": {"metric": "accuracy", "data": data("classes"), "prompt": "<image>Output:", "candidate": " {choice}",
                    "answer": " {label}<|endofchunk|>", "shots": [2, 4], "text_shots": 0},
        "captions": {"metric": "vqa_accuracy", "data": data("captions"), "prompt": "<image>Output:", "seeds": [7],
                     "answer": "{caption}<|endofchunk|>", "separator": "", "shots": [1], "text": {"max_new_tokens": 6, "num_beams": 2}},
        "texts": {"metric": "perplexity", "data": {"layout": "text", "test": {"annotations": "texts.jsonl"}}},
    }
    for name, task in files.items():
        (tmp_path / f"{name}.yaml").write_text(json.dumps(task))
    return [{"file": f"{name}.yaml", "samples": 5} for name in files]


METRICS = {"classes": "val_classes_accuracy", "captions": "val_captions_vqa_accuracy", "texts": "val_texts_perplexity"}


@pytest.fixture
def job(tmp_path):
    def make(**validation):
        shards = tmp_path / write_shards(tmp_path, 4, 8)
        config = pairs_config(shards, validation={"every_steps": 2, **validation})
        config["train"]["optimizer"]["lr"] = 1e-2
        config["checkpoint"] = {"every_steps": 1, "keep": None}
        return config

    return make


def scores(run):
    """By the step after which the validation was."""
    found = {}
    for step, line in steps_of(run.folder).items():
        values = {name: line[name] for name in line if name.startswith("val_")}
        if values:
            found[line.get("validation_step", step)] = values
    return found


def evaluated(tmp_path, checkpoint, name, samples=5):
    """What `floe eval` says, with the trial that validation asks."""
    trial = {"classes": ["--shots", "2"], "captions": ["--seeds", "7"], "texts": []}[name]
    done = subprocess.run(
        [FLOE, "eval", checkpoint, tmp_path / f"{name}.yaml", "--output", tmp_path / f"eval-{checkpoint.name}-{name}", "--json",
         "--samples", str(samples), *trial],
        capture_output=True, text=True, env=environment(), timeout=120,
    )
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert [one["asked"] for one in result["trials"]] == [samples]
    return result["mean"]


def make_some_right(tmp_path, checkpoint):
    """What the checkpoint says becomes the right answer to some of the questions."""
    evaluated(tmp_path, checkpoint, "captions")
    (file,) = (tmp_path / f"eval-{checkpoint.name}-captions").glob("captions/*/*.answers.json")
    said = {one["question_id"]: one["answer"] for one in json.loads(file.read_text())}
    lines = [json.loads(line) for line in (tmp_path / "captions.jsonl").read_text().splitlines()]
    for line in lines:
        if line["id"] in sorted(said)[:3]:
            line["answers"] = [said[line["id"]]] * 10
    (tmp_path / "captions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shutil.rmtree(tmp_path / f"eval-{checkpoint.name}-captions")


def losses(run):
    return {step: line["loss_laion"] for step, line in steps_of(run.folder).items()}


@pytest.mark.parametrize("ranks, strategy", [(1, "full_shard"), (2, "full_shard"), (2, "no_shard")])
def test_scores_are_those_of_floe_eval(train, job, tasks, tmp_path, ranks, strategy):
    words = [f"strategy.sharding={strategy}"]
    plain = job()
    plain["train"]["validation"] = {}
    without = train(plain, *words, ranks=ranks, name="plain")
    make_some_right(tmp_path, without.folder / "checkpoints" / "step_2")
    run = train(job(tasks=tasks), *words, ranks=ranks)
    assert set(scores(run)) == {2, 3}
    for step in (2, 3) if (ranks, strategy) == (2, "full_shard") else (2,):
        values = scores(run)[step]
        assert set(values) == {*METRICS.values()}
        for name, metric in METRICS.items():
            expected = evaluated(tmp_path, run.folder / "checkpoints" / f"step_{step}", name)
            assert values[metric] == pytest.approx(expected, rel=1e-5, abs=1e-9), (step, name)
        assert f"validation after step {step}: {METRICS['classes']} " in run.stderr
    assert scores(run)[2][METRICS["captions"]] == pytest.approx(60)
    assert scores(run)[2] != scores(run)[3]
    assert losses(without) == losses(run), "training knows nothing of it"


@pytest.mark.parametrize("words", [
    ["precision.autocast=bf16", "strategy.sharding=shard_grad_op"],
    ["strategy.mixed_precision.param=bf16", "strategy.frozen.dtype=int8", "strategy.activation_checkpointing=[DecoderLayer]"],
    ["strategy.cpu_offload=true", "train.ema.decay=0.9"],
])
def test_a_model_is_asked_as_it_trains(train, job, tasks, words):
    run = train(job(tasks=tasks), *words, ranks=2)
    for values in scores(run).values():
        assert set(values) == {*METRICS.values()} and all(math.isfinite(value) for value in values.values())
    plain = job()
    plain["train"]["validation"] = {}
    assert losses(train(plain, *words, ranks=2, name="plain")) == losses(run), "training knows nothing of it"


def test_the_number_of_ranks_and_held_out_data_change_no_score(train, job, tasks, tmp_path):
    """On 3 ranks, which have one or two samples each; a single sample leaves all but one without any."""
    tasks[2]["samples"] = 1
    config = job(tasks=tasks)
    config["train"]["optimizer"]["lr"] = 1e-30
    alone = scores(train(config, name="alone"))
    held_out = {"every_steps": 2, "tasks": tasks, "shards": str(tmp_path / write_shards(tmp_path, 1, 3, name="v"))}
    config["train"]["validation"] = held_out  # one shard: two ranks have none
    together = scores(train(config, ranks=3, name="together"))
    for step in (2, 3):
        assert together[step].pop("val_loss") > 0
        for metric in METRICS.values():
            assert together[step][metric] == pytest.approx(alone[step][metric], rel=1e-5), metric
        assert alone[step] == alone[2], "the samples are always the same"


def test_checkpoints_phases_and_runs_go_by_scores(train, job, tasks):
    config = job(tasks=tasks, every_steps=1)
    config["train"] |= {"steps": 5, "stop": {"metric": METRICS["captions"], "patience": 4}}
    config["checkpoint"] = {"every_steps": 1, "keep": 1, "keep_best": {"metric": METRICS["texts"], "n": 1}}
    run = train(config, ranks=2)
    ranked = {step: values[METRICS["texts"]] for step, values in scores(run).items()}
    kept = {path.name for path in (run.folder / "checkpoints").glob("step_*")}
    assert kept == {f"step_{min(ranked, key=ranked.get)}", f"step_{max(ranked)}"}

    # A score that stays as it is has not risen.
    config["train"] |= {"stop": {"metric": METRICS["classes"], "patience": 2}, "steps": 9}
    config["train"]["optimizer"]["lr"] = 1e-30
    config["checkpoint"] = {}
    run = train(config, ranks=2, name="stopped")
    assert max(scores(run)) == 3
    assert f"3 of 9 steps: {METRICS['classes']} has not risen for 2 validations (" in run.stderr
    assert "after step 1 was the highest" in run.stderr


def test_a_run_that_was_stopped_in_it_goes_on_with_the_same_numbers(start, train, job, tasks, tmp_path):
    tasks[1] |= {"samples": 13}
    longer = json.loads((tmp_path / "captions.yaml").read_text())
    longer["text"] = {"max_new_tokens": 10, "num_beams": 2}
    (tmp_path / "captions.yaml").write_text(json.dumps(longer))
    config = job(tasks=tasks, task_batch_tokens=64)
    config["train"]["steps"] = 4
    whole = train(config, ranks=2, name="whole")
    for attempt, delay in enumerate((0.3, 0.1, 0.6, 0.0, 0.2, 1.0)):
        name = f"cut{attempt}"
        process = start(config, ranks=2, name=name)
        wait_for_steps(process, 1)
        time.sleep(delay)  # into the validation after step 2, sooner or later; nothing else depends on it
        process.send_signal(signal.SIGTERM)
        _, text = process.communicate(timeout=120)
        assert process.returncode == 75, text
        again = train(config, ranks=2, name=name)
        assert scores(again) == scores(whole) and losses(again) == losses(whole)
        if "validation: stopped by a signal" in text:
            return
    pytest.fail("no stop fell into a validation")


def test_samples_that_cannot_be_asked_are_named_once(train, job, tasks, tmp_path):
    for i in range(13):
        if i % 2:
            (tmp_path / "pictures" / f"{i}.png").write_text("no picture")
    tasks[0]["samples"] = 0
    run = train(job(tasks=tasks[:1], every_steps=1), ranks=2)
    told = [line for line in run.stderr.splitlines() if "validation task 'classes'" in line]
    assert len(told) == 1 and "samples are in no score (image " in told[0] and ".png" in told[0]
    assert set(scores(run)) == {1, 2, 3}


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_wrong_with_a_task_is_said_at_the_start(train, job, tasks, tmp_path, ranks):
    def refused(*words, **changes):
        entry = dict(tasks[0], **changes)
        run = train(job(tasks=[entry]), *words, ranks=ranks, expect=2)
        assert not (run.folder / "metrics.jsonl").exists()
        sentences = {line.split("error: ", 1)[1] for line in run.stderr.splitlines() if "error: " in line}
        assert len(sentences) <= 1, sentences
        return sentences.pop() if sentences else run.stderr  # of keys alone

    assert "train.validation.tasks: there is no 'nowhere.yaml'" in refused(file="nowhere.yaml")
    if ranks == 2:
        return

    def edited(**keys):
        (tmp_path / "edited.yaml").write_text(json.dumps(json.loads((tmp_path / "classes.yaml").read_text()) | keys))
        return "edited.yaml"

    assert "metrik" in refused(file=edited(metrik="accuracy"))
    missing = {"layout": "jsonl", "test": {"annotations": "gone.jsonl"}}
    sentence = refused(file=edited(data=missing))
    assert "train.validation.tasks: data.test.annotations: there is no 'gone.jsonl'" in sentence
    (tmp_path / "broken.jsonl").write_text("{no json\n")
    broken = {"layout": "jsonl", "test": {"annotations": "broken.jsonl"}}
    assert "broken.jsonl" in refused(file=edited(data=broken, text_shots=0, shots=[0]))
    assert "context: rices" in refused(file=edited(context="rices"))
    assert "'odd name'" in refused(file=edited(name="odd name"))
    assert "20 samples cannot be drawn" in refused(shots=20)
    best = "checkpoint.keep_best={{metric: {}, n: 1, better: higher}}"
    sentence = refused(best.format("val_klasses_accuracy"))
    assert "did you mean 'val_classes_accuracy'?" in sentence
    assert "better when it is higher" in refused("checkpoint.keep_best={metric: val_classes_accuracy, n: 1}")
    assert "would never be asked" in refused("train.validation.every_steps=null")
    config = job(tasks=[tasks[0], dict(tasks[0], shots=0)])
    assert "two tasks are named 'classes'" in train(config, expect=2).stderr
