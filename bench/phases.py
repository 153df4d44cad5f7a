#!/usr/bin/env python3
"""Two parameter sets that train in turn: floe next to PyTorch's DDP and FSDP2, the same model, weights and
batches on two Gloo ranks of this machine, each pinned to one core. Each set has an AdamW of its own and
trains for two steps at a time.

usage: ./run bench phases [--quick] [--rounds N] [--cycles N] [--systems floe-offload,ddp]

The question is what a system needs while a set trains and the other one rests, next to what it needs
when that set is all that ever trains. Every run of a system has processes of its own. What is compared
must be the same work, so a system whose losses differ fails. The result is printed and written to
bench/results/DATE-phases.md and .json.
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from engine import BENCH, BIN, LOSS_TOLERANCE, RANKS, Failed, machine, mib, numbers_of, run_ranks
from torch_twin import phases as twin

SETS = ("A", "B")
SWITCH_EVERY = 2


class System(NamedTuple):
    label: str
    alone: str  # the system whose runs with one set alone are its own
    state: str  # of a resting set: systems with the same word must give the same losses
    floe: dict | None = None  # how floe is asked to run; None: torch_twin/phases.py knows


def floe_systems(prefix, strategy):
    states = {"keep": "kept", "offload": "kept", "drop": "dropped"}
    return {f"{prefix}-{rest}": System(f"floe, {strategy}, {rest}", f"{prefix}-keep", state,
                                       {"strategy": strategy, "rest": rest}) for rest, state in states.items()}


SHARDED = {
    **floe_systems("floe", "full_shard"),
    "fsdp2": System("FSDP2", "fsdp2", "kept"),
    "fsdp2-offload": System("FSDP2, state moved away by hand", "fsdp2", "kept"),
    "fsdp2-drop": System("FSDP2, state dropped by hand", "fsdp2", "dropped"),
}
WHOLE = {
    **floe_systems("floe-no-shard", "no_shard"),
    "ddp": System("DDP, find_unused_parameters", "ddp", "kept"),
    "ddp-views": System("DDP, the same with bucket views", "ddp-views", "kept"),
    "ddp-rewrapped": System("DDP, wrapped anew at each switch", "ddp", "kept"),
}
SYSTEMS = {**SHARDED, **WHOLE}


def config_of(arguments):
    model = {"vocab": 11000, "dim": 512, "layers": 18, "heads": 8, "context": 64, "adapter": 0, "tied": False}
    sets = {"A": ["layers.8.*"], "B": ["layers.1[4-7].*"]}
    if arguments.quick:
        model |= {"vocab": 1000, "dim": 128, "layers": 10, "heads": 4, "context": 16}
        sets = {"A": ["layers.3.*"], "B": ["layers.[6-9].*"]}
    return {
        "model": model,
        "sets": [{"name": name, "patterns": sets[name]} for name in SETS],
        "units": ["DecoderLayer"],
        "seed": 1,
        "batch": 2,
        "tokens": 16 if arguments.quick else 32,
        "batches": 2,  # distinct ones, in turn
        "lr": 1e-3,
        "weight_decay": 0.1,
        "switch_every": SWITCH_EVERY,
        # The first cycle warms up: after it both sets have optimizer state.
        "steps": 2 * SWITCH_EVERY * (1 + arguments.cycles),
    }


def run_job(system, alone, config, weights, folder, timeout):
    """One run on all ranks: what each rank tells."""
    floe = SYSTEMS[system].floe
    config = {**config, **(floe or {}), "alone": alone}

    def work():
        if not floe:
            twin.main(system, config, weights, BIN / "libfloe_memory_counter.so")
        path = folder / f"config-{os.environ['RANK']}.json"
        path.write_text(json.dumps(config))
        os.execv(BIN / "bench_phases", ["bench_phases", str(path)])

    return run_ranks(work, folder, timeout)


# --------------------------------------------------------------------------------------- results


def summarize_steps(rounds, config):
    """{set: what a step took while it trained}: medians of times, the largest rank of what is counted."""
    warmup = 2 * config["switch_every"]
    result = {}
    for name in SETS:
        steps = [step for ranks in rounds for rank in ranks for step in rank["steps"][warmup:] if step["set"] == name]
        if steps:
            counted = ("peak_bytes", "between_bytes", "stored_bytes", "gathered_bytes", "reduced_bytes")
            result[name] = {key: max(step[key] for step in steps) for key in counted}
            result[name]["least_peak_bytes"] = min(step["peak_bytes"] for step in steps)
            for key, source in (("step_s", "seconds"), ("cpu_s", "cpu_seconds")):
                result[name][key] = statistics.median(step[source] for step in steps)
    return result


def summarize_switches(rounds):
    """{set: what switching to it took}, without the first switch to B: it brings no state back."""
    result = {}
    for name in SETS:
        switches = [s for ranks in rounds for rank in ranks for s in rank["switches"][1:] if s["to"] == name]
        result[name] = {
            "switch_s": statistics.median(s["seconds"] for s in switches),
            "moved_bytes": max(s["gathered_bytes"] + s["reduced_bytes"] + s.get("agreed_bytes", 0) for s in switches),
            # Above what was in use before or after it, whichever is more.
            "extra_bytes": max(s["peak_bytes"] - max(s["before_bytes"], s["after_bytes"]) for s in switches),
        }
    return result


def losses_of(ranks):
    return [[step["loss"] for step in rank["steps"]] for rank in ranks]


def loss_difference(a, b):
    return max(abs(x - y) for rank_a, rank_b in zip(a, b, strict=True) for x, y in zip(rank_a, rank_b, strict=True))


def measure(config, arguments, folder):
    """{system: {"alone": {set: ...}, "turns": {set: ...}, "switches": {set: ...}, "losses": ...} or
    {"failed": reason}}"""
    weights = folder / "weights.safetensors"
    (folder / "config.json").write_text(json.dumps(config))
    subprocess.run([BIN / "bench_engine", folder / "config.json", "--weights", weights], check=True,
                   timeout=arguments.timeout)
    chosen = [s for s in SYSTEMS if not arguments.systems or s in arguments.systems]
    bases = dict.fromkeys(SYSTEMS[s].alone for s in chosen)
    jobs = [(s, None) for s in chosen] + [(s, alone) for s in bases for alone in SETS]
    told, failed = {job: [] for job in jobs}, {}
    for number in range(arguments.rounds):
        for system, alone in jobs:
            about = f"{SYSTEMS[system].label}, {f'{alone} alone' if alone else 'in turn'}"
            try:
                told[system, alone].append(run_job(system, alone, config, weights, folder, arguments.timeout))
                print(f"  round {number + 1}, {about}", flush=True)
            except Failed as failure:
                failed[system, alone] = str(failure)
                print(f"  {about}: failed: {failure}", flush=True)
    results, reference = {}, {}
    for system in chosen:
        label, base, state, _ = SYSTEMS[system]
        wrong = [failed[job] for job in ((system, None), *((base, alone) for alone in SETS)) if job in failed]
        if wrong:
            results[system] = {"label": label, "failed": wrong[0]}
            continue
        alone = {name: told[base, name] for name in SETS}
        losses = {state: losses_of(told[system, None][-1]), **{name: losses_of(alone[name][-1]) for name in SETS}}
        differences = [loss_difference(values, reference.setdefault(job, values)) for job, values in losses.items()]
        results[system] = {
            "label": label,
            "alone": {name: summarize_steps(alone[name], config)[name] for name in SETS},
            "turns": summarize_steps(told[system, None], config),
            "switches": summarize_switches(told[system, None]),
            "losses": losses[state],
            "loss_difference": max(differences),
        }
        if not max(differences) <= LOSS_TOLERANCE:
            results[system] = {"label": label, "failed": f"losses differ by {max(differences):.2g}"}
    return results


def peak_of(steps):
    """The largest step; where steps differ, also the smallest."""
    most, least = steps["peak_bytes"], steps["least_peak_bytes"]
    return mib(most) if most <= 1.01 * least else f"{mib(least)}–{mib(most)}"


def memory_table(rows, floe):
    lines = ["| peak MiB of a rank | A alone | in turn, while A trains | B alone | in turn, while B trains | in turn "
             "÷ floe, offload: A, B | host store while A, B trains |", "| --- " * 7 + "|"]
    for row in rows:
        cells, ratios = [], []
        for name in SETS:
            alone, turns = row["alone"][name]["peak_bytes"], row["turns"][name]["peak_bytes"]
            cells += [peak_of(row["alone"][name]), f"{peak_of(row['turns'][name])} ({100 * (turns / alone - 1):+.1f}%)"]
            if floe:
                ratios.append(f"{turns / floe['turns'][name]['peak_bytes']:.2f}")
        stored = [mib(row["turns"][name]["stored_bytes"]) for name in SETS]
        lines.append(f"| {row['label']} | {' | '.join(cells)} | {', '.join(ratios)} | {', '.join(stored)} |")
    return lines


def cost_table(rows):
    lines = ["| | step s while A, B trains | CPU s | gathered + reduced MiB a step, A | B | switch to A, B: ms | MiB "
             "between ranks | MiB above before and after |", "| --- " * 8 + "|"]
    for row in rows:
        turns, switches = row["turns"], row["switches"]
        times = [", ".join(f"{turns[n][key]:.3f}" for n in SETS) for key in ("step_s", "cpu_s")]
        moved = [f"{mib(turns[n]['gathered_bytes'])} + {mib(turns[n]['reduced_bytes'])}" for n in SETS]
        switch = [", ".join(f"{1e3 * switches[n]['switch_s']:.1f}" for n in SETS),
                  ", ".join(mib(switches[n]["moved_bytes"]) for n in SETS),
                  ", ".join(mib(max(0, switches[n]["extra_bytes"])) for n in SETS)]
        lines.append(f"| {row['label']} | {' | '.join(times + moved + switch)} |")
    return lines


def report(results, config, numbers, arguments):
    model = config["model"]
    lines = [
        f"# Phases: floe, DDP and FSDP2 train two sets in turn, {datetime.date.today()}",
        "",
        f"{machine()}. {RANKS} Gloo ranks, one core and one thread each; fp32; {numbers['all'] / 1e6:.1f} M "
        f"parameters ({mib(4 * numbers['all'])} MiB), {model['layers']} layers of width {model['dim']}, "
        f"{config['batch']} × {config['tokens']} tokens a rank. Set A is {mib(4 * numbers['A'])} MiB, set B "
        f"{mib(4 * numbers['B'])} MiB, the rest is frozen; each set has an AdamW of its own and trains for "
        f"{SWITCH_EVERY} steps, then the other.",
        "",
        "Peaks are tensor bytes from the same counting allocator in every process, the largest step of all ranks "
        f"and rounds ({arguments.rounds}, of {arguments.cycles} cycles after one for warming up); in brackets what the "
        "resting set adds to it. A range says that steps differ: FSDP2's threads overlap by chance, and in the first "
        "step after a drop it has no state yet. Memory of the host store and of arrays outside torch is not in them. "
        "Times are medians; `CPU s` is the processor time of a step, "
        "all threads of a rank, which other work on the machine disturbs least. Bytes are gathered outputs and "
        "reduction inputs; at DDP's wrapping what it broadcasts. `MiB above` is the peak of a switch beyond what is in "
        "use before or after it. floe's step also computes the global gradient norm. Losses of all steps agree within "
        f"{LOSS_TOLERANCE} between all systems that keep (or move) the resting state, and between those that drop it.",
    ]
    rows = {system: row for system, row in results.items() if "failed" not in row}
    for title, chosen, floe in (("Sharded", SHARDED, "floe-offload"),
                                ("Everything on every rank", WHOLE, "floe-no-shard-offload")):
        of_kind = [rows[system] for system in chosen if system in rows]
        if of_kind:
            lines += ["", f"## {title}", "", *memory_table(of_kind, rows.get(floe)), "", *cost_table(of_kind)]
    lines += [f"\n{row['label']}: failed: {row['failed']}" for row in results.values() if "failed" in row]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny model, one round: a smoke test")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--cycles", type=int, help="how often both sets train, after one cycle for warming up")
    parser.add_argument("--timeout", type=int, default=180, help="seconds that one run may take (180)")
    parser.add_argument("--systems", type=lambda text: text.split(","), help="only these systems")
    parser.add_argument("--out", type=Path, help="where to write the result, without ending")
    arguments = parser.parse_args()
    for name, usual, quick in (("rounds", 2, 1), ("cycles", 3, 1)):
        if getattr(arguments, name) is None:
            setattr(arguments, name, quick if arguments.quick else usual)
    for wrong in set(arguments.systems or ()) - set(SYSTEMS):
        parser.error(f"there is no system '{wrong}'; there are {', '.join(SYSTEMS)}")
    config = config_of(arguments)
    with tempfile.TemporaryDirectory(prefix="floe-bench-") as folder:
        results = measure(config, arguments, Path(folder))
        weights = Path(folder) / "weights.safetensors"
        numbers = {s["name"]: numbers_of(weights, s["patterns"])["trainable"] for s in config["sets"]}
        numbers["all"] = numbers_of(weights, [])["parameters"]
    text = report(results, config, numbers, arguments)
    print("\n" + text)
    out = arguments.out or BENCH / "results" / f"{datetime.date.today()}-phases"
    if arguments.out or not arguments.quick:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.with_suffix(".md").write_text(text)
        out.with_suffix(".json").write_text(json.dumps({"config": config, "systems": results}, indent=1) + "\n")
        print(f"Written to {os.path.relpath(out)}.md and .json")


if __name__ == "__main__":
    main()
