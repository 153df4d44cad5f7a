"""One rank of bench/phases.py with PyTorch: two parameter sets in turn, each with an AdamW of its own, or
one of them alone; prints what every step and every switch took as one line of JSON with the keys of
bench/phases_floe.cc.

A switch is what a user writes: requires_grad of both sets, and no gradients left. What a system does
beside is in its class.
"""

import fnmatch
import gc
import json
import time

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from torch_twin.rank import Memory, Traffic, build, ddp_traffic, end_rank, token_batch
from torch_twin.systems import fsdp2_apart
from torch_twin.transformer import next_token_loss


class Plain:
    """Optimizer state stays where it is while its set rests."""

    stored_bytes = 0

    def rest(self, optimizer):
        pass

    def wake(self, optimizer):
        pass

    def rewrap(self):
        pass

    def reduced_bytes(self, traffic):
        return traffic.bytes["reduce"]


class Ddp(Plain):
    """Wrapped once, while both sets train; a resting set's parameters count as unused then."""

    views = False

    def __init__(self, model, alternates):
        self.model = DistributedDataParallel(model, find_unused_parameters=alternates,
                                             gradient_as_bucket_view=self.views)

    def __call__(self, ids):
        return self.model(ids)

    def reduced_bytes(self, traffic):
        return sum(ddp_traffic(self.model))


class DdpViews(Ddp):
    views = True


class DdpRewrapped(Ddp):
    """Wrapped anew at each switch, around what trains then."""

    def __init__(self, model, alternates):
        super().__init__(model, False)

    def rewrap(self):
        model = self.model.module
        del self.model
        gc.collect()
        self.model = DistributedDataParallel(model)


class Fsdp2(Plain):
    def __init__(self, model, alternates):
        self.model = fsdp2_apart(model, dist.get_world_size())

    def __call__(self, ids):
        return self.model(ids)


class Fsdp2Offload(Fsdp2):
    """... and by hand: the state of the set that rests moves to memory that torch does not count."""

    def __init__(self, model, alternates):
        super().__init__(model, alternates)
        self.stored = {}

    @property
    def stored_bytes(self):
        return sum(array.nbytes for array, _, _ in self.stored.values())

    def rest(self, optimizer):
        for state in optimizer.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                whole = state.pop(name)
                self.stored[id(state), name] = whole.to_local().numpy().copy(), whole.device_mesh, whole.placements

    def wake(self, optimizer):
        for state in optimizer.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                array, mesh, placements = self.stored.pop((id(state), name))
                state[name] = DTensor.from_local(torch.tensor(array), mesh, placements)


class Fsdp2Drop(Fsdp2):
    """... and by hand: the state of the set that rests is forgotten."""

    def rest(self, optimizer):
        optimizer.state.clear()


SYSTEMS = {"ddp": Ddp, "ddp-views": DdpViews, "ddp-rewrapped": DdpRewrapped, "fsdp2": Fsdp2,
           "fsdp2-offload": Fsdp2Offload, "fsdp2-drop": Fsdp2Drop}


class Job:
    def __init__(self, system, config, weights, memory, traffic):
        self.config, self.memory, self.traffic = config, memory, traffic
        self.rank = dist.get_rank()
        sets = {s["name"]: s["patterns"] for s in config["sets"] if config["alone"] in (None, s["name"])}
        model = build({**config, "trainable": [p for patterns in sets.values() for p in patterns]}, weights)
        self.active = next(iter(sets))
        if system == "ddp-rewrapped":  # it is never wrapped around both sets
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(matches(name, sets[self.active]))
        self.system = SYSTEMS[system](model, len(sets) > 1)
        self.parameters = {s: [p for n, p in model.named_parameters() if matches(n, patterns)]
                           for s, patterns in sets.items()}
        self.optimizers = {s: torch.optim.AdamW(parameters, lr=config["lr"], weight_decay=config["weight_decay"],
                                                fused=True) for s, parameters in self.parameters.items()}
        self.require_grad()

    def require_grad(self):
        for name, parameters in self.parameters.items():
            for parameter in parameters:
                parameter.requires_grad_(name == self.active)
                parameter.grad = None

    def run(self):
        steps, switches = [], []
        names = list(self.parameters)
        for step in range(self.config["steps"]):
            wanted = names[step // self.config["switch_every"] % len(names)]
            if wanted != self.active:
                switches.append(self.switch_to(wanted))
            steps.append(self.train(step))
        return {"rank": self.rank, "steps": steps, "switches": switches}

    def switch_to(self, name):
        gc.collect()
        before = self.memory.current()
        self.traffic.reset()
        self.memory.reset_peak()
        begin = time.perf_counter()
        self.system.rest(self.optimizers[self.active])
        self.active = name
        self.require_grad()
        self.system.rewrap()
        self.system.wake(self.optimizers[name])
        return {"to": name, "seconds": time.perf_counter() - begin, "before_bytes": before,
                "peak_bytes": self.memory.peak(), "after_bytes": self.memory.current(),
                "gathered_bytes": self.traffic.bytes["gather"], "reduced_bytes": self.traffic.bytes["reduce"]}

    def train(self, step):
        ids = token_batch(self.config, step % self.config["batches"], self.rank)
        optimizer = self.optimizers[self.active]
        self.traffic.reset()
        self.memory.reset_peak()
        cpu, begin = time.process_time(), time.perf_counter()
        loss = next_token_loss(self.system(ids), ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        value, peak = loss.item(), self.memory.peak()
        del loss
        return {"set": self.active, "loss": value, "seconds": seconds, "cpu_seconds": cpu, "peak_bytes": peak,
                "between_bytes": self.memory.current(), "stored_bytes": self.system.stored_bytes,
                "gathered_bytes": self.traffic.bytes["gather"],
                "reduced_bytes": self.system.reduced_bytes(self.traffic)}


def matches(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def main(system, config, weights, library):
    memory, traffic = Memory(library), Traffic()
    traffic.wrap("_broadcast_coalesced", "gather", 1)  # how DDP hands out parameters when it wraps
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    print(json.dumps(Job(system, config, weights, memory, traffic).run()))
    end_rank()
