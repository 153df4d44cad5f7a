"""PyTorch is the reference of checkpoints with two sets: each is the state of a torch optimizer."""

import fnmatch
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import runs
import torch

SIDE = pathlib.Path(__file__).parent / "sets_side.py"
PATTERNS = {"a": ["layers.0.*", "layers.1.*"], "b": ["layers.1.*", "layers.2.*", "head.*"]}
SETS = dict(sets=" ".join(f"{name}:{','.join(patterns)}" for name, patterns in PATTERNS.items()), phase=2)


def torch_ranks(world, *arguments):
    done = subprocess.run([sys.executable, SIDE, str(world), *map(str, arguments)], timeout=240, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env=dict(os.environ, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES=""))
    assert done.returncode == 0, done.stdout


def names_in(dump, name):
    return [n for kind, n in dump if kind == "model" and any(fnmatch.fnmatch(n, p) for p in PATTERNS[name])]


def about_of(dump, path):
    shapes = {name: list(value.shape) for (kind, name), value in dump.items() if kind == "model"}
    path.write_text(json.dumps({"shapes": shapes, "tied": {}, "sets": {name: names_in(dump, name) for name in PATTERNS}}))
    return path


def flat_names(dump):
    """As PyTorch has them, with the values of a dump."""
    for (kind, name), value in dump.items():
        if kind == "model":
            yield f"model.{name}", value
        elif "/" in kind:
            name_of_set, key = kind.split("/")
            yield f"optimizers.{name_of_set}.state.{name}.{key}", np.float32(value) if key == "step" else value


def expect_same(found, dump):
    count = 0
    for name, value in flat_names(dump):
        assert np.array_equal(found[name], value), name
        count += name.startswith("optimizers.")
    assert count == 3 * sum(len(names_in(dump, name)) for name in PATTERNS)


@pytest.mark.parametrize("rest, strategy", [
    ("offload", "full_shard"), pytest.param("keep", "no_shard", marks=pytest.mark.long)])
def test_dcp_loads_two_sets(rest, strategy, tmp_path):
    runs.run(3, run=tmp_path, steps=3, save_every=3, content="full", rest=rest, strategy=strategy,
             dump=tmp_path / "dump", **SETS)
    dump = runs.read_dump(tmp_path / "dump", 3)
    about = about_of(dump, tmp_path / "about.json")
    torch_ranks(2, "load", tmp_path / "checkpoints/step_3", tmp_path / "out.npz", about)
    found = np.load(tmp_path / "out.npz")
    expect_same(found, dump)
    objects = json.loads(str(found["objects"]))
    for name in PATTERNS:
        assert objects[f"optimizers.{name}.param_groups.0.lr"] == 3e-3
        assert [objects[f"optimizers.{name}.param_groups.{g}.weight_decay"] for g in (0, 1)] == [0.1, 0]


@pytest.mark.parametrize("world, target", [(2, "theirs"), (1, "theirs.pt")])
def test_floe_loads_two_sets_of_torch(world, target, tmp_path):
    kind = dict(rest="offload", **SETS)
    runs.run(1, run=tmp_path / "shapes", steps=1, dump=tmp_path / "shapes_dump", **kind)
    about = about_of(runs.read_dump(tmp_path / "shapes_dump", 1), tmp_path / "about.json")
    torch_ranks(world, "save", tmp_path / target, tmp_path / "out.npz", about)
    theirs = np.load(tmp_path / "out.npz")
    ranks = runs.run(3, run=tmp_path / "run", steps=0, resume=tmp_path / target, dump_loaded=tmp_path / "loaded", **kind)
    assert ranks.resumed["resumed"] == 3 and ranks.resumed["anew"] == []  # two steps of a, one of b
    expect_same(theirs, runs.read_dump(tmp_path / "loaded", 3))


def torch_optimizer(names, parameters):
    groups = [[n for n in names if n.endswith("weight")], [n for n in names if not n.endswith("weight")]]
    return torch.optim.AdamW([{"params": [parameters[n] for n in group]} for group in groups])


@pytest.mark.parametrize("rest", ["offload", "drop"])
def test_a_file_in_openflamingos_layout(rest, tmp_path):
    """torch's own load_state_dict takes what it has of each set."""
    kind = dict(run=tmp_path, layout="trainable", rest=rest, **SETS)
    runs.run(2, steps=3, save_every=3, dump=tmp_path / "dump", **kind)
    dump = runs.read_dump(tmp_path / "dump", 2)
    file = torch.load(tmp_path / "checkpoints/checkpoint_3.pt", weights_only=True)
    assert "optimizer_state_dict" not in file and list(file["optimizer_state_dicts"]) == ["a", "b"]
    parameters = {n: torch.nn.Parameter(tensor.clone()) for n, tensor in file["model_state_dict"].items()}
    assert sorted(parameters) == sorted({*names_in(dump, "a"), *names_in(dump, "b")})
    for name, state in file["optimizer_state_dicts"].items():
        optimizer = torch_optimizer(names_in(dump, name), parameters)
        optimizer.load_state_dict(state)
        assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0]
        if (name, rest) == ("a", "drop"):
            assert state["state"] == {}
            continue
        for n in names_in(dump, name):
            assert np.array_equal(parameters[n].detach().numpy(), dump["model", n])
            for key in ("exp_avg", "exp_avg_sq", "step"):
                assert np.array_equal(optimizer.state[parameters[n]][key].numpy(), dump[f"{name}/{key}", n]), (key, n)
    expect_reload(kind, dump, tmp_path)


def test_a_full_file(tmp_path):
    kind = dict(run=tmp_path, layout="full", content="full", rest="offload", ema=0.9, **SETS)
    runs.run(2, steps=3, save_every=3, dump=tmp_path / "dump", **kind)
    dump = runs.read_dump(tmp_path / "dump", 2)
    file = torch.load(tmp_path / "checkpoints/step_3.pt", weights_only=True)
    for (what, name), value in dump.items():
        if what in ("model", "ema"):
            found = file["state_dict" if what == "model" else "ema"][name]
        else:
            name_of_set, key = what.split("/")
            found = file["optimizers"][name_of_set]["state"][name][key]
        assert np.array_equal(found.numpy(), value), (what, name)
    expect_reload(kind, dump, tmp_path)


def expect_reload(kind, dump, tmp_path):
    again = runs.run(3, steps=3, dump_loaded=tmp_path / "loaded", **kind)
    assert again.resumed["resumed"] == 3 and again.resumed["anew"] == []
    loaded = runs.read_dump(tmp_path / "loaded", 3)
    assert loaded.keys() == dump.keys()
    assert all(np.array_equal(loaded[key], value) for key, value in dump.items())
