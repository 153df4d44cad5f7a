"""Five training steps of OpenFlamingo's own train.py, through `floe train`: losses, gradient norms,
learning rates and final weights, under every strategy that comes with floe."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

GOLDENS = Path(__file__).parents[1] / "goldens" / "models"
STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "cpu_offload")
BOUND = 1e-5


def golden_steps(path):
    golden = json.loads(path.read_text())
    if "steps" in golden:
        return golden["steps"]
    # Of several ranks: losses are means over them.
    steps = []
    for i, (norm, lr) in enumerate(zip(golden["grad_norm_before_clip"], golden["lr"])):
        ranks = [rank[i] for rank in golden["per_rank_losses"]]
        means = {name: sum(r[name] for r in ranks) / len(ranks) for name in ("loss_laion", "loss_mmc4")}
        steps.append({"grad_norm_before_clip": norm, "lr": lr, **means})
    return steps


def check(run, folder, tmp_path, metrics="metrics.json", final="final_trainable.safetensors"):
    golden = golden_steps(folder / metrics)
    steps = run.steps()
    assert [step["step"] for step in steps] == [1, 2, 3, 4, 5]
    for ours, theirs in zip(steps, golden):
        assert ours["lr"] == pytest.approx(theirs["lr"][0], rel=1e-9, abs=1e-15)
        for name in ("loss_laion", "loss_mmc4"):
            assert ours[name] == pytest.approx(theirs[name], rel=BOUND)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm_before_clip"], rel=BOUND)
    weights, expected = run.trained(tmp_path), load_file(folder / final)
    assert set(expected) <= set(weights)
    for name, value in expected.items():
        worst = (weights[name].float() - value.float()).abs().max().item()
        assert worst <= BOUND, f"{name} differs by {worst}"


# Every strategy, every number of ranks and both ways to go over the sources; the long run has all
# combinations with both models.
CASES = [
    ("neox_x2", "full_shard", 1, True),
    ("neox_x2", "full_shard", 2, True),
    ("neox_x2", "shard_grad_op", 2, False),
    ("neox_x2", "cpu_offload", 2, True),
    ("opt_x1", "full_shard", 3, False),
    ("opt_x1", "no_shard", 2, True),
    ("opt_x1", "no_shard", 1, False),
]
ALL = [
    (name, strategy, ranks, packed)
    for name in ("neox_x2", "opt_x1")
    for strategy in STRATEGIES
    for ranks in (1, 2, 3)
    for packed in (True, False)
]


def same_batches(train, golden, tmp_path, name, strategy, ranks, packed):
    config = golden(name, ranks=ranks, same=True)
    run = train(config, f"strategy={strategy}", f"train.packed={str(packed).lower()}", ranks=ranks)
    check(run, GOLDENS / f"{name}-train", tmp_path)


@pytest.mark.parametrize("name, strategy, ranks, packed", CASES)
def test_same_batches_on_every_rank(train, golden, tmp_path, name, strategy, ranks, packed):
    same_batches(train, golden, tmp_path, name, strategy, ranks, packed)


@pytest.mark.long
@pytest.mark.parametrize("name, strategy, ranks, packed", ALL)
def test_same_batches_everywhere(train, golden, tmp_path, name, strategy, ranks, packed):
    same_batches(train, golden, tmp_path, name, strategy, ranks, packed)


# Different batches on every rank: a gradient that is not averaged, or over other ranks, shows. DDP of torch is the reference.
@pytest.mark.parametrize(
    "words, ranks, packed",
    [
        (["strategy=full_shard"], 2, True),
        (["strategy=no_shard"], 2, False),
        (["strategy=shard_grad_op"], 2, True),
        (["strategy=cpu_offload"], 2, True),
        (["strategy.frozen.residency=resident"], 2, True),
        (["strategy.frozen={residency: auto, memory_budget: 300KiB}"], 2, True),
        (["strategy=full_shard"], 4, True),
        (["strategy=hybrid", "strategy.hybrid_shard_size=1"], 2, True),
        (["strategy=hybrid", "strategy.hybrid_shard_size=2"], 2, True),
        (["strategy=hybrid", "strategy.hybrid_shard_size=2"], 4, True),
        (["strategy=hybrid", "strategy.hybrid_shard_size=2", "strategy.cpu_offload=true"], 4, False),
    ],
    ids=lambda value: None if isinstance(value, (int, bool)) else " ".join(value).replace("strategy", ""),
)
def test_other_data_on_every_rank_meets_ddp(train, golden, tmp_path, words, ranks, packed):
    run = train(
        golden("neox_x2", world2=True, ranks=ranks), *words, f"train.packed={str(packed).lower()}", ranks=ranks
    )
    check(
        run, GOLDENS / "neox_x2-train-world2", tmp_path,
        metrics="metrics_ddp.json", final="final_trainable_ddp.safetensors",
    )
