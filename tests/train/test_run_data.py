"""What a run says about its data: whose batches they are, what was left out and why, on all ranks; held-out
shards; data that is another when a run goes on."""

import contextlib
import copy
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import tarfile
import time

import pytest
from safetensors.torch import load_file, save_file

from patience import wait_until
from running import GOLDENS, command, environment, steps_of, wait_for_steps
from s3_server import s3_server
from small_data import pairs_config, write_shards
from tars import write_tar


@pytest.fixture
def pairs(tmp_path):
    """A configuration with four shards of eight pairs."""

    def make(**train):
        return pairs_config(tmp_path / write_shards(tmp_path, 4, 8), **train)

    return make


# ------------------------------------------------------------------------------- whose batches they are


def test_one_file_of_batches_is_not_for_several_ranks(train, golden):
    run = train(golden("neox_x2"), ranks=2, expect=2)
    assert "data.batches is '" in run.stderr and "write {rank} where their names differ" in run.stderr
    assert not run.folder.exists()


def test_one_file_of_held_out_batches_is_not_for_several_ranks(train, golden):
    config = golden("neox_x2", world2=True)
    config["train"]["validation"] = {
        "every_steps": 2, "batches": str(GOLDENS / "neox_x2-train" / "batches.safetensors"),
    }
    run = train(config, ranks=2, expect=2)
    assert "train.validation.batches is '" in run.stderr and "{rank}" in run.stderr
    assert train(config, name="alone").values("step")[-1] == 5


def test_equal_files_under_other_names_are_told_once(train, golden):
    run = train(golden("neox_x2", ranks=2, same=True), ranks=2)
    told = [line for line in run.stderr.splitlines() if "the same batches" in line]
    assert len(told) == 1 and "data.batches: ranks 0 and 1" in told[0]
    assert "the same batches" not in train(golden("neox_x2", world2=True), ranks=2, name="other").stderr


# ------------------------------------------------------------------------------------- what was left out


def test_the_last_lines_about_data_count_all_ranks(train, pairs):
    run = train(pairs(steps=4), ranks=2)
    told = re.findall(r"data: laion: (\d+) samples read, (\d+) used", run.stderr)
    assert told == [("16", "16")], run.stderr  # 4 steps, 2 samples, 2 ranks


def test_without_a_usable_sample_the_reasons_are_named(train, tmp_path):
    for number in range(2):
        write_tar(tmp_path / f"t{number}.tar", {f"{number}.json": b"{}"})
    run = train(pairs_config(tmp_path / "t{0..1}.tar"), expect=1)
    assert "no_caption_or_image 2" in run.stderr and "a pair needs the members" in run.stderr
    assert "make batches smaller" not in run.stderr


def test_resampled_tiny_shards_train(train, tmp_path):
    config = pairs_config(tmp_path / write_shards(tmp_path, 3, 1))
    config["data"]["resampled"] = True
    assert train(config).values("step") == [1, 2, 3]


def test_every_rank_goes_on_with_its_own_samples(train, tmp_path):
    """The shards of the ranks differ, and so do the places at which they stopped reading."""
    config = pairs_config(tmp_path / write_shards(tmp_path, 4, 8), schedule={"type": "constant", "warmup_steps": 0})
    config["data"]["laion"]["num_samples"] = 32
    whole = train(config, "train.steps=7", ranks=2, name="whole")
    train(config, "train.steps=3", ranks=2)
    again = train(config, "train.steps=7", ranks=2)
    assert again.values("loss_laion") == whole.values("loss_laion") and len(set(whole.values("loss_laion"))) == 7


