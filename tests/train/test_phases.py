"""Sets of parameters that train in turn, through `floe train`: the same weights as a plain PyTorch loop
that freezes and unfreezes by hand, wherever a run is cut and goes on."""

import itertools
import json
import math
import os
import shutil
import signal
import sys
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

from phase_loop import EPS, Loop, language_model, text_loss, write_batches
from running import wait_for_steps

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from test_flamingo import ENDOFCHUNK, IMAGE, IMAGE_SIZE, WAYS, build  # noqa: E402

GOLDENS = Path(__file__).parents[1] / "goldens" / "models"
BOUND = 1e-6


def configuration(model, batches, phases, **train):
    train = {
        "optimizer": {"decay": [], "eps": EPS}, "schedule": {"warmup_steps": 0}, "cycle_phases": True, **train
    }
    return {
        "model": json.loads(json.dumps(model, default=str)),
        "data": {"batches": str(batches)},
        "train": train,
        "phases": phases,
        "strategy": {"mixed_precision": {"param": "fp32"}},
        "log": {"every_steps": 1, "tensorboard": False, "wandb": None, "diagnostics": None},
    }


@pytest.fixture
def job(tmp_path):
    """A small language model and its data, as a configuration with these phases and as a loop."""

    def make(phases, ranks=1, steps=10, **train):
        model = language_model(tmp_path / "lm")
        path = tmp_path / "batches{rank}.safetensors"
        batches = write_batches(path, steps, ranks)
        config = configuration(
            {"type": "causal_lm", "lm": tmp_path / "lm"}, path, phases, steps=steps, **train
        )
        return config, Loop(phases, dict(model.named_parameters()), text_loss(model)), batches

    return make


def alternate(state, every=2, first=("model.layers.0.*",), second=("model.layers.1.*", "lm_head.*")):
    """The two optimizers of the seed's job."""
    common = {"steps": every, "optimizer_state": state}
    return [
        {"name": "a", "train": list(first), "lr": 2e-3, "weight_decay": 0.1, **common},
        {"name": "b", "train": list(second), "lr": 5e-3, "weight_decay": 0.0, **common},
    ]


def check(run, loop, tmp_path, source="text"):
    assert run.values("phase") == loop.names
    assert run.values("lr") == pytest.approx(loop.lrs, rel=1e-9)
    assert run.values(f"loss_{source}") == pytest.approx(loop.losses, rel=2e-6)
    weights = run.trained(tmp_path)
    assert set(loop.trained()) <= set(weights)
    for name, value in weights.items():  # with what is saved although it is frozen
        if name in loop.named:
            assert (value - loop.named[name]).abs().max().item() <= BOUND, name


def meets_the_loop(job, train, tmp_path, phases, ranks, strategy, steps=10):
    config, loop, batches = job(phases, ranks, steps)
    run = train(config, f"strategy={strategy}", ranks=ranks)
    before = {name: value.detach().clone() for name, value in loop.named.items()}
    check(run, loop.run(batches, steps), tmp_path)
    for name, value in loop.trained().items():
        assert (value - before[name]).abs().max() > 1e-3, f"{name} has hardly moved"
    return run


# ----------------------------------------------------------------------------- the same as by hand

CASES = [(1, "no_shard", "keep"), (2, "no_shard", "offload"), (2, "full_shard", "drop")]
ALL = list(itertools.product((1, 2, 4), ("no_shard", "full_shard"), ("keep", "offload", "drop")))


@pytest.mark.parametrize("ranks, strategy, state", CASES)
def test_two_sets_in_turn_meet_a_plain_loop(job, train, tmp_path, ranks, strategy, state):
    run = meets_the_loop(job, train, tmp_path, alternate(state), ranks, strategy)
    assert run.switches() == [(2, "a", "b"), (4, "b", "a"), (6, "a", "b"), (8, "b", "a")]


@pytest.mark.long
@pytest.mark.parametrize("ranks, strategy, state", ALL)
@pytest.mark.parametrize("every", [1, 3])
def test_two_sets_in_turn_meet_a_plain_loop_everywhere(job, train, tmp_path, ranks, strategy, state, every):
    meets_the_loop(job, train, tmp_path, alternate(state, every), ranks, strategy, steps=13)


