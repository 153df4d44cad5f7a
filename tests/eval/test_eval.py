"""`floe eval` as a whole, on tiny random models: what it asks is what OpenFlamingo asks, and what it makes of the answers."""

import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from generate_runs import FLOE, model_file
from patience import wait_until
from test_generate_command import captioner, captioner_and_reference, picture  # noqa: F401 (fixtures)

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
import scene  # noqa: E402

ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1")
INFO = dict(info={}, task_type="", data_type="", data_subtype="", license="")
VQA = dict(
    metric="vqa_accuracy", prompt="<image>Question:{question} Short answer:", answer="{answer}<|endofchunk|>",
    stop=["Question", "Answer", "Short", ", "], text=dict(max_new_tokens=5),
)  # fmt: skip
MEMES = dict(
    metric="roc_auc", prompt="<image>is an image with: '{text}' written on it. Is it hateful? Answer:",
    answer="{label}<|endofchunk|>", separator="", candidates=["no", "yes"],
)  # fmt: skip


def run(*words, **options):
    return subprocess.run([FLOE, *map(str, words)], capture_output=True, text=True, timeout=120, env=ENVIRONMENT, **options)


def evaluated(model, task, out, *words):
    """Trials by shots, and the standard error."""
    done = run("eval", model, task, "--output", out, "--json", *words)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((out / "results.json").read_text())
    return {result["shots"]: result for result in json.loads(done.stdout)["results"]}, done.stderr


def answers_of(out, shots, seed, suffix=".answers.json"):
    (file,) = out.glob(f"*/*/shots_{shots}_seed_{seed}{suffix}")
    return json.loads(file.read_text()) if suffix.endswith(".json") else file.read_bytes()


def records_of(lines):
    return [json.loads(line) for line in lines.splitlines()]


def task_file(path, **keys):
    path.write_text(json.dumps(keys, default=str))
    return path


def drawn(seed, tests, asked, train, query_set, context):
    """As OpenFlamingo's evaluate.py on one rank: what is asked, in order, and the context of each."""
    np.random.seed(seed)
    chosen = np.random.choice(tests, asked, replace=False)
    order = list(torch.utils.data.distributed.DistributedSampler(chosen, num_replicas=1, rank=0))
    found = [int(i) for i in np.random.choice(train, query_set, replace=False)]
    random.seed(seed)
    return [(int(chosen[i]), random.sample(found, context)) for i in order]


def asked_of(model, folder, requests, command, *words):
    file = folder / "requests.jsonl"
    file.write_text("".join(json.dumps(request, default=str) + "\n" for request in requests))
    where = ["--requests", file] if command == "generate" else [file]
    done = run(command, model, *where, *words)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def vizwiz(tmp_path_factory):
    """8 training and 6 test questions in VizWiz's layout."""
    folder = tmp_path_factory.mktemp("vizwiz")
    data = dict(layout="vizwiz")
    for split, count in (("train", 8), ("test", 6)):
        (folder / split).mkdir()
        questions = [dict(question=f"What is {split} {i}?", question_id=100 + i, image_id=f"{i}.png") for i in range(count)]
        for i in range(count):
            picture(folder / split / f"{i}.png", 30 + i, 40, i + (50 if split == "test" else 0))
        answers = [
            dict(question_id=100 + i, image_id=f"{i}.png", question_type="", answers=[dict(answer=f"thing {i}", answer_confidence="yes")] * 3)
            for i in range(count)
        ]
        (folder / f"q_{split}.json").write_text(json.dumps(dict(INFO, questions=questions)))
        (folder / f"a_{split}.json").write_text(json.dumps(dict(annotations=answers)))
        data[split] = dict(images=folder / split, questions=folder / f"q_{split}.json", annotations=folder / f"a_{split}.json")
    return folder, data


