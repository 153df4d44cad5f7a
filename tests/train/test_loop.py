"""What a step does and what it leaves alone: resume, stops, skipped steps, accumulation, validation. What it computes
is judged beside PyTorch in test_torch_training.py."""

import json
import math
import os
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from running import rank_process, wait_for_steps

GOLDENS = Path(__file__).parents[1] / "goldens" / "models"


def losses(run):
    return [(step["step"], step["loss_laion"], step["loss_mmc4"], step["grad_norm"]) for step in run.steps()]


@pytest.fixture
def long_golden(golden):
    """The golden batches over and over, for longer runs."""

    def config(steps, every, ranks=1):
        config = golden("neox_x2", world2=ranks == 2)
        config["train"].update(steps=steps, schedule={"type": "cosine", "warmup_steps": 2})
        config["checkpoint"] = {"every_steps": every}
        return config

    return config


# --------------------------------------------------------------------------------- stop and go on


def test_a_run_in_two_parts_equals_one_in_one_part(train, long_golden):
    whole = train(long_golden(8, 100, ranks=2), name="whole", ranks=2)
    first = long_golden(8, 3, ranks=2)
    stopped = train(first, "train.steps=8", "checkpoint.every_steps=3", name="parts", ranks=2)
    # Take the last part away, as a kill would have, and let it be trained again.
    for step in (6, 8):
        shutil.rmtree(stopped.folder / "checkpoints" / f"step_{step}", ignore_errors=True)
    again = train(first, name="parts", ranks=2)
    assert "step_3" in again.stderr
    assert losses(again) == losses(whole)
    assert again.values("lr") == whole.values("lr")


def test_one_signal_stops_after_the_step_with_a_checkpoint_and_the_same_command_goes_on(start, train, long_golden):
    config = long_golden(150, 1000, ranks=2)
    whole = train(config, name="whole", ranks=2)
    process = start(config, ranks=2, name="parts")
    wait_for_steps(process, 3)
    process.send_signal(signal.SIGINT)
    _, text = process.communicate(timeout=60)
    assert process.returncode != 0
    steps = [json.loads(line)["step"] for line in (process.folder / "metrics.jsonl").read_text().splitlines()]
    assert "with a checkpoint; the same command goes on from it" in text
    assert (process.folder / "checkpoints" / f"step_{steps[-1]}").is_dir() and steps[-1] < 150
    again = train(config, name="parts", ranks=2)
    assert f"step_{steps[-1]}" in again.stderr
    assert losses(again) == losses(whole)


def test_never_resuming_moves_the_earlier_run_aside(train, golden):
    train(golden("neox_x2"), name="twice")
    again = train(golden("neox_x2"), "run.resume=never", name="twice")
    assert again.values("step") == [1, 2, 3, 4, 5]
    assert (again.folder.parent / "twice.1" / "metrics.jsonl").exists()
    assert "is now in" in again.stderr


def test_a_finished_run_has_nothing_to_do(train, golden):
    first = train(golden("neox_x2"))
    again = train(golden("neox_x2"))
    assert losses(again) == losses(first)
    assert "0 of 5 steps" in again.stderr


def test_two_runs_cannot_share_a_folder(start, train, long_golden):
    process = start(long_golden(100000, 100000))
    wait_for_steps(process, 1)
    second = train(long_golden(5, 5), expect=2)
    assert "another run is at work in" in second.stderr


# ----------------------------------------------------------------------------------- skipped steps


@pytest.fixture
def with_a_bad_batch(tmp_path):
    """The golden batches with a picture of infinite values in one step of one rank."""

    def file(step, of_rank=None):
        for rank in (0, 1):
            tensors = load_file(GOLDENS / "neox_x2-train-world2" / f"batches_rank{rank}.safetensors")
            name = f"step{step}.laion.images_i8"
            pictures = tensors.pop(name).float() / 64
            if of_rank in (None, rank):
                pictures[0, 0, 0, 0] = math.inf
            tensors[f"step{step}.laion.images"] = pictures
            save_file(tensors, tmp_path / f"bad{rank}.safetensors")
        return str(tmp_path / "bad{rank}.safetensors")

    return file


