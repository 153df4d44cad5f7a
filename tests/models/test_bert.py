"""transformers is the reference: BERT's logits, loss, gradients and training, and what cannot be done with it."""

import json
import os
import random
import subprocess

import pytest
import torch
import yaml
from conftest import FLOE
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM

DROPOUT_OFF = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SETTINGS = [
    dict(),
    dict(hidden_act="gelu_new", layer_norm_eps=1e-3),
    dict(hidden_act="relu", type_vocab_size=1, initializer_range=0.1),
]
MASK = 3
EPS = 1e-3  # of AdamW: gradients that are rounding noise (of a key's bias) then move nothing


def build(folder, seed=1, **settings):
    rng = random.Random(f"bert{sorted(settings)}{seed}")
    heads = rng.choice([2, 4])
    width = heads * rng.choice([8, 12])
    config = BertConfig(
        vocab_size=rng.choice([53, 97]), hidden_size=width, num_attention_heads=heads,
        num_hidden_layers=rng.choice([1, 2, 3]), intermediate_size=2 * width + 4, max_position_embeddings=64,
        **DROPOUT_OFF, **settings,
    )
    torch.manual_seed(seed)
    model = BertForMaskedLM(config).eval()
    with torch.no_grad():  # as large as trained ones, with no bias and no norm at its trivial value
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            plain = parameter if parameter.min() == parameter.max() else 0
            parameter.copy_(noise * (1.4 / parameter.shape[-1] ** 0.5) if parameter.dim() > 1 else noise * 0.2 + plain)
    model.save_pretrained(folder)
    return model


