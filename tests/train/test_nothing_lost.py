"""What users lost once: where a run begins and goes on, epochs, stops by signals, saves that fail, where
the time goes, what a resumed run says of its changes."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file, save_file

from running import FLOE, GOLDENS, command, default_signals, environment, rank_process, steps_of, wait_for_steps
from patience import patient

SOURCE = Path(os.environ["FLOE_SOURCE_DIR"])


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The data set of `./run demo`: tars, pages, text, untrained models with their tokenizer."""
    folder = tmp_path_factory.mktemp("demo") / "data"
    subprocess.run([FLOE.parent / "demo_data", SOURCE / "examples" / "demo", folder], check=True, capture_output=True)
    return folder


@pytest.fixture
def text_config(demo):
    """A language model that learns from text: `batches` of 64 tokens each in an epoch, over all ranks."""

    def config(batches, **train):
        return {
            "model": {"type": "causal_lm", "lm": str(demo / "lm")},
            "data": {"text": {"files": str(demo / "text-{0..1}.jsonl"), "tokens": 64, "num_tokens": 64 * batches},
                     "threads": 1},
            "train": {"optimizer": {"lr": 1e-3}, "schedule": {"warmup_steps": 0}, **train},
            "strategy": {"mixed_precision": {"param": "fp32"}},
            "log": {"every_steps": 1, "tensorboard": False, "diagnostics": None},
        }

    return config


@pytest.fixture
def long_golden(golden):
    def config(steps, every, world2=False):
        config = golden("neox_x2", world2=world2)
        config["train"].update(steps=steps, schedule={"type": "cosine", "warmup_steps": 2})
        config["checkpoint"] = {"every_steps": every}
        return config

    return config


def losses(run):
    return [(step["step"], step["loss_laion"], step["loss_mmc4"], step["grad_norm"]) for step in run.steps()]


def checkpoints_of(folder):
    return sorted(int(path.name[5:]) for path in (folder / "checkpoints").glob("step_*"))


# ------------------------------------------------------------------------------- where a run begins


def test_the_path_of_a_checkpoint_is_where_a_run_begins_and_not_where_it_begins_again(train, long_golden):
    base = train(long_golden(20, 3), "train.steps=3", name="base")
    begin = f"run.resume={base.folder / 'checkpoints' / 'step_3'}"
    first = train(long_golden(20, 1), begin, "train.steps=6")
    assert first.values("step") == [4, 5, 6] and "where run.resume lets this run begin" in first.stderr
    of_first = losses(first)
    # A restart of the same command, as by torchrun or a requeue: nothing is thrown away.
    again = train(long_golden(20, 1), begin, "train.steps=8")
    assert again.values("step") == [4, 5, 6, 7, 8]
    assert losses(again)[:3] == of_first
    assert "continuing after step 6" in again.stderr and "is passed over" in again.stderr
    # So it is when the path has gone, and from a run folder.
    shutil.rmtree(base.folder)
    assert train(long_golden(20, 1), begin, "train.steps=9").values("step")[-1] == 9


def test_a_checkpoint_that_is_newer_than_the_runs_own_wins(train, long_golden):
    far = train(long_golden(20, 2), "train.steps=6", name="far")
    train(long_golden(20, 2), "train.steps=2", name="run")
    run = train(long_golden(20, 2), f"run.resume={far.folder}", "train.steps=8", name="run")
    assert run.values("step") == [1, 2, 7, 8]


def test_a_run_goes_on_though_the_one_it_began_from_has_trained_on(train, long_golden):
    """The path names `last` of a run that still trains: on a restart it is far ahead, and another model."""
    train(long_golden(20, 2), "train.steps=2", name="base")
    begin = "run.resume=" + str(train(long_golden(20, 2), "train.steps=2", name="base").folder / "checkpoints" / "last")
    train(long_golden(20, 2), begin, "train.steps=4", "train.optimizer.lr=1e-2", name="mine")
    train(long_golden(20, 2), "train.steps=8", name="base")
    mine = train(long_golden(20, 2), begin, "train.steps=6", "train.optimizer.lr=1e-2", name="mine")
    assert mine.values("step") == [3, 4, 5, 6]
    assert "continuing after step 4" in mine.stderr


