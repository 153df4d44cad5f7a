"""What floe's training loop costs beyond the model's kernels, at a tiny model: the same steps by hand and by
the trainer, with JSON lines, TensorBoard and W&B written for every step.

    ./run bench train [--steps N] [--rounds N]

Prints a table and writes it to bench/results/DATE-train.md.
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "goldens" / "models"
LIMIT_US = 200


def config(folder):
    model = (GOLDEN / "neox_x2" / "model.yaml").read_text()
    lines = [f"  {line}" for line in model.splitlines()]
    path = folder / "config.yaml"
    path.write_text("\n".join([
        "model:", *lines,
        f"data: {{batches: {GOLDEN}/neox_x2-train/batches.safetensors}}",
        "train: {optimizer: {lr: 1e-4}, schedule: {warmup_steps: 0}}",
        "strategy: {mixed_precision: {param: fp32}}",
        "checkpoint: {every_steps: null}",
        "log: {every_steps: 1000000, diagnostics: null}",
    ]).replace("lm: lm", f"lm: {GOLDEN}/neox_x2/lm").replace("vision: vision", f"vision: {GOLDEN}/neox_x2/vision")
     .replace("weights: flamingo", f"weights: {GOLDEN}/neox_x2/flamingo") + "\n")
    return path


def measure(steps, round_number):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        done = subprocess.run(
            [Path(os.environ["FLOE_BIN_DIR"]) / "bench_train", str(steps), config(folder),
             f"run.dir={folder}", f"run.name=round{round_number}"],
            capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / f"{datetime.date.today()}-train.md")
    arguments = parser.parse_args()
    rounds = [measure(arguments.steps, i) for i in range(arguments.rounds)]
    table = ["| round | by hand, µs a step | trainer, µs a step | beyond, µs |", "| --- | --- | --- | --- |"]
    for i, one in enumerate(rounds):
        table.append(f"| {i + 1} | {one['by_hand_us']:.0f} | {one['trainer_us']:.0f} | {one['overhead_us']:.0f} |")
    middle = statistics.median(one["overhead_us"] for one in rounds)
    verdict = f"The loop costs {middle:.0f} µs a step beyond the model; the limit is {LIMIT_US} µs."
    text = "\n".join([
        f"# The training loop beyond the model, {datetime.date.today()}", "",
        f"A golden Flamingo of 156 thousand parameters, one CPU rank, one thread, medians of {arguments.steps} steps; "
        "metrics.jsonl, TensorBoard and W&B are written for every step. `./run bench train`.", "", *table, "", verdict, ""])
    print(text)
    arguments.out.write_text(text)
    return 0 if middle < LIMIT_US else 1


if __name__ == "__main__":
    raise SystemExit(main())