@pytest.mark.parametrize("way", ["pipe", pytest.param("s3", marks=pytest.mark.long)])
def test_shards_from_elsewhere_with_a_kill_in_the_middle(start, train, tmp_path, way):
    """Beside an unbroken run over files: no sample is lost or comes twice."""
    shards = write_shards(tmp_path, 4, 8)
    config = pairs_config(tmp_path / shards, schedule={"type": "constant", "warmup_steps": 0})
    config["data"]["laion"]["num_samples"] = 32
    config["checkpoint"] = {"every_steps": 3}
    with contextlib.ExitStack() as stack:
        place, variables = f"pipe:sleep 0.1; cat {tmp_path}/{shards}", {}
        if way == "s3":
            client, variables = stack.enter_context(s3_server())
            for number in range(4):
                client.upload_file(str(tmp_path / f"t{number}.tar"), "data", f"t{number}.tar")
            place = f"s3://data/{shards}"
        away = copy.deepcopy(config)
        away["data"]["laion"]["shards"] = place
        process = start(away, "train.steps=100000", ranks=2, **variables)
        wait_for_steps(process, 11)  # in the second epoch
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        killed = max(steps_of(process.folder))
        steps = killed + 9
        again = train(away, f"train.steps={steps}", ranks=2, **variables)
    assert re.search(r"continuing after step (\d+) from", again.stderr), again.stderr
    whole = train(config, f"train.steps={steps}", ranks=2, name="whole")
    ours, theirs = ([step["loss_laion"] for _, step in sorted(steps_of(run.folder).items())] for run in (again, whole))
    assert ours == theirs and len(theirs) == steps
    told = [re.findall(r"data: laion: (\d+) samples read, (\d+) used", run.stderr) for run in (again, whole)]
    assert told[0] == told[1] == [(str(4 * steps), str(4 * steps))]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_signals_to_a_run_do_not_reach_the_commands_that_bring_shards(start, tmp_path, number):
    """floe launch signals the groups of its ranks: a command in one of them would end in the middle of a shard."""
    shards = f"{tmp_path}/{write_shards(tmp_path, 2, 8)}"
    halves = f"f={shards}; head -c 9000 $f; echo >> {tmp_path}/begun; sleep 3; tail -c +9001 $f"
    config = pairs_config(f"pipe:{halves}", steps=4)
    config["data"]["laion"]["num_samples"] = 16
    process = start(config, ranks=2)
    begun = tmp_path / "begun"
    wait_until(lambda: begun.exists() and len(begun.read_text()) == 2)
    process.send_signal(number)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 0, text
    assert "could not be read" not in text and "data: laion: 16 samples read, 16 used" in text, text


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_command_that_does_not_answer_does_not_keep_a_run_from_stopping(start, train, tmp_path, ranks):
    """The state of the step before is saved by each rank, as wherever a step takes too long."""
    shards = write_shards(tmp_path, ranks, 12)
    config = pairs_config(f"pipe:cat {tmp_path}/{shards}; sleep 1000", steps=100)
    config["data"]["shuffle"] = {"samples": 1, "initial": 1}
    config["run"] = {"stop_grace_s": 1}
    process = start(config, ranks=ranks)
    wait_for_steps(process, 3)
    time.sleep(1)
    steps = max(steps_of(process.folder))
    assert steps < 7, "it had to wait for data"
    begin = time.time()
    process.send_signal(signal.SIGTERM)
    _, text = process.communicate(timeout=60)
    assert time.time() - begin < 20, text
    assert "was not done 1" in text and f"the emergency checkpoint of step {steps} is whole" in text, text
    config["data"]["laion"]["shards"] = f"{tmp_path}/{shards}"
    again = train(config, f"train.steps={steps + 1}", "run.resume_data=restart", ranks=ranks)
    assert f"continuing after step {steps} from" in again.stderr


def test_messages_about_one_of_something_are_english(train, pairs):
    config = pairs(steps=2)
    config["data"]["laion"]["num_samples"] = 16
    config["checkpoint"] = {"every_steps": 1}
    train(config, ranks=2)
    again = train(config, "train.steps=4")
    assert "saved by 2 ranks with 1 worker, resumed by 1 rank with 1 worker" in again.stderr
    assert not re.search(r"(?<![.\d])1 (ranks|workers|shards|samples)\b(?!/s)", again.stderr), again.stderr


# -------------------------------------------------------------------------------------------- validation


def held_out(tmp_path, count, samples=1):
    return {"every_steps": 2, "shards": str(tmp_path / write_shards(tmp_path, count, samples, name="v"))}


