"""`train.stop` ends a run when validation no longer gets better: on all ranks at the same step, as a normal end,
and at the same step when the run was cut on the way."""

import shutil
import subprocess

import pytest

from phase_loop import language_model, write_batches
from running import FLOE, environment


@pytest.fixture
def job(tmp_path):
    """Trains with a rate so large that the loss on other data soon rises."""

    def make(ranks=1, **stop):
        language_model(tmp_path / "lm")
        write_batches(tmp_path / "batches{rank}.safetensors", 8, ranks)
        write_batches(tmp_path / "held_out{rank}.safetensors", 2, ranks, seed=11)
        return {
            "model": {"type": "causal_lm", "lm": str(tmp_path / "lm")},
            "data": {"batches": str(tmp_path / "batches{rank}.safetensors")},
            "train": {
                "steps": 60, "optimizer": {"lr": 2e-3, "decay": []}, "schedule": {"warmup_steps": 0}, "stop": stop,
                "validation": {"every_steps": 2, "batches": str(tmp_path / "held_out{rank}.safetensors")},
            },
            "strategy": {"mixed_precision": {"param": "fp32"}},
            "checkpoint": {"every_steps": 3, "keep": 50},
            "log": {"every_steps": 1, "tensorboard": False, "wandb": None, "diagnostics": None},
        }

    return make


def expected_end(losses, patience, min_delta=0.0):
    """Losses by step of validation; returns the last step, the best value and its step."""
    best, best_step, without = None, None, 0
    for step, loss in losses.items():
        if best is None or loss < best - min_delta:
            best, best_step, without = loss, step, 0
        else:
            without += 1
        if without == patience:
            return step, best, best_step
    raise AssertionError(f"it never ends: {losses}")


def validations(run, metric="val_loss"):
    return {step["step"]: step[metric] for step in run.steps() if metric in step}


def end_of(run, **stop):
    return expected_end(validations(run), stop["patience"], stop.get("min_delta", 0.0))


@pytest.mark.parametrize("ranks, stop", [(1, {"patience": 3}), (2, {"patience": 2, "min_delta": 0.05})])
def test_a_run_ends_when_validation_no_longer_falls(job, train, ranks, stop):
    config = job(ranks, **stop)
    run = train(config, ranks=ranks)  # exit code 0
    last, best, best_step = end_of(run, **stop)
    assert run.steps()[-1]["step"] == last < 60
    by_more = "by more than 0.05 " if "min_delta" in stop else ""
    sentence = f"done: {last} of 60 steps: val_loss has not fallen {by_more}for {stop['patience']} validations ("
    assert sentence in run.stderr and f" after step {best_step} was the lowest)" in run.stderr
    assert (run.folder / "checkpoints" / f"step_{last}").is_dir()
    assert f"val_loss has not fallen {by_more}for" in run.steps()[-1]["ended_early"]
    assert all("ended_early" not in step for step in run.steps()[:-1])
    for rank in range(ranks):
        assert "error" not in (run.folder / "logs" / f"rank_{rank}.log").read_text()

    # Once more: nothing is left to do, and it says why.
    again = train(config, ranks=ranks)
    assert again.steps() == run.steps()
    assert "training: 0 of" in again.stderr and sentence in again.stderr

    # More patience lets it go on.
    more = train(config, f"train.stop.patience={stop['patience'] + 2}", ranks=ranks)
    assert more.steps()[: len(run.steps())] == run.steps()
    assert more.steps()[-1]["step"] > last


@pytest.mark.parametrize("after", ["the best", "a validation that has not fallen"])
def test_a_run_that_was_cut_ends_at_the_same_step(job, train, after):
    config = job(patience=3)
    config["checkpoint"]["every_steps"] = 1
    whole = train(config, name="whole")
    last, _, best_step = end_of(whole, patience=3)
    assert whole.steps()[-1]["step"] == last
    step = best_step if after == "the best" else last - 1
    copy = whole.folder.parent / "cut"
    shutil.copytree(whole.folder, copy, symlinks=True)
    (copy / "checkpoints" / "last").unlink()
    for path in (copy / "checkpoints").glob("step_*"):
        if int(path.name.removeprefix("step_")) > step:
            shutil.rmtree(path)
    again = train(config, name="cut")
    assert f"step_{step}" in again.stderr
    assert [(line["step"], line["loss_text"], line.get("val_loss")) for line in again.steps()] == [
        (line["step"], line["loss_text"], line.get("val_loss")) for line in whole.steps()
    ]


def test_the_report_says_why_it_ended_and_which_rates_there_were(job, train):
    config = job(patience=2)
    config["train"]["optimizer"]["lr_patterns"] = {"lm_head.*": 1e-3}
    run = train(config)
    done = subprocess.run([FLOE, "report", run.folder], capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    page = (run.folder / "report.html").read_text()
    assert run.steps()[-1]["ended_early"] in page and f"{run.steps()[-1]['step']} of 60" in page
    assert "With rates of their own, before the schedule: lm_head.* at 0.001." in page
    assert "Validation loss" in page and "val_loss_text" in page


def test_another_metric_begins_to_count_anew(job, train):
    config = job(patience=3)
    run = train(config)
    last = run.steps()[-1]["step"]
    again = train(config, "train.stop.metric=val_perplexity_text", "train.stop.patience=2")
    later = {step: value for step, value in validations(again, "val_perplexity_text").items() if step > last}
    assert again.steps()[-1]["step"] == expected_end(later, 2)[0]


def test_a_metric_that_nothing_measures(job, train):
    """Prepared batches may have any source, so that it shows only when they are read."""
    run = train(job(patience=1), "train.stop.metric=val_loss_laion", expect=2)
    assert "train.stop waits for val_loss_laion, which validation has not measured" in run.stderr