def vqa_requests(folder, seed, shots, asked=6):
    requests = []
    for number, context in drawn(seed, 6, asked, 8, 5, shots or 2):
        text = "".join(f"<image>Question:What is train {i}? Short answer:thing {i}<|endofchunk|>\n" for i in context)
        images = [folder / "train" / f"{i}.png" for i in context] if shots else []
        text = text if shots else text.replace("<image>", "")
        requests.append(dict(prompt=text + f"<image>Question:What is test {number}? Short answer:", id=100 + number,
                             images=[*images, folder / "test" / f"{number}.png"]))  # fmt: skip
    return requests


def vqa_cut(text):
    for stop in ("Question", "Answer", "Short", ", "):
        text = text.split(stop, 1)[0]
    return text


def test_questions_are_those_of_openflamingo(captioner, vizwiz, tmp_path):
    model, _ = captioner
    folder, data = vizwiz
    task = task_file(tmp_path / "vizwiz.yaml", data=data, query_set=5, **VQA)
    results, _ = evaluated(model, task, tmp_path / "out", "--shots", "0,2", "--seeds", "42,7")
    said = {}
    for shots, seed in itertools.product((0, 2), (42, 7)):
        requests = vqa_requests(folder, seed, shots)
        records = asked_of(model, tmp_path, requests, "generate", "--num-beams", 3, "--length-penalty", 0, "--max-new-tokens", 5)
        expected = [dict(question_id=record["id"], answer=vqa_cut(record["text"][0])) for record in records]
        assert answers_of(tmp_path / "out", shots, seed) == expected
        said[shots, seed] = {one["question_id"]: one["answer"] for one in expected}
    assert [trial["asked"] for trial in results[2]["trials"]] == [6, 6]

    # With the model's own words as people's answers to half of the questions.
    right = [100, 103, 104]
    annotations = [
        dict(question_id=i, answers=[dict(answer=said[2, 42][i] if i in right else "zzz", answer_id=k) for k in range(10)])
        for i in range(100, 106)
    ]
    (tmp_path / "own.json").write_text(json.dumps(dict(annotations=annotations)))
    own = task_file(tmp_path / "own.yaml", data=dict(data, test=dict(data["test"], annotations="own.json")), query_set=5, **VQA)
    found, _ = evaluated(model, own, tmp_path / "own", "--shots", "2", "--seeds", "42,7")
    assert found[2]["trials"][0]["score"] == pytest.approx(50)
    scores = [trial["score"] for trial in found[2]["trials"]]
    assert found[2]["mean"] == pytest.approx(sum(scores) / 2)
    low, high = found[2]["interval"]
    assert (high - low) / 2 == pytest.approx(12.7062047364 * np.std(scores, ddof=1) / math.sqrt(2), abs=1e-6)


def test_answers_to_ok_vqa_are_not_stemmed_and_it_says_so(captioner, vizwiz, tmp_path):
    model, _ = captioner
    folder, data = vizwiz  # under the names that COCO's pictures have
    for split, year in (("train", "train2014"), ("test", "val2014")):
        (tmp_path / year).mkdir()
        for i in range(8 if split == "train" else 6):
            (tmp_path / year / f"COCO_{year}_{i:012d}.jpg").symlink_to(folder / split / f"{i}.png")
        for kind in "qa":
            text = (folder / f"{kind}_{split}.json").read_text()
            for i in range(8):
                text = text.replace(f'"{i}.png"', str(i))
            (tmp_path / f"{kind}_{split}.json").write_text(text)
    data = dict(
        data, layout="ok_vqa",
        **{split: dict(images=tmp_path / year, questions=tmp_path / f"q_{split}.json", annotations=tmp_path / f"a_{split}.json")
           for split, year in (("train", "train2014"), ("test", "val2014"))},
    )  # fmt: skip
    said = []
    for layout in ("ok_vqa", "vqav2"):
        task = task_file(tmp_path / f"{layout}.yaml", data=dict(data, layout=layout), query_set=5, **VQA)
        results, log = evaluated(model, task, tmp_path / layout, "--shots", "2")
        assert results[2]["trials"][0]["judged"] == 6
        said.append("stems answers to OK-VQA with NLTK" in log)
    assert said == [True, False]


