"""One system of bench/h200.py in PyTorch: flamingo_step.py CONFIG.json SYSTEM. Prints one line of JSON.

Like OpenFlamingo it runs the data sets one after the other, padded, and one optimizer step for both.
SYSTEM is one of SYSTEMS below. W=8: torch's fake process group, whose collectives are local copies.

Written as such a loop is written for speed: fused AdamW, norm and clipping by foreach, nothing that waits
for the device inside of a step, Python's garbage collector not during steps (its passes over a model's
objects take tens of milliseconds), layers compiled one by one with static shapes, and FSDP2's hooks
outside of what is compiled.
"""

import contextlib
import functools
import gc
import itertools
import json
import sys
import time

import flamingo_weights
import torch
import torch.distributed as dist
from flamingo_batch import make_batch
from flamingo_model import Flamingo, Gate, PerceiverLayer, compile_layers
from torch.autograd import DeviceType
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllocMixin, ReduceScatter

SYSTEMS = {
    "torch amp": {"amp": True},
    "torch amp compiled": {"amp": True, "compile": True},
    "torch bf16": {},
    "torch bf16 compiled": {"compile": True},
    "torch bf16 checkpointed": {"checkpoint": True},
    "torch FSDP2 W=8": {"shard": True},
    "torch FSDP2 W=8 compiled": {"shard": True, "compile": True},
    "torch FSDP2 W=8 checkpointed": {"shard": True, "checkpoint": True},
    "torch FSDP2 W=8 checkpointed compiled": {"shard": True, "checkpoint": True, "compile": True},
    # Half as many units, for less work of the host: a gate with its layer, four blocks of the image tower.
    "torch FSDP2 W=8 coarse": {"shard": True, "coarse": True},
    "torch FSDP2 W=8 coarse compiled": {"shard": True, "coarse": True, "compile": True},
    # Gradients of the two data sets are added up before they are reduced, once.
    "torch FSDP2 W=8 one reduction": {"shard": True, "one_reduction": True},
    "torch FSDP2 W=8 one reduction compiled": {"shard": True, "one_reduction": True, "compile": True},
    "torch FSDP2 W=8 coarse one reduction": {"shard": True, "coarse": True, "one_reduction": True},
    "torch FSDP2 W=8 coarse one reduction compiled": {"shard": True, "coarse": True, "one_reduction": True,
                                                      "compile": True},
    # What forward has gathered stays for backward (reshard_after_forward=False).
    "torch FSDP2 W=8 kept": {"shard": True, "reshard": False},
    # Frozen parameters are ignored, so that each rank has them whole: the counterpart of floe's resident.
    "torch FSDP2 W=8 resident": {"shard": True, "ignore_frozen": True, "one_reduction": True},
    "torch FSDP2 W=8 resident compiled": {"shard": True, "ignore_frozen": True, "one_reduction": True, "compile": True},
    # What the garbage collector costs when it is left alone.
    "torch FSDP2 W=8 with gc": {"shard": True, "gc": True},
}


class LocalReduceScatter(DefaultAllocMixin, ReduceScatter):
    """As if all ranks had the same gradients. The fake group itself writes nothing: gradients would be whatever
    the memory held."""

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        output_tensor.copy_(input_tensor[: output_tensor.numel()])


def units_of(model, coarse):
    """What is gathered together: a module, or several that run one after the other."""
    blocks, gates = list(model.vision.blocks), list(itertools.compress(model.gates, model.gated))
    if not coarse:
        return [*blocks, *model.layers, *gates]
    pairs = [[gate, layer] if gated else layer
             for gated, gate, layer in zip(model.gated, model.gates, model.layers, strict=True)]
    return [*(blocks[i : i + 4] for i in range(0, len(blocks), 4)), *pairs]


