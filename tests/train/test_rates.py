"""Learning rates: by pattern (against torch's own optimizers with parameter groups), the warm-up that nobody has
set, and rates that do not fall to 0."""

import math
import shutil
from fnmatch import fnmatchcase

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from phase_loop import EPS, text_loss

BOUND = 1e-6


# ------------------------------------------------------------------------------ rates by pattern

BY_PATTERN = {"model.layers.1.*": 4e-3, "model.norm.weight": 0.0, "lm_head.*": 5e-4}


def groups_of(model, base, decays, weight_decay):
    """As torch wants them, in any order."""
    groups = {}
    for name, parameter in model.named_parameters():
        rate = next((rate for pattern, rate in BY_PATTERN.items() if fnmatchcase(name, pattern)), base)
        decay = weight_decay if any(fnmatchcase(name, pattern) for pattern in decays) else 0.0
        groups.setdefault((rate, decay), []).append(parameter)
    return [{"params": members, "lr": rate, "weight_decay": decay} for (rate, decay), members in groups.items()]


def torch_loop(model, batches, optimizer, steps, factor):
    """Ranks in order, their gradients averaged, clipped to 1."""
    first = [group["lr"] for group in optimizer.param_groups]
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        of_ranks = [text_loss(model)(of_rank[step]) for of_rank in batches]
        for loss in of_ranks:
            (loss / len(batches)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group, rate in zip(optimizer.param_groups, first, strict=True):
            group["lr"] = rate * factor(step)
        optimizer.step()
        losses.append(sum(loss.item() for loss in of_ranks) / len(of_ranks))
    return losses


def linear(step):  # over 8 steps, 2 of them warm-up
    return step / 2 if step < 2 else (8 - step) / 6


class Lion(torch.optim.Optimizer):
    """The update as published (google/automl, lion_pytorch.py)."""

    def __init__(self, groups, betas):
        super().__init__(groups, {"lr": 1e-4, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                state, gradient = self.state[parameter], parameter.grad
                average = state.setdefault("exp_avg", torch.zeros_like(parameter))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                update = average * beta1 + gradient * (1 - beta1)
                parameter.add_(update.sign(), alpha=-group["lr"])
                average.mul_(beta2).add_(gradient, alpha=1 - beta2)


DECAYS = ["*.mlp.*", "lm_head.*"]
OPTIMIZERS = {
    "adamw": ({"type": "adamw"}, lambda groups: torch.optim.AdamW(groups, eps=EPS)),
    "sgd": ({"type": "sgd", "eps": 1e-8}, lambda groups: torch.optim.SGD(groups)),
    "momentum": ({"type": "sgd", "eps": 1e-8, "momentum": 0.9}, lambda groups: torch.optim.SGD(groups, momentum=0.9)),
    "lion": ({"type": "lion", "eps": 1e-8, "betas": [0.9, 0.99]}, lambda groups: Lion(groups, (0.9, 0.99))),
}


@pytest.mark.parametrize(
    "kind, ranks, strategy",
    [("adamw", 1, "no_shard"), ("adamw", 2, "full_shard"), ("sgd", 2, "full_shard"), ("momentum", 1, "full_shard"),
     ("lion", 1, "no_shard"), ("lion", 2, "full_shard")],
)
def test_rates_by_pattern_meet_torch(job, train, tmp_path, kind, ranks, strategy):
    ours, theirs = OPTIMIZERS[kind]
    base = 2e-3 if kind in ("adamw", "lion") else 2e-1
    scale = base / 2e-3
    patterns = {pattern: rate * scale for pattern, rate in BY_PATTERN.items()}
    config, model, batches = job(
        ranks, optimizer={**ours, "lr": base, "decay": DECAYS, "weight_decay": 0.1, "lr_patterns": patterns},
        schedule={"type": "linear", "warmup_steps": 2},
    )
    config["checkpoint"] = {"every_steps": 1, "keep": 20}
    run = train(config, f"strategy={strategy}", ranks=ranks)

    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    groups = groups_of(model, 2e-3, DECAYS, 0.1)
    for group in groups:
        group["lr"] *= scale
    optimizer = theirs(groups)
    losses = torch_loop(model, batches, optimizer, 8, linear)
    assert run.values("loss_text") == pytest.approx(losses, rel=2e-6)
    assert run.values("lr") == pytest.approx([base * linear(step) for step in range(8)], rel=1e-9)  # the base rate
    weights = run.trained(tmp_path)
    for name, value in model.named_parameters():
        assert (weights[name] - value).abs().max().item() <= BOUND * max(1, scale / 10), name
        moved = (value - before[name]).abs().max().item()
        assert moved == 0 if name == "model.norm.weight" else moved > 1e-4, name

    # Killed after step 5 and started again.
    copy = run.folder.parent / "cut"
    shutil.copytree(run.folder, copy, symlinks=True)
    (copy / "checkpoints" / "last").unlink()
    for step in (6, 7, 8):
        shutil.rmtree(copy / "checkpoints" / f"step_{step}")
    again = train(config, f"strategy={strategy}", ranks=ranks, name="cut")
    assert "step_5" in again.stderr
    assert again.values("loss_text") == run.values("loss_text") and again.values("lr") == run.values("lr")
    for name, value in again.trained(tmp_path).items():
        assert torch.equal(value, weights[name]), name


def test_torch_goes_on_from_a_checkpoint_with_its_rates(job, train, tmp_path):
    config, model, batches = job(
        optimizer={"decay": DECAYS, "weight_decay": 0.1, "lr_patterns": BY_PATTERN},
        schedule={"type": "linear", "warmup_steps": 2},
    )
    config["checkpoint"] = {"every_steps": 4, "content": "full"}
    run = train(config)

    groups = groups_of(model, 2e-3, DECAYS, 0.1)
    order = [(2e-3, 0.1), (2e-3, 0.0), (5e-4, 0.1), (4e-3, 0.1), (4e-3, 0.0), (0.0, 0.0)]  # by pattern, decaying first
    groups.sort(key=lambda group: order.index((group["lr"], group["weight_decay"])))
    optimizer = torch.optim.AdamW([{**group, "lr": 1.0, "weight_decay": 1.0} for group in groups])
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=run.folder / "checkpoints" / "step_4", no_dist=True)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    for group, ours in zip(groups, optimizer.param_groups, strict=True):
        assert ours["lr"] == pytest.approx(group["lr"] * linear(3))  # of the last update
        assert ours["weight_decay"] == group["weight_decay"] and ours["eps"] == EPS
        ours["lr"] = group["lr"]
    later = [[batch for batch in of_rank[4:]] for of_rank in batches]
    losses = torch_loop(model, later, optimizer, 4, lambda step: linear(step + 4))
    assert run.values("loss_text")[4:] == pytest.approx(losses, rel=2e-6)
    for name, value in run.trained(tmp_path).items():
        assert (value - dict(model.named_parameters())[name]).abs().max().item() <= BOUND, name


@pytest.mark.parametrize("before, after", [(None, BY_PATTERN), (BY_PATTERN, None), (BY_PATTERN, {"*.mlp.*": 1e-3})])
def test_other_rates_from_a_file_that_numbers_its_state(job, train, before, after):
    """checkpoint_N.pt counts group by group: rates may come, but numbers of other groups are never guessed."""
    config, _, _ = job(optimizer={"decay": DECAYS, "weight_decay": 0.1, "lr_patterns": before or {}}, steps=4)
    config["checkpoint"] = {"state_dict_type": "trainable", "every_steps": 2}
    first = train(config, name="first")
    config["train"]["optimizer"]["lr_patterns"] = {pattern: 2e-3 for pattern in after or {}}
    path = first.folder / "checkpoints" / "checkpoint_2.pt"
    if before is None:  # the same rate under other names is the same run
        again = train(config, f"run.resume={path}", name="again")
        assert again.values("loss_text") == pytest.approx(first.values("loss_text")[2:], rel=1e-6)
    else:
        # floe says beside its own files which numbers are whose; one that came from elsewhere does not.
        foreign = first.folder.parent / path.name
        shutil.copy(path, foreign)
        again = train(config, f"run.resume={foreign}", name="again", expect=1)
        assert "is numbered over groups of" in again.stderr and "optimizer.lr_patterns" in again.stderr


def test_patterns_apply_in_every_phase(job, train, tmp_path):
    config, model, batches = job(optimizer={"lr": 1e-3, "weight_decay": 0.0, "lr_patterns": {"*.mlp.*": 5e-3}})
    config["train"]["cycle_phases"] = True
    config["phases"] = [
        {"name": "a", "train": ["model.layers.0.*"], "steps": 2, "lr": 2e-3},
        {"name": "b", "train": ["model.layers.1.*"], "steps": 2},
    ]
    run = train(config, ranks=1)
    assert run.values("lr") == [2e-3, 2e-3, 1e-3, 1e-3] * 2

    named = dict(model.named_parameters())
    optimizers = []
    for layer, base in (("model.layers.0.", 2e-3), ("model.layers.1.", 1e-3)):
        mine = [name for name in named if name.startswith(layer)]
        groups = [
            {"params": [named[n] for n in mine if ".mlp." not in n], "lr": base},
            {"params": [named[n] for n in mine if ".mlp." in n], "lr": 5e-3},
        ]
        optimizers.append(torch.optim.AdamW(groups, eps=EPS, weight_decay=0.0))
    for step in range(8):
        optimizer = optimizers[step // 2 % 2]
        for parameter in named.values():
            parameter.requires_grad_(False)
            parameter.grad = None
        mine = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for parameter in mine:
            parameter.requires_grad_(True)
        text_loss(model)(batches[0][step]).backward()
        torch.nn.utils.clip_grad_norm_(mine, 1.0)
        optimizer.step()
    for name, value in run.trained(tmp_path).items():
        assert (value - named[name]).abs().max().item() <= BOUND, name


@pytest.mark.parametrize(
    "patterns, said",
    [({"model.layers.7.*": 1e-3}, ["lr_patterns", "'model.layers.7.*' matches no trainable parameter"]),
     ({"*.mlp.*": 1e-3, "model.layers.0.*": 2e-3}, ["'*.mlp.*' (0.001)", "'model.layers.0.*' (0.002)", "mlp"]),
     ({"lm_head.*": 1e-3}, ["matches no trainable parameter"])],  # frozen
)
def test_wrong_patterns_are_said(job, train, patterns, said):
    ranks = len(patterns)
    config, _, _ = job(ranks, optimizer={"lr_patterns": patterns}, trainable=["model.*"])
    run = train(config, expect=2, ranks=ranks)
    assert all(part in run.stderr for part in said), run.stderr
    assert not (run.folder / "metrics.jsonl").exists()


# ---------------------------------------------------------------------------------------- warm-up


def warmup(rate, base, count, steps):
    """The rates of a constant schedule."""
    assert rate == pytest.approx([base * min(1, step / count if count else 1) for step in range(steps)], rel=1e-9)


def test_a_warmup_that_is_not_set_is_a_twentieth_of_the_run(job, train):
    config, _, _ = job(steps=8, schedule={})
    run = train(config, "train.steps=40", "checkpoint.every_steps=1", "checkpoint.keep=50")
    assert "warm-up: 2 of 40 steps (5%, train.schedule.warmup_steps is not set)" in run.stderr
    warmup(run.values("lr"), 2e-3, 2, 40)
    # The same when it goes on from the middle of it.
    (run.folder / "checkpoints" / "last").unlink()
    for step in range(2, 41):
        shutil.rmtree(run.folder / "checkpoints" / f"step_{step}")
    again = train(config, "train.steps=40")
    assert "step_1" in again.stderr and "warm-up: 2 of 40 steps" in again.stderr
    warmup(again.values("lr"), 2e-3, 2, 40)

    short = train(config, "train.steps=19", name="short")
    assert "warm-up: none (5% of 19 steps is less than one; train.schedule.warmup_steps is not set)" in short.stderr
    warmup(short.values("lr"), 2e-3, 0, 19)
    told = train(config, "train.steps=40", "train.schedule.warmup_steps=5", name="told")
    assert "warm-up" not in told.stderr
    warmup(told.values("lr"), 2e-3, 5, 40)


def test_an_epoch_has_steps_as_well(job, train):
    config, _, _ = job(steps=10, schedule={"type": "linear"})
    del config["train"]["steps"]
    run = train(config, "train.epochs=4")
    assert "warm-up: 2 of 40 steps (5%" in run.stderr
    expected = [2e-3 * (step / 2 if step < 2 else (40 - step) / 38) for step in range(40)]
    assert run.values("lr") == pytest.approx(expected, rel=1e-9)


def test_sets_with_schedules_of_their_own_count_their_own_updates(job, train):
    config, _, _ = job(steps=8, schedule={})
    config["train"].update(cycle_phases=True, steps=60)
    config["phases"] = [
        {"name": "a", "train": ["model.layers.0.*"], "steps": 2, "schedule": {"type": "constant"}},
        {"name": "b", "train": ["model.layers.1.*"], "steps": 1},
    ]
    run = train(config)
    assert "warm-up of phase 'a': 2 of 40 updates (5%, its schedule.warmup_steps is not set)" in run.stderr
    assert "warm-up: 3 of 60 steps (5%, train.schedule.warmup_steps is not set)" in run.stderr
    rates = run.values("lr")
    warmup([rate for i, rate in enumerate(rates) if i % 3 != 2], 2e-3, 2, 40)
    assert rates[2::3] == pytest.approx([2e-3 * min(1, step / 3) for step in range(2, 60, 3)])


# ------------------------------------------------------------------------------------- the lowest


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_a_rate_ends_where_it_should(job, train, kind):
    config, _, _ = job(schedule={"type": kind, "warmup_steps": 2, "min_lr": 5e-4}, optimizer={"lr": 2e-3})
    run = train(config, "train.steps=12")

    def rate(step):
        if step < 2:
            return 2e-3 * step / 2
        fallen = (12 - step) / 10 if kind == "linear" else (1 + math.cos(math.pi * (step - 2) / 10)) / 2
        return 5e-4 + (2e-3 - 5e-4) * fallen

    assert run.values("lr") == pytest.approx([rate(step) for step in range(12)], rel=1e-9)


def test_a_phase_ends_at_the_lowest_rate_too(job, train):
    config, _, _ = job(schedule={"type": "linear", "warmup_steps": 0, "min_lr": 1e-4})
    config["phases"] = [{"name": "a", "train": ["model.layers.0.*"], "steps": 4, "lr": 1e-3}]
    run = train(config)
    assert run.values("lr") == pytest.approx([1e-4 + 9e-4 * (4 - step) / 4 for step in range(4)], rel=1e-9)


# --------------------------------------------------------------------------- decay at the end (wsd)


def wsd(step, steps, warm, decay, base, lowest):
    if step < warm:
        return base * step / warm
    return base if steps - step >= decay else lowest + (base - lowest) * (steps - step) / decay


def test_a_rate_that_stays_and_falls_at_the_end(job, train, tmp_path):
    schedule = {"type": "wsd", "warmup_steps": 2, "decay_steps": 5, "min_lr": 5e-4}
    config, _, _ = job(steps=12, schedule=schedule)
    config["checkpoint"] = {"every_steps": 1, "keep": 20}
    run = train(config)
    expected = [wsd(step, 12, 2, 5, 2e-3, 5e-4) for step in range(12)]
    assert run.values("lr") == pytest.approx(expected, rel=1e-9)

    # Killed in the middle of the decay, after step 9, and started again.
    copy = run.folder.parent / "cut"
    shutil.copytree(run.folder, copy, symlinks=True)
    (copy / "checkpoints" / "last").unlink()
    for step in (10, 11, 12):
        shutil.rmtree(copy / "checkpoints" / f"step_{step}")
    again = train(config, name="cut")
    assert "step_9" in again.stderr
    assert again.values("lr") == run.values("lr") and again.values("loss_text") == run.values("loss_text")
    weights = run.trained(tmp_path)
    for name, value in again.trained(tmp_path).items():
        assert torch.equal(value, weights[name]), name

    # Without decay_steps it is a tenth of the run.
    del schedule["decay_steps"], config["checkpoint"]
    longer = train(config, "train.steps=40", name="longer")
    expected = [wsd(step, 40, 2, 4, 2e-3, 5e-4) for step in range(40)]
    assert longer.values("lr") == pytest.approx(expected, rel=1e-9)


def test_a_phase_decays_at_its_own_end(job, train):
    config, _, _ = job(steps=8)
    config["train"].update(cycle_phases=True, steps=12)
    config["phases"] = [
        {"name": "a", "train": ["model.layers.0.*"], "steps": 2,
         "schedule": {"type": "wsd", "warmup_steps": 1, "decay_steps": 3}},
        {"name": "b", "train": ["model.layers.1.*"], "steps": 1},
    ]
    rates = train(config).values("lr")
    own = [rate for i, rate in enumerate(rates) if i % 3 != 2]
    assert own == pytest.approx([wsd(step, 8, 1, 3, 2e-3, 0) for step in range(8)], rel=1e-9)
    assert rates[2::3] == [2e-3] * 4
