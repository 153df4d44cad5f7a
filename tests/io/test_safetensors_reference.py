"""The safetensors package is the reference: floe reads what it writes, and it reads what floe writes.

Needs FLOE_BIN_DIR, the folder of built programs (safetensors_tool among them).
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch_tool import DTYPES

TOOL = Path(os.environ["FLOE_BIN_DIR"]) / "safetensors_tool"


def tool(*words):
    return subprocess.run([TOOL, *map(str, words)], capture_output=True, text=True, timeout=120)


def raw(tensor):
    return bytes(tensor.contiguous().flatten().view(torch.uint8).tolist())


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def some_tensors():
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for dtype, name in DTYPES.items():
        for shape in [(3,), (2, 5), (1, 1, 7), (0, 4), ()]:
            numbers = torch.randint(0, 2, shape, generator=generator)
            tensors[f"{name}.{'x'.join(map(str, shape))}"] = numbers.to(dtype)
    tensors['odd "name"\n\u00e9\u6c34'] = torch.arange(6, dtype=torch.int32)
    return tensors


@pytest.fixture
def theirs(tmp_path):
    tensors = some_tensors()
    save_file(tensors, tmp_path / "theirs.safetensors", metadata={"format": "pt", "k": "\u00e9"})
    return tmp_path / "theirs.safetensors", tensors


def check_list(path, tensors):
    done = tool("list", path)
    assert done.returncode == 0, done.stderr
    seen = {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert seen.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert seen[name]["dtype"] == DTYPES[tensor.dtype]
        assert seen[name]["shape"] == list(tensor.shape)
        assert seen[name]["hash"] == fnv1a(raw(tensor))


def test_we_read_theirs(theirs):
    check_list(*theirs)


def test_they_read_ours(theirs, tmp_path):
    path, tensors = theirs
    done = tool("copy", path, tmp_path / "ours.safetensors")
    assert done.returncode == 0, done.stderr
    ours = load_file(tmp_path / "ours.safetensors")
    assert ours.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert ours[name].dtype == tensor.dtype and ours[name].shape == tensor.shape
        assert raw(ours[name]) == raw(tensor)
    with safe_open(tmp_path / "ours.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt", "k": "\u00e9"}


def test_folder_of_shards(tmp_path):
    tensors = some_tensors()
    weight_map = {}
    for number, part in enumerate([list(tensors)[:20], list(tensors)[20:]]):
        shard = f"model-{number + 1:05d}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, tmp_path / shard)
        weight_map |= dict.fromkeys(part, shard)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    check_list(tmp_path, tensors)


def with_header(header, data=b"0123"):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype="U8", shape=(4,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}

BAD = {
    "empty": b"",
    "short": b"1234567",
    "cut": with_header({"t": entry()})[:-1],
    "bytes_left": with_header({"t": entry()}, b"01234"),
    "beyond": with_header({"t": entry(shape=[5], offsets=[0, 5])}),
    "size_differs": with_header({"t": entry(dtype="F32", shape=[2])}),
    "overlap": with_header({"t": entry(), "u": entry()}),
    "hole": with_header({"t": entry(shape=[1], offsets=[0, 1]), "u": entry(shape=[2], offsets=[2, 4])}),
    "negative": with_header({"t": entry(shape=[-4])}),
    "overflow": with_header({"t": entry(shape=[2**32, 2**32], offsets=[0, 0])}, b""),
    "metadata": with_header({"__metadata__": {"a": 1}}, b""),
    "dtype": with_header({"t": entry(dtype="F128")}),
}


@pytest.mark.parametrize("name", BAD)
def test_both_refuse(name, tmp_path):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(BAD[name])
    with pytest.raises((SafetensorError, OSError)):
        load_file(path)
    done = tool("list", path)
    assert done.returncode == 1
    assert "bad.safetensors" in done.stderr and len(done.stderr.splitlines()) == 1
