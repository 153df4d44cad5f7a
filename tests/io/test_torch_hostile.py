"""Files made to do harm: each is refused in one sentence or read as plain data. Nothing runs, nothing
takes much memory or time.

Needs FLOE_BIN_DIR, the folder of built programs (torch_tool and safetensors_tool among them).
"""

import io
import os
import pathlib
import pickle
import resource
import struct
import subprocess
import sys
import zipfile

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from torch_tool import BIN, check_list, refusal, run, tool

MOST_MEMORY = 512 * 2**20  # bytes of address space; the inputs below have less than 20 MB


def archive(path, pickled, entries=None, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("x/data.pkl", pickled)
        for name, data in (entries or {"data/0": bytes(range(16))}).items():
            file.writestr("x/" + name, data)
    return path


def integer(value):
    return b"\x8a\x10" + value.to_bytes(16, "little", signed=True)


def tuple_of(values):
    return b"(" + b"".join(map(integer, values)) + b"t"


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def tensor(offset=0, shape=(4,), strides=(1,), numel=4, storage="FloatStorage", key="0"):
    """A call of _rebuild_tensor_v2 with any numbers."""
    identity = text("storage") + b"ctorch\n" + storage.encode() + b"\n" + text(key) + text("cpu") + integer(numel)
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n((" + identity + b"tQ" + integer(offset)
        + tuple_of(shape) + tuple_of(strides) + b"\x89ccollections\nOrderedDict\n)RtR"
    )  # fmt: skip


def file_with(tmp_path, opcodes):
    return archive(tmp_path / "hostile.pt", b"\x80\x02}" + text("t") + opcodes + b"s.")


def limited(path):
    """safetensors_tool list, with little memory."""

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))

    return subprocess.run(
        [BIN / "safetensors_tool", "list", path], capture_output=True, text=True, timeout=60, preexec_fn=limit
    )