def test_captions(captioner, tmp_path):
    model, _ = captioner
    images = []
    for i in range(9):
        train = i < 5
        folder = tmp_path / ("train2014" if i % 2 else "val2014")
        folder.mkdir(exist_ok=True)
        picture(folder / f"{i}.jpg", 30, 30 + i, i)
        images.append(dict(filename=f"{i}.jpg", filepath=folder.name, split="train" if train else "test", cocoid=i,
                           sentences=[dict(raw=f" A thing of kind {i}. ")]))  # fmt: skip
    images.append(dict(images[0], split="restval"))
    (tmp_path / "karpathy.json").write_text(json.dumps(dict(images=images)))
    data = dict(layout="coco", train=dict(images="train2014"), test=dict(images="val2014", annotations="karpathy.json"))
    keys = dict(metric="cider", prompt="<image>Output:", answer="{caption}<|endofchunk|>", stop=["Output"], remove=['"'], text=dict(max_new_tokens=8))
    task = task_file(tmp_path / "coco.yaml", data=data, **keys)
    results, _ = evaluated(model, task, tmp_path / "out", "--shots", "2", "--samples", "3")
    assert results[2]["trials"][0]["asked"] == 3
    requests = []
    for number, context in drawn(42, 4, 3, 5, 5, 2):
        text = "".join(f"<image>Output:A thing of kind {i}.<|endofchunk|>\n" for i in context) + "<image>Output:"
        files = [tmp_path / images[i]["filepath"] / f"{i}.jpg" for i in [*context, number + 5]]
        requests.append(dict(prompt=text, images=files, id=number + 5))
    records = asked_of(model, tmp_path, requests, "generate", "--num-beams", 3, "--length-penalty", 0, "--max-new-tokens", 8)
    said = [dict(image_id=r["id"], caption=r["text"][0].split("Output")[0].replace('"', "")) for r in records]
    assert answers_of(tmp_path / "out", 2, 42) == said

    # References from another file; the model's own words are the best captions.
    scores = []
    for turn in (0, 1):
        captions = [one["caption"] for one in said]
        captions = captions[turn:] + captions[:turn]
        references = [dict(image_id=str(one["image_id"]), caption=text + " xy zz") for one, text in zip(said, captions)]
        references += [dict(image_id=i, caption="nothing of the kind") for i in range(9)]
        (tmp_path / "references.json").write_text(json.dumps(dict(annotations=references)))
        found, _ = evaluated(model, task, tmp_path / f"own{turn}", "--shots", "2", "--samples", "3", "--set", f"data.references={tmp_path}/references.json")
        scores.append(found[2]["mean"])
    assert scores[0] > scores[1] >= 0


@pytest.mark.parametrize("rules", ["openflamingo", "corrected"])
def test_classes_by_log_probability(captioner, rules, tmp_path):
    model, _ = captioner
    for split, count in (("train", 6), ("dev", 9)):
        lines = [dict(id=i, img=f"img/{split}{i}.png", label=(i * i) % 3 % 2, text=f"{split} words {i}") for i in range(count)]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        for i in range(count):
            picture(tmp_path / f"{split}{i}.png", 32, 32, i + (30 if split == "dev" else 0))
    data = dict(layout="hateful_memes", train=dict(annotations="train.jsonl"), test=dict(images=".", annotations="dev.jsonl"))
    task = task_file(tmp_path / "memes.yaml", data=data, rules=rules, **MEMES)
    results, log = evaluated(model, task, tmp_path / "out", "--shots", "0,3")
    assert ("first picture of the context" in log) == (rules == "openflamingo")
    for shots in (0, 3):
        requests, labels = [], []
        for number, context in drawn(42, 9, 9, 6, 6, shots or 2):
            ask = "<image>is an image with: '{}' written on it. Is it hateful? Answer:".format
            text = "".join(ask(f"train words {i}") + ("yes" if (i * i) % 3 % 2 else "no") + "<|endofchunk|>" for i in context)
            images = [f"train{i}.png" for i in context] + [f"dev{number}.png"]
            if not shots:
                text = text.replace("<image>", "")
                images = images[:1] if rules == "openflamingo" else images[-1:]
            requests.append(dict(prompt=text + ask(f"dev words {number}"), images=images, candidates=["no", "yes"]))
            labels.append((number * number) % 3 % 2)
        records = asked_of(model, tmp_path, requests, "score")
        scores = [torch.tensor(record["log_probs_per_token"]).double().softmax(0)[1].item() for record in records]
        pairs = [(a > b) + (a == b) / 2 for (a, x), (b, y) in itertools.product(zip(scores, labels), repeat=2) if x > y]
        assert results[shots]["mean"] == pytest.approx(sum(pairs) / len(pairs), abs=1e-9)
        right = [int(score > 0.5) == label for score, label in zip(scores, labels)]
        assert results[shots]["trials"][0]["others"]["accuracy"] == pytest.approx(np.mean(right))