def masked_rows(vocab, seed, rows=5, length=21):
    """Rows padded at the right, with about a third of the tokens masked and labelled."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, vocab, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    for row, end in enumerate([length, 13, 4, length, 17][:rows]):
        mask[row, end:] = 0
    chosen = (torch.rand(ids.shape, generator=generator) < 0.3) & (mask == 1)
    chosen[:, 0] = True
    labels = ids.masked_fill(~chosen, -100)
    return ids.masked_fill(chosen, MASK).masked_fill(mask == 0, 0), mask, labels


def reference(model, ids, mask, labels):
    result = model(input_ids=ids, attention_mask=mask, labels=labels)
    return result.logits.float(), result.loss.float()


def floe(*words, expect=0):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RANK", "WORLD_", "LOCAL_"))}
    done = subprocess.run([FLOE, *map(str, words)], capture_output=True, text=True, timeout=120,
                          env=dict(environment, OMP_NUM_THREADS="1"))
    assert done.returncode == expect, done.stderr
    return done


# ------------------------------------------------------------------------------------- one pass


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("settings", SETTINGS)
def test_logits_loss_and_gradients(settings, seed, tmp_path, forward, gradients, same_gradients, worst):
    model = build(tmp_path / "bert", seed, **settings)
    ids, mask, labels = masked_rows(model.config.vocab_size, seed)
    logits, loss = reference(model, ids, mask, labels)
    loss.backward()
    theirs = {name: parameter.grad for name, parameter in model.named_parameters()}
    scale = max(1, logits[mask == 1].abs().max().item())
    assert logits[mask == 1].std() > 0.3, "the logits must be worth comparing"
    inputs = dict(lang_x=ids, attention_mask=mask, labels=labels)
    for option in ((), ("--packed",)):
        ours = forward(dict(type="auto", lm=tmp_path / "bert"), inputs, "--grads", *option)
        worst.note("logits", (ours["logits"] - logits)[mask == 1].abs().max().item() / scale, 2e-5)
        worst.note("loss", (ours["loss"] - loss).abs().item() / scale, 2e-5)
        same_gradients(worst, "gradients", gradients(ours), theirs)


def test_bf16_is_as_near_as_transformers(tmp_path, forward, worst):
    model = build(tmp_path / "bert", 3)
    ids, mask, labels = masked_rows(model.config.vocab_size, 3)
    with torch.no_grad():
        exact = reference(model, ids, mask, labels)[0][mask == 1]
        theirs = reference(model.to(torch.bfloat16), ids, mask, labels)[0][mask == 1]
    inputs = dict(lang_x=ids, attention_mask=mask, labels=labels)
    ours = forward(dict(type="auto", lm=tmp_path / "bert"), inputs, "--dtype", "bf16")["logits"][mask == 1]
    assert (theirs - exact).abs().mean() > 1e-4, "bf16 must differ from fp32 visibly"
    worst.note("bf16, mean error over theirs", (ours - exact).abs().mean() / (theirs - exact).abs().mean(), 1.5)


# --------------------------------------------------------------------------------------- files


def test_files_of_older_versions(tmp_path, forward):
    """Norms had a gamma and a beta, files a pooler, a second head and a buffer of positions. The tokenizer beside
    them is of a kind that floe does not read, and need not."""
    model = build(tmp_path / "bert")
    ids, mask, labels = masked_rows(model.config.vocab_size, 1)
    inputs = dict(lang_x=ids, attention_mask=mask, labels=labels)
    expected = forward(dict(type="auto", lm=tmp_path / "bert"), inputs)
    file = tmp_path / "bert" / "model.safetensors"
    older = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in load_file(file).items()
    }
    width = model.config.hidden_size
    save_file(
        older
        | {
            "bert.pooler.dense.weight": torch.randn(width, width),
            "cls.seq_relationship.weight": torch.randn(2, width),
            "bert.embeddings.position_ids": torch.arange(64)[None],
            "cls.predictions.decoder.weight": older["bert.embeddings.word_embeddings.weight"].clone(),
        },
        file,
    )
    (tmp_path / "bert" / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordPiece", "vocab": {}}}))
    found = forward(dict(type="auto", lm=tmp_path / "bert"), inputs)
    assert torch.equal(found["logits"], expected["logits"])


# ------------------------------------------------------------------------------------ training


def write_batches(path, vocab, steps, ranks):
    """By rank and step, each with other data."""
    batches = [[masked_rows(vocab, 100 * rank + step, rows=3) for step in range(steps)] for rank in range(ranks)]
    for rank, of_rank in enumerate(batches):
        tensors = {}
        for step, (ids, mask, labels) in enumerate(of_rank):
            tensors |= {f"step{step}.text.input_ids": ids, f"step{step}.text.attention_mask": mask,
                        f"step{step}.text.labels": labels}
        save_file(tensors, str(path).format(rank=rank))
    return batches


@pytest.mark.parametrize("sharding", ["full_shard", "no_shard"])
def test_two_ranks_train_as_torch_does(sharding, tmp_path, worst):
    """With different data; then the run, a plan of it and an exported folder are used."""
    steps, ranks = 6, 2
    model = build(tmp_path / "bert").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    path = tmp_path / "batches{rank}.safetensors"
    batches = write_batches(path, model.config.vocab_size, steps, ranks)
    config = {
        "run": {"dir": str(tmp_path / "runs"), "name": "run"},
        "model": {"type": "auto", "lm": str(tmp_path / "bert")},
        "data": {"batches": str(path)},
        "train": {"steps": steps, "schedule": {"type": "constant", "warmup_steps": 0},
                  "optimizer": {"lr": 2e-3, "weight_decay": 0.1, "eps": EPS}},
        "strategy": {"sharding": sharding, "mixed_precision": {"param": "fp32"}},
        "log": {"every_steps": 1, "tensorboard": False},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    done = floe("launch", "-n", ranks, "--", "train", tmp_path / "config.yaml")
    assert "BertLayer" in done.stderr, "each layer is a unit"

    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1, eps=EPS)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        of_ranks = [reference(model, *of_rank[step])[1] for of_rank in batches]
        for loss in of_ranks:
            (loss / ranks).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(sum(loss.item() for loss in of_ranks) / ranks)
    run = tmp_path / "runs" / "run"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    ours = [line["loss_text"] for line in lines if "loss_text" in line]
    assert len(ours) == steps
    worst.note("losses", max(abs(a - b) / b for a, b in zip(ours, losses, strict=True)), 1e-5)
    assert all(line["tflops_per_s"] > 0 for line in lines if "tflops_per_s" in line)

    floe("export", run, tmp_path / "exported", "--hub-layout")
    assert "AutoModelForMaskedLM.from_pretrained" in (tmp_path / "exported" / "README.md").read_text()
    exported = BertForMaskedLM.from_pretrained(tmp_path / "exported").state_dict()
    moved = max((value - before[name]).abs().max().item() for name, value in model.state_dict().items())
    assert moved > 5e-3
    for name, value in model.state_dict().items():
        worst.note("weights over the largest step", (exported[name] - value).abs().max().item() / moved, 2e-4)

    assert "BertLayer" in floe("plan", tmp_path / "config.yaml").stdout
    assert "masked_lm" in floe("inspect", tmp_path / "config.yaml").stdout


# ------------------------------------------------------------------------------- what is refused


def test_it_does_not_continue_text(tmp_path):
    build(tmp_path / "bert")
    done = floe("generate", tmp_path / "bert", "--ids", "5,6,7", expect=2)
    assert "a 'bert' fills in masked tokens and cannot continue text" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "change, sentence",
    [
        (dict(is_decoder=True), "'is_decoder' is true"),
        (dict(position_embedding_type="relative_key"), "'position_embedding_type' is \"relative_key\""),
        (dict(tie_word_embeddings=False), "'tie_word_embeddings' is false"),
        (dict(architectures=["BertForSequenceClassification"]), "BertForMaskedLM or BertForPreTraining"),
        (dict(num_attention_heads=5), "cannot be split into 5 heads"),
    ],
)
def test_other_settings_are_refused(change, sentence, tmp_path, run_forward):
    build(tmp_path / "bert")
    file = tmp_path / "bert" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    (tmp_path / "model.yaml").write_text(json.dumps(dict(type="auto", lm=str(tmp_path / "bert"))))
    done = run_forward(tmp_path / "model.yaml", tmp_path / "none", tmp_path / "out")
    assert done.returncode == 2 and sentence in done.stderr, done.stderr


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["model.type=causal_lm"], "does not continue text; set model.type to auto"),
        (["model.type=flamingo", "model.vision={folder}/bert"], "which is no decoder; a Flamingo needs one"),
        (["data={{text: {{files: {folder}/text.bin, tokens: 8}}}}"], "learns masked tokens; prepare batches"),
    ],
)
def test_what_needs_a_decoder(words, sentence, tmp_path):
    build(tmp_path / "bert")
    (tmp_path / "text.bin").write_bytes(b"\0" * 1024)
    write_batches(tmp_path / "batches{rank}.safetensors", 50, 1, 1)
    config = {"model": {"type": "auto", "lm": "bert"}, "data": {"batches": "batches0.safetensors"},
              "train": {"steps": 1}, "run": {"dir": str(tmp_path / "runs"), "name": "run"}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    words = [word.format(folder=tmp_path) for word in words]
    assert sentence in floe("train", tmp_path / "config.yaml", *words, expect=2).stderr
