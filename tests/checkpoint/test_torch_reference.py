"""PyTorch is the reference: it loads what floe saves and floe loads what it saves, bit for bit, with the
optimizer's state."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import runs
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

SIDE = pathlib.Path(__file__).parent / "torch_side.py"


def torch_side(*jobs):
    """Several at once: starting Python's torch takes longer than any of them."""
    done = subprocess.run([sys.executable, SIDE, json.dumps(jobs, default=str)], timeout=240, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env=dict(os.environ, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES=""))
    assert done.returncode == 0, done.stdout


def about_of(dump, tied, path):
    shapes = {name: list(value.shape) for (kind, name), value in dump.items() if kind == "model"}
    path.write_text(json.dumps({"shapes": shapes, "tied": {"head.weight": "embed.weight"} if tied else {}}))
    return path


def names_of(dump):
    """Flat names as PyTorch has them, with the values of a dump."""
    for (kind, name), value in dump.items():
        if kind == "model":
            yield f"model.{name}", value
        elif kind == "ema":
            yield f"ema.{name}", value
        else:
            yield f"optimizer.state.{name}.{kind}", np.float32(value) if kind == "step" else value


@pytest.fixture(scope="module", params=[
    dict(world=2), dict(world=3, tied=1), dict(world=4, strategy="hybrid", hybrid=2), dict(world=2, strategy="no_shard"),
], ids=["2", "3 tied", "4 hybrid", "2 no_shard"])
def saved(request, tmp_path_factory):
    """A directory of floe with everything, and what was in memory when it was saved."""
    folder = tmp_path_factory.mktemp("saved")
    runs.run(run=folder, steps=3, save_every=3, content="full", ema=0.9, dump=folder / "dump", **request.param)
    dump = runs.read_dump(folder / "dump", request.param["world"])
    about = about_of(dump, "tied" in request.param, folder / "about.json")
    return folder / "checkpoints/step_3", dump, about


def test_plain_dict(saved):
    directory, dump, _ = saved
    nested = {"model": {}, "ema": {}, "optimizer": {"state": {}}}
    for (kind, name), value in dump.items():
        empty = torch.full(np.shape(value), -7.0)
        if kind in ("model", "ema"):
            nested[kind][name] = empty
        else:
            nested["optimizer"]["state"].setdefault(name, {})[kind] = empty
    dcp.load(nested, checkpoint_id=directory)
    for (kind, name), value in dump.items():
        found = nested[kind][name] if kind in ("model", "ema") else nested["optimizer"]["state"][name][kind]
        assert np.array_equal(found.numpy(), value), (kind, name)


@pytest.fixture(scope="module")
def loaded(saved, tmp_path_factory):
    """What FSDP2 has after loading it, by the number of ranks."""
    directory, _, about = saved
    outs = {world: tmp_path_factory.mktemp("loaded") / "out.npz" for world in (2, 3)}
    torch_side(*([world, "load", "fsdp2 by layer", directory, out, about] for world, out in outs.items()))
    return {world: np.load(out) for world, out in outs.items()}


@pytest.mark.parametrize("world", [2, 3])
def test_fsdp2(saved, loaded, world):
    _, dump, _ = saved
    found = loaded[world]
    expected = {name: value for name, value in names_of(dump) if not name.startswith("ema.")}
    assert expected.keys() <= set(found.files)
    for name, value in expected.items():
        assert np.array_equal(found[name], value), name
    objects = json.loads(str(found["objects"]))
    assert objects["optimizer.param_groups.0.lr"] == 3e-3
    assert objects["optimizer.param_groups.0.weight_decay"] == 0.1
    assert objects["optimizer.param_groups.1.weight_decay"] == 0
    assert objects["optimizer.param_groups.0.betas"] == [0.9, 0.99]


def test_to_one_file(saved, tmp_path):
    directory, dump, _ = saved
    dcp_to_torch_save(directory, tmp_path / "whole.pt")
    state = torch.load(tmp_path / "whole.pt", weights_only=True)
    for (kind, name), value in dump.items():
        found = state[kind][name] if kind in ("model", "ema") else state["optimizer"]["state"][name][kind]
        assert np.array_equal(found.numpy(), value), (kind, name)
    assert [sorted(group["params"]) for group in state["optimizer"]["param_groups"]] == [
        sorted(n for k, n in dump if k == "exp_avg" and n.endswith("weight")),
        sorted(n for k, n in dump if k == "exp_avg" and not n.endswith("weight"))]


def test_meta_in_the_manner_of_lightning(saved):
    directory, _, _ = saved
    meta = torch.load(directory / "meta.pt", weights_only=True)
    assert meta["global_step"] == 3 and meta["epoch"] == 0
    assert meta["hyper_parameters"] == {"lr": 3e-3, "name": "tool"}
    assert meta["lr_schedulers"] == [{"last_epoch": 3, "base_lrs": [3e-3, 3e-3]}]
    assert meta["floe"]["state"]["step"] == 3