def test_all_ranks_skip_a_step_that_is_not_finite_on_one(train, golden, with_a_bad_batch):
    config = golden("neox_x2")
    config["data"]["batches"] = with_a_bad_batch(2, of_rank=1)
    run = train(config, "train.steps=6", ranks=2)
    assert run.values("step") == [1, 2, 3, 4, 5, 6]
    assert run.values("skipped") == [0, 0, 1, 1, 1, 1]
    # The batch is used up, the step number and the learning rate are not.
    good = train(golden("neox_x2", world2=True), "train.steps=6", name="good", ranks=2)
    assert run.values("lr") == good.values("lr")
    assert run.values("loss_laion")[:2] == good.values("loss_laion")[:2]
    lines = [json.loads(line) for line in (run.folder / "skipped.jsonl").read_text().splitlines()]
    skipped = {line["rank"]: line for line in lines}  # each rank writes when it gets there
    assert skipped[1]["step"] == 3 and skipped[1]["samples"]
    assert "is skipped on all ranks" in run.stderr
    named = [line for line in run.stderr.splitlines() if "the loss of this rank is not" in line]
    assert len(named) == 1 and named[0].startswith("[1] ")


def test_ranks_whose_prepared_batches_are_not_alike_say_so(train, golden, tmp_path):
    """One rank has a step less: the others would wait for it for ever."""
    folder = GOLDENS / "neox_x2-train-world2"
    for rank in (0, 1):
        tensors = load_file(folder / f"batches_rank{rank}.safetensors")
        last = max(int(name.split(".")[0][4:]) for name in tensors)
        kept = {name: value for name, value in tensors.items() if rank == 0 or not name.startswith(f"step{last}.")}
        save_file(kept, tmp_path / f"some{rank}.safetensors")
    config = golden("neox_x2", world2=True)
    config["data"]["batches"] = str(tmp_path / "some{rank}.safetensors")
    run = train(config, "train.steps=6", expect=2, ranks=2)
    assert "have different numbers of steps" in run.stderr


def test_too_many_skipped_steps_in_a_row_stop_the_run(train, golden, with_a_bad_batch):
    config = golden("neox_x2")
    config["data"]["batches"] = with_a_bad_batch(2)
    run = train(config, "train.steps=6", "train.max_skipped=0", expect=1, ranks=2)
    assert "lower train.optimizer.lr" in run.stderr
    assert run.values("step") == [1, 2]


# --------------------------------------------------------------------------- accumulation and means


def test_accumulated_batches_make_one_update(train, golden):
    """Two micro-batches of one rank are the mean of two ranks with one each."""
    config = golden("neox_x2", world2=True)
    together = train(config, name="together", ranks=2)
    folder = GOLDENS / "neox_x2-train-world2"
    interleaved = {}
    for rank in (0, 1):
        for name, value in load_file(folder / f"batches_rank{rank}.safetensors").items():
            step, rest = name.split(".", 1)
            interleaved[f"step{2 * int(step[4:]) + rank}.{rest}"] = value
    path = together.folder.parent / "interleaved.safetensors"
    save_file(interleaved, path)
    config["data"]["batches"] = str(path)
    alone = train(config, "train.gradient_accumulation=2", name="alone")
    assert alone.values("step") == [1, 2, 3, 4, 5]
    for ours, theirs in zip(alone.steps(), together.steps()):
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-5)
        assert ours["lr"] == theirs["lr"]


@pytest.mark.parametrize("sharding, accumulate, times", [
    ("no_shard", None, 1), ("full_shard", "reduced", 2), ("full_shard", "local", 1),
])  # fmt: skip
def test_gradients_are_reduced_as_often_as_the_plan_says(train, golden, sharding, accumulate, times):
    """Of an update with two passes, once over copies, and once or twice into slices."""
    config = golden("neox_x2", world2=True)
    config["log"]["diagnostics"] = {"batches": 1, "trace_steps": 1}
    config["strategy"].update(sharding=sharding, accumulate=accumulate)
    run = train(config, "train.gradient_accumulation=2", "train.steps=2", ranks=2)
    for rank in (0, 1):
        trace = json.loads((run.folder / "trace" / f"rank_{rank}.json").read_text())
        begun = [event["name"] for event in trace["traceEvents"] if event["ph"] == "b"]
        reductions = Counter(name for name in begun if name.startswith(("reduce ", "replicate ")))
        assert reductions and set(reductions.values()) == {times}, reductions


