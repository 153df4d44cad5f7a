"""Small tar shards of pairs, and a small Flamingo that trains on them."""

import io

from PIL import Image

from running import GOLDENS
from tars import write_tar

TOKENIZER = GOLDENS.parent / "data" / "tokenizers" / "neox"


def pair(key):
    picture, number = io.BytesIO(), sum(key.encode()) % 256
    Image.new("RGB", (12, 9), (number, 255 - number, 128)).save(picture, "JPEG")
    return {f"{key}.jpg": picture.getvalue(), f"{key}.txt": f"a picture of {key}".encode()}


def write_pairs(path, count):
    files = {}
    for i in range(count):
        files |= pair(f"{path.stem}-{i:03d}")
    write_tar(path, files)


def write_shards(folder, count, samples, name="t"):
    """The pattern of their names in the folder."""
    for number in range(count):
        write_pairs(folder / f"{name}{number}.tar", samples)
    return f"{name}{{0..{count - 1}}}.tar"


def pairs_config(shards, **train):
    golden = GOLDENS / "neox_x2"
    return {
        "model": {
            "type": "flamingo", "lm": str(golden / "lm"), "vision": str(golden / "vision"), "tokenizer": str(TOKENIZER),
            "cross_attn_every_n_layers": 2,
            "perceiver": {"depth": 1, "dim_head": 8, "heads": 2, "num_latents": 4, "ff_mult": 1},
            "cross_attn": {"dim_head": 8, "heads": 2, "ff_mult": 1},
        },
        "data": {"laion": {"shards": str(shards), "batch_size": 2}, "threads": 1},
        "train": {"steps": 3, "optimizer": {"lr": 1e-3}, "schedule": {"warmup_steps": 0}, **train},
        "strategy": {"mixed_precision": {"param": "fp32"}},
        "log": {"every_steps": 1, "tensorboard": False, "wandb": None, "diagnostics": None},
    }