@torch.no_grad()
def test_perplexity_of_windows(captioner_and_reference, goldens, tmp_path):
    model, tokenizer, _ = captioner_and_reference
    lm = tf.AutoModelForCausalLM.from_pretrained(model.parent / "lm").eval()
    plain = model_file(tmp_path / "lm.yaml", dict(type="causal_lm", lm=model.parent / "lm", tokenizer=goldens.parent / "data" / "tokenizers" / "neox"))
    texts = ["The quick brown fox jumps over the lazy dog. " * 3, "Short one", ""]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(dict(text=text)) + "\n" for text in texts))
    task = task_file(tmp_path / "ppl.yaml", metric="perplexity", data=dict(layout="text", test=dict(annotations="texts.jsonl")), window=7, prefix=0)
    results, _ = evaluated(plain, task, tmp_path / "out")
    (trial,) = results[0]["trials"]
    assert trial["asked"] == 3 and trial["judged"] == 2 and trial["problems"] == {"text": 1}

    total = words = size = count = 0
    for text in texts[:2]:
        ids = [0, *tokenizer(text, add_special_tokens=False)["input_ids"]]
        for first in range(1, len(ids), 7):
            end = min(first + 7, len(ids))
            start = max(0, end - 8)
            logits = lm(torch.tensor([ids[start : end - 1]])).logits[0].double().log_softmax(-1)
            total += sum(logits[t - 1 - start, ids[t]].item() for t in range(first, end))
        words += len(text.split(" "))
        size += len(text.encode())
        count += len(ids) - 1
    assert results[0]["mean"] == pytest.approx(math.exp(-total / words), rel=1e-3)
    assert trial["others"]["token_perplexity"] == pytest.approx(math.exp(-total / count), rel=1e-3)
    assert trial["others"]["bits_per_byte"] == pytest.approx(-total / size / math.log(2), rel=1e-3)


def test_what_cannot_be_asked_is_counted(captioner, vizwiz, tmp_path):
    model, _ = captioner
    folder, data = vizwiz
    for i in range(6):
        (tmp_path / f"{i}.png").write_bytes((folder / "test" / f"{i}.png").read_bytes())
    (tmp_path / "2.png").write_bytes(b"no picture")
    (tmp_path / "4.png").unlink()
    task = task_file(tmp_path / "task.yaml", data=dict(data, test=dict(data["test"], images=tmp_path)), query_set=5, **VQA)
    done = run("eval", model, task, "--output", tmp_path / "out", "--shots", "2")
    assert done.returncode == 0, done.stderr
    assert "4/6" in done.stdout and "image 2" in done.stdout
    (result,) = json.loads((tmp_path / "out" / "results.json").read_text())["results"]
    (trial,) = result["trials"]
    assert trial["judged"] == 4 and trial["problems"] == {"image": 2}
    assert any("2.png" in text for text in trial["first_problems"]) and any("4.png" in text for text in trial["first_problems"])
    assert len(answers_of(tmp_path / "out", 2, 42)) == 4


