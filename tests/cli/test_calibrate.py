"""floe calibrate: the file it writes, and every way to ask wrongly."""

import re
import signal

import pytest
import yaml
from patience import wait_until

SMALL = ["model.type=transformer", "model.vocab=512", "model.dim=64", "model.layers=2", "model.heads=4", "model.context=64"]


def calibrated(floe, path, *more, ranks=1):
    command = ["calibrate", str(path), "--device", "cpu", "--rounds", "3", *more]
    done = floe(*(["launch", "-n", str(ranks), "--", *command] if ranks > 1 else command), timeout=300)
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(path.read_text())


def planned(floe, machine, world):
    """The step of a small decoder, in milliseconds."""
    done = floe("plan", *SMALL, f"world={world}", "--gpu", str(machine), "--batch", "4x64", "--json")
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)["step"]


def test_one_rank_describes_its_cores(floe, tmp_path):
    path = tmp_path / "here.yaml"
    found = calibrated(floe, path)
    assert found["device"] == "cpu" and found["like"] == "cpu" and found["cores"] >= 1
    # From a slow virtual core to a large server.
    assert 0.002 < found["fp32_tflops"] < 50
    assert 0.0005 < found["bf16_tflops"] < 200
    assert 0.0005 < found["flash_tflops"] < 100
    for key in ("memory_gbs", "update_gbs", "host_gbs"):
        assert 0.2 < found[key] < 5000, key
    assert 0.2 < found["kernel_us"] < 500
    assert 1 / found["cores"] <= found["core_share"] <= 1 and 1 / found["cores"] <= found["core_memory_share"] <= 1
    assert found["memory"] > 2**28
    assert "intra_gbs" not in found  # nobody to talk to
    text = path.read_text()
    assert re.search(r"^# When: \d{4}-\d\d-\d\d \d\d:\d\d UTC, in [\d.]+ s; medians of 3 rounds, in processor time of a thread\.$", text, re.M)
    assert re.search(r"^# With: .*cores; 1 rank\.$", text, re.M)
    assert re.search(r"^# Not measured, taken from 'cpu': .*\bintra_gbs\b.*\bcollective_cores\b.*\.$", text, re.M)
    assert all(" # " in line for line in text.splitlines() if re.match(r"[a-z0-9_]+: ", line) and not line.startswith(("like", "name", "device")))
    assert planned(floe, path, 1)["machine"] == found["name"]


def test_two_ranks_also_describe_what_lies_between_them(floe, tmp_path):
    first = calibrated(floe, tmp_path / "first.yaml", "--name", "two of them", ranks=2)
    assert first["name"] == "two of them" and first["gpus_per_node"] >= 2
    assert 0.02 < first["intra_gbs"] < 1000 and 1 < first["intra_us"] < 1e5
    assert 0 < first["collective_cores"] <= first["cores"] and first["reduce_gbs"] > 0.02
    text = (tmp_path / "first.yaml").read_text()
    assert "2 ranks over Gloo" in text and "intra_gbs" not in re.search(r"Not measured.*", text).group()
    step = planned(floe, tmp_path / "first.yaml", 2)
    assert step["time"]["seconds"] > 0 and step["time"]["intra_link"] > 0 and step["memory"]["fits"]
    # Once more it is much the same machine, however busy.
    second = calibrated(floe, tmp_path / "second.yaml", ranks=2)
    for key in ("fp32_tflops", "memory_gbs", "update_gbs", "host_gbs", "intra_gbs"):
        assert 1 / 6 < second[key] / first[key] < 6, key


def test_without_a_file_it_is_printed(floe):
    done = floe("calibrate", "--device", "cpu", "--rounds", "1", timeout=300)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["device"] == "cpu"


def test_a_file_that_is_there_stays_unless_told_otherwise(floe, tmp_path):
    path = tmp_path / "here.yaml"
    path.write_text("mine\n")
    done = floe("calibrate", str(path), "--device", "cpu")
    assert done.returncode == 2 and "is there already; name another file, or say --force" in done.stderr
    assert path.read_text() == "mine\n" and len(done.stderr.splitlines()) == 1
    assert calibrated(floe, path, "--force")["device"] == "cpu"
    assert [file.name for file in tmp_path.iterdir()] == ["here.yaml"]


@pytest.mark.parametrize(
    "args, part",
    [
        (["/nowhere/at/all.yaml"], "there is no folder '/nowhere/at'"),
        (["/proc/here.yaml"], "cannot write '/proc/here.yaml'"),
        (["/tmp"], "is a folder; name a file"),
        (["a.yaml", "b.yaml"], "writes one file"),
        (["--like", "h100"], "'h100' is a gpu, but this is a cpu"),
        (["--like", "cqu"], "must be one of h200, h100, a100, cpu"),
        (["--device", "tpu"], "neither cpu nor cuda"),
        (["--rounds", "0"], "--rounds"),
        (["--round", "2"], "--rounds"),
    ],
)
def test_what_is_wrong_is_one_sentence(floe, args, part):
    device = [] if "--device" in args else ["--device", "cpu"]
    done = floe("calibrate", *args, *device)
    assert done.returncode == 2 and part in done.stderr and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


def test_ranks_end_together_where_nothing_can_be_written(floe, tmp_path):
    (tmp_path / "there.yaml").write_text("")
    done = floe("launch", "-n", "2", "--", "calibrate", str(tmp_path / "there.yaml"), "--device", "cpu", timeout=120)
    assert done.returncode != 0 and "is there already" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_leaves_nothing(start, tmp_path, number):
    process = start("calibrate", str(tmp_path / "here.yaml"), "--device", "cpu", "--rounds", "100")
    first = process.stderr.readline()
    assert "measures cpu" in first
    process.send_signal(number)
    wait_until(lambda: process.poll() is not None, 20)
    assert process.returncode != 0
    assert list(tmp_path.iterdir()) == []
