"""Texts that are longer than the model has positions are cut, in training and validation, and end no run: against
the loss of transformers' own model over the same pieces."""

import json

import pytest
import torch
import transformers

from running import GOLDENS

TOKENIZER = GOLDENS.parent / "data" / "tokenizers" / "opt"
POSITIONS, BATCH = 32, 80


@pytest.fixture(scope="module")
def opt(tmp_path_factory):
    folder = tmp_path_factory.mktemp("opt")
    tokenizer = transformers.AutoTokenizer.from_pretrained(TOKENIZER)
    torch.manual_seed(11)
    model = transformers.OPTForCausalLM(transformers.OPTConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, ffn_dim=32,
        max_position_embeddings=POSITIONS, word_embed_proj_dim=32, dropout=0.0)).eval()  # fmt: skip
    model.save_pretrained(folder)
    return folder, model, tokenizer


def run_config(folder, data, **train):
    return {
        "model": {"type": "causal_lm", "lm": str(folder), "tokenizer": str(TOKENIZER)},
        "data": {**data, "shuffle": {"samples": 1, "initial": 1}, "threads": 1, "max_bad_fraction": 0.5},
        "train": {"optimizer": {"lr": 0.0}, "schedule": {"warmup_steps": 0}, **train},
        "strategy": {"mixed_precision": {"param": "fp32"}},
        "log": {"every_steps": 1, "tensorboard": False, "wandb": None, "diagnostics": None},
    }


def mean_loss(model, pieces):
    """Of (ids, first label): a token is learned where one of its own piece stands before it."""
    total, count = 0.0, 0
    for ids, first in pieces:
        first = max(first, 1)
        if first >= len(ids):
            continue
        with torch.no_grad():
            scores = model(torch.tensor([ids])).logits[0, first - 1 : -1].double()
        total += torch.nn.functional.cross_entropy(scores, torch.tensor(ids[first:]), reduction="sum").item()
        count += len(ids) - first
    return total / count


def pieces_of(documents):
    """Batches of exactly BATCH tokens, in pieces of at most POSITIONS."""
    batches, room = [[]], BATCH
    for ids in documents:
        while ids:
            count = min(len(ids), room, POSITIONS)
            batches[-1].append((ids[:count], 0))
            ids, room = ids[count:], room - count
            if room == 0:
                batches.append([])
                room = BATCH
    return batches


def test_long_texts_come_in_pieces(train, opt, tmp_path):
    folder, model, tokenizer = opt
    texts = [f"Document {i}" + " and so on" * (70 if i == 3 else i) + "." for i in range(12)]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    documents = [tokenizer(text)["input_ids"] + [tokenizer.eos_token_id] for text in texts]
    assert max(map(len, documents)) > 2 * BATCH > POSITIONS > min(map(len, documents))
    batches = pieces_of(documents)
    held_out = {"every_steps": 4, "shards": str(path), "max_batches": 1}
    config = run_config(folder, {"text": {"files": str(path), "tokens": BATCH}}, steps=4, validation=held_out)
    run = train(config)
    assert run.values("loss_text") == pytest.approx([mean_loss(model, batch) for batch in batches[:4]], abs=2e-5)
    assert f"data.text: texts are cut after {POSITIONS} tokens, as many as the model has positions for" in run.stderr
    assert "val_loss_text" in run.steps()[-1]


def test_long_answers_are_cut_and_long_questions_left_out(train, opt, tmp_path):
    folder, model, tokenizer = opt
    pairs = [("Q:", " word" * 50), ("Q" * 200, " left out"), ("Next:", " short")]
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt, "response": answer}) + "\n" for prompt, answer in pairs * 4))
    samples = []
    for prompt, answer in (pairs[0], pairs[2]):
        ids = tokenizer(prompt)["input_ids"]
        answer = tokenizer(answer, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
        samples.append(((ids + answer)[:POSITIONS], len(ids)))
    run = train(run_config(folder, {"instruct": {"files": str(path), "batch_size": 2}}, steps=2))
    assert run.values("loss_instruct") == pytest.approx([mean_loss(model, samples)] * 2, abs=2e-5)
    assert "long_prompt" in run.stderr
