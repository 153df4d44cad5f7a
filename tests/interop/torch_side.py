"""Loaders of PyTorch and Lightning on ranks of their own: `torch_side.py JOBS`, a JSON list of

    [RANKS, KIND, CHECKPOINT, LM, OUT]

LM is the Hugging Face folder that was trained, CHECKPOINT what `floe train` wrote. Each job builds the model with other
weights and an AdamW that has made a step, loads, and writes what it then has to OUT, whole tensors under flat names. KIND:

    dcp          FSDP2, get_state_dict, torch.distributed.checkpoint.load
    fabric       Fabric.load of a folder under ModelParallelStrategy, which reads meta.pt as well
    fabric file  the same of one file (state_dict_type: full)
"""

import json
import os
import pathlib
import sys

import torch
import torch.distributed.checkpoint as dcp
import transformers as tf
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from lightning.fabric.strategies import ModelParallelStrategy
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from torch_ranks import run_ranks


def build(lm):
    """With other numbers in every weight."""
    torch.manual_seed(1)
    model = tf.AutoModelForCausalLM.from_config(tf.AutoConfig.from_pretrained(lm))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(-7.0)
    return model


def shard(model, mesh=None):
    mesh = mesh["data_parallel"] if mesh else None
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def optimizer_of(model):
    """With a state, as if it had trained."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    model(input_ids=torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss.backward()
    optimizer.step()
    return optimizer


def write(out, model, optimizer, **more):
    weights, moments = get_state_dict(model, optimizer)
    tensors = {f"model.{name}": value for name, value in weights.items()}
    for name, entries in moments["state"].items():
        tensors |= {f"optimizer.state.{name}.{key}": value for key, value in entries.items()}
    whole = {name: getattr(value, "full_tensor", lambda value=value: value)().contiguous() for name, value in tensors.items()}
    if torch.distributed.get_rank() == 0:
        lr = [group["lr"] for group in optimizer.param_groups]
        save_file(whole, out, metadata={"about": json.dumps({"lr": lr, **more})})


def by_dcp(checkpoint, lm, out):
    model = shard(build(lm))
    optimizer = optimizer_of(model)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=checkpoint)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    write(out, model, optimizer)


def by_fabric(checkpoint, lm, out, key):
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world), TORCHELASTIC_RUN_ID="")
    fabric = Fabric(accelerator="cpu", devices=world, plugins=[TorchElasticEnvironment()],
                    strategy=ModelParallelStrategy(shard, data_parallel_size=world, tensor_parallel_size=1))  # fmt: skip
    fabric.launch()
    model = fabric.setup(build(lm))
    optimizer = fabric.setup_optimizers(optimizer_of(model))
    state = {key: model, "optimizer": optimizer, "global_step": -1}
    rest = fabric.load(checkpoint, state, weights_only=True)
    write(out, model._forward_module, optimizer.optimizer, global_step=state["global_step"], rest=sorted(rest))


def work(kind, checkpoint, lm, out):
    torch.set_num_threads(1)
    if kind == "dcp":
        by_dcp(checkpoint, lm, out)
    else:
        by_fabric(checkpoint, lm, out, key="state_dict" if kind == "fabric file" else "model")


if __name__ == "__main__":
    jobs = json.loads(sys.argv[1])
    build(jobs[0][3])  # brings in the code of the model once, for the ranks of all jobs
    for ranks, *job in jobs:
        run_ranks(ranks, work, *job)
