#!/usr/bin/env python3
"""Whether what floe plan --best chooses for one GPU is the fastest of what one would try by hand within the same memory.

    ./run bench h200_best [--model of3b] [--budgets 20 40 140] [--steps 10]

For each budget (GiB) the choice is asked for without a GPU; then it and the strategies of HAND are run. A strategy counts within a
budget when what the program allocates, with the context and the share for the allocator that the plan adds, fits into it. Writes a
dated table and the raw numbers to bench/results/ (or --out); exits with 1 when something that was tried by hand is faster than the
choice by more than 2%, which is what two runs of the same differ by.
"""

import argparse
import datetime
import json
import statistics
import sys

import h200
import plan_best
from h200_models import HERE, ResultFile, ask_floe, command_line

NEEDS_GPU = True
NOISE = 1.02
HAND = {
    "nothing recomputed": {},
    "recomputed but for products": {"checkpointing": h200.CHECKPOINTED, "keep": True},
    "recomputed": {"checkpointing": h200.CHECKPOINTED},
    "50% recomputed": {"checkpointing": h200.CHECKPOINTED, "share": 0.5},
    "recomputed from host memory": {"checkpointing": h200.CHECKPOINTED, "offload": True},
    "products kept in host memory": {"checkpointing": h200.CHECKPOINTED, "keep": True, "offload": True},
    "only decoder layers recomputed": {"checkpointing": ["DecoderLayer"]},
    "nothing recomputed, in 4 passes": {"passes": 4},
    "recomputed, in 2 passes": {"checkpointing": h200.CHECKPOINTED, "passes": 2},
}


def measured(model, overrides, arguments):
    """An update of the whole batch: cut into passes, each has its share of the sequences."""
    passes = overrides.get("passes", 1)
    settings = argparse.Namespace(lengths="fixed", profile=False, **{key: getattr(arguments, key) for key in ("device", "seed", "warmup", "steps")})
    config = h200.config_of(model, settings, {"world": 1, **overrides})
    for data in config["data"]:
        data["sequences"] = data["sequences"][: max(1, len(data["sequences"]) // passes)]
    answer = ask_floe(config, arguments.timeout)
    return answer if "error" in answer else {key: answer[key] for key in ("step_ms", "peak_bytes", "seconds")} | {"overrides": overrides}


def needed(row, context_bytes, slack):
    return row["peak_bytes"] * (1 + slack) + context_bytes


def judge(budget, choice, rows, context_bytes, slack):
    """(line of the table, whether the choice is the fastest)"""
    fits = {name: statistics.median(row["step_ms"]) for name, row in rows.items() if "error" not in row
            and needed(row, context_bytes, slack) <= budget * 2**30}  # fmt: skip
    words = choice["words"].removeprefix("one rank, ")
    if words not in fits:
        return f"| {budget} GiB | {words} | does not fit, or failed | | |", False
    own = fits.pop(words)
    others = sorted(fits.items(), key=lambda item: item[1])
    next_best = ", ".join(f"{name} {ms:.0f} ms" for name, ms in others[:3]) or "nothing else fits"
    good = all(own <= NOISE * ms for _, ms in others)
    return f"| {budget} GiB | {words} | {1e3 * choice['seconds']:.0f} | {own:.0f} | {next_best} |", good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="of3b", choices=["of3b", "of9b", "tiny"])
    parser.add_argument("--budgets", nargs="+", type=float, default=[20, 40, 140], help="GiB")
    parser.add_argument("--hand", nargs="+", default=list(HAND), choices=list(HAND), help="what is tried by hand")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=int, default=300, help="seconds that one row may take")
    parser.add_argument("--context", type=float, default=0.5, help="GiB that the plan adds for the context of a GPU")
    parser.add_argument("--slack", type=float, default=0.03, help="share that the plan adds for the allocator")
    parser.add_argument("--out", default=str(HERE / "results"), help="folder of the results")
    arguments = parser.parse_args()
    results = ResultFile(arguments.out, "h200-best", {"rows": {}, "choices": {}})
    rows = results.found["rows"]
    choices = {}
    for budget in arguments.budgets:
        answer = plan_best.best_of(arguments.model, 1, budget=int(budget * 2**30))
        if not answer["best"]:
            sys.exit(f"nothing fits into {budget} GiB; {answer['least_needed_bytes'] / 2**30:.1f} GiB are needed")
        choices[budget] = answer["best"][0]
        print(f"{budget} GiB: {json.dumps({key: choices[budget][key] for key in ('words', 'seconds', 'needed_bytes')})}", flush=True)
    results.found["choices"] = {str(budget): choice for budget, choice in choices.items()}
    tried = {choice["words"].removeprefix("one rank, "): choice["overrides"] for choice in choices.values()}
    tried |= {name: HAND[name] for name in arguments.hand if name not in tried}
    for name, overrides in tried.items():
        if "error" in rows.get(name, {"error": "none yet"}):
            rows[name] = measured(arguments.model, overrides, arguments)
            results.save()
        row = rows[name]
        print(f"{name}: " + (row.get("error") or f"{statistics.median(row['step_ms']):.1f} ms, {row['peak_bytes'] / 2**30:.2f} GiB"), flush=True)
    judged = [judge(budget, choice, rows, arguments.context * 2**30, arguments.slack) for budget, choice in choices.items()]
    lines = [f"# The strategy that floe plan --best chooses for one GPU, and others tried by hand, {datetime.date.today()}", "",
             f"`{command_line('h200_best')}`", "", f"{arguments.model}, {plan_best.MODELS[arguments.model][0]}, one rank.", "",
             "| budget | chosen | planned ms | measured ms | the next fastest of those that fit |", "| --- | --- | --- | --- | --- |",
             *(line if good else f"{line} NOT THE FASTEST" for line, good in judged), "", "| tried | ms | allocates at most, GiB |", "| --- | --- | --- |",
             *(f"| {name} | {statistics.median(row['step_ms']):.0f} | {row['peak_bytes'] / 2**30:.1f} |" if "error" not in row
               else f"| {name} | {row['error']} | |" for name, row in rows.items()), ""]  # fmt: skip
    results.path(".md").write_text("\n".join(lines))
    print("\n".join(lines))
    sys.exit(not all(good for _, good in judged))


if __name__ == "__main__":
    main()