@pytest.mark.parametrize("count, ranks", [(65, 1), (200, 1), (131, 2), (1, 2)])
def test_any_number_of_held_out_shards_is_read(train, pairs, tmp_path, count, ranks):
    """Also more than 64 on a rank, an odd one, and none on the second rank."""
    run = train(pairs(validation=held_out(tmp_path, count)), ranks=ranks, timeout=60)
    measured = [step["val_loss_laion"] for step in run.steps() if "val_loss_laion" in step]
    assert len(measured) == 2
    # One shard with all of the samples has the same loss.
    if count == 65:
        write_tar(tmp_path / "all.tar", {
            name: data for i in range(count) for name, data in small_pair(tmp_path / f"v{i}.tar").items()
        })
        config = pairs(validation={"every_steps": 2, "shards": str(tmp_path / "all.tar")})
        other = train(config, name="one")
        assert [step["val_loss"] for step in other.steps() if "val_loss" in step] == pytest.approx(
            [step["val_loss"] for step in run.steps() if "val_loss" in step], rel=1e-5)


def small_pair(path):
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_signal_ends_a_validation_and_its_losses_are_left_out(start, train, pairs, tmp_path, ranks):
    """Each shard takes 0.1 s, so a whole validation takes a minute."""
    write_shards(tmp_path, 600, 1, name="v")
    config = pairs(steps=100, validation={
        "every_steps": 2, "shards": f"pipe:sleep 0.1; cat {tmp_path}/v{{0..599}}.tar"})
    process = start(config, ranks=ranks)
    wait_for_steps(process, 1)
    time.sleep(2)
    assert len((process.folder / "metrics.jsonl").read_text().splitlines()) == 1, "the validation is over"
    begin = time.time()
    process.send_signal(signal.SIGTERM)
    _, text = process.communicate(timeout=60)
    assert time.time() - begin < 15
    assert process.returncode == 75, text
    assert "validation: stopped by a signal; its losses are left out" in text
    steps = [json.loads(line) for line in (process.folder / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2]
    assert not any("val_loss" in step for step in steps)
    assert (process.folder / "checkpoints" / "step_2").is_dir()


def test_a_missing_held_out_shard_is_blamed_on_its_own_key(train, pairs):
    run = train(pairs(validation={"every_steps": 2, "shards": {"laion": "/nowhere/v{0..3}.tar"}}), expect=2)
    assert "train.validation.shards.laion: no shard matches '/nowhere/v{0..3}.tar'" in run.stderr
    assert "data.laion.shards" not in run.stderr


@pytest.mark.parametrize("ranks", [1, 2])
def test_held_out_shards_without_a_sample_are_an_error_at_the_start(train, pairs, tmp_path, ranks):
    for number in range(3):
        write_tar(tmp_path / f"v{number}.tar", {"x.txt": b"no picture"} if number else {})
    run = train(pairs(validation={"every_steps": 2, "shards": str(tmp_path / "v{0..2}.tar")}), ranks=ranks, expect=2)
    assert "train.validation.shards: the 3 shards held no usable sample" in run.stderr
    assert "no_caption_or_image 2" in run.stderr
    assert not (run.folder / "metrics.jsonl").exists()


def test_held_out_batches_without_a_label_are_told(train, golden, tmp_path):
    tensors = load_file(GOLDENS / "neox_x2-train" / "batches.safetensors")
    for name in tensors:
        if name.endswith("labels"):
            tensors[name] = tensors[name] * 0 - 100
    save_file(tensors, tmp_path / "held_out.safetensors")
    config = golden("neox_x2")
    config["train"]["validation"] = {"every_steps": 5, "batches": str(tmp_path / "held_out.safetensors")}
    assert "train.validation.batches: no token has a label" in train(config).stderr


def test_held_out_shards_that_are_trained_on_are_told(train, pairs, tmp_path):
    config = pairs(validation={"every_steps": 2, "shards": str(tmp_path / "t{2..3}.tar")})
    assert "train.validation.shards: the run also trains on 2 of its 2 shards" in train(config).stderr


def test_validation_shows_its_progress_on_a_terminal(pairs, write, tmp_path):
    write_shards(tmp_path, 6, 1, name="v")
    config = pairs(steps=2, validation={"every_steps": 2, "shards": f"pipe:sleep 0.15; cat {tmp_path}/v{{0..5}}.tar"})
    config["data"]["laion"]["batch_size"] = 1
    mother, child = pty.openpty()
    process = subprocess.Popen(command([write(config)], 1), stdout=subprocess.DEVNULL, stderr=child, env=environment())
    os.close(child)
    shown = b""
    while True:
        try:
            shown += os.read(mother, 4096)
        except OSError:
            break
    assert process.wait(timeout=60) == 0, shown
    assert re.search(rb"validation: \d+ batch(es)?, \d+ s", shown), shown


# -------------------------------------------------------------------------------- data that is another


def test_other_shards_are_refused_and_a_restart_begins_the_data_anew(train, pairs, tmp_path):
    config = pairs(steps=2)
    train(config)
    (tmp_path / "new").mkdir()
    new = tmp_path / "new" / write_shards(tmp_path / "new", 5, 8)
    refused = train(config, "train.steps=4", f"data.laion.shards={new}", expect=2)
    assert "data.laion.shards was '" in refused.stderr and "run.resume_data=restart" in refused.stderr
    assert "4 shards when the checkpoint was made and is '" in refused.stderr
    words = (f"data.laion.shards={new}", "run.resume_data=restart", "checkpoint.every_steps=1")
    again = train(config, "train.steps=4", *words)
    assert "data: begins anew" in again.stderr
    assert again.values("step") == [1, 2, 3, 4]
    assert "laion: 4 samples read" in again.stderr  # of the new data alone
    # It begins anew once: the same words go on afterwards, as after a kill.
    once = train(config, "train.steps=5", *words)
    assert "data: begins anew" not in once.stderr and "laion: 6 samples read" in once.stderr
    # And once more where the data is another once more.
    back = train(config, "train.steps=6", "run.resume_data=restart")
    assert "data: begins anew" in back.stderr and "laion: 2 samples read" in back.stderr


@pytest.mark.parametrize("words, difference", [
    (["run.seed=5"], "run.seed was 0 when the checkpoint was made and is 5 now"),
    (["data.rules=corrected"], "data.rules was openflamingo when"),
    (["data.resampled=true"], "data.resampled was false when"),
])
def test_the_first_difference_of_the_data_is_named(train, pairs, words, difference):
    config = pairs(steps=1)
    train(config)
    run = train(config, "train.steps=2", *words, expect=2)
    assert difference in run.stderr and "run.resume_data=restart" in run.stderr


def test_prepared_batches_that_are_others_are_refused(train, golden, tmp_path):
    config = golden("neox_x2", ranks=2)
    train(config, "train.steps=2", ranks=2)
    folder = str(tmp_path / "neox_x2_{rank}.safetensors")
    shutil.copy(folder.format(rank=1), tmp_path / "changed_0.safetensors")
    shutil.copy(folder.format(rank=0), tmp_path / "changed_1.safetensors")
    config["data"]["batches"] = str(tmp_path / "changed_{rank}.safetensors")
    run = train(config, "train.steps=3", ranks=2, expect=2)
    assert "data.batches was a file with other batches" in run.stderr
    assert train(config, "train.steps=3", "run.resume_data=restart", ranks=2).values("step") == [1, 2, 3]


def test_shards_named_twice_and_patterns_without_a_file_are_told(train, pairs, tmp_path):
    config = pairs()
    config["data"]["laion"]["shards"] = f"{tmp_path}/t{{0..2}}.tar::{tmp_path}/t2.tar::{tmp_path}/{{t,nothing}}3*.tar"
    text = train(config).stderr
    assert f"data.laion.shards names '{tmp_path}/t2.tar' more than once" in text
    assert f"no file matches '{tmp_path}/nothing3*.tar'" in text
