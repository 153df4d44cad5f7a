"""Pictures on one core: floe against Pillow and open_clip, CPU milliseconds per picture, and tar
shards: floe against webdataset.

  ./run bench image [--count N]

Decoding, resizing with cropping, and turning to floats are timed apart, on seeded pictures like those
of LAION. The results are compared first: they are the same bytes.
"""

import argparse
import hashlib
import io
import json
import os
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import center_crop, normalize, resize, to_tensor
from webdataset.tariterators import tar_file_iterator

BIN = Path(os.environ["FLOE_BIN_DIR"])
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def photograph(width, height, seed=0):
    """Smooth shapes and grain; about a quarter of a byte per pixel at quality 85."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    grain = generator.normal(0, 5, (height, width, 1))
    out = io.BytesIO()
    Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8)).save(out, "JPEG", quality=85)
    return out.getvalue()


def milliseconds(count, step):
    step()
    begin = time.process_time()
    for _ in range(count):
        step()
    return (time.process_time() - begin) / count * 1e3


def pillow(data, count):
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    crop = center_crop(resize(picture, 224, InterpolationMode.BICUBIC), [224, 224])
    return {
        "decode": milliseconds(count, lambda: Image.open(io.BytesIO(data)).convert("RGB")),
        "crop": milliseconds(
            count, lambda: center_crop(resize(picture, 224, InterpolationMode.BICUBIC), [224, 224]).load()
        ),
        "normalise": milliseconds(count, lambda: normalize(to_tensor(crop), MEAN, STD)),
    }


def bench_pictures(folder, count):
    print("CPU ms per picture      decode            crop              normalise         together")
    for width, height in [(512, 512), (1024, 768)]:
        path = folder / f"{width}.jpg"
        path.write_bytes(photograph(width, height))
        (folder / "list").write_text(f"{path}\n")
        row = json.loads(subprocess.check_output([BIN / "image_tool", "look", folder / "list"]))
        tensor = image_transform_v2(PreprocessCfg(size=224), is_train=False)(Image.open(path).convert("RGB"))
        assert row["tensor"] == hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
        theirs = pillow(path.read_bytes(), count)
        ours = json.loads(subprocess.check_output([BIN / "image_tool", "time", path, str(count)]))
        plain = ours.pop("crop plain")
        ours["crop"] = ours.get("crop avx2", plain)
        print(f"{width}x{height}, {path.stat().st_size // 1000} KB")
        for name, times in (("  Pillow", theirs), ("  floe", ours)):
            steps = [times[step] for step in ("decode", "crop", "normalise")]
            print(f"{name:24}" + "".join(f"{value:<18.2f}" for value in [*steps, sum(steps)]))
        print(f"  floe without AVX2     {'':18}{plain:.2f}")


def bench_tar(folder, count):
    path = folder / "shard.tar"
    data = {"jpg": os.urandom(65000), "txt": b"a caption of some words", "json": b'{"key": "value"}' * 20}
    with tarfile.open(path, "w") as tar:
        for number in range(500):
            for suffix, content in data.items():
                info = tarfile.TarInfo(f"{number:09d}.{suffix}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))

    def read():
        with open(path, "rb") as file:
            for _ in tar_file_iterator(file):
                pass

    theirs = milliseconds(max(1, count // 20), read) / 500
    ours = float(subprocess.check_output([BIN / "tar_tool", "time", path, str(max(1, count // 10))])) / 500
    print(f"CPU ms per sample of a shard (65 KB in three members): webdataset {theirs:.3f}, floe {ours:.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100, help="pictures per figure")
    count = parser.parse_args().count
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        bench_pictures(Path(name), count)
        bench_tar(Path(name), count)


if __name__ == "__main__":
    main()