def test_a_parameter_in_two_sets_has_two_states(job, train, tmp_path):
    phases = alternate("offload", first=["model.layers.*"], second=["*.mlp.*", "model.norm.*"])
    meets_the_loop(job, train, tmp_path, phases, 2, "full_shard")


def flamingo_job(tmp_path, state, ranks, steps):
    judge, model = build("llama", WAYS[0], tmp_path)
    generator = torch.Generator().manual_seed(5)
    batches = []
    for rank in range(ranks):
        of_rank, tensors = [], {}
        for step in range(steps):
            ids = torch.randint(3, 90, (2, 12), generator=generator)
            ids[:, [1, 6]], ids[:, [5, 11]] = IMAGE, ENDOFCHUNK
            labels = ids.masked_fill(ids == IMAGE, -100)
            images = torch.randn((2, 2, 3, IMAGE_SIZE, IMAGE_SIZE), generator=generator)
            of_rank.append((images.unsqueeze(2), ids, torch.ones_like(ids), labels))
            for name, value in zip(("images", "input_ids", "attention_mask", "labels"), (images, *of_rank[-1][1:])):
                tensors[f"step{step}.mmc4.{name}"] = value
        batches.append(of_rank)
        save_file(tensors, tmp_path / f"flamingo{rank}.safetensors")
    phases = alternate(state, first=["perceiver.*"], second=["*.gated_cross_attn_layer.*"])
    config = configuration(model, tmp_path / "flamingo{rank}.safetensors", phases, steps=steps)
    loop = Loop(phases, judge.trained_part(), lambda batch: judge(*batch)[1])
    return config, loop, batches


@pytest.mark.parametrize(
    "ranks, strategy, state",
    [(2, "full_shard", "offload")]
    + [pytest.param(*case, marks=pytest.mark.long) for case in ALL if case != (2, "full_shard", "offload")],
)
def test_resampler_and_gates_in_turn(train, tmp_path, ranks, strategy, state):
    config, loop, batches = flamingo_job(tmp_path, state, ranks, steps=9)
    run = train(config, f"strategy={strategy}", ranks=ranks)
    check(run, loop.run(batches, 9), tmp_path, source="mmc4")


@pytest.mark.parametrize(
    "first, second",
    [(["*.lora_A.*", "*.lora_B.*"], ["*.mlp.*", "*norm.weight"]), (["*.q_proj.lora_*"], ["*.v_proj.lora_*"])],
    ids=["adapter_and_base", "two_adapters"],
)
def test_adapters_are_sets_like_any_other(train, tmp_path, first, second):
    base = language_model(tmp_path / "lm")
    model = peft.get_peft_model(
        base, peft.LoraConfig(r=3, lora_alpha=5, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter += 0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name)))
    model.save_pretrained(tmp_path / "adapter")
    named = {
        name.removeprefix("base_model.model.").replace(".default", "").replace(".base_layer", ""): parameter
        for name, parameter in model.named_parameters()
    }
    batches = write_batches(tmp_path / "batches{rank}.safetensors", 7, 2)
    phases = alternate("offload", first=first, second=second)
    lora = {"targets": ["*.q_proj", "*.v_proj"], "rank": 3, "alpha": 5, "weights": tmp_path / "adapter"}
    config = configuration(
        {"type": "causal_lm", "lm": tmp_path / "lm", "lora": lora}, tmp_path / "batches{rank}.safetensors", phases,
        steps=7,
    )
    run = train(config, ranks=2)
    loop = Loop(phases, named, text_loss(model)).run(batches, 7)
    assert run.values("phase") == loop.names
    assert run.values("loss_text") == pytest.approx(loop.losses, rel=2e-6)


def test_every_set_has_its_own_schedule_over_its_own_updates(job, train, tmp_path):
    phases = alternate("keep", every=2)
    phases[0]["schedule"] = {"type": "cosine", "warmup_steps": 2}
    phases[1]["schedule"] = {"type": "linear", "warmup_steps": 0}
    config, loop, batches = job(phases, steps=9)
    run = train(config)

    def factor(phase, update):  # 5 and 4 updates
        if phase == 1:
            return (4 - update) / 4
        return update / 2 if update < 2 else 0.5 * (1 + math.cos(math.pi * (update - 2) / 3))

    check(run, loop.run(batches, 9, factor), tmp_path)