def test_goes_on_and_on_two_ranks(captioner, vizwiz, tmp_path):
    model, _ = captioner
    _, data = vizwiz
    task = task_file(tmp_path / "task.yaml", data=data, query_set=5, **VQA)
    words = ("--shots", "0,2", "--seeds", "1,2")
    whole, _ = evaluated(model, task, tmp_path / "out", *words)
    first = answers_of(tmp_path / "out", 2, 1, ".jsonl")
    (gone,) = (tmp_path / "out").glob("*/*/shots_2_seed_1.jsonl")
    gone.unlink()
    stamp = next((tmp_path / "out").glob("*/*/shots_0_seed_1.jsonl")).stat().st_mtime_ns
    assert evaluated(model, task, tmp_path / "out", *words)[0] == whole
    assert answers_of(tmp_path / "out", 2, 1, ".jsonl") == first
    assert next((tmp_path / "out").glob("*/*/shots_0_seed_1.jsonl")).stat().st_mtime_ns == stamp, "asked again"

    done = run("eval", model, task, "--output", tmp_path / "out", *words, "--set", "text.num_beams=1")
    assert done.returncode == 2 and "num_beams: 3 there, 1 now" in done.stderr
    done = run("eval", model, task, "--output", tmp_path / "out", *words, "--set", "text.num_beams=1", "--force")
    assert done.returncode == 0, done.stderr

    done = run("launch", "-n", "2", "--", "eval", model, task, "--output", tmp_path / "two", *words)
    assert done.returncode == 0, done.stderr
    ours, theirs = records_of(answers_of(tmp_path / "two", 2, 1, ".jsonl")), records_of(first)
    assert [record.pop("scores") for record in ours] == [pytest.approx(record.pop("scores"), abs=1e-4) for record in theirs]
    assert len(ours) == 6 and ours == theirs
    assert json.loads((tmp_path / "two" / "results.json").read_text())["results"] == list(whole.values())


@pytest.fixture
def many(tmp_path):
    """120 questions without pictures."""
    lines = [dict(question=f"{i} and {i}?", answers=[str(2 * i)] * 3) for i in range(120)]
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    split = dict(annotations="lines.jsonl")
    return task_file(tmp_path / "many.yaml", metric="vqa_accuracy", data=dict(layout="jsonl", train=split, test=split),
                     prompt="{question} ", answer="{answer}", text=dict(max_new_tokens=12, num_beams=2))  # fmt: skip


