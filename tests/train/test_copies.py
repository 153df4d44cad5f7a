"""dist.verify_every_steps: a bit that changes in the memory of one rank is found, and not saved."""

import re
import struct
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from running import GOLDENS, command, environment, rank_process, wait_for_steps  # noqa: E402


def frozen_bytes():
    """Some of a weight that does not train, as fp32, which is how the job holds it."""
    from safetensors.numpy import load_file

    (path,) = (GOLDENS / "neox_x2" / "lm").glob("*.safetensors")
    tensors = load_file(path)
    name = next(name for name in sorted(tensors) if name.endswith("mlp.dense_h_to_4h.weight"))
    return tensors[name].astype("float32").tobytes()[:256]


def flip_in_memory(pid, wanted):
    """The lowest bit of the first word, wherever these bytes lie in memory that the process may write."""
    count = 0
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            first, last, rights = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+)", line).groups()
            if not rights.startswith("rw"):
                continue
            first, last = int(first, 16), int(last, 16)
            try:
                memory.seek(first)
                held = memory.read(last - first)
            except OSError:
                continue
            at = held.find(wanted)
            while at >= 0:
                (word,) = struct.unpack("<I", wanted[:4])
                memory.seek(first + at)
                memory.write(struct.pack("<I", word ^ 1))
                count += 1
                at = held.find(wanted, at + 1)
    return count


def run_with_a_flipped_bit(config, folder, *words):
    """A run whose second rank has another bit from some step on, until it has ended: exit code, what it said."""
    words = [config, f"run.dir={folder}", "run.name=run", "strategy=no_shard", *words]
    process = subprocess.Popen(command(words, 2), env=environment(), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    process.folder = folder / "run"
    try:
        wait_for_steps(process, 5)
        assert flip_in_memory(rank_process(process.pid, 1), frozen_bytes()) > 0
        _, said = process.communicate(timeout=120)
    finally:
        process.kill()
    return process.returncode, said


def test_a_flipped_bit_ends_the_run_before_it_is_saved(endless, tmp_path):
    code, said = run_with_a_flipped_bit(endless, tmp_path, "dist.verify_every_steps=50",
                                        "checkpoint.every_steps=100000")
    assert code == 1, said
    assert "rank 1 has other values than rank 0" in said, said
    assert "start again from the newest checkpoint" in said
    assert not list((tmp_path / "run").glob("checkpoints/*")), "nothing wrong may be saved"


def test_without_it_the_run_goes_on(endless, tmp_path):
    code, said = run_with_a_flipped_bit(endless, tmp_path, "dist.verify_every_steps=null", "train.steps=300")
    assert code == 0, said
