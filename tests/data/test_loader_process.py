"""The loader in processes of its own: killed and resumed, and shards that come from an S3 server.

Needs FLOE_BIN_DIR, the folder of built programs (loader_tool among them).
"""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image
from s3_server import s3_server
from tars import write_tar

TOOL = Path(os.environ["FLOE_BIN_DIR"]) / "loader_tool"
TOKENIZER = Path(os.environ["FLOE_SOURCE_DIR"]) / "tests/goldens/data/tokenizers/neox"


def sample(key):
    picture = io.BytesIO()
    number = sum(key.encode()) % 256
    Image.new("RGB", (12, 9), (number, 255 - number, 128)).save(picture, "JPEG")
    return {f"{key}.jpg": picture.getvalue(), f"{key}.txt": f"a picture of {key}".encode()}


def write_shard(path, keys):
    write_tar(path, {name: data for key in keys for name, data in sample(key).items()})


def shards(folder, count, samples):
    for number in range(count):
        write_shard(folder / f"{number}.tar", [f"{number}-{i:03d}" for i in range(samples)])
    return f"{folder}/{{0..{count - 1}}}.tar"


def write_config(folder, **data):
    path = folder / "data.yaml"
    path.write_text(json.dumps(data))  # JSON is YAML
    return path


def command(config, *words):
    return [TOOL, config, TOKENIZER, *map(str, words)]


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def run(config, *words, env=None):
    done = subprocess.run(command(config, *words), capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr
    return lines(done.stdout), done.stderr


def config_of(tmp_path, count=4, samples=40, **more):
    pattern = shards(tmp_path, count, samples)
    data = {"laion": {"shards": pattern, "batch_size": 1, "num_samples": 100}, "threads": 3, "workers": 2,
            "shuffle": {"samples": 20, "initial": 10}}
    return write_config(tmp_path, **(data | more))


def test_killed_at_any_sample_it_goes_on_with_the_next(tmp_path):
    config = config_of(tmp_path)
    whole, _ = run(config, "--steps", 240)
    state = tmp_path / "state.json"
    seen = []
    # Killed without warning after ever more steps, until all have come.
    for number in range(60):
        if len(seen) >= 240:
            break
        words = ["--steps", 240 - len(seen), "--state", state, "--slow", 1]
        words += ["--resume", state] if seen else []
        process = subprocess.Popen(command(config, *words), stdout=subprocess.PIPE, text=True)
        wanted = 1 + number % 13
        for line in process.stdout:
            step = json.loads(line)
            if "counts" in step:
                break
            seen.append(step)
            wanted -= 1
            if wanted == 0:
                process.send_signal(signal.SIGKILL)
                break
        # What it printed and saved before it died: the state is that of the last line, or of one more.
        rest = process.stdout.read()
        process.wait(timeout=60)
        seen += [json.loads(line) for line in rest.splitlines() if line.endswith("}") and "counts" not in line]
        saved = json.loads(state.read_text())
        at = saved["epoch"] * 100 + saved["index"]
        assert at - len(seen) in (0, 1), (at, len(seen))
        seen += whole[len(seen) : at]  # saved, but killed before it was printed
    assert seen == whole[:240]


def test_other_threads_give_the_same(tmp_path):
    config = config_of(tmp_path)
    whole, _ = run(config, "--steps", 150)
    for threads in (1, 8):
        other = tmp_path / f"{threads}"
        other.mkdir()
        data = json.loads(config.read_text()) | {"threads": threads}
        assert run(write_config(other, **data), "--steps", 150)[0] == whole


def test_another_world_size_says_what_it_does(tmp_path):
    config = config_of(tmp_path, count=20, samples=8, workers=1)
    states = []
    seen = []
    for rank in range(2):
        states.append(tmp_path / f"{rank}.json")
        part, _ = run(config, "--steps", 20, "--state", states[-1], "--rank", rank, "--world", 2)
        seen += [key for line in part[:-1] for key in line["keys"]]
    resume = [word for state in states for word in ("--resume", state)]
    for rank in range(4):
        part, log = run(config, "--steps", 15, "--rank", rank, "--world", 4, *resume)
        seen += [key for line in part[:-1] for key in line["keys"]]
        assert "saved by 2 ranks with 1 worker, resumed by 4 ranks with 1 worker" in log
        assert "dealt anew" in log
        assert part[0]["epoch"] == 0 and part[-2]["index"] == 24  # the last of the epoch
    assert len(seen) == 100 and len(set(seen)) == 100


def test_bad_shards_are_told_and_left(tmp_path):
    config = config_of(tmp_path, workers=1)
    (tmp_path / "1.tar").unlink()
    (tmp_path / "2.tar").write_bytes(b"no tar" * 1000)
    cut = (tmp_path / "3.tar").read_bytes()
    (tmp_path / "3.tar").write_bytes(cut[: len(cut) // 2 + 100])
    given, log = run(config, "--steps", 150)
    keys = {key for line in given[:-1] for key in line["keys"]}
    assert {f"0-{i:03d}" for i in range(40)} <= keys
    assert not any(key.startswith(("1-", "2-")) for key in keys)
    assert "1.tar" in log and "2.tar" in log and "3.tar" in log
    assert log.count("could not be read to their end") >= 1
    assert given[-1]["counts"]["laion"]["bad_shards"] >= 3


def resident_kib(process):
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


@pytest.mark.long
def test_memory_of_the_process_stays_flat(tmp_path):
    config = config_of(tmp_path, count=10, samples=500, workers=1)
    data = json.loads(config.read_text()) | {"shuffle": {"samples": 2000, "initial": 1000}}
    data["laion"] |= {"batch_size": 100, "num_samples": None}
    process = subprocess.Popen(command(write_config(tmp_path, **data), "--steps", 4000), stdout=subprocess.PIPE,
                               text=True)
    sizes = []
    for number, line in enumerate(process.stdout):
        if number in (1000, 3900):  # of 400,000 samples; it ends soon after the last
            sizes.append(resident_kib(process))
    assert process.wait(timeout=60) == 0
    assert sizes[1] <= sizes[0] + 10_000, sizes


# ------------------------------------------------------------------------------------------- S3


@pytest.fixture(scope="module")
def s3():
    with s3_server() as (client, variables):
        yield client, os.environ | variables


def test_shards_come_from_s3(s3, tmp_path):
    client, environment = s3
    local = config_of(tmp_path, workers=1)
    expected, _ = run(local, "--steps", 60)
    for number in range(4):
        client.upload_file(str(tmp_path / f"{number}.tar"), "data", f"shards/{number}.tar")
    away = tmp_path / "away"
    away.mkdir()
    data = json.loads(local.read_text())
    data["laion"]["shards"] = "s3://data/shards/{0..3}.tar"
    config = write_config(away, **data)
    given, _ = run(config, "--steps", 60, env=environment)
    assert given == expected

    # Resumed in the middle of a pass, which reads pipes again.
    state = away / "state.json"
    run(config, "--steps", 33, "--state", state, env=environment)
    again, _ = run(config, "--steps", 27, "--resume", state, env=environment)
    assert again[:-1] == expected[33:60]

    # An object that is gone is a shard that is left.
    client.delete_object(Bucket="data", Key="shards/2.tar")
    given, log = run(config, "--steps", 60, env=environment)
    assert not any(key.startswith("2-") for line in given[:-1] for key in line["keys"])
    assert "shards/2.tar" in log