def shard(model, device, options):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    mesh = init_device_mesh(device.type, (8,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    ignored = {p for p in model.parameters() if not p.requires_grad} if options.get("ignore_frozen") else None
    wrap = functools.partial(fully_shard, mesh=mesh, mp_policy=policy, ignored_params=ignored,
                             reshard_after_forward=options.get("reshard"))  # None: as FSDP2 has it
    for part in (*units_of(model, options.get("coarse", False)), model.vision, model.perceiver, model.embed):
        modules = part if isinstance(part, list) else [part]
        if not ignored or any(p.requires_grad for module in modules for p in module.parameters()):
            wrap(part)
    wrap(model)
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.set_custom_reduce_scatter(LocalReduceScatter())


def checkpointed(model):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        apply_activation_checkpointing, checkpoint_wrapper)
    layers = set(model.layers)
    apply_activation_checkpointing(
        model, checkpoint_wrapper_fn=checkpoint_wrapper,
        check_fn=lambda module: isinstance(module, (Gate, PerceiverLayer)) or module in layers)


class System:
    def __init__(self, config, options):
        self.config, self.options = config, options
        self.device = torch.device(config["device"])
        with self.device:
            self.model = model = Flamingo(config["model"])
        flamingo_weights.make_random(model, config["seed"])
        model.freeze()
        if not options.get("amp"):
            for parameter in model.parameters():  # frozen weights in bf16; so are those that train, unless sharded
                if not options.get("shard") or not parameter.requires_grad:
                    parameter.data = parameter.data.to(torch.bfloat16)
        if options.get("compile"):
            compile_layers(model)
        if options.get("checkpoint"):
            checkpointed(model)
        if options.get("shard"):
            shard(model, self.device, options)
        self.trained = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=config["lr"], weight_decay=0.1, fused=True)
        self.batches = [make_batch(config, source, 0, model, self.device, torch.bfloat16)
                        for source in range(len(config["data"]))]

    def forward_backward(self):
        total = 0
        for batch, weight in zip(self.batches, self.config["loss_weights"], strict=True):
            if self.options.get("one_reduction"):
                self.model.set_requires_gradient_sync(batch is self.batches[-1])
            with torch.autocast(self.device.type, torch.bfloat16, enabled=bool(self.options.get("amp"))):
                loss = self.model(batch)
            (loss * weight).backward()
            total = total + loss.detach() * weight
        return total

    def update(self):
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def step(self):
        loss = self.forward_backward()
        self.update()
        return loss


class Gpu:
    """What is asked of the device; on the CPU, where only the flow is tried, nothing."""

    def __init__(self, device):
        self.there = device.type == "cuda"

    def synchronize(self):
        if self.there:
            torch.cuda.synchronize()

    def reset_peak(self):
        if self.there:
            torch.cuda.reset_peak_memory_stats()

    def memory(self):
        if not self.there:
            return {"peak_bytes": 0, "reserved_bytes": 0}
        return {"peak_bytes": torch.cuda.max_memory_allocated(), "reserved_bytes": torch.cuda.max_memory_reserved()}

    def mallocs(self):
        return torch.cuda.memory_stats()["num_device_alloc"] if self.there else 0

    def timeline(self, step):
        """See bench/timeline.py."""
        activity = torch.profiler.ProfilerActivity
        with torch.profiler.profile(activities=[activity.CUDA if self.there else activity.CPU]) as profile:
            step()
            self.synchronize()
        found = [event for event in profile.profiler.kineto_results.events()
                 if event.device_type() == DeviceType.CUDA and not event.is_user_annotation()
                 and not event.name().startswith(("FSDP::", "Optimizer."))]
        names = {}
        first = min((event.start_ns() for event in found), default=0)
        events = [[names.setdefault(event.name(), len(names)), event.device_resource_id(),
                   (event.start_ns() - first) / 1e3, event.duration_ns() / 1e3] for event in found]
        return {"names": list(names), "events": events}


@contextlib.contextmanager
def without_collector():
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def measure(config, options):
    system = System(config, options)
    gpu = Gpu(system.device)
    losses, step_ms, enqueued_ms, mallocs, collected = [], [], [], [], []
    with contextlib.nullcontext() if options.get("gc") else without_collector():
        for i in range(config["warmup"] + config["steps"]):
            if i == config["warmup"]:
                gpu.reset_peak()
            gpu.synchronize()
            before = gpu.mallocs(), gc.get_stats()[2]["collections"]
            begin = time.perf_counter()
            loss = system.step()
            enqueued = time.perf_counter()
            gpu.synchronize()
            end = time.perf_counter()
            if i >= config["warmup"]:
                step_ms.append(1e3 * (end - begin))
                enqueued_ms.append(1e3 * (enqueued - begin))
                mallocs.append(gpu.mallocs() - before[0])
                collected.append(gc.get_stats()[2]["collections"] - before[1])
            losses.append(loss.item())
        result = {"losses": losses, "step_ms": step_ms, "enqueued_host_ms": enqueued_ms, "device_mallocs": mallocs,
                  "full_collections": collected, **gpu.memory()}
        if config["profile"]:
            result["timeline"] = gpu.timeline(system.step)
    return result


def main():
    with open(sys.argv[1]) as file:
        config = json.load(file)
    print(json.dumps(measure(config, SYSTEMS[sys.argv[2]])))


if __name__ == "__main__":
    main()
