#!/usr/bin/env python3
"""What floe plan says of steps of Gloo ranks on the CPU of this machine, beside what these steps take.

    ./run bench plan_cpu [--rounds N] [--ranks 1 2 3 4] [--quick] [--write docs/plan.md]

Each round calibrates (floe launch -n 2 -- calibrate), then runs every model on every number of ranks, as
floe launch starts them, and plans the same step from that calibration. Time is the median of a step on
rank 0, memory the most bytes of tensors on a rank; of several rounds the median. The result is printed and
written to bench/results/DATE-plan-cpu.json; --write also puts the table between the marks in a page. Other
work on the machine makes all of it worth less: run it on a quiet one.
"""

import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BIN = Path(os.environ.get("FLOE_BIN_DIR", HERE.parent / "build/release/bin"))
MARKS = ("<!-- bench/plan_cpu.py -->\n", "<!-- end of bench/plan_cpu.py -->\n")


def decoder(quick):
    """A decoder whose layers all train, or only its adapters and last layers (bench_engine)."""
    sizes = {"vocab": 8000, "dim": 512, "layers": 8, "heads": 8, "context": 64, "adapter": 32, "tied": False}
    return {**sizes, "vocab": 1000, "dim": 64, "layers": 3, "heads": 4} if quick else sizes


def flamingo(quick):
    """OpenFlamingo with a small tower and MPT, frozen but for resampler and gates (bench_h200)."""
    lm = {"model_type": "mpt", "vocab_size": 8000, "d_model": 512, "n_layers": 6, "n_heads": 8}
    vision = {"image_size": 112, "vision_width": 256, "vision_layers": 4, "vision_heads": 4, "perceiver_depth": 2}
    if quick:
        lm |= {"vocab_size": 512, "d_model": 64, "n_layers": 2, "n_heads": 4}
        vision |= {"image_size": 28, "vision_width": 32, "vision_layers": 1, "vision_heads": 2, "perceiver_depth": 1}
    return {"lm": lm, "cross_attention_every": 2, "media_token": lm["vocab_size"] - 2,
            "endofchunk_token": lm["vocab_size"] - 1} | vision