def test_a_set_without_a_schedule_follows_that_of_the_run(job, train):
    config, _, _ = job(alternate("keep", every=1), steps=6, schedule={"type": "linear", "warmup_steps": 0})
    run = train(config)
    rates = {"a": 2e-3, "b": 5e-3}
    expected = [rates["ab"[step % 2]] * (6 - step) / 6 for step in range(6)]
    assert run.values("lr") == pytest.approx(expected, rel=1e-9)


# ------------------------------------------------------------------------------------------ turns


def shifted_batches(path, out, first):
    """The golden batches from another one on."""
    tensors = load_file(path)
    count = 1 + max(int(name.split(".")[0][4:]) for name in tensors)
    moved = {}
    for name, value in tensors.items():
        step, rest = name.split(".", 1)
        moved[f"step{(int(step[4:]) - first) % count}.{rest}"] = value
    save_file(moved, out)
    return str(out)


def test_staged_unfreezing_equals_two_runs(train, golden, tmp_path):
    def config(**train):
        config = golden("neox_x2")
        config["train"] = {
            "optimizer": {"lr": 1e-3, "weight_decay": 0.1, "decay": []}, "schedule": {"warmup_steps": 0}, **train
        }
        return config

    staged = config(steps=7)
    staged["phases"] = [
        {"name": "align", "train": ["perceiver.*"], "steps": 3, "lr": 2e-3, "optimizer_state": "drop"},
        {"name": "tune", "train": ["perceiver.*", "*.gated_cross_attn_layer.*"]},
    ]
    whole = train(staged, name="whole")
    assert whole.values("phase") == ["align"] * 3 + ["tune"] * 4

    align = train(config(steps=3, trainable=["perceiver.*"]), "train.optimizer.lr=2e-3", name="align")
    start = load_file(GOLDENS / "neox_x2" / "flamingo_init.safetensors")
    save_file({**start, **align.trained(tmp_path)}, tmp_path / "aligned.safetensors")
    second = config(steps=4, trainable=["perceiver.*", "*.gated_cross_attn_layer.*"])
    second["model"]["weights"] = str(tmp_path / "aligned.safetensors")
    second["data"]["batches"] = shifted_batches(second["data"]["batches"], tmp_path / "later.safetensors", 3)
    tune = train(second, name="tune")
    for name in ("loss_laion", "loss_mmc4", "grad_norm", "lr"):
        assert whole.values(name) == align.values(name) + tune.values(name)
    ours, theirs = whole.trained(tmp_path), tune.trained(tmp_path)
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name
    # What is computed follows what trains: the same arithmetic as in the runs of one set.
    flops = [step["tflops"] * step["step_time"] for step in whole.steps()]
    alone = [step["tflops"] * step["step_time"] for run in (align, tune) for step in run.steps()]
    assert flops == pytest.approx(alone, rel=1e-6)


def expected_turns(losses, every, patience, min_delta):
    """Names by step, for two phases in a cycle that wait for the same."""
    names, turn, best, without = [], 0, None, 0
    for step, loss in enumerate(losses, 1):
        names.append("ab"[turn % 2])
        if step % every:
            continue
        if best is None or loss < best - min_delta:
            best, without = loss, 0
        else:
            without += 1
        if without == patience:
            turn, best, without = turn + 1, None, 0
    return names


def waiting(job, tmp_path, **until):
    phases = alternate("offload")
    for phase in phases:
        del phase["steps"]
        phase["until"] = until
        phase["lr"] *= 10  # so that the loss on other data soon rises
    config, _, _ = job(phases, steps=30)
    write_batches(tmp_path / "held_out.safetensors", 2, 1, seed=11)
    config["train"]["validation"] = {"every_steps": 2, "batches": str(tmp_path / "held_out.safetensors")}
    return config


@pytest.mark.parametrize("until", [{"patience": 2}, {"metric": "val_loss_text", "min_delta": 0.02}])
def test_a_phase_ends_when_validation_stops_falling(job, train, tmp_path, until):
    run = train(waiting(job, tmp_path, **until))
    losses = [step.get("val_loss") for step in run.steps()]
    names = expected_turns(losses, 2, until.get("patience", 1), until.get("min_delta", 0))
    assert run.values("phase") == names
    assert 2 <= len(run.switches()) < 7