@pytest.mark.parametrize("ranks, end, more", [(1, signal.SIGINT, []), (2, signal.SIGKILL, []), (2, signal.SIGKILL, ["--sharded"])])
def test_an_interrupted_evaluation_goes_on(captioner, many, ranks, end, more, tmp_path):
    model, _ = captioner
    launch = ["launch", "-n", ranks, "--"] if ranks > 1 else []
    words = [*launch, "eval", model, many, "--shots", "1", "--seeds", "5,6", "--batch-tokens", 250, "--json", *more]
    whole = run(*words, "--output", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr

    process = subprocess.Popen([FLOE, *map(str, words), "--output", tmp_path / "out"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, env=ENVIRONMENT, start_new_session=True)  # fmt: skip

    def some_are_done():
        assert process.poll() is None, process.communicate()
        parts = (tmp_path / "out").glob("*/*/shots_1_seed_6.jsonl.parts/rank_*.jsonl")
        return sum(part.read_bytes().count(b"\n") for part in parts) >= 3

    wait_until(some_are_done)
    os.killpg(process.pid, end)
    process.communicate(timeout=60)
    assert process.returncode == (75 if end == signal.SIGINT else -9)
    assert not (tmp_path / "out" / "results.json").exists()
    again = run(*words, "--output", tmp_path / "out")
    assert again.returncode == 0, again.stderr
    assert "by an earlier start" in again.stderr and again.stdout == whole.stdout
    for seed in (5, 6):
        assert answers_of(tmp_path / "out", 1, seed, ".jsonl") == answers_of(tmp_path / "whole", 1, seed, ".jsonl")


def test_other_weights_are_another_model(captioner, vizwiz, tmp_path):
    """Under the same name: what is there of them does not count, and ranks do not mix them."""
    model, _ = captioner
    keys = json.loads(model.read_text())
    for key in ("lm", "vision", "weights", "tokenizer"):
        keys[key] = str(model.parent / keys[key])
    weights = load_file(keys["weights"])
    name = sorted(weights)[0]
    save_file(dict(weights, **{name: weights[name] + 1}), tmp_path / "other.safetensors")
    mine, other = tmp_path / "mine.yaml", tmp_path / "other.yaml"
    model_file(mine, keys), model_file(other, dict(keys, weights=tmp_path / "other.safetensors"))
    task = task_file(tmp_path / "task.yaml", data=vizwiz[1], query_set=5, **VQA)
    evaluated(mine, task, tmp_path / "out", "--shots", "1")
    mine.write_bytes(other.read_bytes())
    done = run("eval", mine, task, "--output", tmp_path / "out", "--shots", "1")
    assert done.returncode == 2 and "results of other settings (weights: " in done.stderr, done.stderr

    model_file(mine, keys)
    script = f'm={mine}; [ "$RANK" = 1 ] && m={other}; exec {FLOE} eval $m {task} --output {tmp_path / "ranks"} --shots 1'
    done = run("launch", "-n", "2", "--exec", "sh", "-c", script)
    assert done.returncode == 2 and "the ranks differ in what they evaluate" in done.stderr, done.stderr
    assert not list((tmp_path / "ranks").glob("*/*/*.jsonl"))


def test_checkpoints_of_a_run(tmp_path):
    """A curve over them, in RUN/eval, and on the page of the run."""
    scene.write_models(tmp_path / "models")
    for i in range(8):
        scene.write_pairs(tmp_path / f"pairs/{i}.tar", 4)
    (tmp_path / "my.yaml").write_text(json.dumps(scene.small_config()))
    assert (done := run("train", "my.yaml", "run.name=mine", cwd=tmp_path)).returncode == 0, done.stderr
    lines = [dict(choices=[" a", " b", " c"], label=i % 3, text=f"{i}") for i in range(6)]
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = dict(layout="jsonl", test=dict(annotations="lines.jsonl"))
    keys = dict(metric="accuracy", data=data, prompt="{text}:", text_shots=0)
    task_file(tmp_path / "abc.yaml", **keys)
    task_file(tmp_path / "b.yaml", name="<b>", **keys)

    done = run("eval", "runs/mine", "b.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = run("eval", "runs/mine", "abc.yaml", "--all-checkpoints", "--seeds", "1,2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[:2] for row in rows[1:]] == [["step", "1"], ["step", "2"], ["step", "3"]], done.stdout
    results = json.loads((tmp_path / "runs/mine/eval/results.json").read_text())["results"]
    assert [(result["task"], result["step"]) for result in results] == [("<b>", 3), ("abc", 1), ("abc", 2), ("abc", 3)]
    done = run("report", "runs/mine", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "runs/mine/report.html").read_text()
    table = page[page.index("<table id='scores'>") :]
    assert table[: table.index("</table>")].count("<tr>") == 5
    assert "abc (accuracy)" in page and "&lt;b&gt;" in table and "<b> (accuracy)" not in page
    assert "12/12" in table and "6/6" in table


def test_contexts_by_similarity(captioner, vizwiz, tmp_path):
    """A test picture that is a training picture has that one last in its context."""
    model, _ = captioner
    folder, data = vizwiz
    for i in range(6):
        (tmp_path / f"{i}.png").write_bytes((folder / "train" / f"{i}.png").read_bytes())
    task = task_file(tmp_path / "task.yaml", data=dict(data, test=dict(data["test"], images=tmp_path)), context="rices", **VQA)
    results, _ = evaluated(model, task, tmp_path / "out", "--shots", "1")
    requests = [
        dict(prompt=f"<image>Question:What is train {n}? Short answer:thing {n}<|endofchunk|>\n<image>Question:What is test {n}? Short answer:",
             images=[tmp_path / f"{n}.png"] * 2)
        for n, _ in drawn(42, 6, 6, 8, 8, 1)
    ]  # fmt: skip
    records = asked_of(model, tmp_path, requests, "generate", "--num-beams", 3, "--length-penalty", 0, "--max-new-tokens", 5)
    assert [one["answer"] for one in answers_of(tmp_path / "out", 1, 42)] == [vqa_cut(record["text"][0]) for record in records]
    done = run("launch", "-n", "2", "--", "eval", model, task, "--output", tmp_path / "sliced", "--shots", "1", "--sharded")
    assert done.returncode == 0, done.stderr
    assert answers_of(tmp_path / "sliced", 1, 42) == answers_of(tmp_path / "out", 1, 42)


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["MODEL"], "got 1 model and 0 tasks"),
        (["TASK"], "got 0 models and 1 task"),
        (["MODEL", "TASK"], "name a folder"),
        (["MODEL", "MODEL", "TASK", "--output", "out"], "are the same model"),
        (["MODEL", "UNNAMED", "--output", "out"], "metric is missing"),
        (["MODEL", "MISSPELT", "--output", "out"], "unknown key 'shot'"),
        (["MODEL", "TASK", "--output", "out", "--set", "name=a/b"], "no slash"),
        (["no-model", "TASK"], "there is no file or folder 'no-model'"),
        (["TEXT", "TASK", "--output", "out", "--shots", "99"], "cannot be drawn"),  # before it is loaded
        (["MODEL", "TASK", "--output", "TASK"], "which is no folder"),
        (["MODEL", "TASK", "TASK", "--output", "out"], "two tasks are named"),
        (["MODEL", "TASK", "--output", "out", "--shots", "x"], "shots"),
        (["MODEL", "TASK", "--output", "out", "--set", "metric=bleu"], "one of cider"),
        (["MODEL", "TASK", "--output", "out", "--set", "prompt='{nope}'"], "{nope}"),
        (["MODEL", "TASK", "--output", "out", "--shots", "99"], "cannot be drawn"),
        (["MODEL", "TASK", "--output", "out", "--set", "data.test.images=/no/such"], "/no/such"),
        (["MODEL", "TASK", "--output", "out", "--all-checkpoints"], "is none"),
    ],
)
def test_refusals(captioner, vizwiz, words, sentence, tmp_path):
    model, _ = captioner
    files = dict(
        MODEL=model,
        TASK=task_file(tmp_path / "task.yaml", data=vizwiz[1], **VQA),
        UNNAMED=task_file(tmp_path / "unnamed.yaml", data=vizwiz[1], prompt="?"),
        MISSPELT=task_file(tmp_path / "misspelt.yaml", data=vizwiz[1], shot=[0], **VQA),
        TEXT=tmp_path / "no-model.yaml",
    )
    files["TEXT"].write_text("type: causal_lm\n")
    done = run("eval", *[files.get(word, word) for word in words], cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr and "terminate" not in done.stderr
    assert not done.stdout and not list(tmp_path.glob("out/*/*/*.jsonl"))


def test_damaged_files_of_a_task(captioner, vizwiz, tmp_path):
    (tmp_path / "damaged.json").write_text('{"annotations": [{')
    task = task_file(tmp_path / "task.yaml", data=vizwiz[1], **VQA)
    for key in ("test.questions", "test.annotations", "train.questions"):
        done = run("eval", captioner[0], task, "--output", "out", "--set", f"data.{key}=damaged.json", cwd=tmp_path)
        assert done.returncode == 1 and "damaged.json': not valid JSON" in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1 and not (tmp_path / "out").exists()