def fail(done, what):
    if done.returncode:
        sys.exit(f"{what}: exit status {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout


def launch(ranks, command):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OMP_")}
    return subprocess.run([BIN / "floe", "launch", "-n", str(ranks), "--no-prefix", *map(str, command)],
                          capture_output=True, text=True, check=False, env=environment | {"CUDA_VISIBLE_DEVICES": ""},
                          timeout=600)


def calibrated(folder, ranks=2):
    file = folder / "machine.yaml"
    fail(launch(ranks, ["--", "calibrate", file, "--force", "--device", "cpu"]), "calibrate")
    return file


def answers(ranks, program, config, folder):
    """What every rank prints, rank 0 first."""
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    lines = fail(launch(ranks, ["--exec", BIN / program, path]), program).splitlines()
    return sorted((json.loads(line) for line in lines if line.startswith("{")), key=lambda one: one.get("rank", 0))


class Decoder:
    def __init__(self, name, trainable, arguments):
        self.name, self.trainable, self.arguments = name, trainable, arguments
        self.model = decoder(arguments.quick)
        self.batch, self.tokens = (2, 16) if arguments.quick else (4, 64)

    def measured(self, ranks, folder):
        config = {"model": self.model, "trainable": self.trainable, "units": ["DecoderLayer"], "strategy": "full_shard",
                  "residency": "sharded", "seed": 1, "batch": self.batch, "tokens": self.tokens, "batches": 2, "lr": 1e-3,
                  "weight_decay": 0.1, "warmup": 3, "steps": self.arguments.steps}
        all_ranks = answers(ranks, "bench_engine", config, folder)
        first = all_ranks[0]
        return {"step_ms": 1e3 * statistics.median(first["step_seconds"]), "peak_bytes": max(r["peak_bytes"] for r in all_ranks),
                "gathers": first["gathers"], "reduces": first["reduces"]}

    def planned(self, ranks, machine, folder):
        path = folder / "decoder.yaml"
        model = {"type": "transformer", **self.model}
        strategy = {"units": ["DecoderLayer"], "mixed_precision": {"param": "fp32", "reduce": "fp32", "buffer": "fp32"}}
        path.write_text(json.dumps({"world": ranks, "model": model, "train": {"trainable": self.trainable}, "strategy": strategy}))
        done = subprocess.run([BIN / "floe", "plan", path, "--gpu", machine, "--gpus-per-node", str(ranks), "--json", "--batch",
                               f"{self.batch}x{self.tokens}"], capture_output=True, text=True, check=False, timeout=300)
        plan = json.loads(fail(done, "plan"))
        moves = plan["moves"]
        return {"step_ms": 1e3 * plan["step"]["time"]["seconds"], "peak_bytes": plan["step"]["memory"]["peak_bytes"],
                "gathers": moves["all_gathers"], "reduces": moves["reduce_scatters"], "time": plan["step"]["time"]}


class Flamingo:
    def __init__(self, name, arguments):
        self.name, self.arguments, self.model = name, arguments, flamingo(arguments.quick)

    def config(self):
        captions, documents = (2, 1) if self.arguments.quick else (4, 2)
        text = self.model["lm"]["vocab_size"] - 4
        data = [{"text_tokens": text, "slots": 1, "sequences": [[32, 1]] * captions},
                {"text_tokens": text, "slots": 3, "sequences": [[64, 3]] * documents}]
        return {"device": "cpu", "model": self.model, "data": data, "loss_weights": [0.2, 1.0], "precision": "fp32", "prefetch": 1,
                "residency": "sharded", "checkpointing": [], "seed": 0, "lr": 1e-4, "warmup": 3, "steps": self.arguments.steps,
                "profile": False}

    def measured(self, ranks, folder):
        all_ranks = answers(ranks, "bench_h200", self.config() | {"task": "steps", "world": ranks, "join": True}, folder)
        first = all_ranks[0]
        return {"step_ms": statistics.median(first["step_ms"]), "peak_bytes": max(r["peak_bytes"] for r in all_ranks),
                "gathers": first["gathers"], "reduces": first["reduces"]}

    def planned(self, ranks, machine, folder):
        path = folder / "plan.json"
        path.write_text(json.dumps(self.config() | {"task": "plan", "world": ranks, "machine": str(machine), "ranks_per_node": ranks}))
        done = subprocess.run([BIN / "bench_h200", path], capture_output=True, text=True, check=False, timeout=300)
        return json.loads(fail(done, "plan").splitlines()[-1])


def off(planned, measured):
    return 100 * (planned / measured - 1)


def compare(models, arguments):
    rows = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(arguments.rounds):
            machine = Path(arguments.machine) if arguments.machine else calibrated(folder)
            for model in models:
                for ranks in arguments.ranks:
                    row = rows.setdefault((model.name, ranks), {"model": model.name, "ranks": ranks, "rounds": []})
                    measured, planned = model.measured(ranks, folder), model.planned(ranks, machine, folder)
                    row["rounds"].append({"measured": measured, "planned": planned})
                    print(f"round {number + 1}, {model.name}, {ranks} ranks: {measured['step_ms']:.0f} ms, planned "
                          f"{planned['step_ms']:.0f}", file=sys.stderr, flush=True)
        text = machine.read_text()
    for row in rows.values():
        for what in ("measured", "planned"):
            for key in ("step_ms", "peak_bytes", "gathers", "reduces"):
                row[f"{what}_{key}"] = statistics.median(one[what][key] for one in row["rounds"])
    return list(rows.values()), text


def table(rows):
    lines = ["| model | ranks | measured ms | planned ms | off | measured MiB | planned MiB | off |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        ms, planned = row["measured_step_ms"], row["planned_step_ms"]
        held, counted = row["measured_peak_bytes"], row["planned_peak_bytes"]
        lines.append(f"| {row['model']} | {row['ranks']} | {ms:.0f} | {planned:.0f} | {off(planned, ms):+.1f}% | {held / 2**20:.1f} | "
                     f"{counted / 2**20:.1f} | {off(counted, held):+.1f}% |")
    return lines


def machine_words():
    cpu = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    return f"{len(os.sched_getaffinity(0))} cores ({cpu.group(1).strip() if cpu else 'CPU'})"


def verdict(rows, arguments):
    times = [abs(off(row["planned_step_ms"], row["measured_step_ms"])) for row in rows]
    memory = [abs(off(row["planned_peak_bytes"], row["measured_peak_bytes"])) for row in rows]
    return (f"{len(rows)} rows, {datetime.date.today()}, {machine_words()}, {arguments.rounds} rounds of {arguments.steps} steps. "
            f"{sum(value <= 20 for value in times)} rows are within 20% in time (worst {max(times):.1f}%), "
            f"{sum(value <= 5 for value in memory)} within 5% in memory (worst {max(memory):.1f}%).")


def write(page, text):
    path = Path(page)
    before, rest = path.read_text().split(MARKS[0])
    path.write_text(before + MARKS[0] + text + MARKS[1] + rest.split(MARKS[1])[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--models", nargs="+", help="only these: decoder, adapters, flamingo")
    parser.add_argument("--quick", action="store_true", help="tiny models: a smoke test, whose times say little")
    parser.add_argument("--machine", help="a file of floe calibrate, instead of calibrating in each round")
    parser.add_argument("--out", type=Path, help="where the raw result goes (bench/results/DATE-plan-cpu.json)")
    parser.add_argument("--write", metavar="PAGE.md", help="put the table between the marks of this page")
    arguments = parser.parse_args()
    last = decoder(arguments.quick)["layers"] - 1
    models = [Decoder("decoder", ["*"], arguments),
              Decoder("adapters", ["layers.*.adapter.*", f"layers.{last}.*", "norm.*"], arguments),
              Flamingo("flamingo", arguments)]
    for wrong in set(arguments.models or ()) - {model.name for model in models}:
        parser.error(f"there is no model '{wrong}'")
    models = [model for model in models if not arguments.models or model.name in arguments.models]
    rows, machine = compare(models, arguments)
    text = "\n".join([*table(rows), "", verdict(rows, arguments)]) + "\n"
    print(text, end="")
    out = arguments.out or HERE / "results" / f"{datetime.date.today()}-plan-cpu.json"
    out.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    if arguments.write:
        write(arguments.write, text)


if __name__ == "__main__":
    main()
