#!/usr/bin/env python3
"""floe's engine next to PyTorch's FSDP2, FSDP1 and DDP: the same model, weights and batches on two
Gloo ranks of this machine, each pinned to one core.

usage: ./run bench engine [--quick] [--rounds N] [--steps N] [--configs a,b] [--systems floe,fsdp2]

Every run of a system has processes of its own, one system after the other, in several interleaved rounds.
What is compared must be the same work, so a system whose losses differ from floe's fails. The result
is printed and written to bench/results/DATE-engine.md and .json.
"""

import argparse
import datetime
import json
import multiprocessing
import os
import platform
import re
import socket
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch
import torch._dynamo  # noqa: F401 (seconds, which optimizers and FSDP2 would take in every rank)

from torch_twin import rank

BENCH = Path(__file__).resolve().parent
BIN = Path(os.environ.get("FLOE_BIN_DIR", BENCH.parent / "build/release/bin"))
RANKS = 2
LOSS_TOLERANCE = 1e-4
MIB = 2**20

# How floe is asked to run; the other systems are in torch_twin/systems.py.
FLOE = {
    "floe": {},
    "floe-resident": {"residency": "resident"},
    "floe-kept": {"strategy": "shard_grad_op"},
    "floe-no-shard": {"strategy": "no_shard"},
}
LABELS = {
    "floe": "floe",
    "floe-resident": "floe, frozen resident",
    "floe-kept": "floe, shard_grad_op",
    "floe-no-shard": "floe, no_shard",
    "fsdp2": "FSDP2",
    "fsdp2-apart": "FSDP2, best wrapping",
    "fsdp2-kept": "FSDP2, reshard_after_forward=False",
    "fsdp2-resident": "FSDP2, frozen ignored",
    "fsdp1": "FSDP1",
    "ddp": "DDP",
}
SHARDED = ["floe", "fsdp2", "fsdp2-apart", "fsdp1"]
KEPT = ["floe-kept", "fsdp2-kept"]
RESIDENT = ["floe-resident", "fsdp2-resident"]
WHOLE = ["floe-no-shard", "ddp"]  # everything on every rank


def configurations(quick):
    """name -> (what it is, model, trainable patterns, systems)"""
    big = {"vocab": 10000, "dim": 640, "layers": 10, "heads": 10, "context": 64, "adapter": 0, "tied": False}
    deep = {**big, "vocab": 16000, "dim": 512, "layers": 16, "heads": 8}
    upper = ["layers.8.*", "layers.9.*", "norm.*"]
    last = ["layers.14.*", "layers.15.*", "norm.*"]
    adapter = 512
    if quick:
        big = {**big, "vocab": 2000, "dim": 64, "layers": 5, "heads": 4, "context": 16}
        deep = {**big, "layers": 8}
        upper, last, adapter = ["layers.4.*", "norm.*"], ["layers.7.*", "norm.*"], 48
    adapters = ["layers.*.adapter.*", *upper]
    return {
        "adapters": ("adapters in every layer and the two upper layers train", {**big, "adapter": adapter}, adapters,
                     [*SHARDED, *KEPT, *RESIDENT, *WHOLE]),
        "last": ("only the last layers train", deep, last, [*SHARDED, *RESIDENT, *WHOLE]),
        "all": ("everything trains", big, ["*"], [*SHARDED, *KEPT, *WHOLE]),
        "tied": ("head and embedding share a weight, everything trains", {**big, "tied": True}, ["*"],
                 [*SHARDED, *WHOLE]),
        "tied-frozen": ("head and embedding share a frozen weight, adapters and the upper layers train",
                        {**big, "adapter": adapter, "tied": True}, adapters, SHARDED),
    }


def config_of(model, trainable, arguments):
    return {
        "model": model,
        "trainable": trainable,
        "units": ["DecoderLayer"],
        "strategy": "full_shard",
        "residency": "sharded",
        "seed": 1,
        "batch": 2,
        "tokens": 16 if arguments.quick else 32,
        "batches": 2,  # distinct ones, in turn
        "lr": 1e-3,
        "weight_decay": 0.1,
        "warmup": arguments.warmup,
        "steps": arguments.steps,
    }


# ---------------------------------------------------------------------------------- running ranks


