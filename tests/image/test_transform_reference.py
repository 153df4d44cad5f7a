"""open_clip's evaluation transform is the reference of sizes, crops and tensors, byte for byte."""

import hashlib
import os
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import center_crop, resize

# All that this processor has.
ISAS = subprocess.run([Path(os.environ["FLOE_BIN_DIR"]) / "image_tool", "isas"], capture_output=True, text=True, check=True).stdout.split()


def sha256(data):
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(params=ISAS)
def isa(request):
    return request.param


def noise(width, height, seed):
    generator = np.random.default_rng(seed)
    kind = seed % 3
    if kind == 0:  # extremes: results must be clipped
        pixels = generator.integers(0, 2, (height, width, 3), dtype=np.uint8) * 255
    elif kind == 1:
        pixels = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
    else:
        pixels = np.add.outer(np.arange(height), np.arange(width))[..., None] * np.array([1, 2, 3])
        pixels = (pixels + generator.integers(0, 9, pixels.shape)).astype(np.uint8)
    return Image.fromarray(pixels)


SIZES = [
    *[(224, 224), (224, 300), (300, 224), (223, 224), (225, 224), (448, 448), (512, 512), (1024, 768), (768, 1024)],
    *[(1, 1), (1, 2), (2, 1), (3, 5), (7, 300), (300, 7), (640, 225), (224, 5000), (5000, 224), (4000, 3000)],
    # Pillow resizes downwards first when a picture is more than 100 times as tall as wide.
    *[(300, 30000), (300, 30001), (230, 23001), (225, 22600), (300, 33000), (10, 1001), (2, 201), (224, 23000)],
    *[(30001, 300), (1, 300), (300, 1), (1000, 1), (1, 1000)],
]


def test_crops_and_tensors(isa, look):
    transform = image_transform_v2(PreprocessCfg(size=224), is_train=False)
    chance = random.Random(3)
    sizes = SIZES + [(chance.randint(1, 700), chance.randint(1, 700)) for _ in range(60)]
    pictures = [noise(*size, seed) for seed, size in enumerate(sizes)]
    for picture, row in zip(pictures, look(pictures, isa)):
        tensor = transform(picture)
        assert row["tensor"] == sha256(tensor.numpy().tobytes()), picture.size
        flipped = torch.flip(tensor, dims=[-1]).contiguous()
        assert row["flipped"] == sha256(flipped.numpy().tobytes()), picture.size


@pytest.mark.parametrize("size", [1, 2, 31, 32, 33, 97, 336, 384])
def test_other_sizes(size, isa, look):
    chance = random.Random(size)
    sizes = [(chance.randint(1, 500), chance.randint(1, 500)) for _ in range(40)]
    pictures = [noise(*wh, seed) for seed, wh in enumerate(sizes)]
    for picture, row in zip(pictures, look(pictures, isa, size)):
        expected = center_crop(resize(picture, size, InterpolationMode.BICUBIC), [size, size])
        assert row["crop"] == sha256(expected.tobytes()), picture.size


def test_the_processor_is_used():
    """Where there is AVX2, it was compared above."""
    assert ("avx2" in ISAS) == ("avx2" in open("/proc/cpuinfo").read().split())
