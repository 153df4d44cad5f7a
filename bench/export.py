#!/usr/bin/env python3
"""Memory and time of `floe export`: a checkpoint far larger than the memory it may take.

usage: ./run bench export [--quick] [--size 8GB] [--limit 1GB] [--folder PATH] [--out PATH]

Makes a checkpoint of torch.distributed.checkpoint of this size, as 4 ranks of FSDP2 would save it (fp32
weights of a decoder with a table of embeddings that is larger than the limit, and AdamW's state of the
last layer), item by item; exports its weights as a Hugging Face folder in shards and as one file; and
measures the peak of resident memory and the time of each. Both must stay below the limit. The weights
are compared with what was saved. With --out the result is written to PATH.md and PATH.json.
"""

import argparse
import datetime
import io
import json
import os
import pickle
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors import safe_open
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

ROOT = Path(__file__).resolve().parent.parent
FLOE = Path(os.environ.get("FLOE_BIN_DIR", ROOT / "build/release/bin")) / "floe"
RANKS = 4
UNITS = {"MB": 10**6, "GB": 10**9}


def parse_size(text):
    for unit, factor in UNITS.items():
        if text.upper().endswith(unit):
            return int(float(text[: -len(unit)]) * factor)
    return int(text)


def shapes(size):
    """A table of a quarter of the bytes, then layers until the size is reached."""
    width = 4096 if size >= 10**9 else 512
    yield "model.embed_tokens.weight", (size // 16 // width, width)
    left = size - size // 4
    layer = 0
    while left > 0:
        for name, shape in {"attn": (width, width), "up": (2 * width, width), "norm": (width,)}.items():
            yield f"model.layers.{layer}.{name}.weight", shape
            left -= 4 * torch.Size(shape).numel()
        layer += 1


def value_of(name, row):
    """What a row of a tensor is filled with: differs from row to row and from tensor to tensor."""
    return float((hash_of(name) + row) % 9973)


def hash_of(name):
    return sum((i + 1) * byte for i, byte in enumerate(name.encode())) % 9973


def make_checkpoint(folder, size):
    """One chunk in memory at a time."""
    folder.mkdir()
    entries, places, paths = {}, {}, {}
    files = [open(folder / f"__{rank}_0.distcp", "wb") for rank in range(RANKS)]
    names = list(shapes(size))
    states = [(f"optimizer.state.{names[-1][0]}.exp_avg", names[-1][1])]
    for flat, shape in [(f"model.{name}", shape) for name, shape in names] + states:
        chunks, rows = [], -(-shape[0] // RANKS)
        for rank in range(RANKS):
            begin, end = min(rank * rows, shape[0]), min((rank + 1) * rows, shape[0])
            values = (torch.arange(begin, end) + hash_of(flat.removeprefix("model."))) % 9973
            part = values.float().view(-1, *[1] * (len(shape) - 1)).expand(end - begin, *shape[1:]).contiguous()
            item = io.BytesIO()
            torch.save(part, item)
            offsets = (begin, *[0] * (len(shape) - 1))
            chunks.append(ChunkStorageMetadata(torch.Size(offsets), part.shape))
            place = _StorageInfo(f"__{rank}_0.distcp", files[rank].tell(), len(item.getbuffer()))
            places[MetadataIndex(flat, offsets, rank)] = place
            files[rank].write(item.getbuffer())
        entries[flat] = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size(shape), chunks)
        part = flat.split(".")[0]
        paths[flat] = (part, flat.removeprefix(part + "."))
    for file in files:
        file.close()
    (folder / ".metadata").write_bytes(pickle.dumps(Metadata(entries, paths, places, StorageMeta(), "1.0.0")))
    return dict(names)


# The kernel counts for a process the peak of the one that it was forked from as well: a small one of
# its own stands between.
WATCH = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
open(sys.argv[1], "w").write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code)
"""


def run(scratch, *words):
    """Seconds and the peak of resident memory of the process, in bytes."""
    begin = time.monotonic()
    command = [sys.executable, "-c", WATCH, scratch / "peak", FLOE, *words]
    subprocess.run([str(word) for word in command], check=True)
    return time.monotonic() - begin, int((scratch / "peak").read_text()) * 1024


def check(files, names):
    """Every tensor is there; some of its rows have the values that were saved."""
    seen = set()
    for path in files:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():
                seen.add(name)
                part = file.get_slice(name)
                shape = tuple(part.get_shape())
                assert shape == names[name], name
                for row in {0, shape[0] // 2, shape[0] - 1}:
                    values = part[row : row + 1]
                    assert bool((values == value_of(name, row)).all()), (name, row)
    assert seen == names.keys()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="64 MB, to see that it works")
    parser.add_argument("--size", default="8GB")
    parser.add_argument("--limit", default="1GB", help="most memory that an export may take")
    parser.add_argument("--folder", help="where to put the checkpoint (twice its size is needed)")
    parser.add_argument("--out")
    args = parser.parse_args()
    size, limit = parse_size("64MB" if args.quick else args.size), parse_size(args.limit)
    rows = []
    with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
        scratch = Path(scratch)
        names = make_checkpoint(scratch / "ckpt", size)
        saved = sum(4 * torch.Size(shape).numel() for shape in names.values())
        shard = max(size // 8, 10**6)
        for what, out, words in [
            ("folder of shards", scratch / "out", ["--max-shard-size", str(shard)]),
            ("one file, bf16", scratch / "out.safetensors", ["--dtype", "bf16"]),
        ]:
            seconds, peak = run(scratch, "export", scratch / "ckpt", out, *words)
            files = sorted(out.glob("*.safetensors")) if out.is_dir() else [out]
            if "bf16" not in words:
                check(files, names)
            rows.append(dict(what=what, bytes=saved, seconds=seconds, peak_bytes=peak, files=len(files)))
            shutil.rmtree(out) if out.is_dir() else out.unlink()
    lines = [
        f"`floe export` of {saved / 1e9:.2f} GB of fp32 weights in {RANKS} files of ranks, on {platform.machine()}, "
        f"{os.cpu_count()} cores; {datetime.date.today()}.",
        "",
        "| result | files | peak memory | seconds | GB/s |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        lines.append(
            f"| {row['what']} | {row['files']} | {row['peak_bytes'] / 1e6:.0f} MB | {row['seconds']:.1f} | "
            f"{row['bytes'] / row['seconds'] / 1e9:.2f} |"
        )
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if args.out:
        Path(args.out).with_suffix(".md").write_text(text)
        Path(args.out).with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    if any(row["peak_bytes"] > limit for row in rows):
        sys.exit(f"an export took more than {args.limit} of memory")


if __name__ == "__main__":
    main()