def test_a_run_that_was_moved_goes_on_where_it_is(train, golden, tmp_path):
    run = train(golden("neox_x2"), "train.steps=2")
    moved = tmp_path / "elsewhere" / "moved"
    moved.parent.mkdir()
    shutil.move(run.folder, moved)
    done = subprocess.run([FLOE, "train", moved / "config.yaml", "train.steps=4"], capture_output=True, text=True,
                          env=environment(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(steps_of(moved)) == [1, 2, 3, 4] and not run.folder.exists()


# ------------------------------------------------------------------------------------------ epochs


def test_epochs_are_those_of_the_data_on_any_number_of_ranks(train, start, text_config):
    """Three epochs of 12 batches: 18 steps on two ranks; stopped on two, it goes on with one."""
    config = text_config(12, epochs=3)
    whole = train(config, name="whole", ranks=2)
    assert whole.values("step") == list(range(1, 19))
    assert [step["epoch"] for step in whole.steps()] == [0] * 6 + [1] * 6 + [2] * 6

    config["checkpoint"] = {"every_steps": 9, "keep": None}
    halves = train(config, name="halves", ranks=2)
    shutil.rmtree(halves.folder / "checkpoints" / "step_18")
    alone = train(config, name="halves", ranks=1)
    # Half of the second epoch and the whole third one are left: 6 + 12 batches of one rank.
    assert alone.values("step")[-1] == 9 + 18
    assert "training: 18 of 27 steps on 1 rank" in alone.stderr
    assert alone.steps()[-1]["epoch"] == 2
    again = train(config, name="halves", ranks=2)
    assert again.values("step")[-1] == 27 and "training: 0 of 27 steps" in again.stderr


def test_more_ranks_do_not_end_a_run_before_its_data(train, text_config):
    config = text_config(24, epochs=2)
    config["checkpoint"] = {"every_steps": 20, "keep": None}
    alone = train(config, ranks=1)
    shutil.rmtree(alone.folder / "checkpoints" / "step_40")
    shutil.rmtree(alone.folder / "checkpoints" / "step_48")
    both = train(config, ranks=2)
    # 4 batches of the first epoch are left and 24 of the second: 14 steps of two ranks.
    assert "training: 14 of 34 steps on 2 ranks" in both.stderr
    assert both.values("step")[-1] == 34 and both.steps()[-1]["epoch"] == 1


def test_the_last_update_of_the_last_epoch_takes_what_is_left(train, golden):
    """Five batches in threes: two updates, the second of two batches."""
    config = golden("neox_x2")
    del config["train"]["steps"]
    run = train(config, "train.epochs=1", "train.gradient_accumulation=3")
    assert run.values("step") == [1, 2] and "training: 2 of 2 steps" in run.stderr  # which schedules go by
    # Its mean is that of two batches: a file that has only those, in twos, has the same gradient.
    tensors = load_file(GOLDENS / "neox_x2-train" / "batches.safetensors")
    rest = {f"step{int(name.split('.')[0][4:]) - 3}.{name.split('.', 1)[1]}": value
            for name, value in tensors.items() if int(name.split(".")[0][4:]) >= 3}
    path = run.folder.parent / "rest.safetensors"
    save_file(rest, path)
    # The first update of the warm-up has the rate 0, so both see the same weights.
    alone = train(config, f"data.batches={path}", "train.epochs=1", "train.gradient_accumulation=2", name="alone")
    assert run.steps()[0]["lr"] == 0
    assert run.values("grad_norm")[1] == pytest.approx(alone.values("grad_norm")[0], rel=1e-5)


@pytest.fixture
def bad_batches(tmp_path):
    """The golden batches with infinite pictures in some steps."""

    def file(*steps):
        tensors = load_file(GOLDENS / "neox_x2-train" / "batches.safetensors")
        for step in steps:
            pictures = tensors.pop(f"step{step}.laion.images_i8").float() / 64
            pictures[0, 0, 0, 0] = float("inf")
            tensors[f"step{step}.laion.images"] = pictures
        save_file(tensors, tmp_path / "bad.safetensors")
        return str(tmp_path / "bad.safetensors")

    return file


def test_skipped_steps_do_not_make_a_run_longer_than_its_epochs(train, golden, bad_batches):
    config = golden("neox_x2")
    del config["train"]["steps"]
    config["train"].update(epochs=2, schedule={"type": "linear", "warmup_steps": 0})
    config["data"]["batches"] = bad_batches(1, 4)  # the epoch's last one too
    config["checkpoint"] = {"every_steps": None, "every_epochs": 1, "keep": None}
    run = train(config)
    assert run.values("step") == [1, 2, 3, 4, 5, 6]
    assert run.values("epoch") == [0, 0, 0, 1, 1, 1]
    assert ["skipped_time" in step for step in run.steps()] == [False, True, False, True, True, False]
    # Each epoch has its save, though its last batch was skipped, and the run's last state is saved.
    assert checkpoints_of(run.folder) == [3, 6]
    assert "done: 6 steps" in run.stderr
    # The rate ends where the run does; killed and resumed it is the same.
    rates, unbroken = run.values("lr"), losses(run)
    shutil.rmtree(run.folder / "checkpoints" / "step_6")
    again = train(config)
    assert again.values("lr") == rates
    assert losses(again) == unbroken


def test_fewer_steps_than_the_checkpoint_has_are_told(train, golden):
    train(golden("neox_x2"))
    again = train(golden("neox_x2"), "train.steps=3")
    assert "nothing is left to train: the checkpoint is of step 5, but the run ends after 3" in again.stderr
    assert "-" not in re.search(r"training: (.*) steps", again.stderr).group(1)


# ------------------------------------------------------------------------------------------- stops


def everybody(process):
    """The launcher and its ranks."""
    pids = [process.pid]
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(path.read_text().rsplit(")", 1)[1].split()[1]) == process.pid:
                pids.append(int(path.parent.name))
        except OSError:
            continue
    return pids


@pytest.mark.parametrize("gap", [0, 0.05, 0.7])
def test_sigterm_to_launcher_and_ranks_saves(start, train, long_golden, gap):
    """As SLURM does it: the ranks get the signal twice, from the scheduler and from the launcher."""
    config = long_golden(100000, 100000, world2=True)
    process = start(config, ranks=2)
    wait_for_steps(process, 3)
    for pid in reversed(everybody(process)):
        os.kill(pid, signal.SIGTERM)
    time.sleep(gap)
    for pid in everybody(process):
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
    _, text = process.communicate(timeout=60)
    last = max(steps_of(process.folder))
    assert process.returncode == 75, text
    assert checkpoints_of(process.folder) == [last], text
    assert "with a checkpoint; the same command goes on from it" in text
    again = train(config, f"train.steps={last + 2}", ranks=2)
    assert again.values("step")[-1] == last + 2


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_lone_run_stops_with_a_checkpoint(start, long_golden, number):
    process = start(long_golden(100000, 100000))
    wait_for_steps(process, 2)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 75
    assert checkpoints_of(process.folder) == [max(steps_of(process.folder))]


def test_a_signal_to_one_rank_stops_all_with_a_checkpoint(start, long_golden):
    process = start(long_golden(100000, 100000, world2=True), ranks=2)
    wait_for_steps(process, 2)
    os.kill(rank_process(process.pid, 1), signal.SIGTERM)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 75, text
    assert checkpoints_of(process.folder) == [max(steps_of(process.folder))]


@pytest.mark.parametrize("ranks", [1, 2])
def test_sigusr1_saves_and_goes_on(start, long_golden, ranks):
    process = start(long_golden(100000, 100000, world2=ranks == 2), ranks=ranks)
    wait_for_steps(process, 2)
    pid = process.pid if ranks == 1 else rank_process(process.pid, 1)  # one rank is enough
    os.kill(pid, signal.SIGUSR1)
    end = time.time() + patient(30)
    while not checkpoints_of(process.folder) and time.time() < end:
        time.sleep(0.02)
    saved = checkpoints_of(process.folder)
    assert len(saved) == 1
    wait_for_steps(process, saved[0] + 3)
    assert process.poll() is None


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_reader_that_leaves_does_not_end_the_run(tmp_path, write, long_golden, ranks):
    """floe train … 2>&1 | head -1"""
    words = [write(long_golden(60, 20, world2=ranks == 2)), f"run.dir={tmp_path / 'runs'}", "run.name=run"]
    process = subprocess.Popen(command(words, ranks), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               env=environment(), preexec_fn=default_signals)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert max(steps_of(tmp_path / "runs" / "run")) == 60
    assert "done: 60 steps" in (tmp_path / "runs" / "run" / "logs" / "rank_0.log").read_text()


def test_a_stop_before_the_first_step_is_a_stop(start, train, long_golden):
    """The signal comes while the model is built."""
    config = long_golden(100000, 100000, world2=True)
    process = start(config, ranks=2)
    end = time.time() + patient(30)
    while not (process.folder / "logs" / "rank_0.log").exists() and time.time() < end:
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 75
    assert max(steps_of(process.folder), default=0) <= 1
    assert train(config, "train.steps=2", ranks=2).values("step")[-1] == 2


def held_out(tmp_path, count):
    """So many held-out batches in one file for each of two ranks."""
    tensors = load_file(GOLDENS / "neox_x2-train" / "batches.safetensors")
    for rank in (0, 1):
        many = {f"step{i}.{name.split('.', 1)[1]}": value.clone()
                for i in range(count) for name, value in tensors.items() if name.startswith(f"step{i % 5}.")}
        save_file(many, tmp_path / f"held_out{rank}.safetensors")
    return str(tmp_path / "held_out{rank}.safetensors")


def test_a_stop_saves_before_it_validates_and_the_validation_is_made_up_for(start, train, long_golden, tmp_path):
    config = long_golden(5, 100000, world2=True)
    config["train"]["validation"] = {"every_steps": 3, "batches": held_out(tmp_path, 500)}
    process = start(config, ranks=2)
    wait_for_steps(process, 2)
    time.sleep(1)  # in the validation after the third step
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    lines = steps_of(process.folder)
    assert max(lines) == 3 and "val_loss" not in lines[3]
    assert checkpoints_of(process.folder) == [3]
    held_out(tmp_path, 3)
    again = train(config, ranks=2)
    assert "validation after step 3:" in again.stderr and "validation after step 5:" in again.stderr
    fourth, fifth = again.steps()[3:]
    assert fourth["validation_step"] == 3 and "val_loss" in fourth and "validation_step" not in fifth
    # The unbroken run has it in the line of its step.
    assert train(config, name="whole", ranks=2).steps()[2]["val_loss"] == fourth["val_loss"]


def test_a_stop_does_not_lose_the_best_checkpoint(start, train, long_golden, tmp_path):
    """It comes in the validation after step 3, whose save has no metric yet."""
    config = long_golden(5, 1, world2=True)
    config["train"]["optimizer"]["lr"] = 0.0  # all are equally good, so the first of those that are ranked stays
    config["train"]["validation"] = {"every_steps": 3, "batches": held_out(tmp_path, 500)}
    config["checkpoint"].update(keep=1, keep_best={"metric": "val_loss", "n": 1})
    process = start(config, ranks=2)
    wait_for_steps(process, 2)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert max(steps_of(process.folder)) == 3
    held_out(tmp_path, 3)
    again = train(config, ranks=2)
    assert checkpoints_of(again.folder) == [3, 5]


def endless_steps(config):
    """From the third step on, each has thousands of batches."""
    return {**config, "train": {**config["train"], "gradient_accumulation": 3000, "steps": 6}}


def test_a_step_that_takes_longer_than_the_grace_is_given_up_and_nothing_is_lost(start, train, long_golden):
    """The ranks save the state before it, each by itself."""
    config = long_golden(6, 2, world2=True)
    train(config, "train.steps=2", ranks=2)
    config["run"] = {"stop_grace_s": 1}
    process = start(endless_steps(config), ranks=2)
    end = time.time() + patient(30)
    while "training: " not in (process.folder / "logs" / "rank_0.log").read_text().split("done:")[-1]:
        assert time.time() < end
        time.sleep(0.05)
    time.sleep(1)
    began = time.time()
    process.send_signal(signal.SIGTERM)
    _, text = process.communicate(timeout=60)
    assert time.time() - began < 20
    assert process.returncode == 1
    assert "run.stop_grace_s" in text
    assert (process.folder / "checkpoints" / "on_exception").is_dir(), text
    again = train(config, ranks=2)
    assert "on_exception" in again.stderr
    assert losses(again) == losses(train(config, name="whole", ranks=2))


def test_a_person_may_end_it_at_once_by_a_second_ctrl_c(start, train, long_golden):
    config = long_golden(6, 2)
    train(config, "train.steps=2")
    process = start(endless_steps(config))
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    time.sleep(0.7)
    assert process.poll() is None  # one is a request
    began = time.time()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGINT and time.time() - began < 5


def test_a_grace_that_the_launcher_would_not_wait_for_is_told(train, golden):
    run = train(golden("neox_x2", world2=True), "run.stop_grace_s=90", ranks=2)
    assert run.stderr.count("before run.stop_grace_s (90 s) is over; start it with --grace 95") == 1


# -------------------------------------------------------------------------------- saves that fail


def test_a_run_whose_last_save_fails_is_not_done(train, golden):
    """checkpoint.on_failure: continue goes on training, but what is not on disk at the end is said."""
    config = golden("neox_x2")
    config["checkpoint"] = {"every_steps": 2, "on_failure": "continue", "on_exception": False}
    first = train(config, "train.steps=2")
    folder = first.folder / "checkpoints"
    shutil.move(folder, folder.with_name("kept"))
    folder.write_text("no folder can be made here")
    broken = train(config, "run.resume=" + str(folder.with_name("kept") / "step_2"), expect=1)
    assert broken.values("step") == [1, 2, 3, 4, 5]
    assert "trying it once more" in broken.stderr
    assert "step 5 is not on disk" in broken.stderr and "done:" not in broken.stderr


def test_a_step_is_in_the_logs_though_what_came_after_it_failed(train, golden, tmp_path):
    """Its emergency checkpoint says that it was trained, so no later run would write its line."""
    good = load_file(GOLDENS / "neox_x2-train" / "batches.safetensors")
    held_out = tmp_path / "held_out.safetensors"
    words = (f"train.validation.batches={held_out}", "train.validation.every_steps=3")
    save_file(good, held_out)
    whole = train(golden("neox_x2"), *words, name="whole")
    save_file({**good, "step0.laion.labels": good["step0.laion.labels"][:, :-1].contiguous()}, held_out)
    broken = train(golden("neox_x2"), *words, expect=1)
    assert "step0.laion.labels" in broken.stderr
    assert losses(broken) == losses(whole)[:3]
    assert broken.steps()[-1]["tokens_per_second"] > 0 and "val_loss_laion" not in broken.steps()[-1]
    save_file(good, held_out)
    again = train(golden("neox_x2"), *words)
    assert "continuing after step 3 from" in again.stderr and "on_exception" in again.stderr
    assert losses(again) == losses(whole)


def test_a_run_that_fails_before_its_first_step_leaves_nothing_behind(train, golden, tmp_path):
    """Else the mended command would be told that its data is other than that of the checkpoint."""
    tensors = load_file(GOLDENS / "neox_x2-train" / "batches.safetensors")
    tensors["step0.laion.labels"] = tensors["step0.laion.labels"][:, :-1].contiguous()
    save_file(tensors, tmp_path / "broken.safetensors")
    broken = train(golden("neox_x2"), f"data.batches={tmp_path / 'broken.safetensors'}", expect=1)
    assert not (broken.folder / "checkpoints" / "on_exception").exists()
    assert train(golden("neox_x2")).values("step") == [1, 2, 3, 4, 5]


def test_a_run_whose_every_step_is_skipped_has_not_trained(train, golden, bad_batches):
    config = golden("neox_x2")
    del config["train"]["steps"]
    config["data"]["batches"] = bad_batches(0, 1, 2, 3, 4)
    run = train(config, "train.epochs=1", "train.max_skipped=100", expect=1)
    assert "all 5 steps were skipped" in run.stderr and "done:" not in run.stderr


# ----------------------------------------------------------------------------------------- numbers


def test_the_parts_of_the_time_add_up_to_the_wall_clock(train, golden, tmp_path):
    config = golden("neox_x2", world2=True)
    config["train"].update(steps=12, validation={"every_steps": 4, "batches": held_out(tmp_path, 6)})
    config["checkpoint"] = {"every_steps": 3, "keep": None}
    run = train(config, ranks=2)
    steps = run.steps()
    parts = ("step_time", "skipped_time", "validation_time", "checkpoint_time", "phase_switch_time", "other_time")
    for step in steps:
        assert step["wall_time"] == pytest.approx(sum(step.get(name, 0) for name in parts), abs=1e-6)
        assert step["data_time"] <= step["step_time"]
        assert ("checkpoint_time" in step) == (step["step"] % 3 == 0)
        assert ("validation_time" in step) == (step["step"] % 4 == 0)
        tokens = step["tokens_per_second"] * step["wall_time"]
        assert tokens == pytest.approx(round(tokens), abs=1e-3)
    # The clock of the records is another one than that of the parts.
    elapsed = steps[-1]["time"] - steps[0]["time"]
    assert sum(step["wall_time"] for step in steps[1:]) == pytest.approx(elapsed, abs=0.05)
    assert re.search(r"time: [\d.]+ s: .*steps [\d.]+", run.stderr)


def test_waiting_for_the_save_before_counts_as_saving(train, golden):
    """Every step saves, so each waits for the one before it."""
    run = train(golden("neox_x2", world2=True), "checkpoint.every_steps=1", ranks=2)
    waits = [step["checkpoint_wait_time"] for step in run.steps()]
    assert all(0 < wait <= step["checkpoint_time"] for wait, step in zip(waits, run.steps()))


# ------------------------------------------------------------------------------- skipped steps' words


def test_an_overflow_says_the_scale_and_the_samples(train, golden):
    run = train(golden("neox_x2"), "strategy.mixed_precision.param=fp16", "precision.loss_scale=1e9", "train.steps=2")
    first = next(line for line in run.stderr.splitlines() if "is skipped on all ranks" in line)
    assert "with the loss scale 1e+09, which is 5e+08 from now on" in first
    assert "; samples: " in first and "step0" in first.split("samples: ")[1]


# ------------------------------------------------------------------------------------ what changed


def test_a_resumed_run_says_what_is_different(train, golden):
    train(golden("neox_x2"), "train.steps=2", "train.optimizer.lr=1e-3")
    again = train(golden("neox_x2"), "train.steps=4", "train.optimizer.lr=5e-4", "log.every_steps=2", "run.seed=7")
    table = again.stderr.split("this run differs from the one that saved the checkpoint:")[1]
    for pattern in (r"train\.optimizer\.lr +0\.001 +0\.0005 +takes effect", r"log\.every_steps +1 +2 +harmless",
                    r"run\.seed +0 +7 +takes effect", r"train\.steps +2 +4 +takes effect"):
        assert re.search(pattern, table), table
    same = train(golden("neox_x2"), "train.steps=4", "train.optimizer.lr=5e-4", "log.every_steps=2", "run.seed=7")
    assert "differs from the one that saved" not in same.stderr


def test_a_resumed_run_says_which_rates_are_new(train, golden):
    """Patterns are names of one side only; what the model computes may change with every name and shape as it was."""
    train(golden("neox_x2"), "train.steps=2")
    words = ['train.optimizer.lr_patterns={"perceiver.*": 1e-5}', "model.only_attend_immediate_media=false"]
    again = train(golden("neox_x2"), "train.steps=3", *words)
    table = again.stderr.split("this run differs from the one that saved the checkpoint:")[1]
    for pattern in (r'train\.optimizer\.lr_patterns +\{\} +\{"perceiver\.\*":1e-05\} +takes effect',
                    r"model\.only_attend_immediate_media +true +false +takes effect"):
        assert re.search(pattern, table), table
    without = train(golden("neox_x2"), "train.steps=4", words[1])
    assert re.search(r'lr_patterns +\{"perceiver\.\*":1e-05\} +\{\} +takes effect', without.stderr), without.stderr


def test_a_refused_resume_says_what_is_different(train, golden):
    config = golden("neox_x2")
    train(config, "train.optimizer.type=sgd", "train.optimizer.momentum=0.9", "train.steps=2")
    refused = train(config, "train.steps=4", expect=1)
    assert re.search(r"train\.optimizer\.type +sgd +adamw +refused", refused.stderr), refused.stderr


def test_what_ends_with_a_change_is_told(train, golden, tmp_path):
    """Moments, averages and masters of what is frozen now; moments that another optimizer does not keep."""
    config = golden("neox_x2")
    config["train"]["ema"] = {"decay": 0.5}
    averages = train(config, "train.steps=2").folder, tmp_path / "all.safetensors", "--ema"
    done = subprocess.run([FLOE, "export", *averages], capture_output=True, text=True, env=environment())
    assert done.returncode == 0 and "no average" not in done.stderr
    frozen = train(config, "train.steps=3", "train.trainable=[perceiver.*]")
    assert re.search(r"gated_cross_attn.* trained until now and are frozen from here on", frozen.stderr), frozen.stderr
    assert "their optimizer state, averages and fp32 masters end with" in frozen.stderr
    assert "frozen from here on" not in train(config, "train.steps=4", "train.trainable=[perceiver.*]").stderr
    done = subprocess.run([FLOE, "export", frozen.folder, tmp_path / "ema.safetensors", "--ema"], capture_output=True,
                          text=True, env=environment())
    assert done.returncode == 0 and re.search(r"has no average of \d+ parameters that trained once, such as", done.stderr)
    plain = train(config, "train.steps=5", "train.trainable=[perceiver.*]", "train.optimizer={type: sgd}")
    assert "has exp_avg, exp_avg_sq of another optimizer, which SGD does not keep" in plain.stderr


@pytest.mark.parametrize("before, now, words", [
    (2, 1, "what the files of the ranks that are gone still held is not read"),
    (1, 2, "the files of new ranks are read on from where those of the others stand"),
])
def test_prepared_batches_on_another_number_of_ranks(train, golden, before, now, words):
    config = golden("neox_x2", world2=True)
    train(config, "train.steps=2", ranks=before)
    again = train(config, "train.steps=3", ranks=now)
    assert words in again.stderr and re.search(r"ranks +\d +\d +takes effect: every rank goes on", again.stderr)


def test_data_begins_anew_where_that_is_asked_for(train, golden):
    """Weights, optimizer and step go on; the data is that of the beginning."""
    config = golden("neox_x2")
    train(config, "train.steps=2")
    again = train(config, "train.steps=3", "run.resume_data=restart")
    assert "data: begins anew (run.resume_data is restart)" in again.stderr
    straight = train(config, "train.steps=3", name="straight")
    # The third step has the first batch again, whose gradient at these weights is another than the third's.
    assert again.values("grad_norm")[:2] == straight.values("grad_norm")[:2]
    assert again.values("grad_norm")[2] != straight.values("grad_norm")[2]
    assert again.values("lr") == straight.values("lr")


# -------------------------------------------------------------------------------- before it begins


def test_an_error_that_is_found_late_leaves_the_runs_configuration_alone(train, golden):
    run = train(golden("neox_x2"))
    before = (run.folder / "config.yaml").read_text()
    train(golden("neox_x2"), "train.optimizer.decay=[nothing*]", expect=2)
    assert (run.folder / "config.yaml").read_text() == before


def test_a_rank_without_its_file_is_told_before_anything_runs(train, golden):
    refused = train(golden("neox_x2", world2=True), ranks=3, expect=2)
    assert "batches_rank2.safetensors' for rank 2 of 3" in refused.stderr


def test_a_disk_that_is_not_mounted_is_no_run_without_checkpoints(train, golden, tmp_path):
    config = golden("neox_x2")
    run = train(config, "train.steps=2")
    (run.folder / "checkpoints").rename(tmp_path / "disk")
    (run.folder / "checkpoints").symlink_to(tmp_path / "disk")
    metrics = (run.folder / "metrics.jsonl").read_text()
    (tmp_path / "disk").rename(tmp_path / "away")
    refused = train(config, "train.steps=3", expect=2)
    assert "a link that leads to none; is its disk mounted?" in refused.stderr
    assert (run.folder / "metrics.jsonl").read_text() == metrics
    (tmp_path / "away").rename(tmp_path / "disk")
    assert "continuing after step 2" in train(config, "train.steps=3").stderr


def test_a_full_disk_at_the_start_is_no_wrong_usage(tmp_path, write, golden):
    """Exit code 1: the configuration is right."""
    words = [write(golden("neox_x2")), f"run.dir={tmp_path / 'runs'}"]
    done = subprocess.run(
        command(words, 1), capture_output=True, text=True, timeout=60, env=environment(),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16)),
    )
    assert done.returncode == 1, done.stderr
    assert "config.yaml" in done.stderr
