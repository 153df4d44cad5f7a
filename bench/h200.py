#!/usr/bin/env python3
"""One training step of OpenFlamingo on one GPU: floe beside PyTorch, same model, same work.

    ./run bench h200 [--models of3b of4b of9b] [--systems "floe W=8" ...] [--lengths natural] [--profile]

A step is LAION 64 samples of 32 tokens with an image each and MMC4 32 samples of 256 tokens with six
images each; random weights, images on the GPU; forward, backward, clipping, AdamW. `W=8` means rank 0 of
8 with collectives that are device copies of the right size. Writes a dated table and the raw numbers to
bench/results/ (or --out), after every row; rows that are there already are not measured again, so that a
run that was cut goes on where it stopped (--again measures them anew). --table only writes the table of
one or more raw files: ./run bench h200 --table FILE.json...
"""

import argparse
import datetime
import json
import statistics
import sys
from pathlib import Path

import timeline
from h200_models import (HERE, LANGUAGE_MODELS, TEXT_TOKENS, ResultFile, ask_floe, ask_twin, command_line, data_of,
                         model_spec, sequences)

NEEDS_GPU = True
PEAK_TFLOPS = 790  # measured on this kind of GPU, bf16 8192³
# Arithmetic that the padded step needs, in TFLOP: the same for every system.
NEEDED_TFLOP = {"of3b": 161, "of4b": 218, "of9b": 395}

CHECKPOINTED = ["DecoderLayer", "GatedCrossAttention", "PerceiverAttention"]

# System: what differs from the plain configuration.
FLOE_SYSTEMS = {
    "floe W=1": {"world": 1},
    "floe W=8": {"world": 8},
    "floe W=8 resident": {"world": 8, "residency": "resident"},
    "floe W=8 checkpointed": {"world": 8, "checkpointing": CHECKPOINTED},
    "floe W=8 kept products": {"world": 8, "checkpointing": CHECKPOINTED, "keep": True},
    "floe W=8 checkpointed offloaded": {"world": 8, "checkpointing": CHECKPOINTED, "offload": True},
    "floe W=8 kept products offloaded": {"world": 8, "checkpointing": CHECKPOINTED, "keep": True, "offload": True},
    "floe W=8 int8": {"world": 8, "frozen_dtype": "int8"},
    "floe W=8 fp8": {"world": 8, "frozen_dtype": "fp8"},
    "floe W=1 fp8 products": {"world": 1, "frozen_compute": "fp8"},
    "floe W=8 fp8 products": {"world": 8, "frozen_compute": "fp8"},
    "floe W=8 fp8 products resident": {"world": 8, "frozen_compute": "fp8", "residency": "resident"},
    "floe W=8 fp8 products checkpointed": {"world": 8, "frozen_compute": "fp8", "checkpointing": CHECKPOINTED},
    "floe W=8 fp8 products graphs": {"world": 8, "frozen_compute": "fp8", "graphs": True},
    "floe W=1 graphs": {"world": 1, "graphs": True},
    "floe W=8 graphs": {"world": 8, "graphs": True},
    "floe W=8 padded": {"world": 8, "padded": True},
}
HEAD = ["| model | system | step ms | peak GiB | % of 790 TFLOP/s | gathered / reduced GB | loss |",
        "| --- | --- | --- | --- | --- | --- | --- |"]


def config_of(model, arguments, overrides):
    text_tokens = min(TEXT_TOKENS, LANGUAGE_MODELS[model]["vocab_size"] - 4)
    return {
        "task": "steps",
        "device": arguments.device,
        "model": model_spec(model),
        "data": data_of(*sequences(model, arguments.lengths, arguments.seed), text_tokens),
        "loss_weights": [0.2, 1.0],
        "precision": "bf16",
        "world": 8,
        "prefetch": 1,
        "residency": "sharded",
        "checkpointing": [],
        "seed": arguments.seed,
        "lr": 1e-4,
        "warmup": arguments.warmup,
        "steps": arguments.steps,
        "profile": arguments.profile,
        **overrides,
    }


def measure(model, system, arguments):
    config = config_of(model, arguments, FLOE_SYSTEMS.get(system, {}))
    if system in FLOE_SYSTEMS:
        result = ask_floe(config, arguments.timeout)
    else:
        result = ask_twin("flamingo_step.py", config, system, timeout=arguments.timeout)
    if "timeline" in result:
        result["profile"] = timeline.analyse(result.pop("timeline"))
    return {"model": model, "system": system, "lengths": arguments.lengths, **result}


def row_of(result):
    model, system = result["model"], result["system"]
    if "error" in result:
        return f"| {model} | {system} | {result['error']} | | | | |"
    step = statistics.median(result["step_ms"])
    spread = max(result["step_ms"]) - min(result["step_ms"])
    share = ""
    if model in NEEDED_TFLOP and result["lengths"] == "fixed":
        share = f"{NEEDED_TFLOP[model] / step * 1e3 / PEAK_TFLOPS * 100:.0f}"
    moved = ""
    if result.get("gathered_bytes"):
        moved = f"{result['gathered_bytes'] / 1e9:.1f} / {result['reduced_bytes'] / 1e9:.1f}"
    return (f"| {model} | {system} | {step:.0f} (±{spread / 2:.1f}) | {result['peak_bytes'] / 2**30:.1f} | "
            f"{share} | {moved} | {result['losses'][-1]:.3f} |")


