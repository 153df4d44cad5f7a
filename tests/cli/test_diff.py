"""`floe diff`: between any two kinds of files, with the numbers that torch gives."""

import json
import pathlib
import sys

import pytest
import torch
from safetensors.torch import save_file

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from checkpoints import save_dcp


@pytest.fixture
def diff(floe):
    def run(*words, code):
        done = floe("diff", *map(str, words), "--json")
        assert done.returncode == code and done.stderr == "", (done.returncode, done.stderr)
        return json.loads(done.stdout)

    return run


def state():
    generator = torch.Generator().manual_seed(1)
    return {
        "w": torch.randn(70, 50, generator=generator),
        "b": torch.randn(9, generator=generator).bfloat16(),
        "n": torch.tensor([2**60, 2**60 + 1]),
        "flags": torch.tensor([True, False]),
        "nan": torch.tensor([float("nan"), 1.0]),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3.0),
    }


def test_kinds_of_files_compare(diff, tmp_path):
    save_dcp(state(), tmp_path / "dcp")
    torch.save(state(), tmp_path / "a.pt")
    (tmp_path / "hf").mkdir()
    save_file(state(), tmp_path / "hf/model.safetensors")
    for other in ("a.pt", "hf", "hf/model.safetensors"):
        found = diff(tmp_path / "dcp", tmp_path / other, code=0)
        assert found == {"equal": True, "num_equal": 7, "differences": []}


def test_differences_are_measured(diff, tmp_path):
    a, b = state(), state()
    b["w"][3, 4] += 0.5
    b["w"][69, 49] -= 2.0
    b["n"][1] += 1  # not visible to a double
    b["flags"][0] = False
    b["nan"][1] = float("nan")
    b["b"] = b["b"].float()
    b["scalar"] = torch.tensor([3.0])
    b["new"] = b.pop("empty")
    save_dcp(a, tmp_path / "a")
    torch.save(b, tmp_path / "b.pt")
    found = diff(tmp_path / "a", tmp_path / "b.pt", code=1)
    rows = {row["name"]: row for row in found["differences"]}
    assert {name: row["kind"] for name, row in rows.items()} == {
        "w": "values", "n": "values", "flags": "values", "nan": "values", "b": "type",
        "scalar": "shape", "new": "only_in_b", "empty": "only_in_a",
    }  # fmt: skip
    apart = (a["w"].double() - b["w"].double()).abs()
    assert rows["w"]["num_differing"] == 2 and rows["w"]["numel"] == 3500
    assert rows["w"]["max_abs"] == pytest.approx(apart.max().item(), rel=1e-12)
    relative = apart / torch.maximum(a["w"].double().abs(), b["w"].double().abs())
    assert rows["w"]["max_relative"] == pytest.approx(relative.max().item(), rel=1e-12)
    assert rows["n"]["num_differing"] == 1 and rows["flags"]["num_differing"] == 1
    assert rows["nan"]["num_differing"] == 1 and rows["nan"]["max_abs"] is None
    assert rows["b"]["num_differing"] == 0 and rows["b"]["b"] == "fp32 [9]"
    assert rows["scalar"]["a"] == "fp32 []" and rows["scalar"]["b"] == "fp32 [1]"


def test_tolerance(diff, tmp_path):
    a, b = {"w": torch.zeros(4)}, {"w": torch.tensor([0.0, 1e-3, 0.0, -2e-3])}
    save_file(a, tmp_path / "a.safetensors")
    save_file(b, tmp_path / "b.safetensors")
    paths = (tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert diff(*paths, "--tolerance", "0.0015", code=1)["differences"][0]["num_differing"] == 1
    assert diff(*paths, "--tolerance", "0.0021", code=0)["equal"]


def test_weights_alone(diff, floe, tmp_path):
    x = torch.randn(3)
    save_dcp({"model": {"x": x}, "optimizer": {"m": x}}, tmp_path / "a")
    save_file({"x": x}, tmp_path / "b.safetensors")
    diff(tmp_path / "a", tmp_path / "b.safetensors", code=1)
    diff(tmp_path / "a", tmp_path / "b.safetensors", "--weights", code=0)
    text = floe("diff", tmp_path / "a", tmp_path / "b.safetensors").stdout.splitlines()
    assert text[0].startswith("only in A  model.x  fp32 [3]") and text[-1] == "0 tensors are equal, 3 differ"


def test_usage(floe, tmp_path):
    done = floe("diff", tmp_path)
    assert done.returncode == 2 and "floe diff A B" in done.stderr
    assert floe("diff", tmp_path / "x", tmp_path / "y").returncode == 2