def test_whole_gradients_of_sources_one_after_the_other_are_planned_for(train, golden):
    """Each source of a prepared batch is a pass of its own; what adds up meanwhile is in the plan."""
    config = golden("neox_x2", world2=True)
    config["strategy"].update(sharding="full_shard", accumulate="local")
    run = train(config, "train.packed=false", "train.steps=2", ranks=2, FLOE_LOG="debug")
    assert len(run.steps()) == 2
    assert "the gradient pool grows" not in run.stderr


def test_the_memory_for_saves_is_made_after_the_first_update(train, golden):
    """Once, and before the first save asks for it; saves that copy nothing need none."""
    config = golden("neox_x2")
    config["checkpoint"] = {"every_steps": 3, "async": True}
    log = train(config, "train.steps=4", FLOE_LOG="debug").stderr
    assert log.count("of host memory for saves beside the training") == 1
    assert log.index("of host memory for saves") < log.index("saved step 3")
    direct = train(config, "train.steps=4", "checkpoint.async=false", name="direct", FLOE_LOG="debug").stderr
    assert "of host memory for saves" not in direct


def test_the_global_mean_weighs_tokens(train, golden):
    """With all tokens weighed alike, two ranks do what one rank does with both batches as one."""
    config = golden("neox_x2", world2=True)
    config["train"]["loss_mean"] = "global"
    two = train(config, ranks=2)
    plain = train(golden("neox_x2", world2=True), name="plain", ranks=2)
    assert two.values("grad_norm") != plain.values("grad_norm")
    folder = GOLDENS / "neox_x2-train-world2"
    first, second = (load_file(folder / f"batches_rank{rank}.safetensors") for rank in (0, 1))
    joined = {name: joined_rows(name, value, second[name]) for name, value in first.items()}
    path = two.folder.parent / "joined.safetensors"
    save_file(joined, path)
    config["data"]["batches"] = str(path)
    one = train(config, name="one")
    for ours, theirs in zip(two.steps(), one.steps()):
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-5)


def joined_rows(name, a, b):
    """Rows one below the other, padded to one length with what is left out: mask 0, no label."""
    if a.dim() != 2:
        slots = max(a.shape[1], b.shape[1]) if a.dim() == 5 else None
        if slots:
            a, b = (torch.cat([x, x.new_zeros(len(x), slots - x.shape[1], *x.shape[2:])], 1) for x in (a, b))
        return torch.cat([a, b])
    fill = -100 if name.endswith("labels") else 0
    length = max(a.shape[1], b.shape[1])
    return torch.cat([torch.nn.functional.pad(x, (0, length - x.shape[1]), value=fill) for x in (a, b)])


# -------------------------------------------------------------------------------------- validation


def test_validation_never_hangs_on_ranks_with_other_numbers_of_batches(train, golden, tmp_path):
    batches = load_file(GOLDENS / "neox_x2-train" / "batches.safetensors")
    for rank, count in ((0, 3), (1, 1)):
        kept = {name: value for name, value in batches.items() if int(name.split(".")[0][4:]) < count}
        save_file(kept, tmp_path / f"held_out{rank}.safetensors")
    config = golden("neox_x2", world2=True)
    config["train"]["validation"] = {"every_steps": 2, "batches": str(tmp_path / "held_out{rank}.safetensors")}
    run = train(config, ranks=2)
    with_validation = [step["step"] for step in run.steps() if "val_loss_mmc4" in step]
    assert with_validation == [2, 4, 5]
    # It changes nothing of the training.
    assert losses(run) == losses(train(golden("neox_x2", world2=True), name="plain", ranks=2))


