"""Checkpoints of the real torch.distributed.checkpoint: `python dcp_saves.py FOLDER WORLD:KIND,KIND...`
saves FOLDER/WORLD/KIND for each.

Each kind is what some user has: FSDP1, FSDP2, DDP with their optimizers, tensors on a mesh of two
dimensions, and plain state dicts.
"""

import pathlib
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from torch_ranks import run_ranks


class Net(nn.Module):
    """Widths that divide by no world size, and a parameter with fewer rows than ranks."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(7, 11)
        self.mid = nn.Sequential(nn.Linear(11, 5, bias=False), nn.LayerNorm(5))
        self.gate = nn.Parameter(torch.randn(1, 5))
        self.down = nn.Linear(5, 3)

    def forward(self, x):
        return self.down(self.mid(self.up(x)) * self.gate)


def trained(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(2):
        model(torch.randn(4, 7, generator=torch.Generator().manual_seed(step))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def training_state(model):
    from torch.distributed.checkpoint.state_dict import get_state_dict

    optimizer = trained(model)
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "epoch": 3, "name": "run"}


def fsdp1():
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    model = Net()
    model.up = FSDP(model.up, use_orig_params=True, device_id=torch.device("cpu"))
    return training_state(FSDP(model, use_orig_params=True, device_id=torch.device("cpu")))


def fsdp2():
    from torch.distributed.fsdp import fully_shard

    model = Net()
    fully_shard(model.mid)
    return training_state(fully_shard(model))


def ddp():
    return training_state(nn.parallel.DistributedDataParallel(Net()))


def mesh():
    """Rows and columns cut, rows only, columns only, on 2 x world/2 ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    ranks = init_device_mesh("cpu", (2, dist.get_world_size() // 2))
    tensor = torch.randn(7, 9, 4)
    placements = {
        "both": (Shard(0), Shard(1)),
        "crossed": (Shard(1), Shard(0)),
        "twice": (Shard(0), Shard(0)),
        "inner": (Replicate(), Shard(2)),
        "copies": (Replicate(), Replicate()),
    }
    return {name: distribute_tensor(tensor, ranks, how) for name, how in placements.items()}


def plain():
    generator = torch.Generator().manual_seed(5)
    table = torch.randn(6, 10, generator=generator)
    return {
        "types": {
            str(dtype).removeprefix("torch."): torch.randint(-3, 3, (3, 5), generator=generator).to(dtype)
            for dtype in (
                torch.float64,
                torch.float32,
                torch.float16,
                torch.bfloat16,
                torch.float8_e4m3fn,
                torch.float8_e5m2,
                torch.int64,
                torch.int32,
                torch.int16,
                torch.int8,
                torch.bool,
            )
        },
        "bytes": torch.arange(9, dtype=torch.uint8),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 4),
        "transposed": table.t(),
        "columns": table[:, 2:5],
        "rows": table[1:3],
        "nan": torch.tensor([float("nan"), float("inf"), -0.0]),
        "nested": {"list": [torch.ones(2), {"deep": torch.zeros(1, 1)}], "none": None, "floats": [0.5, 1.5]},
        "dotted.name": torch.arange(4),
        "step": 12,
    }


KINDS = {"fsdp1": fsdp1, "fsdp2": fsdp2, "ddp": ddp, "mesh": mesh, "plain": plain}


def save(folder, kinds):
    torch.set_num_threads(1)
    for kind in kinds:
        torch.manual_seed(0)
        dcp.save(KINDS[kind](), checkpoint_id=f"{folder}/{kind}")


if __name__ == "__main__":
    for part in sys.argv[2:]:
        world, kinds = part.split(":")
        run_ranks(int(world), save, f"{sys.argv[1]}/{world}", kinds.split(","))
