"""For scripts that run as ranks of torch.distributed."""

import os
import sys
import tempfile

import torch.distributed as dist
import torch.multiprocessing as mp


def run_ranks(world, work, *arguments):
    """Does work(*arguments) on so many Gloo ranks, forked from this process: importing torch takes longer
    than most work. Raises when one of them fails; the others are ended then."""
    import torch._dynamo  # noqa: F401 (seconds, which optimizers and FSDP would take in every rank)

    with tempfile.TemporaryDirectory() as scratch:
        mp.start_processes(be_rank, (world, f"file://{scratch}/rendezvous", work, arguments), nprocs=world, start_method="fork")


def be_rank(rank, world, rendezvous, work, arguments):
    dist.init_process_group("gloo", rendezvous, rank=rank, world_size=world)
    work(*arguments)
    end_rank()


def end_rank():
    """Ends this process, with success, as soon as all ranks have come here. Never returns.

    Not by way of destructors: those of torch's process groups sometimes find one of their own threads
    still running and abort a rank whose work is done. A rank that fails must not come here; it ends by
    its exception, and the others by the error of their barrier.
    """
    dist.barrier()
    store, rank, world = dist.distributed_c10d._get_default_store(), dist.get_rank(), dist.get_world_size()
    # Nobody leaves while another may still be inside the barrier, and rank 0, where the store lives, last.
    for word, waits in (("done", True), ("leaving", rank == 0)):
        store.set(f"end_rank/{word}/{rank}", "")
        if waits:
            store.wait([f"end_rank/{word}/{other}" for other in range(world)])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
