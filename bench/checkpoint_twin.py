"""PyTorch's side of bench/checkpoint.py: torch.distributed.checkpoint of the same tensors under FSDP2.

    checkpoint_twin.py FOLDER ROUNDS DIM LAYERS VOCAB
"""

import json
import pathlib
import shutil
import sys
import time
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed._state_dict_utils import _copy_state_dict, _create_cpu_state_dict
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/support"))
from torch_ranks import end_rank


class Layer(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(dim), torch.nn.LayerNorm(dim)
        self.qkv, self.out = torch.nn.Linear(dim, 3 * dim), torch.nn.Linear(dim, dim)
        self.up, self.down = torch.nn.Linear(dim, 4 * dim), torch.nn.Linear(4 * dim, dim)


class Model(torch.nn.Module):
    def __init__(self, dim, layers, vocab):
        super().__init__()
        self.embed, self.positions = torch.nn.Embedding(vocab, dim), torch.nn.Embedding(64, dim)
        self.layers = torch.nn.ModuleList(Layer(dim) for _ in range(layers))
        self.norm, self.head = torch.nn.LayerNorm(dim), torch.nn.Linear(dim, vocab, bias=False)


class CachedStager(BlockingAsyncStager):
    """torch's own, with the memory of the save before; that is pinned there, which needs a GPU and helps copies from it."""

    def stage(self, state_dict):
        if self.state_dict_cache is None:
            self.state_dict_cache = _create_cpu_state_dict(state_dict)
        return _copy_state_dict(state_dict, self.state_dict_cache)


def timed(work):
    dist.barrier()
    begin = time.perf_counter()
    result = work()
    dist.barrier()
    return time.perf_counter() - begin, result


def main():
    warnings.simplefilter("ignore")
    folder, (rounds, dim, layers, vocab) = sys.argv[1], map(int, sys.argv[2:])
    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo")
    behind = dist.new_group(backend="gloo")  # what is saved behind must not meet the barriers
    model = Model(dim, layers, vocab)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    weights, moments = get_state_dict(model, optimizer)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)

    def state():
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments}

    def load():
        target = state()
        dcp.load(target, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=target["model"], optim_state_dict=target["optimizer"])

    cached = CachedStager(cache_staged_state_dict=True)

    def save_behind(**how):
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)
        seconds, future = timed(lambda: dcp.async_save(state(), checkpoint_id=folder, process_group=behind, **how))
        future.result()
        return seconds

    for _ in range(rounds):
        if dist.get_rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)
        line = {"save_s": timed(lambda: dcp.save(state(), checkpoint_id=folder))[0], "load_s": timed(load)[0]}
        line["uncached_pause_s"] = save_behind()
        line["pause_s"] = save_behind(async_stager=cached)
        if dist.get_rank() == 0:
            print(json.dumps(line), flush=True)
    end_rank()


main()
