"""Every example runs on two real ranks, and the demo says what it promises."""
import os
import re
import subprocess
from pathlib import Path

import pytest

BIN = Path(os.environ["FLOE_BIN_DIR"])
SOURCE = Path(os.environ["FLOE_SOURCE_DIR"])


def launch(program, ranks=2):
    return subprocess.run([BIN / "floe", "launch", "-n", str(ranks), "--exec", BIN / program],
                          capture_output=True, text=True, timeout=240)


def losses(text):
    return [float(x) for x in re.findall(r"loss ([0-9.]+)", text)]


def bytes_of(text):
    number, unit = text.split()
    return float(number) * {"B": 1, "KiB": 2**10, "MiB": 2**20}[unit]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_shard_mlp(ranks):
    done = launch("shard_mlp", ranks)
    assert done.returncode == 0, done.stderr
    values = losses(done.stdout)
    assert len(values) == 4 and values[-1] < values[0]
    assert len(re.findall(r"holds .* between steps", done.stdout)) == ranks


def test_shard_mlp_is_short():
    assert len((SOURCE / "examples" / "shard_mlp.cc").read_text().splitlines()) < 60


@pytest.mark.parametrize("path", sorted((SOURCE / "examples").glob("*.cc")), ids=lambda p: p.name)
def test_examples_are_short(path):
    assert len(path.read_text().splitlines()) < 150


def test_foreign_encoder():
    done = launch("foreign_encoder")
    assert done.returncode == 0, done.stderr
    hooked = losses("\n".join(l for l in done.stdout.splitlines() if "hooked" in l))
    closed = losses("\n".join(l for l in done.stdout.splitlines() if "closed" in l))
    assert len(hooked) == 2 and len(closed) == 2
    assert hooked[1] < hooked[0] and closed[1] < closed[0]


def test_partly_frozen_transformer():
    done = launch("partly_frozen_transformer")
    assert done.returncode == 0, done.stderr
    values = losses(done.stdout)
    assert values[-1] < 0.8 * values[0]
    agree, percent = re.search(r"losses agree to ([0-9.e+-]+), and a rank needs (\d+)%", done.stdout).groups()
    assert float(agree) <= 1e-5
    assert int(percent) < 85


@pytest.mark.parametrize("ranks", [1, 2])
def test_phases(ranks):
    done = launch("phases", ranks)
    assert done.returncode == 0, done.stderr
    size = r"([0-9.]+ \w+)"
    rows = re.findall(rf"(\w[\w ]*?) +([0-9.]+) -> ([0-9.]+) +{size} +{size} +{size}", done.stdout)
    turns = [(row[0], *map(float, row[1:3]), *map(bytes_of, row[3:])) for row in rows]
    assert [turn[0] for turn in turns] == [*["layer1", "layer2"] * 3, *["discriminator", "generator"] * 3,
                                           "head", "and layer2", "and layer1"]
    assert all(last < first for _, first, last, *_ in turns)
    in_turn = turns[:6]
    states = {name: state for name, _, _, _, state, _ in in_turn}
    for (name, _, _, peak, state, stored), (other, *_) in zip(in_turn[2:], in_turn[1:]):
        # Only its own state is on the device, the other's is in the store, and a later turn needs no more.
        assert state == states[name] and stored == states[other]
        assert peak <= max(turn[3] for turn in in_turn[:2] if turn[0] == name)
    assert all(stored == 0 for *_, stored in turns[6:])


def demo(*words, **settings):
    return subprocess.run(["bash", SOURCE / "examples" / "demo.sh", *words], capture_output=True, text=True,
                          timeout=300, env={**os.environ, "FLOE_BIN_DIR": str(BIN), **settings})


def test_demo_removes_no_run_of_the_user(tmp_path):
    kept = tmp_path / "runs" / "demo" / "metrics.jsonl"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}\n")
    done = demo(tmp_path)
    assert done.returncode == 2
    assert done.stderr == (f"demo: {tmp_path}/runs/demo is there and not from an earlier demo; move it away, "
                           "or name another folder to work in\n")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["demo"]
    assert kept.read_text() == "{}\n"


@pytest.mark.parametrize("words, said", [(["a", "b"], "takes one folder to work in, got 2 words"),
                                         (["--help"], "takes a folder to work in, not options, got '--help'")])
def test_demo_refuses(words, said, tmp_path):
    done = demo(*words)
    assert done.returncode == 2
    assert done.stderr == f"demo: {said}\n"
