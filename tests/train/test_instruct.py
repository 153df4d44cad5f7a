"""`data.instruct`: prompts with responses. Ids and labels against the tokenizers of transformers, what is left
out and why, and a run on two ranks with different data against the loss of transformers' own model."""

import gzip
import json
import subprocess

import pytest
import torch
import transformers

from phase_loop import SIZES
from running import FLOE, GOLDENS, environment

TOKENIZERS = GOLDENS.parent / "data" / "tokenizers"
PAIRS = [
    {"prompt": "What is the capital of France?", "response": " Paris."},
    {"prompt": "", "response": "No question, and still an answer."},
    {"prompt": "Ω≈ç — “quoted” 日本語\n", "response": "émigré 🙂\n\tlast line ", "source": "ignored", "score": float("nan")},
    {"prompt": "Count.", "response": "".join(f" {i}," for i in range(90))},  # cut
]
BAD = [
    ("{", "bad_json"), ("[1, 2]", "bad_document"), ('{"prompt": "no response"}', "bad_document"),
    ('{"prompt": 3, "response": "x"}', "bad_document"), ('{"prompt": "x", "response": ""}', "empty_text"),
    (json.dumps({"prompt": "word " * 3000, "response": "x"}), "long_prompt"),
]


def tokenizer_of(name):
    return transformers.AutoTokenizer.from_pretrained(TOKENIZERS / name)


def expected(tokenizer, pair, max_tokens):
    """Ids, and where the labels begin."""
    prompt = tokenizer(pair["prompt"])["input_ids"]
    response = tokenizer(pair["response"], add_special_tokens=False)["input_ids"]
    return (prompt + response + [tokenizer.eos_token_id])[:max_tokens], len(prompt)


def write_lines(path, rows):
    text = "".join((row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)) + "\n" for row in rows)
    (gzip.open if path.suffix == ".gz" else open)(path, "wt", encoding="utf-8").write(text)
    return path


def inspected(path, tokenizer):
    done = subprocess.run(
        [FLOE, "inspect", path, "--source", "instruct", "--tokenizer", TOKENIZERS / tokenizer, "--samples", "--json"],
        capture_output=True, text=True, env=environment(),
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", ["neox", "opt", "llama"])
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_ids_and_labels_are_those_of_transformers(tmp_path, name, suffix):
    rows = inspected(write_lines(tmp_path / f"a{suffix}", [PAIRS[0], "", *PAIRS[1:]]), name)
    assert [row["key"] for row in rows] == ["1", "3", "4", "5"]  # a blank line is none
    for row, pair in zip(rows, PAIRS, strict=True):
        ids, first = expected(tokenizer_of(name), pair, 2048)
        assert row["ids"] == ids
        assert row["label_spans"] == [[first, len(ids)]]


def test_lines_of_instructions_are_known(tmp_path):
    """Without --source; an option that they do not read is no silent one."""
    words = [FLOE, "inspect", write_lines(tmp_path / "a.jsonl", PAIRS), "--tokenizer", TOKENIZERS / "neox"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment())
    assert "source   instruct: prompts with responses" in done.stdout and "kept     4 (100.0 %)" in done.stdout, done.stdout
    done = subprocess.run([*words, "--max-tokens", "8"], capture_output=True, text=True, env=environment())
    assert done.returncode == 2 and "--max-tokens has no use with instruct" in done.stderr


def test_bad_lines_have_a_reason(tmp_path):
    rows = inspected(write_lines(tmp_path / "a.jsonl", [line for line, _ in BAD] + PAIRS[:1]), "neox")
    assert [row["reason"] for row in rows] == [reason for _, reason in BAD] + [None]


def test_two_ranks_with_different_data_have_the_loss_of_transformers(train, tmp_path):
    tokenizer, most = tokenizer_of("neox"), 24
    torch.manual_seed(7)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, "vocab_size": len(tokenizer)})).eval()
    model.save_pretrained(tmp_path / "lm")
    files = []  # one per rank, read in order
    for number in range(2):
        pairs = [
            {"prompt": f"Question {number}.{i}:", "response": f" answer {'so ' * (7 * i % 20)}{i}"} for i in range(40)
        ]
        write_lines(tmp_path / f"{number}.jsonl", ["broken", *pairs] if number else pairs)
        files.append([expected(tokenizer, pair, most) for pair in pairs])
    config = {
        "model": {"type": "causal_lm", "lm": str(tmp_path / "lm"), "tokenizer": str(TOKENIZERS / "neox")},
        "data": {
            "instruct": {
                "files": str(tmp_path / "{0..1}.jsonl"), "batch_size": 3, "max_tokens": most, "weight": 0.5,
                "num_samples": 24,
            },
            "shuffle": {"samples": 1, "initial": 1}, "threads": 1, "max_bad_fraction": 0.5,
        },
        "train": {
            "epochs": 2, "optimizer": {"lr": 0.0}, "schedule": {"warmup_steps": 0},
            "validation": {"every_steps": 4, "shards": str(tmp_path / "1.jsonl"), "max_batches": 2},
        },
        "strategy": {"mixed_precision": {"param": "fp32"}},
        "log": {"every_steps": 1, "tensorboard": False, "wandb": None, "diagnostics": None},
    }
    run = train(config, ranks=2)

    def mean_loss(samples):
        total, count = 0.0, 0
        for ids, first in samples:
            with torch.no_grad():
                scores = model(torch.tensor([ids])).logits[0, first - 1 : -1].double()
            targets = torch.tensor(ids[first:])
            total += torch.nn.functional.cross_entropy(scores, targets, reduction="sum").item()
            count += len(targets)
        return total / count

    steps = run.steps()
    assert [step["step"] for step in steps] == list(range(1, 9))  # 24 samples, 3 each on 2 ranks: 4 in an epoch
    for step in steps:
        first = 3 * ((step["step"] - 1) % 4)
        right = sum(mean_loss(samples[first : first + 3]) for samples in files) / 2
        assert step["loss_instruct"] == pytest.approx(right, abs=2e-5)
    assert steps[3]["val_loss_instruct"] == pytest.approx(mean_loss(files[1][:6]), abs=2e-5)
    assert steps[3]["val_loss"] == pytest.approx(0.5 * steps[3]["val_loss_instruct"])
    assert "bad_json 2" in run.stderr  # one line, once an epoch
