"""One system of bench/h200.py in PyTorch: flamingo_step.py CONFIG.json SYSTEM. Prints one line of JSON.

Like OpenFlamingo it runs the data sets one after the other, padded, and one optimizer step for both.
SYSTEM is one of SYSTEMS below. W=8: torch's fake process group, whose collectives are local copies.
"""

import functools
import itertools
import json
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from flamingo_model import Block, Flamingo, Gate, PerceiverLayer

SYSTEMS = {
    "torch amp": {"amp": True},
    "torch amp compiled": {"amp": True, "compile": True},
    "torch bf16": {},
    "torch bf16 compiled": {"compile": True},
    "torch FSDP2 W=8": {"shard": True},
    "torch FSDP2 W=8 compiled": {"shard": True, "compile": True},
    "torch FSDP2 W=8 checkpointed": {"shard": True, "checkpoint": True},
}


def make_batch(data, model, config, device):
    """A padded batch of one data set, with everything that the layers need of it."""
    length = max(tokens for tokens, _ in data["sequences"])
    rows, slots = len(data["sequences"]), data["slots"]
    ids = torch.zeros(rows, length, dtype=torch.long)
    labels = torch.full((rows, length), -100)
    for row, (tokens, images) in enumerate(data["sequences"]):
        ids[row, :tokens] = torch.randint(1, data["text_tokens"], (tokens,))
        places = torch.arange(tokens)
        marker = (places * images % tokens) < images
        ids[row, :tokens][marker] = config["model"]["media_token"]
        labels[row, :tokens] = torch.where(marker, -100, ids[row, :tokens])
    times = (ids == config["model"]["media_token"]).cumsum(1)
    sees = times[:, :, None] == torch.arange(1, slots + 1)  # [rows, length, slots]
    everything = bool(sees.all())
    return {
        "ids": ids.to(device),
        "labels": labels.to(device),
        "sees": None if everything else sees.repeat_interleave(64, -1)[:, None].to(device),
        "images": torch.randn(rows, slots, 3, 224, 224, device=device, dtype=torch.bfloat16),
        "positions": model.positions(length, device, torch.bfloat16),
    }


def shard(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    mesh = init_device_mesh("cuda", (8,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    wrap = functools.partial(fully_shard, mesh=mesh, mp_policy=policy)
    for part in (*model.vision.blocks, *model.layers, *itertools.compress(model.gates, model.gated)):
        wrap(part)
    for part in (model.vision, model.perceiver, model.embed):
        wrap(part)
    wrap(model)


def checkpointed(model):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        apply_activation_checkpointing, checkpoint_wrapper)
    layers = set(model.layers)
    apply_activation_checkpointing(
        model, checkpoint_wrapper_fn=checkpoint_wrapper,
        check_fn=lambda module: isinstance(module, (Gate, PerceiverLayer)) or module in layers)


def main():
    config = json.load(open(sys.argv[1]))
    options = SYSTEMS[sys.argv[2]]
    torch.manual_seed(config["seed"])
    device = torch.device("cuda")
    with device:
        model = Flamingo(config["model"]["lm"], config["model"]["cross_attention_every"])
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.02)
    model.freeze()
    if not options.get("amp"):
        for parameter in model.parameters():  # frozen weights in bf16; so are those that train, unless sharded
            if not options.get("shard") or not parameter.requires_grad:
                parameter.data = parameter.data.to(torch.bfloat16)
    if options.get("checkpoint"):
        checkpointed(model)
    if options.get("compile"):
        for module in model.modules():
            if isinstance(module, (Block, Gate, PerceiverLayer)):
                module.compile()
    if options.get("shard"):
        shard(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=config["lr"], weight_decay=0.1, fused=True)
    batches = [make_batch(data, model, config, device) for data in config["data"]]

    def step():
        total = 0
        for batch, weight in zip(batches, config["loss_weights"], strict=True):
            with torch.autocast("cuda", torch.bfloat16, enabled=bool(options.get("amp"))):
                logits = model(batch)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), batch["labels"][:, 1:].flatten())
            (loss * weight).backward()
            total = total + loss.detach() * weight
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    losses, step_ms = [], []
    for i in range(config["warmup"] + config["steps"]):
        if i == config["warmup"]:
            torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        loss = step()
        torch.cuda.synchronize()
        if i >= config["warmup"]:
            step_ms.append(1e3 * (time.perf_counter() - begin))
        losses.append(loss.item())
    result = {"losses": losses, "step_ms": step_ms, "peak_bytes": torch.cuda.max_memory_allocated(),
              "reserved_bytes": torch.cuda.max_memory_reserved()}
    if config["profile"]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            step()
            torch.cuda.synchronize()
        result["kernels"] = sorted(
            ([event.key, event.device_time_total / 1e3, event.count] for event in profile.key_averages()
             if event.device_time_total > 0), key=lambda row: -row[1])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