def details_of(result):
    """Short lines on where the time of a row goes."""
    if "error" in result:
        return []
    lines = []
    parts = [(name, key) for name, key in (("forward", "forward_ms"), ("backward", "backward_ms"),
                                           ("agree, clip and update", "update_ms"),
                                           ("host until all is enqueued", "enqueued_host_ms"),
                                           ("host until gradients agree", "until_agreed_host_ms")) if result.get(key)]
    if parts:
        lines.append("median ms: " + ", ".join(f"{name} {statistics.median(result[key]):.1f}" for name, key in parts))
    if any(result.get("device_mallocs", [])) or any(result.get("full_collections", [])):
        lines.append(f"device allocations in steps {sum(result['device_mallocs'])}, "
                     f"full garbage collections {sum(result['full_collections'])}")
    if result.get("profile"):
        lines += timeline.lines(result["profile"])
    return lines


NOTE = ("Medians, half the spread in brackets. Rank 0 of 8 has no other ranks: what it gathers are copies of its own slice, "
        "and its own gradients stand for all. So losses of W=8 say that something was trained and differ from system to "
        "system; whether the systems compute the same is what the losses of W=1 and of torch without shards show, and "
        "`./run bench h200_curves`.")


def kind_of(system):
    return "checkpointed" if "checkpointed" in system or "kept products" in system else "plain"


def best_of(results):
    """Beside floe's plain row the fastest and the leanest of all that torch was tried with, by model."""
    lines = []
    for model, kind in dict.fromkeys((row["model"], kind_of(row["system"])) for row in results if "error" not in row):
        rows = {row["system"]: (statistics.median(row["step_ms"]), row["peak_bytes"] / 2**30) for row in results
                if "error" not in row and (row["model"], kind_of(row["system"])) == (model, kind) and "W=8" in row["system"]}
        ours = "floe W=8" + ("" if kind == "plain" else " checkpointed")
        theirs = [system for system in rows if system.startswith("torch")]
        if ours not in rows or not theirs:
            continue
        chosen = (ours, *(min(theirs, key=lambda system: rows[system][i]) for i in (0, 1)))
        lines.append("| " + " | ".join([model, *("{}: {:.0f} ms, {:.1f} GiB".format(s, *rows[s]) for s in chosen)]) + " |")
    if not lines:
        return []
    head = ["| model | floe | the fastest of torch | the leanest of torch |", "| --- | --- | --- | --- |"]
    return [*head, *lines, ""]


def page(results, command):
    lines = [f"# A training step of OpenFlamingo on one GPU, {datetime.date.today()}", "", f"`{command}`", "", NOTE, ""]
    for lengths, title in (("fixed", "LAION 64 × 32, MMC4 32 × 256 × 6"), ("natural", "Lengths as data has them")):
        chosen = [result for result in results if result["lengths"] == lengths]
        if not chosen:
            continue
        lines += [f"## {title}", "", *best_of(chosen), *HEAD, *map(row_of, chosen), ""]
        for result in chosen:
            details = details_of(result)
            if details:
                lines += [f"- {result['model']}, {result['system']}:", *(f"  - {line}" for line in details)]
        lines.append("")
    return "\n".join(lines)


def key_of(row):
    return row["model"], row["system"], row["lengths"]


def add(results, result, command):
    """Instead of a row of the same name, if there is one."""
    results.found = [row for row in results.found if key_of(row) != key_of(result)] + [result]
    results.save()
    results.path(".md").write_text(page(results.found, command))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["of3b", "of4b", "of9b"], choices=list(LANGUAGE_MODELS))
    parser.add_argument("--systems", nargs="+", default=["floe W=1", "floe W=8"])
    parser.add_argument("--lengths", choices=["fixed", "natural"], default="fixed")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=int, default=300, help="seconds that one row may take")
    parser.add_argument("--profile", action="store_true", help="where the time of one more step goes")
    parser.add_argument("--top", type=int, default=0, help="with --profile: print the longest kernels by name")
    parser.add_argument("--again", action="store_true", help="measure rows that the results have already")
    parser.add_argument("--out", default=str(HERE / "results"), help="folder of the results")
    parser.add_argument("--table", nargs="+", metavar="FILE.json", help="print the page of these raw results")
    arguments = parser.parse_args()

    command = command_line("h200")
    if arguments.table:
        print(page([row for file in arguments.table for row in json.loads(Path(file).read_text())], command))
        return
    results, failed = ResultFile(arguments.out, "h200", []), False
    print("\n".join(HEAD), flush=True)
    for model in arguments.models:
        for system in arguments.systems:
            known = {key_of(row) for row in results.found if "error" not in row}
            if not arguments.again and (model, system, arguments.lengths) in known:
                continue
            result = measure(model, system, arguments)
            add(results, result, command)
            failed |= "error" in result
            print(row_of(result), f"{result.get('seconds', '')} s", flush=True)
            for line in details_of(result):
                print(f"    {line}", flush=True)
            for name, milliseconds, launches in (result.get("profile") or {}).get("kernels", [])[: arguments.top]:
                print(f"    {milliseconds:8.2f} ms {launches:6d}  {name[:150]}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
