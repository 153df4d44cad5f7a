"""PyTorch's ways to train on several ranks, each applied to the twin as its users do it.

A system is a function (model, world size) -> the model to call; requires_grad is set already.
"""

from functools import partial

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.nn.parallel import DistributedDataParallel

from torch_twin.transformer import DecoderLayer


def fsdp2(model, world_size, **more):
    """fully_shard per layer and on the root, frozen and trainable together."""
    mesh = init_device_mesh("cpu", (world_size,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, **more)
    fully_shard(model, mesh=mesh, **more)
    return model


def fsdp2_kept(model, world_size):
    """What forward has gathered stays for backward, as with floe's shard_grad_op."""
    return fsdp2(model, world_size, reshard_after_forward=False)


def fsdp2_resident(model, world_size):
    """What is frozen is left to each rank whole, as with floe's resident: FSDP2 ignores it."""
    frozen = {parameter for parameter in model.parameters() if not parameter.requires_grad}
    mesh = init_device_mesh("cpu", (world_size,))
    for layer in model.layers:
        if any(parameter.requires_grad for parameter in layer.parameters()):
            fully_shard(layer, mesh=mesh, ignored_params=frozen)
    fully_shard(model, mesh=mesh, ignored_params=frozen)
    return model


def fsdp2_apart(model, world_size):
    """The best known wrapping: what trains apart from what is frozen, embedding and head apart from
    the root, so that it holds little while the layers compute."""
    mesh = init_device_mesh("cpu", (world_size,))
    for layer in model.layers:
        if layer.adapter is not None and len({p.requires_grad for p in layer.parameters()}) > 1:
            fully_shard(layer.adapter, mesh=mesh)
        fully_shard(layer, mesh=mesh)
    fully_shard(model.embed, mesh=mesh)
    fully_shard(model.head, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def fsdp1(model, world_size):
    """FullyShardedDataParallel per layer, frozen and trainable together."""
    policy = partial(transformer_auto_wrap_policy, transformer_layer_cls={DecoderLayer})
    return FullyShardedDataParallel(model, auto_wrap_policy=policy, use_orig_params=True,
                                    device_id=torch.device("cpu"))


def ddp(model, world_size):
    return DistributedDataParallel(model, gradient_as_bucket_view=True)


SYSTEMS = {"fsdp2": fsdp2, "fsdp2-apart": fsdp2_apart, "fsdp2-kept": fsdp2_kept, "fsdp2-resident": fsdp2_resident,
           "fsdp1": fsdp1, "ddp": ddp}