class Failed(Exception):
    """Why a system has no result, in one line."""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def reason_in(output):
    """The line that says what went wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    told = [re.sub(r"^\[rank\d+\]:\s*", "", line) for line in lines]
    told = [line for line in told if re.match(r"^(\w+\.)*\w*(Error|Exception|error)\b", line)] or told
    return (told[-1] if told else "no output")[:200]


def be_rank(rank, port, core, files, work):
    """In a process of its own: becomes the rank and does the work."""
    for number, path in zip((1, 2), files):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port), OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    os.sched_setaffinity(0, core)
    work()


def run_ranks(work, folder, timeout):
    """Does the work in one process per rank; the JSON lines that they print, by rank."""
    cores, port, ranks = sorted(os.sched_getaffinity(0)), free_port(), []
    for rank in range(RANKS):
        core = {cores[rank]} if len(cores) >= RANKS else set(cores)
        files = [folder / f"rank{rank}.out", folder / f"rank{rank}.err"]
        process = multiprocessing.get_context("fork").Process(target=be_rank, args=(rank, port, core, files, work))
        process.start()
        ranks.append((process, files))
    try:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and any(process.exitcode is None for process, _ in ranks):
            if any(process.exitcode for process, _ in ranks):
                deadline = min(deadline, time.monotonic() + 5)  # the others end by themselves, or never
            time.sleep(0.02)
        ended = [process.exitcode for process, _ in ranks]
    finally:
        for process, _ in ranks:
            process.kill()
            process.join()
    texts = [[path.read_text() for path in files] for _, files in ranks]
    for code, (_, err) in zip(ended, texts):
        if code not in (0, None):
            raise Failed(reason_in(err) if code > 0 else f"killed by signal {-code}: {reason_in(err)}")
    if None in ended:
        raise Failed(f"not done after {timeout} s")
    return [json.loads(out.strip().splitlines()[-1]) for out, _ in texts]


def run_system(system, config, weights, folder, timeout):
    def floe():
        path = folder / f"config-{os.environ['RANK']}.json"
        path.write_text(json.dumps({**config, **FLOE[system]}))
        os.execv(BIN / "bench_engine", ["bench_engine", str(path)])

    def torch_twin():
        rank.main(system, config, weights, BIN / "libfloe_memory_counter.so")

    return run_ranks(floe if system in FLOE else torch_twin, folder, timeout)


# --------------------------------------------------------------------------------------- results


def summarize(rounds):
    """One row from the ranks of all rounds: medians of times, the largest rank of what is counted."""
    last = rounds[-1]
    per_round = [statistics.median(ranks[0]["step_seconds"]) for ranks in rounds]
    row = {"step_s": statistics.median(s for ranks in rounds for s in ranks[0]["step_seconds"]),
           "step_s_rounds": per_round, "losses": [ranks["losses"] for ranks in last]}
    for part in ("cpu", "forward", "backward", "update"):
        row[f"{part}_s"] = statistics.median(s for ranks in rounds for s in ranks[0][f"{part}_seconds"])
    if "waited_seconds" in last[0]:
        row["waited_s"] = statistics.median(ranks[0]["waited_seconds"] for ranks in rounds)
    for name in ("peak_bytes", "between_bytes", "gradient_bytes", "optimizer_bytes", "gathers", "gathered_bytes",
                 "reduces", "reduced_bytes"):
        row[name] = max(rank[name] for ranks in rounds for rank in ranks)
    return row


def loss_difference(a, b):
    return max(abs(x - y) for rank_a, rank_b in zip(a, b) for x, y in zip(rank_a, rank_b))


def measure(configs, arguments, folder):
    """{configuration: {"about", "systems": {system: row or {"failed": reason}}}}"""
    results = {}
    for name, (about, model, trainable, systems) in configs.items():
        config = config_of(model, trainable, arguments)
        weights = folder / "weights.safetensors"
        (folder / "config.json").write_text(json.dumps(config))
        subprocess.run([BIN / "bench_engine", folder / "config.json", "--weights", weights], check=True,
                       timeout=arguments.timeout)
        chosen = [s for s in systems if not arguments.systems or s in arguments.systems]
        rounds, failed = {system: [] for system in chosen}, {}
        for number in range(arguments.rounds):
            for system in chosen:
                if system in failed:
                    continue
                try:
                    rounds[system].append(run_system(system, config, weights, folder, arguments.timeout))
                    took = statistics.median(rounds[system][-1][0]["step_seconds"])
                    print(f"  {name}, round {number + 1}, {LABELS[system]}: {took:.3f} s", flush=True)
                except Failed as failure:
                    failed[system] = str(failure)
                    print(f"  {name}, {LABELS[system]}: failed: {failure}", flush=True)
        rows = {s: {"failed": failed[s]} if s in failed else summarize(rounds[s]) for s in chosen}
        reference = rows.get("floe", {}).get("losses")
        for system, row in rows.items():
            if reference and "losses" in row:
                row["loss_difference"] = loss_difference(row["losses"], reference)
                if not row["loss_difference"] <= LOSS_TOLERANCE:
                    rows[system] = {"failed": f"losses differ from floe's by {row['loss_difference']:.2g}"}
        results[name] = {"about": about, "config": config, "numbers": numbers_of(weights, trainable), "systems": rows}
    return results


def numbers_of(weights, trainable):
    """How many elements there are and train, from the header of the weights' file."""
    from fnmatch import fnmatchcase
    from math import prod

    with open(weights, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    sizes = {name: prod(info["shape"]) for name, info in header.items() if name != "__metadata__"}
    trains = sum(n for name, n in sizes.items() if any(fnmatchcase(name, p) for p in trainable))
    return {"parameters": sum(sizes.values()), "trainable": trains}


def mib(n):
    return f"{n / MIB:.1f}" if n < 100 * MIB else f"{n / MIB:.0f}"


def table(systems):
    lines = ["| system | step s (rounds) | ÷ floe | CPU s | ÷ floe | forward + backward + update s | peak MiB | gathers n / MiB "
             "| reductions n / MiB | gradients | optimizer | between steps |",
             "| --- " * 12 + "|"]
    floe = systems.get("floe", {})
    for system, row in systems.items():
        if "failed" in row:
            lines.append(f"| {LABELS[system]} | failed: {row['failed'].replace('|', '/')} " + "| " * 10 + "|")
            continue
        spread = f"{min(row['step_s_rounds']):.3f}–{max(row['step_s_rounds']):.3f}"
        ratio = {name: f"{row[name] / floe[name]:.2f}" if name in floe else "" for name in ("step_s", "cpu_s")}
        parts = " + ".join(f"{row[f'{part}_s']:.3f}" for part in ("forward", "backward", "update"))
        lines.append(f"| {LABELS[system]} | {row['step_s']:.3f} ({spread}) | {ratio['step_s']} | {row['cpu_s']:.3f} "
                     f"| {ratio['cpu_s']} | {parts} | {mib(row['peak_bytes'])} "
                     f"| {row['gathers']} / {mib(row['gathered_bytes'])} | {row['reduces']} / {mib(row['reduced_bytes'])} "
                     f"| {mib(row['gradient_bytes'])} | {mib(row['optimizer_bytes'])} | {mib(row['between_bytes'])} |")
    return lines


def machine():
    cpu = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    memory = int(re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text()).group(1)) / 2**20
    return (f"{len(os.sched_getaffinity(0))} cores ({cpu.group(1).strip() if cpu else platform.machine()}), "
            f"{memory:.0f} GiB of memory, {platform.system()}, Python {platform.python_version()}, "
            f"PyTorch {torch.__version__}")