# --------------------------------------------------------------------------------------- precision


def test_a_loss_scale_that_is_too_large_is_halved_until_it_fits(train, golden):
    run = train(
        golden("neox_x2"), "strategy.mixed_precision.param=fp16", "precision.loss_scale=1e9", "train.max_skipped=0"
    )
    assert run.values("step") == [1, 2, 3, 4, 5]
    assert run.steps()[0]["skipped"] > 0
    assert run.values("loss_scale")[0] < 1e9


def test_a_resumed_run_has_the_loss_scale_it_had_and_knows_what_was_skipped(train, golden):
    words = ("strategy.mixed_precision.param=fp16", "precision.loss_scale=1e9", "train.schedule={type: constant, warmup_steps: 0}")
    whole = train(golden("neox_x2"), *words, "train.steps=5", name="whole")
    train(golden("neox_x2"), *words, "train.steps=3")
    again = train(golden("neox_x2"), *words, "train.steps=5")
    assert losses(again) == losses(whole) and again.values("loss_scale") == whole.values("loss_scale")
    assert again.values("skipped") == whole.values("skipped") and whole.values("skipped")[-1] > 0


# ------------------------------------------------------------------------------------ what trains


def test_patterns_choose_what_trains(train, golden, tmp_path):
    run = train(golden("neox_x2"), "train.trainable=[perceiver.*]")
    weights = run.trained(tmp_path)
    start = load_file(GOLDENS / "neox_x2" / "flamingo_init.safetensors")
    moved = {name for name in weights if not torch.equal(weights[name].float(), start[name].float())}
    assert moved and all(name.startswith("perceiver.") for name in moved)


def test_a_single_phase_is_a_run_of_its_set(train, golden):
    config = golden("neox_x2")
    config["phases"] = [{"name": "align", "train": ["perceiver.*"], "steps": 3, "lr": 5e-4}]
    del config["train"]["steps"]
    run = train(config)
    alone = train(golden("neox_x2"), "train.trainable=[perceiver.*]", "train.steps=3", "train.optimizer.lr=5e-4", name="b")
    assert losses(run) == losses(alone)


# ------------------------------------------------------------------------- other kinds of checkpoints


@pytest.mark.parametrize("kind", ["full", "trainable"])
def test_other_kinds_of_checkpoints_resume_as_well(train, long_golden, kind):
    config = long_golden(6, 3, ranks=2)
    config["checkpoint"]["state_dict_type"] = kind
    whole = train(config, name="whole", ranks=2)
    first = train(config, "train.steps=3", "train.schedule={type: constant, warmup_steps: 2}", name="part", ranks=2)
    again = train(config, "train.steps=6", "train.schedule={type: constant, warmup_steps: 2}", name="part", ranks=2)
    assert again.values("step") == [1, 2, 3, 4, 5, 6]
    straight = train(config, "train.schedule={type: constant, warmup_steps: 2}", name="straight", ranks=2)
    assert losses(again) == losses(straight)


# --------------------------------------------------------------------------- failures and numbers


def test_a_rank_that_throws_ends_all_and_its_step_is_not_lost(train, golden, tmp_path):
    """Rank 1 finds a damaged batch at step 4: all ranks end, the emergency set of step 3 is used."""
    config = golden("neox_x2")
    for rank in (0, 1):
        tensors = load_file(GOLDENS / "neox_x2-train-world2" / f"batches_rank{rank}.safetensors")
        save_file(tensors, tmp_path / f"good{rank}.safetensors")
        if rank == 1:
            tensors["step3.laion.labels"] = tensors["step3.laion.labels"][:, :-1].contiguous()
        save_file(tensors, tmp_path / f"part{rank}.safetensors")
    config["data"]["batches"] = str(tmp_path / "part{rank}.safetensors")
    broken = train(config, ranks=2, expect=1, timeout=60)
    assert "step3.laion.labels" in broken.stderr
    assert (broken.folder / "checkpoints" / "on_exception").is_dir()
    config["data"]["batches"] = str(tmp_path / "good{rank}.safetensors")
    again = train(config, ranks=2)
    assert "on_exception" in again.stderr
    assert losses(again) == losses(train(config, name="whole", ranks=2))


