"""Ranks whose batches have no picture at all, no label, or a picture that is not finite, while those of the others are as
usual: nobody waits for them, and the updates are those of a plain loop over all ranks
(tests/models/flamingo_reference.py)."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from phase_loop import EPS

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from test_flamingo import ENDOFCHUNK, IMAGE, IMAGE_SIZE, WAYS, build  # noqa: E402

STEPS, LR, DECAY, BOUND = 8, 2e-3, 0.1, 1e-6
WEIGHTS = {"laion": 0.5, "mmc4": 1.0}


def make_batch(source, kind, generator):
    """(pictures, tokens, mask, labels): two pictures in a row of mmc4, one in one of laion."""
    length, markers, ends = (12, [1, 6], [5, 11]) if source == "mmc4" else (9, [0], [8])
    ids = torch.randint(3, 90, (2, length), generator=generator)
    pictures = torch.randn((2, len(markers), 3, IMAGE_SIZE, IMAGE_SIZE), generator=generator)
    ids[:, ends] = ENDOFCHUNK
    if kind == "infinite" and source == "laion":
        pictures[1, 0, 2, 3, 4] = torch.inf
    if kind == "no picture":
        pictures.zero_()
    else:
        ids[:, markers] = IMAGE
    labels = ids.masked_fill(ids == IMAGE, -100)
    return pictures, ids, torch.ones_like(ids), labels.fill_(-100) if kind == "no label" else labels


def write_batches(folder, ranks, kind_of):
    """By step, rank and source."""
    generator = torch.Generator().manual_seed(5)
    batches = [[{source: make_batch(source, kind_of(step, rank), generator) for source in WEIGHTS}
                for rank in range(ranks)] for step in range(STEPS)]
    for rank in range(ranks):
        tensors = {}
        for step in range(STEPS):
            for source, values in batches[step][rank].items():
                for name, value in zip(("images", "input_ids", "attention_mask", "labels"), values):
                    tensors[f"step{step}.{source}.{name}"] = value
        save_file(tensors, folder / f"odd{rank}.safetensors")
    return batches


def judged(train, tmp_path, kind_of, ranks, packed, strategy, steps=STEPS):
    """The run, when its updates are those of the loop."""
    judge, model = build("llama", WAYS[0], tmp_path)
    batches = write_batches(tmp_path, ranks, kind_of)
    config = {
        "model": json.loads(json.dumps(model, default=str)),
        "data": {"batches": str(tmp_path / "odd{rank}.safetensors"),
                 **{source: {"weight": weight} for source, weight in WEIGHTS.items()}},
        "train": {
            "steps": steps, "packed": packed, "trainable": ["perceiver.*", "*.gated_cross_attn_layer.*"], "clip": {"norm": None},
            "optimizer": {"lr": LR, "decay": ["*"], "weight_decay": DECAY, "eps": EPS}, "schedule": {"warmup_steps": 0},
        },
        "strategy": {"mixed_precision": {"param": "fp32"}},
        "log": {"every_steps": 1, "tensorboard": False, "wandb": None, "diagnostics": None},
    }
    run = train(config, f"strategy={strategy}", ranks=ranks)

    named = judge.trained_part()
    before = {name: value.detach().clone() for name, value in named.items()}
    optimizer = torch.optim.AdamW(named.values(), lr=LR, weight_decay=DECAY, eps=EPS)
    norms = []
    for of_ranks in batches:
        optimizer.zero_grad()
        for of_sources in of_ranks:
            for source, (pictures, ids, mask, labels) in of_sources.items():
                if (labels != -100).any():  # the mean over no token counts as 0
                    loss = judge(pictures.unsqueeze(2), ids, mask, labels)[1]
                    (WEIGHTS[source] * loss / ranks).backward()
        for value in named.values():
            value.grad = torch.zeros_like(value) if value.grad is None else value.grad
        norm = torch.linalg.vector_norm(torch.stack([value.grad.norm() for value in named.values()])).item()
        if math.isfinite(norm):
            norms.append(norm)
            optimizer.step()
    assert run.values("grad_norm") == pytest.approx(norms, rel=1e-5) and len(norms) == steps
    weights = run.trained(tmp_path)
    for name, value in named.items():
        assert (weights[name] - value.detach()).abs().max().item() <= BOUND, name
    assert min((value.detach() - before[name]).abs().max().item() for name, value in named.items()) > 100 * BOUND
    return run


@pytest.mark.parametrize("ranks, packed, strategy", [
    (2, True, "full_shard"), (2, False, "no_shard"), (3, True, "shard_grad_op"), (3, False, "full_shard"),
])  # fmt: skip
def test_a_rank_without_pictures_or_labels(train, tmp_path, ranks, packed, strategy):
    """Every rank in turn has no picture, and another one no label; in one step no rank has a picture, in another one alone
    has labels."""

    def kind_of(step, rank):
        if step == 5:
            return "no picture"
        if step == 6:
            return "no label" if rank else "all"
        return {step % ranks: "no picture", (step + 1) % ranks: "no label"}.get(rank, "all")

    run = judged(train, tmp_path, kind_of, ranks, packed, strategy)
    assert run.values("skipped") == [0] * STEPS


def test_a_step_that_is_not_finite_on_one_rank_is_left_out_on_all(train, tmp_path):
    """Neither weights nor moments nor the count of updates hear of it."""
    run = judged(train, tmp_path, lambda step, rank: "infinite" if (step, rank) in ((2, 1), (5, 0)) else "all",
                 2, True, "full_shard", steps=STEPS - 2)
    assert run.values("skipped") == [0, 0, 1, 1, 2, 2]