@pytest.mark.parametrize("world, strategy", [(1, "no_shard"), (3, "full_shard")])
def test_a_file_in_openflamingos_layout(world, strategy, tmp_path):
    """torch's own load_state_dict takes every part of it."""
    kind = dict(run=tmp_path, layout="trainable", strategy=strategy, tied=1, ema=0.9)
    runs.run(world, steps=3, save_every=3, dump=tmp_path / "dump", **kind)
    dump = runs.read_dump(tmp_path / "dump", world)
    file = torch.load(tmp_path / "checkpoints/checkpoint_3.pt", weights_only=True)
    assert file["epoch"] == 0
    names = [name for part, name in dump if part == "model"]
    assert list(file["model_state_dict"]) == names
    parameters = {name: torch.nn.Parameter(torch.zeros(dump["model", name].shape)) for name in names}
    groups = [[n for n in names if n.endswith("weight")], [n for n in names if not n.endswith("weight")]]
    optimizer = torch.optim.AdamW([{"params": [parameters[n] for n in group]} for group in groups])
    optimizer.load_state_dict(file["optimizer_state_dict"])
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    scheduler.load_state_dict(file["lr_scheduler_state_dict"])
    theirs = torch.optim.lr_scheduler.LambdaLR(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))]), lambda step: 1.0)
    for _ in range(3):
        theirs.optimizer.step()
        theirs.step()
    assert (scheduler.last_epoch, scheduler._step_count) == (theirs.last_epoch, theirs._step_count) == (3, 4)
    for name in names:
        assert np.array_equal(file["model_state_dict"][name].numpy(), dump["model", name])
        for part in ("exp_avg", "exp_avg_sq", "step"):
            assert np.array_equal(optimizer.state[parameters[name]][part].numpy(), dump[part, name]), (part, name)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0]
    again = runs.run(2, steps=3, dump_loaded=tmp_path / "loaded", **{**kind, "strategy": "full_shard"})
    assert again.resumed["resumed"] == 3
    loaded = runs.read_dump(tmp_path / "loaded", 2)
    assert all(np.array_equal(loaded[key], value) for key, value in dump.items())


def test_a_full_file(tmp_path):
    runs.run(2, run=tmp_path, layout="full", content="full", trainable="*.adapter.*", ema=0.9, steps=3, save_every=3,
             dump=tmp_path / "dump")
    dump = runs.read_dump(tmp_path / "dump", 2)
    file = torch.load(tmp_path / "checkpoints/step_3.pt", weights_only=True)
    assert file["global_step"] == 3
    for (kind, name), value in dump.items():
        found = {"model": file["state_dict"], "ema": file["ema"]}.get(kind, file["optimizer"]["state"].get(name))
        assert np.array_equal(found[name if kind in ("model", "ema") else kind].numpy(), value), (kind, name)


THEIRS = [("fsdp2", 2, 0), ("fsdp2", 3, 1), ("fsdp1", 2, 0), ("ddp", 2, 1), ("ddp_raw", 2, 0), ("ddp_named", 2, 1),
          ("file", 1, 1), ("file_raw", 1, 0)]


@pytest.fixture(scope="module")
def saved_by_torch(tmp_path_factory):
    """{case: (what torch saved, the same as arrays)}"""
    folder = tmp_path_factory.mktemp("theirs")
    abouts = {}
    for tied in (0, 1):
        runs.run(1, run=folder / f"shapes{tied}", steps=1, tied=tied, dump=folder / f"dump{tied}")
        abouts[tied] = about_of(runs.read_dump(folder / f"dump{tied}", 1), tied, folder / f"about{tied}.json")
    places = {case: (folder / (f"{i}.pt" if case[0].startswith("file") else f"{i}"), folder / f"{i}.npz")
              for i, case in enumerate(THEIRS)}
    torch_side(*([world, "save", kind, *places[kind, world, tied], abouts[tied]] for kind, world, tied in THEIRS))
    return {case: (target, np.load(out)) for case, (target, out) in places.items()}


@pytest.mark.parametrize("kind, world, tied", THEIRS)
def test_floe_loads_what_torch_saved(kind, world, tied, saved_by_torch, tmp_path):
    target, theirs = saved_by_torch[kind, world, tied]
    for floe_world, strategy in [(1, "no_shard"), (3, "full_shard")]:
        ranks = runs.run(floe_world, run=tmp_path / f"run{floe_world}", steps=0, resume=target, tied=tied,
                         strategy=strategy, hybrid=1, dump_loaded=tmp_path / "loaded")
        bare = kind == "file_raw"
        assert ranks.resumed["resumed"] == (0 if bare else 2)
        assert ranks.resumed["optimizer"] == (not bare)
        for name, value in names_of(runs.read_dump(tmp_path / "loaded", floe_world)):
            if not (bare and name.startswith("optimizer")):
                assert np.array_equal(theirs[name], value), name
