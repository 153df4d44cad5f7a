"""Scores of `floe eval` beside those of `lm_eval --model hf` on what `floe export` wrote.

usage: FLOE_BIN_DIR=... compare_lm_eval.py PACKAGES

PACKAGES is a folder with lm_eval 0.4.13 and what it imports (judges.txt, installed by `pip install --no-deps --target`).
Small language models of several families train with floe and are exported; both sides read the same JSON lines, lm_eval by
task files of its own. Prints a table and returns 1 when a score differs by more than 1e-3.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGES = Path(sys.argv[1]).resolve()
sys.path[:0] = [str(HERE.parent / name) for name in ("interop", "train", "models", "support")]

import torch  # noqa: E402
from open_flamingo_models import tokenizer_of, write_language_model  # noqa: E402
from small_runs import Trained, floe  # noqa: E402

BOUND = 1e-3  # of accuracies; of perplexities relative
# A tokenizer of SentencePiece puts a space in front of every text by itself: of a candidate too.
FAMILIES = {"gpt_neox": " {choice}", "opt": " {choice}", "llama": "{choice}"}
POSITIONS = 128  # enough for every choice: floe leaves out what is longer, lm_eval cuts it
WORDS = "a the two man woman dog cat red ball street table sitting on near holding naïve café".split()
LONG_IN_BYTES = "日本 東京 漢字 Ωμέγα Straße".split()
METRICS = {
    "acc": ("choices", "accuracy_by_sum"),
    "acc_norm": ("choices", "accuracy_by_characters"),
    "acc_bytes": ("choices", "accuracy_by_bytes"),
    "word_perplexity": ("texts", "score"),
    "byte_perplexity": ("texts", "byte_perplexity"),
    "bits_per_byte": ("texts", "bits_per_byte"),
}
TASKS = {
    "choices": """
task: choices
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/choices.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}} Answer:"
doc_to_choice: "{{choices}}"
doc_to_target: "{{label}}"
metric_list: [{metric: acc}, {metric: acc_norm}, {metric: acc_bytes}]
""",
    "texts": """
task: texts
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/texts.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
""",
}


def some_words(rng, fewest, most, words=WORDS):
    return " ".join(rng.choices(words, k=rng.randint(fewest, most)))


def write_data(rng):
    def lines(name, rows):
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    # Choices of very different lengths, so that what the length is counted in decides.
    choices = [[some_words(rng, 1, 6, rng.choice([WORDS, LONG_IN_BYTES])) for _ in range(4)] for _ in range(150)]
    lines("choices.jsonl", [dict(question=f"What is {some_words(rng, 1, 5)}?", choices=four, label=rng.randint(0, 3)) for four in choices])
    # Up to several windows of 128 tokens, with white space at ends and between lines.
    between = [rng.choice(["", ".\n\n", " "]) for _ in range(30)]
    texts = [rng.choice(["", " ", "\n"]) + some_words(rng, 2, 120) + mark + some_words(rng, 1, 9) for mark in between]
    lines("texts.jsonl", [dict(text=text) for text in texts])
    Path("tasks").mkdir()
    for name, text in TASKS.items():
        Path("tasks", f"{name}.yaml").write_text(text.replace("FOLDER", str(Path.cwd())))


def of_lm_eval(model, name, task, *words):
    """The command that people use; offline, from files."""
    command = [sys.executable, "-m", "lm_eval", "--model", "hf", "--model_args", ",".join([f"pretrained={model}", "dtype=float32", *words]),
               "--tasks", task, "--include_path", "tasks", "--device", "cpu", "--batch_size", "4", "--output_path", f"{name}-{task}.json"]  # fmt: skip
    env = dict(os.environ, PYTHONPATH=f"{PACKAGES}:{os.environ.get('PYTHONPATH', '')}", HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1",
               HF_HOME=str(Path.cwd() / "cache"), CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    (file,) = Path().glob(f"{name}-{task}*.json")
    found = json.loads(file.read_text())["results"][task]
    return {key.split(",")[0]: value for key, value in found.items() if "stderr" not in key}


def of_floe(model, candidate, out):
    common = dict(shots=[0], text_shots=0)
    Path("floe_choices.yaml").write_text(json.dumps(dict(
        common, name="choices", metric="accuracy", prompt="{question} Answer:", candidate=candidate,
        data=dict(layout="jsonl", test=dict(annotations="choices.jsonl")),
    )))  # fmt: skip
    Path("floe_texts.yaml").write_text(json.dumps(dict(
        name="texts", metric="perplexity", data=dict(layout="text", test=dict(annotations="texts.jsonl")),
    )))  # fmt: skip
    found = json.loads(floe("eval", model, "floe_choices.yaml", "floe_texts.yaml", "--output", out, "--json"))
    assert all(one["trials"][0]["judged"] == one["trials"][0]["asked"] for one in found["results"])
    return {one["task"]: dict(one["trials"][0]["others"], score=one["trials"][0]["score"]) for one in found["results"]}


def main():
    os.chdir(tempfile.mkdtemp(prefix="floe-lm-eval-"))
    torch.set_num_threads(1)
    rng = random.Random(5)
    write_data(rng)
    print(f"{'family':10} {'metric':16} {'lm_eval':>14} {'floe':>14} difference")
    worst = 0
    for family, candidate in FAMILIES.items():
        folder = Path(family).resolve()
        folder.mkdir()
        write_language_model(family, folder / "lm", POSITIONS)
        vocab = json.loads((folder / "lm/config.json").read_text())["vocab_size"]
        run = Trained(folder, {"lm": str(folder / "lm"), "tokenizer": str(tokenizer_of(family))}, vocab, lr=1e-2)
        exported = run.export("exported")
        theirs = of_lm_eval(exported, family, "choices")
        # Without it a tokenizer that puts BOS in front is asked for one more, and its probability counts.
        theirs |= of_lm_eval(exported, family, "texts", "add_bos_token=False")
        ours = of_floe(run.run, candidate, f"{family}-out")
        for metric, (task, name) in METRICS.items():
            a, b = theirs[metric], ours[task][name]
            difference = abs(a - b) / (1 if metric.startswith("acc") else a)
            worst = max(worst, difference)
            print(f"{family:10} {metric:16} {a:14.8f} {b:14.8f} {difference:10.1e}", flush=True)
    return 0 if worst <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
