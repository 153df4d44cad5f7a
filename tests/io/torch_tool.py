"""Running torch_tool and safetensors_tool, and what their JSON should be for a Python value."""

import collections
import json
import os
import subprocess
from pathlib import Path

import torch

BIN = Path(os.environ["FLOE_BIN_DIR"])

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def run(program, *words):
    return subprocess.run([BIN / program, *map(str, words)], capture_output=True, text=True, timeout=600)


def tool(*words):
    done = run("torch_tool", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tree(path):
    return json.loads(tool("tree", path))


def refusal(path):
    """The one line that says why the file cannot be opened."""
    done = run("safetensors_tool", "list", path)
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1, done.stderr
    assert Path(path).name in done.stderr
    return done.stderr


def raw(tensor):
    return tensor.detach().flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy().tobytes()


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def check_list(path, tensors):
    """open_tensors finds exactly these tensors, bit for bit."""
    done = run("safetensors_tool", "list", path)
    assert done.returncode == 0, done.stderr
    seen = {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert seen.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert seen[name]["dtype"] == DTYPES[tensor.dtype]
        assert seen[name]["shape"] == list(tensor.shape)
        assert seen[name]["hash"] == fnv1a(raw(tensor)), name


def as_json(value):
    """What `torch_tool tree` says about this value (bytes and big numbers need protocol 3 and more)."""
    if isinstance(value, torch.Tensor):
        return ["tensor", DTYPES[value.dtype], list(value.shape), raw(value).hex()]
    if value is None:
        return ["none"]
    if isinstance(value, bool):
        return ["bool", value]
    if isinstance(value, int):
        if -(2**63) <= value < 2**63:
            return ["int", str(value)]
        return ["big", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True).hex()]
    if isinstance(value, float):
        return ["float", value]
    if isinstance(value, str):
        return ["text", value]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, list):
        return ["list", [as_json(item) for item in value]]
    if isinstance(value, tuple):
        return ["tuple", [as_json(item) for item in value]]
    entries = [[as_json(key), as_json(item)] for key, item in value.items()]
    if isinstance(value, collections.OrderedDict):
        return {
            "object": "reduce",
            "callable": ["global", "collections", "OrderedDict"],
            "args": ["tuple", []],
            "items": [],
            "entries": entries,
            "state": None,
        }
    assert isinstance(value, dict)
    return ["dict", entries]


def with_floats(value):
    """The tool writes floats in hexadecimal, so that every bit is there."""
    if isinstance(value, list) and len(value) == 2 and value[0] == "float":
        return ["float", float.fromhex(value[1])]
    if isinstance(value, list):
        return [with_floats(item) for item in value]
    if isinstance(value, dict):
        return {key: with_floats(item) for key, item in value.items()}
    return value


def same(a, b):
    """Equal in type, content and every bit of a tensor."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b