def test_the_gradient_noise_scale_comes_with_several_ranks(train, golden):
    run = train(golden("neox_x2", world2=True), "train.steps=14", ranks=2)
    assert all("gradient_noise_scale" not in step for step in run.steps()[:9])
    noise = [step["gradient_noise_scale"] for step in run.steps()[9:]]
    assert len(noise) == 5 and all(value >= 0 for value in noise) and len(set(noise)) > 1
    alone = train(golden("neox_x2"), name="alone")
    assert all("gradient_noise_scale" not in step for step in alone.steps())


def test_utilisation_is_arithmetic_over_what_the_device_can_do(train, golden):
    run = train(golden("neox_x2"), "log.peak_tflops=2")
    assert len(run.steps()) == 5
    for step in run.steps():
        assert step["tflops"] > 0
        assert step["mfu"] == pytest.approx(step["tflops"] / 2, rel=1e-6)


def test_checkpoints_go_into_the_wandb_run(train, golden):
    config = golden("neox_x2")
    config["log"]["wandb"] = {"mode": "offline", "checkpoints": True}
    run = train(config, "checkpoint.every_steps=2", "checkpoint.keep=1")
    files = next((run.folder / "wandb").glob("offline-run-*/files"))
    attached = sorted(path.name for path in (files / "checkpoints").iterdir())
    # All of them, though only the newest stays in the run's own folder.
    assert attached == ["step_2", "step_4", "step_5"]


def test_the_best_checkpoints_stay(train, golden, tmp_path):
    config = golden("neox_x2")
    config["checkpoint"] = {"every_steps": 1, "keep": 1, "keep_best": {"metric": "loss_laion", "n": 1}}
    run = train(config)
    best = min(run.steps(), key=lambda step: step["loss_laion"])["step"]
    kept = sorted(path.name for path in (run.folder / "checkpoints").glob("step_*"))
    assert kept == sorted({f"step_{best}", "step_5"})


def test_a_copy_stands_in_for_a_rank_that_dies(start, train, long_golden):
    """Rank 1 is killed; rank 0 holds everything too (no_shard) and saves it on its way out."""
    config = long_golden(150, 1000, ranks=2)
    config["strategy"]["sharding"] = "no_shard"
    process = start(config, ranks=2, name="parts")
    wait_for_steps(process, 4)
    os.kill(rank_process(process.pid, 1), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode != 0
    last = json.loads((process.folder / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    assert 4 <= last < 150
    again = train(config, name="parts", ranks=2)
    whole = train(config, name="whole", ranks=2)
    # Not from the beginning, and not from an older checkpoint, of which there is none.
    assert f"continuing after step {last} from" in again.stderr and "on_exception" in again.stderr
    assert "a rank that died left no position; reading on from the beginning" in again.stderr
    assert losses(again) == losses(whole)


def test_a_damaged_checkpoint_does_not_hold_up_what_was_saved_later(start, train, long_golden):
    """The data position of a rank that died comes from the newest checkpoint that can be read."""
    config = long_golden(60, 1000, ranks=2)
    config["strategy"]["sharding"] = "no_shard"
    config["checkpoint"] = {"every_steps": 2, "keep": 100}
    process = start(config, ranks=2, name="parts")
    wait_for_steps(process, 7)
    os.kill(rank_process(process.pid, 1), signal.SIGKILL)
    process.communicate(timeout=60)
    checkpoints = process.folder / "checkpoints"
    saved = sorted(int(path.name.removeprefix("step_")) for path in checkpoints.glob("step_*"))
    newest = checkpoints / f"step_{saved[-1]}" / "floe.json"
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    again = train(config, name="parts", ranks=2)
    assert "on_exception" in again.stderr
    assert f"a rank that died left no position; reading on from step {saved[-2]} over" in again.stderr
    assert "no position is taken from" in again.stderr and "floe.json' is cut off or damaged" in again.stderr
    assert losses(again) == losses(train(config, name="whole", ranks=2))
