#!/usr/bin/env python3
"""Two sets of 1 B parameters that train in turn on one GPU: what a switch costs, and what a resting set does.

    ./run bench h200_phases [--worlds 1 8] [--rests offload drop keep]

A decoder of 40 layers (2.1 B parameters, bf16 with fp32 masters); the even layers are one set, the odd ones the
other, an AdamW each. `W=8` is rank 0 of 8 whose collectives are copies on the device. A switch counts from an
idle device to the end of the first step after it, less a later step of the same turn: copies behind that step's
computation count as far as they delay it. Peaks are those of the allocator while a set trains, next to a run
in which that set is all that ever trains. Writes a dated page and the raw numbers to bench/results/ (or --out),
after every run; what is there already is not run again (--again).
"""

import argparse
import datetime
import statistics
import sys

from h200_models import HERE, ResultFile, ask_floe, command_line

NEEDS_GPU = True
SETS = {"even": 0, "odd": 1}  # which layers
RESTS = ["offload", "drop", "keep"]
SIZES = {
    "1b": {"model": {"vocab": 32000, "dim": 2048, "layers": 40, "heads": 16, "context": 2048},
           "batch": 8, "tokens": 2048},
    "tiny": {"model": {"vocab": 200, "dim": 32, "layers": 4, "heads": 2, "context": 16}, "batch": 2, "tokens": 16},
}


def config_of(arguments, world, rest, alone):
    size = SIZES[arguments.size]
    return {
        "task": "phases",
        "device": arguments.device,
        "model": size["model"] | {"adapter": 0, "tied": False},
        "batch": size["batch"],
        "tokens": size["tokens"],
        "sets": [{"name": name, "patterns": [f"layers.{i}.*" for i in range(first, size["model"]["layers"], 2)]}
                 for name, first in SETS.items()],
        "alone": alone,
        "rest": rest,
        "units": ["DecoderLayer"],
        "world": world,
        "seed": 1,
        "lr": 1e-4,
        "weight_decay": 0.1,
        # Each set's first turn makes its state: the second turn of both is the first that brings it back.
        "turns": 1 if alone else 8,
        "steps_of_a_turn": arguments.steps,
    }


def settled(turn):
    """A step that no switch delays."""
    return statistics.median(turn["step_seconds"][1:])


def switch_cost(turn):
    return turn["switch"]["host_seconds"] + turn["step_seconds"][0] - settled(turn)


def moved(turn):
    """Bytes of collectives during the switch."""
    return turn["switch"]["gathered_bytes"] + turn["switch"]["reduced_bytes"]


def row_of(world, rest, run, alone):
    """Turns 0 and 1 have nothing to bring back; turns 1 and 2 are the first that put each set's state away."""
    turns = run["turns"]
    step = 1e3 * statistics.median(settled(turn) for turn in turns[2:])
    first = 1e3 * max(switch_cost(turn) for turn in turns[1:3])
    later = [1e3 * switch_cost(turn) for turn in turns[3:]]
    more = max(max(turn["peak_bytes"], turn["switch"]["peak_bytes"]) / alone[turn["set"]] - 1 for turn in turns[2:])
    peak = max(turn["peak_bytes"] for turn in turns[2:])
    stored = max(turn["stored_bytes"] for turn in turns)
    return (f"| {world} | {rest} | {step:.0f} | {first:.0f} | {statistics.median(later):.0f} (at most {max(later):.0f}) | "
            f"{peak / 2**30:.2f} | {max(alone.values()) / 2**30:.2f} | {100 * more:+.2f} % | "
            f"{max(moved(turn) for turn in turns)} | {stored / 2**30:.2f} |")


HEAD = ["| W | resting state | step ms | first switches ms | later switches ms | peak GiB | alone GiB | "
        "peak over alone | collective bytes of a switch | host GiB |", "| --- " * 10 + "|"]


def rows(results, worlds, rests):
    out, found = [], {name: run for name, run in results.items() if "error" not in run}
    for world in worlds:
        alone_runs = {name: found.get(f"W={world} {name} alone") for name in SETS}
        for rest in rests:
            run = found.get(f"W={world} {rest}")
            if run and all(alone_runs.values()):
                alone = {name: answer["turns"][0]["peak_bytes"] for name, answer in alone_runs.items()}
                out.append(row_of(world, rest, run, alone))
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--rests", nargs="+", choices=RESTS, default=RESTS)
    parser.add_argument("--size", choices=list(SIZES), default="1b")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--steps", type=int, default=4, help="of a turn")
    parser.add_argument("--timeout", type=int, default=240, help="seconds that one run may take")
    parser.add_argument("--again", action="store_true", help="run what the results have already")
    parser.add_argument("--out", default=str(HERE / "results"), help="folder of the results")
    arguments = parser.parse_args()

    results, failed = ResultFile(arguments.out, "h200-phases", {}), False
    for world in arguments.worlds:
        for name, rest, alone in (*((f"{s} alone", "drop", s) for s in SETS), *((r, r, None) for r in arguments.rests)):
            key = f"W={world} {name}"
            if not arguments.again and "error" not in results.found.get(key, {"error": "none yet"}):
                continue
            answer = results.found[key] = ask_floe(config_of(arguments, world, rest, alone), arguments.timeout)
            results.save()
            failed |= "error" in answer
            print(f"{key}: {answer.get('error') or str(answer['seconds']) + ' s'}", flush=True)
    lines = [*HEAD, *rows(results.found, arguments.worlds, arguments.rests)]
    print("\n".join(lines), flush=True)
    elements = next((run["elements_of_a_set"] for run in results.found.values() if "error" not in run), 0)
    results.path(".md").write_text(
        f"# Two sets in turn on one GPU, {datetime.date.today()}\n\n`{command_line('h200_phases')}`\n\n"
        f"{elements / 1e9:.2f} B parameters a set; what is measured says bench/h200_phases.py.\n\n"
        + "\n".join(lines) + "\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