class Call:
    """Pickles as a call of anything."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


class Built:
    """Pickles as an object with a state."""

    def __init__(self, state=None):
        self.state = state

    def __reduce__(self):
        return (Built, (), self.state)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_nothing_is_called(protocol, tmp_path):
    mark = tmp_path / "executed"
    hostile = {
        "system": Call(os.system, f"touch {mark}"),
        "run": Call(subprocess.check_output, ["touch", str(mark)]),
        "exec": Call(exec, f"open({str(mark)!r}, 'w')"),
        "open": Call(open, str(mark), "w"),
        "nested": [Call(getattr, Call(__import__, "os"), "system")],
        "state": Built({"x": Call(os.system, f"touch {mark}")}),
        "good": torch.arange(3),
    }
    torch.save(hostile, tmp_path / "hostile.pt", pickle_protocol=protocol)
    check_list(tmp_path / "hostile.pt", {"good": torch.arange(3)})
    shown = tool("tree", tmp_path / "hostile.pt")
    assert '"system"' in shown and f"touch {mark}" in shown  # it was seen, as data
    (tmp_path / "hostile.pkl").write_bytes(pickle.dumps({**hostile, "good": 1}, protocol))
    tool("pickle", tmp_path / "hostile.pkl")
    assert not mark.exists()
    # The same file does run where pickles are programs: the test would see it.
    torch.load(tmp_path / "hostile.pt", weights_only=False)
    assert mark.exists()


LARGE = 2**62

TENSORS = {
    "stride_negative": (dict(strides=(-1,)), "has -1 as strides"),
    "offset_negative": (dict(offset=-4), "has -4 as offset"),
    "shape_negative": (dict(shape=(-4,)), "has -4 as shape"),
    "beyond_by_shape": (dict(shape=(5,)), "reach beyond its storage of 4 elements"),
    "beyond_by_offset": (dict(offset=1), "reach beyond its storage"),
    "beyond_by_stride": (dict(shape=(2, 2), strides=(3, 1)), "reach beyond its storage"),
    "offset_wraps": (dict(offset=2**63 - 1, shape=(2,), strides=(2,)), "reach beyond its storage"),
    "offset_beyond_64_bits": (dict(offset=2**64), "as offset"),
    "stride_wraps": (dict(shape=(5,), strides=(LARGE,)), "reach beyond its storage"),
    "numel_wraps": (dict(shape=(LARGE, 4), strides=(0, 0)), "more than 2^63 bytes"),
    "numel_wraps_to_zero": (dict(shape=(2**32, 2**32), strides=(0, 0)), "more than 2^63 bytes"),
    "storage_too_small": (dict(numel=5, shape=(5,)), "has a storage of 5 elements of fp32"),
    "storage_huge": (dict(numel=LARGE, shape=(LARGE // 8,)), "has a storage of 4611686018427387904"),
    "storage_negative": (dict(numel=-1), "has -1 as size of its storage"),
    "storage_missing": (dict(key="1"), 'zip entry "x/data/1", which is missing'),
    "storage_elsewhere": (dict(key="../../etc/passwd"), "which is missing"),
    "rank_differs": (dict(shape=(2, 2)), "but strides [1]"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_impossible_tensors(name, tmp_path):
    fields, reason = TENSORS[name]
    message = refusal(file_with(tmp_path, tensor(**fields)))
    assert 'tensor "t" ' in message and reason in message


def test_an_expanded_tensor_takes_no_memory_until_it_is_read(tmp_path):
    path = file_with(tmp_path, tensor(shape=(2**40,), strides=(0,)))
    assert tool("refused", path) == ""


def bomb_of_memo():
    """2^200 lists, as a tree."""
    opcodes = tensor()
    for i in range(200):
        opcodes += b"q" + bytes([i]) + b"0(h" + bytes([i]) + b"h" + bytes([i]) + b"l"
    return opcodes


PICKLES = {
    "deep_lists": (b"]" * 2_000_000 + b"a" * 1_999_999, "nested too deeply"),
    "deep_tuples": (b"N" + b"\x85" * 2_000_000, "nested too deeply"),
    "deep_objects": (b"ca\nb\n" + b"\x85ca\nb\n\x86" * 500_000, "nested too deeply"),
    "deep_marks": (b"(" * 2_000_000, "takes a value from an empty stack"),
    "cycle": (b"]q\0h\0a", "contains itself"),
    "cycle_through_a_call": (b"]q\0ca\nb\nh\0\x85Ra", "contains itself"),
    "bomb_of_memo": (bomb_of_memo(), "far larger than the file"),
    "bomb_of_names": (b"}" + text("k" * 100_000) + b"]q\1(" + tensor() + b"q\2" + b"h\2" * 100_000 + b"es", "far larger"),
    "huge_text": (b"\x8d" + struct.pack("<Q", 2**62), "is cut off"),
    "huge_bytes": (b"\x8e" + struct.pack("<Q", 2**64 - 1), "is cut off"),
    "huge_number": (b"\x8b" + struct.pack("<I", 2**32 - 1), "is cut off"),
    "huge_memo": (b"Nr\xff\xff\xff\xff" + b"j\xff\xff\xff\xfe", "which was never put"),
    "extension": (b"\x82\x01", "an opcode that floe does not read"),
    "control_in_name": (b"c\x1b[2J\nname\n", "imports a name that is none"),
}


@pytest.mark.parametrize("name", PICKLES)
def test_pickles_that_would_take_all(name, tmp_path):
    opcodes, reason = PICKLES[name]
    done = limited(file_with(tmp_path, opcodes))
    assert done.returncode == 1 and done.stdout == "", done.stderr[:500]
    assert reason in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr[:500]
    assert len(done.stderr) < 1000


def test_what_is_no_archive(tmp_path):
    for name, data, reason in [
        ("empty.pt", b"", "does not begin like a zip archive"),
        ("text.bin", b"version https://git-lfs.github.com/spec/v1\n", "does not begin like a zip archive"),
        ("pickle.pt", pickle.dumps([1]), "does not begin like a zip archive"),
        ("magic.pt", b"PK\3\4" + bytes(100), "has no end record"),
    ]:
        (tmp_path / name).write_bytes(data)
        assert reason in refusal(tmp_path / name)
    assert "compressed" in refusal(archive(tmp_path / "c.pt", b"\x80\x02N.", method=zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as file:
        file.writestr("readme.txt", "hello")
    assert 'has no entry "data.pkl"' in refusal(tmp_path / "other.zip")


def test_every_flipped_byte_is_survived(tmp_path):
    """Whatever one damaged byte of an archive does, it is no crash."""
    buffer = io.BytesIO()
    torch.save({"a": torch.arange(4.0).reshape(2, 2).t(), "b": [torch.ones(2).bfloat16()]}, buffer)
    whole = buffer.getvalue()
    step = 7  # every byte takes minutes; tests/fuzz does the rest
    for at in range(0, len(whole), step):
        (tmp_path / "flipped.pt").write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        done = run("safetensors_tool", "list", tmp_path / "flipped.pt")
        assert done.returncode in (0, 1), (at, done.stderr)
        assert len(done.stderr.splitlines()) == done.returncode