def test_the_run_ends_when_its_last_phase_does(job, train, tmp_path):
    config = waiting(job, tmp_path, min_delta=100.0)
    config["train"]["cycle_phases"] = False
    run = train(config)
    # The first validation of each turn is compared with; the second has not fallen by 100.
    assert run.values("phase") == ["a"] * 4 + ["b"] * 4
    assert (run.folder / "checkpoints" / "step_8").exists()
    again = train(config)
    assert again.values("step") == list(range(1, 9))
    # A single phase that waits is a run that stops early.
    config["phases"] = [config["phases"][0] | {"steps": 20}]
    alone = train(config, name="alone")
    assert alone.values("step") == [1, 2, 3, 4]
    assert "phase" not in alone.steps()[0]


def test_a_skipped_step_is_no_step_of_a_phase(train, golden, tmp_path):
    config = golden("neox_x2")
    tensors = load_file(GOLDENS / "neox_x2-train" / "batches.safetensors")
    pictures = tensors.pop("step2.laion.images_i8").float() / 64
    pictures[0, 0, 0, 0] = math.inf
    tensors["step2.laion.images"] = pictures
    save_file(tensors, tmp_path / "bad.safetensors")
    config["data"]["batches"] = str(tmp_path / "bad.safetensors")
    config["train"]["cycle_phases"] = True
    config["phases"] = [
        {"name": "a", "train": ["perceiver.*"], "steps": 3}, {"name": "b", "train": ["*gated*"], "steps": 1}
    ]
    run = train(config, "train.steps=6")
    assert run.values("skipped") == [0, 0, 1, 1, 1, 1]
    assert run.values("phase") == list("aaabaa")


# --------------------------------------------------------------------------------- stop and go on


def seen(run):
    return [(step["step"], step["phase"], step["loss_text"], step["grad_norm"], step["lr"]) for step in run.steps()]


def bf16(config):
    """Masters rest as well: what is trained has them in fp32."""
    config["strategy"]["mixed_precision"] = {"param": "bf16", "reduce": "fp32"}
    return config


def cut_after(run, step, name):
    """As if the run had been killed before its next checkpoint was whole."""
    copy = run.folder.parent / name
    shutil.copytree(run.folder, copy, symlinks=True)
    (copy / "checkpoints" / "last").unlink()
    for path in (copy / "checkpoints").glob("step_*"):
        if int(path.name.removeprefix("step_")) > step:
            shutil.rmtree(path)


# Turns of two steps: 3 is in the middle of b's first, 4 its end, before the switch; 5 is in a's second.
@pytest.mark.parametrize(
    "state, ranks, cuts",
    [("drop", 1, [3, 4, 5]), ("offload", 2, [4])]
    + [pytest.param(state, 2, range(1, 8), marks=pytest.mark.long) for state in ("keep", "offload", "drop")],
)
def test_goes_on_in_every_phase_and_around_a_switch(job, train, state, ranks, cuts):
    config, _, _ = job(alternate(state), ranks=ranks, steps=8)
    bf16(config)["checkpoint"] = {"every_steps": 1, "keep": 10}
    config["train"]["ema"] = {"decay": 0.5}
    whole = train(config, name="whole", ranks=ranks)
    for step in cuts:
        cut_after(whole, step, f"cut{step}")
        again = train(config, name=f"cut{step}", ranks=ranks)
        assert f"step_{step}" in again.stderr
        assert seen(again) == seen(whole), step
        assert again.switches() == whole.switches(), step


def test_goes_on_with_another_number_of_ranks(job, train, tmp_path):
    config, _, _ = job(alternate("offload"), steps=8)
    shutil.copy(tmp_path / "batches0.safetensors", tmp_path / "batches1.safetensors")  # the same on every rank
    config["checkpoint"] = {"every_steps": 1, "keep": 10}
    whole = train(config, name="whole", ranks=2)
    cut_after(whole, 3, "cut3")
    again = train(config, "strategy=no_shard", name="cut3")
    assert again.values("phase") == whole.values("phase")
    assert again.values("loss_text") == pytest.approx(whole.values("loss_text"), rel=1e-5)