def report(results, arguments):
    lines = [
        f"# Engine: floe, FSDP2, FSDP1 and DDP, {datetime.date.today()}",
        "",
        f"{machine()}. {RANKS} Gloo ranks, one core and one thread each; fp32, AdamW (fused), "
        f"{arguments.rounds} interleaved rounds of {arguments.steps} steps after {arguments.warmup} for warming up. "
        "Times are medians over the steps of all rounds (in brackets the medians of the fastest and the slowest "
        "round); `CPU s` is the processor time of a step, all threads of a rank, which other work on the machine "
        "disturbs least; `÷ floe` is the system's time over floe's. Everything counted is per rank (the largest) and "
        "per step: tensor bytes from the same counting allocator in every process, bytes of gathered outputs and of "
        "reduction inputs. floe's step also computes the global gradient norm and compares the ranks' order of "
        f"collectives; the others' does not. All losses of all steps agree with floe's within {LOSS_TOLERANCE}.",
    ]
    for name, result in results.items():
        model, numbers = result["config"]["model"], result["numbers"]
        frozen = 1 - numbers["trainable"] / numbers["parameters"]
        lines += ["", f"## {name}: {result['about']}", "",
                  f"{numbers['parameters'] / 1e6:.1f} M parameters ({mib(4 * numbers['parameters'])} MiB), "
                  f"{100 * frozen:.0f}% frozen; {model['layers']} layers of width {model['dim']}, vocabulary "
                  f"{model['vocab']}; {result['config']['batch']} × {result['config']['tokens']} tokens a rank.",
                  "", *table(result["systems"])]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny models, one round: a smoke test")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--warmup", type=int)
    parser.add_argument("--timeout", type=int, default=180, help="seconds that one system may take (180)")
    parser.add_argument("--configs", type=lambda text: text.split(","), help="only these configurations")
    parser.add_argument("--systems", type=lambda text: text.split(","), help="only these systems")
    parser.add_argument("--out", type=Path, help="where to write the result, without ending")
    arguments = parser.parse_args()
    for name, usual, quick in (("rounds", 3, 1), ("steps", 10, 3), ("warmup", 3, 2)):
        if getattr(arguments, name) is None:
            setattr(arguments, name, quick if arguments.quick else usual)
    configs = configurations(arguments.quick)
    for wrong in set(arguments.configs or ()) - set(configs):
        parser.error(f"there is no configuration '{wrong}'; there are {', '.join(configs)}")
    for wrong in set(arguments.systems or ()) - set(LABELS):
        parser.error(f"there is no system '{wrong}'; there are {', '.join(LABELS)}")
    configs = {name: c for name, c in configs.items() if not arguments.configs or name in arguments.configs}
    with tempfile.TemporaryDirectory(prefix="floe-bench-") as folder:
        results = measure(configs, arguments, Path(folder))
    text = report(results, arguments)
    print("\n" + text)
    out = arguments.out or BENCH / "results" / f"{datetime.date.today()}-engine"
    if arguments.out or not arguments.quick:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.with_suffix(".md").write_text(text)
        out.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
        print(f"Written to {os.path.relpath(out)}.md and .json")


if __name__ == "__main__":
    main()
