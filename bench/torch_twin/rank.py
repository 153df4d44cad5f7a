"""One rank of bench/engine.py with PyTorch: trains the twin and prints what it took as one line of
JSON with the keys of bench/engine_floe.cc."""

import ctypes
import fnmatch
import gc
import json
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from safetensors.torch import load_file

from torch_twin.systems import SYSTEMS
from torch_twin.transformer import Transformer, next_token_loss

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/support"))
from torch_ranks import end_rank


class Memory:
    """The counter that floe is measured with."""

    def __init__(self, library):
        self.library = ctypes.CDLL(library)
        self.library.floe_memory_current.restype = ctypes.c_int64
        self.library.floe_memory_peak.restype = ctypes.c_int64
        self.library.floe_memory_install()

    def current(self):
        return self.library.floe_memory_current()

    def peak(self):
        return self.library.floe_memory_peak()

    def reset_peak(self):
        self.library.floe_memory_reset_peak()


class Traffic:
    """Counts collectives as floe does: gathered output bytes, reduction input bytes."""

    def __init__(self):
        self.reset()
        self.wrap("all_gather_into_tensor", "gather", 0)
        self.wrap("all_gather", "gather", 0)
        self.wrap("reduce_scatter_tensor", "reduce", 1)
        self.wrap("reduce_scatter", "reduce", 1)
        self.wrap("all_reduce", "reduce", 0)

    def reset(self):
        self.number = {"gather": 0, "reduce": 0}
        self.bytes = {"gather": 0, "reduce": 0}

    def wrap(self, name, kind, position):
        original = getattr(dist, name)
        keyword = {"all_gather_into_tensor": "output_tensor", "reduce_scatter_tensor": "input"}.get(name)

        def counted(*args, **kwargs):
            tensors = kwargs[keyword] if keyword in kwargs else args[position]
            tensors = tensors if isinstance(tensors, (list, tuple)) else [tensors]
            self.number[kind] += 1
            self.bytes[kind] += sum(t.numel() * t.element_size() for t in tensors)
            return original(*args, **kwargs)

        setattr(dist, name, counted)


def token_batch(config, batch, rank):
    """Token ids [B, T]; bench/engine_floe.cc has the same formula."""
    state, ids = 1000 * batch + rank + 1, []
    for _ in range(config["batch"] * config["tokens"]):
        state = (state * 1664525 + 1013904223) % 2**32
        ids.append((state >> 8) % config["model"]["vocab"])
    return torch.tensor(ids).view(config["batch"], config["tokens"])


def local_bytes(tensor):
    tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return tensor.numel() * tensor.element_size()


def build(config, weights):
    model = Transformer(**config["model"])
    state = load_file(weights)
    if config["model"]["tied"]:
        state["head.weight"] = state["embed.weight"]
    model.load_state_dict(state)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(fnmatch.fnmatchcase(name, p) for p in config["trainable"]))
    return model


def ddp_traffic(model):
    """DDP's reducer is C++; it says itself how large its buckets are."""
    data = model._get_ddp_logging_data()
    sizes = data.get("rebuilt_bucket_sizes") or data["bucket_sizes"]
    return [int(size) for size in sizes.split(",")]


def main(system, config, weights, library):
    memory, traffic = Memory(library), Traffic()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = SYSTEMS[system](build(config, weights), dist.get_world_size())
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=config["lr"], weight_decay=config["weight_decay"], fused=True)

    losses, times = [], {"step": [], "cpu": [], "forward": [], "backward": [], "update": []}
    peak = gradients = 0
    for step in range(config["warmup"] + config["steps"]):
        if step == config["warmup"]:
            traffic.reset()
        ids = token_batch(config, step % config["batches"], rank)
        memory.reset_peak()
        cpu, begin = time.process_time(), time.perf_counter()
        loss = next_token_loss(model(ids), ids)
        forward = time.perf_counter()
        loss.backward()
        backward = time.perf_counter()
        gradients = max(gradients, sum(local_bytes(p.grad) for p in trainable if p.grad is not None))
        counted = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad()
        end = time.perf_counter()
        cpu = time.process_time() - cpu
        losses.append(loss.item())
        del loss
        if step < config["warmup"]:
            continue
        peak = max(peak, memory.peak())
        times["cpu"].append(cpu)
        times["forward"].append(forward - begin)
        times["backward"].append(backward - forward)
        times["update"].append(end - counted)
        times["step"].append(end - begin - (counted - backward))
    if system == "ddp":
        buckets = ddp_traffic(model)
        traffic.number["reduce"], traffic.bytes["reduce"] = len(buckets) * config["steps"], sum(buckets) * config["steps"]
    gc.collect()
    states = [t for s in optimizer.state.values() for name, t in s.items() if name != "step"]
    result = {
        "rank": rank,
        "losses": losses,
        **{f"{name}_seconds": values for name, values in times.items()},
        "peak_bytes": peak,
        "between_bytes": memory.current(),
        "gradient_bytes": gradients,
        "optimizer_bytes": sum(local_bytes(t) for t in states),
        "gathers": traffic.number["gather"] // config["steps"],
        "gathered_bytes": traffic.bytes["gather"] // config["steps"],
        "reduces": traffic.number["reduce"] // config["steps"],
        "reduced_bytes": traffic.bytes["reduce"] // config["steps"],
    }
    print(json.dumps(result))
    end_rank()

