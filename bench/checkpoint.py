#!/usr/bin/env python3
"""floe's sharded checkpoints next to torch.distributed.checkpoint: the same tensors (weights and AdamW's
moments in fp32), two Gloo ranks, the same disk, in turns.

usage: ./run bench checkpoint [--quick] [--turns N] [--folder DIR]

A save ends when everything is synced and visible. A load has the files in the page cache on both sides;
floe's reads them twice, once for the checksums that it verifies before it changes anything. The pause is
what the training thread waits for an asynchronous save, with torch's cached staging and without. The result is printed and written to
bench/results/DATE-checkpoint.md and .json.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

BENCH = Path(__file__).resolve().parent
BIN = Path(os.environ.get("FLOE_BIN_DIR", BENCH.parent / "build/release/bin"))
RANKS = 2
ROUNDS = 8  # of each start; the first warms up
# torch stages into memory that it keeps from save to save, as floe does; by default it takes new memory each time.
WHAT = {"save_s": "save", "load_s": "load, verified", "pause_s": "pause of an asynchronous save",
        "uncached_pause_s": "the same, torch by default"}


def start(command):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    ranks = []
    for rank in range(RANKS):
        env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1",
                   MASTER_PORT=port, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", FLOE_LOG="warn")
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit(f"{command[0]} failed")
    return [json.loads(line) for line in outputs[0].splitlines()][1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--folder", default=None, help="where to write; default: the folder for temporary files")
    arguments = parser.parse_args()
    size = {"dim": 128, "layers": 2, "vocab": 1024} if arguments.quick else {"dim": 1024, "layers": 4, "vocab": 8192}
    times = {"floe": {key: [] for key in WHAT}, "torch": {key: [] for key in WHAT}}
    rounds = 2 if arguments.quick else ROUNDS
    scratch = Path(tempfile.mkdtemp(prefix="floe-bench-", dir=arguments.folder))
    try:
        for turn in range(1 if arguments.quick else arguments.turns):
            print(f"turn {turn + 1}", file=sys.stderr)
            for system, command in {
                "floe": [str(BIN / "bench_checkpoint"), f"folder={scratch / 'floe'}", f"rounds={rounds}",
                         *(f"{key}={value}" for key, value in size.items())],
                "torch": [sys.executable, str(BENCH / "checkpoint_twin.py"), str(scratch / "torch"), str(rounds),
                          *map(str, size.values())],
            }.items():
                for line in start(command):
                    for key in WHAT:
                        times[system][key].append(line.get(key, line["pause_s"]))
                folder = scratch / ("floe/checkpoints/step_3" if system == "floe" else "torch")  # each round has three saves
                megabytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20
                times[system]["mib"] = round(megabytes, 1)
                shutil.rmtree(scratch / system, ignore_errors=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    lines = [f"Checkpoints, {RANKS} ranks, {times['floe']['mib']:.0f} MiB (floe) and {times['torch']['mib']:.0f} MiB "
             f"(torch), {platform.processor() or platform.machine()}, {os.cpu_count()} cores", "",
             "| | floe, s | torch.distributed.checkpoint, s | floe is faster by |", "| --- | --- | --- | --- |"]
    result = {"size": size, "times": times, "ratio": {}}
    for key, what in WHAT.items():
        floe, torch = (statistics.median(times[system][key]) for system in ("floe", "torch"))
        result["ratio"][key] = torch / floe
        lines.append(f"| {what} | {floe:.3f} | {torch:.3f} | {torch / floe:.2f}× |")
    lines += ["", f"Medians of {len(times['floe']['save_s'])} measurements, in turns on one disk."]
    print("\n".join(lines))
    if not arguments.quick:
        base = BENCH / "results" / f"{datetime.date.today()}-checkpoint"
        base.with_suffix(".md").write_text("\n".join(lines) + "\n")
        base.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")


main()
