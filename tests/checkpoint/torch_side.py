"""PyTorch's side of the comparison: `torch_side.py JOBS`, a JSON list of

    [RANKS, "load", KIND, DIRECTORY, OUT, SHAPES.json]     loads a directory, writes what it found
    [RANKS, "save", KIND, DIRECTORY, OUT, SHAPES.json]     trains a step, saves, writes what it saved

OUT is an .npz of whole arrays under flat names. SHAPES.json: {"shapes": {name: shape}, "tied":
{other name: name}}.
"""

import json
import pathlib
import sys

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1
from torch.distributed.fsdp import OptimStateKeyType, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from torch_ranks import run_ranks


class Tree(torch.nn.Module):
    """Parameters under dotted names."""

    def add(self, name, parameter):
        here = self
        *parents, leaf = name.split(".")
        for parent in parents:
            if parent not in here._modules:
                here.add_module(parent, Tree())
            here = here._modules[parent]
        here.register_parameter(leaf, parameter)

    def forward(self, x):
        return sum((p * torch.sin(x * (i + 1))).sum() + (p ** 2).sum() for i, p in enumerate(self.parameters()))


def build(about):
    torch.manual_seed(5)
    tree = Tree()
    parameters = {name: torch.nn.Parameter(torch.randn(shape)) for name, shape in about["shapes"].items()}
    for name, parameter in parameters.items():
        tree.add(name, parameter)
    for other, name in about["tied"].items():
        tree.add(other, parameters[name])
    return tree


def optimizer_of(model):
    decaying = [p for n, p in model.named_parameters() if n.endswith("weight")]
    others = [p for n, p in model.named_parameters() if not n.endswith("weight")]
    return torch.optim.AdamW([{"params": decaying, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                             lr=1e-2, betas=(0.9, 0.99))


def wrap(kind, model):
    if kind == "fsdp2 by layer":
        for layer in model.layers.children():
            fully_shard(layer)
    if kind.startswith("fsdp2"):
        return fully_shard(model)
    if kind == "fsdp1":
        return FSDP1(model, use_orig_params=True, device_id=torch.device("cpu"))
    if kind.startswith("ddp"):
        return DDP(model)
    return model


def whole(tensor):
    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()
    elif hasattr(tensor, "local_shards"):
        full = torch.zeros(tensor.size())
        tensor.gather(0, full if dist.get_rank() == 0 else None)
        tensor = full
    return tensor.detach().cpu().numpy()


def flat(state, prefix=""):
    for key, value in state.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for i, item in enumerate(value):
                yield from flat(item, f"{prefix}{key}.{i}.")
        else:
            yield f"{prefix}{key}", value


def write(state, out):
    arrays, objects = {}, {}
    for name, value in flat(state):
        if torch.is_tensor(value) or hasattr(value, "local_shards"):
            arrays[name] = whole(value)
        else:
            objects[name] = value
    if not dist.is_initialized() or dist.get_rank() == 0:
        np.savez(out, **arrays, **{"objects": np.array(json.dumps(objects))})


def load(kind, directory, out, about):
    model = wrap(kind, build(about))
    optimizer = optimizer_of(model)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=directory)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    weights, moments = get_state_dict(model, optimizer)
    write({"model": weights, "optimizer": moments}, out)


def save(kind, directory, out, about):
    model = wrap(kind, build(about))
    optimizer = optimizer_of(model)
    for turn in range(2):
        model(torch.tensor(0.7 + turn)).backward()
        optimizer.step()
        optimizer.zero_grad()
    if kind == "ddp_raw":  # as many scripts do it: names with `module.`, numbered optimizer state
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 2}
    elif kind == "ddp_named":  # `module.` also in front of the names of the optimizer's state
        named = FSDP1.rekey_optim_state_dict(optimizer.state_dict(), OptimStateKeyType.PARAM_NAME, model, optim=optimizer)
        assert all(name.startswith("module.") for name in named["state"])
        state = {"model": model.state_dict(), "optimizer": named, "step": 2}
    elif kind in ("file", "file_raw"):
        weights = model.state_dict()
        state = {"epoch": 1, "model_state_dict": weights, "optimizer_state_dict": optimizer.state_dict(),
                 "lr_scheduler_state_dict": {}}
        torch.save(state if kind == "file" else weights, directory)
        write({"model": weights, "optimizer": get_state_dict(model, optimizer)[1]}, out)
        return
    else:
        weights, moments = get_state_dict(model, optimizer, options=StateDictOptions())
        state = {"model": weights, "optimizer": moments, "step": 2}
    dcp.save(state, checkpoint_id=directory)
    weights, moments = get_state_dict(model, optimizer)
    write({"model": weights, "optimizer": moments}, out)


def work(action, kind, directory, out, about):
    torch.set_num_threads(1)
    {"load": load, "save": save}[action](kind, directory, out, json.load(open(about)))


if __name__ == "__main__":
    for ranks, *job in json.loads(sys.argv[1]):
        run_ranks(ranks, work, *job)
