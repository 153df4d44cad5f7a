#!/usr/bin/env python3
"""floe's loader next to OpenFlamingo's pipeline (webdataset, PIL, open_clip, tokenizers, DataLoader) and to
libjpeg-turbo alone, on the same files.

usage: ./run bench data [--quick] [--rounds N] [--configs a,b]

The files are made here: pictures with the detail of photographs, captions and documents of random words.
Both pipelines tokenise, decode, resize, normalise and batch with the same rules; threads of floe stand
against worker processes. Rounds are interleaved. The result is printed and written to
bench/results/DATE-data.md and .json.
"""

import argparse
import base64
import datetime
import io
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

BENCH = Path(__file__).resolve().parent
BIN = Path(os.environ.get("FLOE_BIN_DIR", BENCH.parent / "build/release/bin"))
TOKENIZER = BENCH.parent / "tests/goldens/data/tokenizers/neox"
THREADS = (1, 2)
WORDS = ("sea ice floe winter light boat harbour north wind snow white blue water slow morning people walk along the a "
         "of and in with over under cold bright long small old quiet river mountain house road photograph").split()


def picture(rng, width, height, target_bytes):
    """Shapes on smooth gradients with detail at every scale, at the quality that gives about so many bytes."""
    pixels = np.zeros((height, width, 3))
    for step in (128, 64, 32, 16, 8, 4, 2, 1):
        small = rng.normal(0, 9 * step**0.45, (height // step + 2, width // step + 2, 3)).astype(np.float32)
        layers = [np.asarray(Image.fromarray(small[..., c]).resize((width, height), Image.BICUBIC)) for c in range(3)]
        pixels += np.stack(layers, -1)
    image = Image.fromarray(np.clip(pixels + 120, 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(12):
        x, y = rng.integers(0, width), rng.integers(0, height)
        size = rng.integers(10, width // 3)
        draw.ellipse((x, y, x + size, y + size), fill=tuple(int(c) for c in rng.integers(0, 255, 3)))
    best = None
    for quality in (95, 92, 90, 87, 84, 80, 75, 70, 60, 50, 40):
        out = io.BytesIO()
        image.save(out, "JPEG", quality=quality)
        if best is None or abs(len(out.getvalue()) - target_bytes) < abs(len(best) - target_bytes):
            best = out.getvalue()
    return best


def sentence(rng, words):
    return " ".join(rng.choice(WORDS, words)).capitalize() + "."


def laion_sample(rng, number, width, height, size):
    return {f"{number:06d}.jpg": picture(rng, width, height, size), f"{number:06d}.txt": sentence(rng, 12).encode(),
            f"{number:06d}.json": json.dumps({"key": number, "width": width, "height": height}).encode()}


def mmc4_sample(rng, number, images=4, sentences=40):
    # The pictures belong to the first sentences, so that none of their markers is cut off.
    matrix = rng.uniform(0.1, 0.22, (images, sentences))
    for row, column in enumerate(rng.permutation(images)):
        matrix[row, column] = 0.3
    document = {
        "url": f"https://example.org/{number}",
        "text_list": [sentence(rng, 10) for _ in range(sentences)],
        "image_info": [{"image_name": f"{i}.jpg", "raw_url": f"https://example.org/{number}/{i}.jpg",
                        "image_base64": base64.b64encode(picture(rng, 640, 480, 90_000)).decode()}
                       for i in range(images)],
        "similarity_matrix": matrix.tolist(),
    }
    return {f"{number:032x}.json": json.dumps(document).encode()}


def write_shards(folder, make, count, shards):
    """`count` samples over so many shards; the pattern that names them, and the mean size of a picture."""
    rng = np.random.default_rng(1)
    for shard in range(shards):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for number in range(shard * count // shards, (shard + 1) * count // shards):
                for name, data in make(rng, number).items():
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    return f"{folder}/{{0..{shards - 1}}}.tar"


def configurations(quick):
    """name -> (what it is, source, how a sample is made, files, batch size, samples measured by system)

    The share of every worker fills whole batches, so that no pipeline throws decoded samples away at the
    end of a pass.
    """
    few = {"floe": 64, "openflamingo": 32}
    return {
        "laion-512": ("LAION pairs, 512×512 (about 65 KB)", "laion",
                      lambda rng, i: laion_sample(rng, i, 512, 512, 65_000), 32 if quick else 512,
                      8 if quick else 64, few if quick else {"floe": 3072, "openflamingo": 640}),
        "laion-1024": ("LAION pairs, 1024×768 (about 161 KB)", "laion",
                       lambda rng, i: laion_sample(rng, i, 1024, 768, 161_000), 32 if quick else 256,
                       8 if quick else 64, few if quick else {"floe": 1536, "openflamingo": 320}),
        "mmc4": ("MMC4 documents with 4 pictures of 640×480 (about 90 KB each)", "mmc4", mmc4_sample,
                 8 if quick else 128, 4 if quick else 32, few if quick else {"floe": 768, "openflamingo": 160}),
    }


def run(command, asked, folder):
    path = folder / "asked.json"
    path.write_text(json.dumps(asked))
    done = subprocess.run([*command, path], capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise SystemExit(f"bench data: {command[-1]} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def measure(configs, arguments, folder):
    results = {}
    for name, (about, source, make, files, batch, samples) in configs.items():
        shards = folder / name
        shards.mkdir()
        pattern = write_shards(shards, make, files, 2 * len(THREADS))
        asked = {"source": source, "shards": pattern, "tokenizer": str(TOKENIZER), "batch_size": batch}
        systems = {"decode": [], **{f"{system} {n}": [] for system in ("openflamingo", "floe") for n in THREADS}}
        for number in range(arguments.rounds):
            for system, rows in systems.items():
                kind, _, threads = system.partition(" ")
                if kind == "decode":
                    row = run([BIN / "bench_data"], {**asked, "kind": "decode", "images": 32 if arguments.quick else 1000},
                              folder)
                else:
                    command = [BIN / "bench_data"] if kind == "floe" else [sys.executable, BENCH / "data_twin.py"]
                    row = run(command, {**asked, "kind": "loader", "threads": int(threads), "warmup": 2 * batch,
                                        "samples": samples[kind]}, folder)
                rows.append(row)
                print(f"  {name}, round {number + 1}, {system}: {row['images'] / row['cpu_s']:.0f} images a CPU-second",
                      flush=True)
        results[name] = {"about": about, "source": source, "systems": systems}
    return results


def rates(rows):
    """Medians over rounds: pictures and samples per CPU-second, samples per second."""
    median = statistics.median
    rate = {"images_cpu": median(row["images"] / row["cpu_s"] for row in rows),
            "images_cpu_rounds": [row["images"] / row["cpu_s"] for row in rows],
            "images_wall": median(row["images"] / row["wall_s"] for row in rows)}
    if "samples" in rows[0]:
        rate["samples_cpu"] = median(row["samples"] / row["cpu_s"] for row in rows)
        rate["samples_wall"] = median(row["samples"] / row["wall_s"] for row in rows)
    return rate


def table(result):
    rate = {system: rates(rows) for system, rows in result["systems"].items()}
    raw = rate["decode"]["images_cpu"]
    lines = ["| system | pictures per CPU-second (rounds) | samples per CPU-second | samples per second "
             "| ÷ OpenFlamingo, per CPU-second | of libjpeg-turbo's rate |", "| --- " * 6 + "|"]
    labels = {"decode": "libjpeg-turbo, decoding alone"}
    labels |= {f"openflamingo {n}": f"OpenFlamingo's pipeline, {n} worker{'s' * (n > 1)}" for n in THREADS}
    labels |= {f"floe {n}": f"floe, {n} thread{'s' * (n > 1)}" for n in THREADS}
    for system, r in rate.items():
        spread = f"{min(r['images_cpu_rounds']):.0f}–{max(r['images_cpu_rounds']):.0f}"
        theirs = rate.get("openflamingo " + system.split()[-1])
        versus = f"{r['images_cpu'] / theirs['images_cpu']:.2f}" if theirs and system.startswith("floe") else ""
        samples = [f"{r[key]:.1f}" if key in r else "" for key in ("samples_cpu", "samples_wall")]
        lines.append(f"| {labels[system]} | {r['images_cpu']:.0f} ({spread}) | {samples[0]} | {samples[1]} "
                     f"| {versus} | {100 * r['images_cpu'] / raw:.0f}% |")
    return lines


def machine():
    cpu = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    return (f"{len(os.sched_getaffinity(0))} cores ({cpu.group(1).strip() if cpu else platform.machine()}), "
            f"Python {platform.python_version()}")


def report(results, arguments):
    lines = [f"# Data: floe's loader and OpenFlamingo's pipeline, {datetime.date.today()}", "",
             f"{machine()}. Medians of {arguments.rounds} interleaved rounds, the slowest and the fastest in brackets. "
             "Everything is included: reading tars, shuffling, decoding, resizing, normalising, tokenising, batching "
             "(floe up to the packed batch). CPU-seconds are those of all threads and processes, so other work on the "
             "machine disturbs them least."]
    for name, result in results.items():
        lines += ["", f"## {name}: {result['about']}", "", *table(result)]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few files, one round: a smoke test")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--configs", type=lambda text: text.split(","), help="only these configurations")
    parser.add_argument("--out", type=Path, help="where to write the result, without ending")
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 3)
    configs = configurations(arguments.quick)
    for wrong in set(arguments.configs or ()) - set(configs):
        parser.error(f"there is no configuration '{wrong}'; there are {', '.join(configs)}")
    configs = {name: c for name, c in configs.items() if not arguments.configs or name in arguments.configs}
    with tempfile.TemporaryDirectory(prefix="floe-bench-") as folder:
        results = measure(configs, arguments, Path(folder))
    text = report(results, arguments)
    print("\n" + text)
    out = arguments.out or BENCH / "results" / f"{datetime.date.today()}-data"
    if arguments.out or not arguments.quick:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.with_suffix(".md").write_text(text)
        rows = {name: {**result, "systems": {s: {"rounds": r, **rates(r)} for s, r in result["systems"].items()}}
                for name, result in results.items()}
        out.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
        print(f"Written to {os.path.relpath(out)}.md and .json")


if __name__ == "__main__":
    main()
