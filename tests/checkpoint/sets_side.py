"""PyTorch's side of checkpoints with two optimizers, on so many ranks.

    sets_side.py RANKS load DIRECTORY OUT ABOUT.json     loads a directory, writes what it found
    sets_side.py RANKS save TARGET OUT ABOUT.json        trains in turn, saves, writes what it saved

As torch_side.py has it; ABOUT.json has {"sets": {set: [names]}} besides.
"""

import json
import sys

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (get_model_state_dict, get_optimizer_state_dict,
                                                     set_model_state_dict, set_optimizer_state_dict)
from torch_side import build, run_ranks, wrap, write


def optimizers_of(model, about):
    parameters = dict(model.named_parameters())
    return {name: torch.optim.AdamW([
        {"params": [parameters[n] for n in names if n.endswith("weight")], "weight_decay": 0.1},
        {"params": [parameters[n] for n in names if not n.endswith("weight")], "weight_decay": 0.0},
    ], lr=1e-2, betas=(0.9, 0.99)) for name, names in about["sets"].items()}


def state_of(model, optimizers):
    return {"model": get_model_state_dict(model),
            "optimizers": {name: get_optimizer_state_dict(model, o) for name, o in optimizers.items()}}


def load(directory, out, about):
    model = wrap("fsdp2 by layer", build(about))
    optimizers = optimizers_of(model, about)
    state = state_of(model, optimizers)
    dcp.load(state, checkpoint_id=directory)
    set_model_state_dict(model, state["model"])
    for name, optimizer in optimizers.items():
        set_optimizer_state_dict(model, optimizer, state["optimizers"][name])
    write(state_of(model, optimizers), out)


def save(target, out, about):
    is_file = target.endswith(".pt")
    model = wrap("plain" if is_file else "fsdp2", build(about))
    optimizers = optimizers_of(model, about)
    for turn, name in enumerate(["a", "b", "a"]):
        model(torch.tensor(0.7 + turn)).backward()
        optimizers[name].step()
        model.zero_grad()
    state = state_of(model, optimizers)
    if is_file:  # numbered, as torch's own state_dict() has it
        numbered = {name: optimizer.state_dict() for name, optimizer in optimizers.items()}
        torch.save({"model": model.state_dict(), "optimizers": numbered}, target)
    else:
        dcp.save(state, checkpoint_id=target)
    write(state, out)


def work(action, target, out, about):
    torch.set_num_threads(1)
    with open(about) as file:
        {"load": load, "save": save}[action](target, out, json.load(file))


if __name__ == "__main__":
    run_ranks(int(sys.argv[1]), work, *sys.argv[2:])