def test_the_file_of_the_trained_part_has_every_set(train, tmp_path):
    """checkpoint_N.pt, as OpenFlamingo has it, in the middle of the first phase: the second rests."""
    config, _, _ = flamingo_job(tmp_path, "offload", 1, steps=6)
    config["checkpoint"] = {"every_steps": 1, "keep": 10, "state_dict_type": "trainable"}
    whole = train(config, name="whole")
    file = torch.load(whole.folder / "checkpoints" / "checkpoint_1.pt", weights_only=True)
    names = list(file["model_state_dict"])
    assert any("perceiver" in name for name in names) and any("gated_cross_attn" in name for name in names)
    assert set(file["optimizer_state_dicts"]) == {phase["name"] for phase in config["phases"]}
    assert all(group["lr"] > 0 for state in file["optimizer_state_dicts"].values() for group in state["param_groups"])
    for step in (1, 3):
        again = train(config, f"run.resume={whole.folder / 'checkpoints' / f'checkpoint_{step}.pt'}", name=f"from{step}")
        assert again.values("loss_mmc4") == whole.values("loss_mmc4")[step:]


@pytest.mark.parametrize("number, every", [(signal.SIGKILL, 2), (signal.SIGINT, 10**6)], ids=["kill", "interrupt"])
def test_a_signal_in_any_phase_loses_nothing(job, start, train, number, every):
    config, _, _ = job(alternate("offload", every=1), ranks=2, steps=7)
    config["train"]["steps"] = 10**6
    config["checkpoint"] = {"every_steps": every}
    process = start(config, ranks=2, name="parts")
    wait_for_steps(process, 7)
    if number == signal.SIGKILL:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode != 0
    lines = [json.loads(line) for line in (process.folder / "metrics.jsonl").read_text().splitlines()]
    config["train"]["steps"] = lines[-1]["step"] + 3
    again = train(config, name="parts", ranks=2)
    assert "continuing after step" in again.stderr
    config["checkpoint"] = {}
    assert seen(again) == seen(train(config, name="whole", ranks=2))


def test_a_step_that_throws_in_a_later_phase_loses_nothing(job, train, tmp_path):
    config, _, _ = job(alternate("drop"), steps=8)
    whole = train(config, name="whole")
    path = tmp_path / "batches0.safetensors"
    good = load_file(path)
    save_file({**good, "step5.text.labels": good["step5.text.labels"][:, :-1].contiguous()}, path)
    failed = train(config, name="parts", expect=1)
    assert "step5.text.labels" in failed.stderr
    save_file(good, path)
    again = train(config, name="parts")
    assert "on_exception" in again.stderr
    assert seen(again) == seen(whole)


def test_a_run_without_phases_goes_on_with_phases(job, train):
    config, _, _ = job(alternate("keep"), steps=6)
    plain = {**config, "train": {**config["train"], "steps": 2, "cycle_phases": False}, "phases": []}
    train(plain)
    again = train(config)
    assert "is of a run without phases; it begins with phase 'a'" in again.stderr
    assert [step.get("phase") for step in again.steps()] == [None, None, "a", "a", "b", "b"]
    # Once, and as long as the phases say: both have their turn after the steps without them.
    staged = {**config, "train": {**config["train"], "steps": None, "cycle_phases": False}}
    train(plain, name="staged")
    again = train(staged, name="staged")
    assert [step.get("phase") for step in again.steps()] == [None, None, "a", "a", "b", "b"]


def test_what_is_printed_is_read_again(job, train, write):
    config, _, _ = job(alternate("offload"), steps=2)
    run = train(config)
    again = train(run.folder / "config.yaml", name="again")
    assert seen(again) == seen(run)


def test_the_ready_experiments_train(train, golden):
    """With all logs and diagnostics, which follow the set that trains."""
    config = golden("neox_x2", world2=True)
    config["log"] = {"every_steps": 1}
    run = train(config, "experiment=alternate", "train.steps=21", ranks=2)
    assert run.values("phase") == ["resampler"] * 10 + ["gates"] * 10 + ["resampler"]
    assert run.switches() == [(10, "resampler", "gates"), (20, "gates", "resampler")]
    run = train(config, "experiment=staged_unfreezing", "train.steps=203", name="staged")
    assert run.switches() == [(200, "align", "tune")]
    assert run.values("lr")[-3:] == pytest.approx([0, 5e-7, 1e-6], rel=1e-9)
