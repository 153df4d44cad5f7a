#!/usr/bin/env python3
"""Which strategy floe plan --best chooses for three models, numbers of GPUs and networks, and why. Needs no GPU.

    ./run bench plan_best [--models of3b of9b llama3-70b] [--worlds 8 64 512] [--write docs/plan.md]

H200s, 8 to a node. Prints a table; --write puts it between the marks of a page.
"""

import argparse
import datetime
import sys

import plan
from h200_models import ADAPTED_MODELS, ADAPTERS, ask_floe, model_spec

MARKS = ("<!-- bench/plan_best.py -->\n", "<!-- end of bench/plan_best.py -->\n")
# A GPU's share in one direction: one adapter for each GPU, and one that the eight of a node share.
NETWORKS = {"400 Gb/s for each GPU": "400Gb/s", "100 Gb/s for each node": "12.5Gb/s"}
MODELS = {
    "of3b": ("64x32x1,32x256x6", "OpenFlamingo-3B"),
    "of9b": ("64x32x1,32x256x6", "OpenFlamingo-9B"),
    "llama3-70b": ("1x4096", "LoRA of Llama-3-70B"),
    "tiny": ("4x32x1,2x256x6", "a tiny Flamingo"),
}


def spec_of(model):
    return {"lm": ADAPTED_MODELS[model], "lora": ADAPTERS} if model in ADAPTED_MODELS else model_spec(model)


def best_of(model, world, inter=None, budget=None, machine="h200"):
    """What `floe plan --best` finds."""
    config = {"task": "best", "device": "cpu", "model": spec_of(model), "world": world, "machine": machine, "batch": MODELS[model][0]}
    if inter:
        config["inter"] = inter
    if budget:
        config["budget_bytes"] = budget
    answer = ask_floe(config)
    if "error" in answer:
        sys.exit(f"{model} on {world} ranks: {answer['error']}\n{answer.get('stderr', '')}")
    return answer


def why(answer):
    """The second choice beside the first: what the first gains, or that there is none."""
    if len(answer["best"]) < 2:
        return "nothing else fits"
    first, second = answer["best"][:2]
    slower = 100 * (second["seconds"] / first["seconds"] - 1)
    waits = 1e3 * (second["exposed"] - first["exposed"])
    less = (first["needed_bytes"] - second["needed_bytes"]) / 2**30
    return f"{second['words']}: {slower:+.1f}% ({waits:+.0f} ms waiting, {-less:+.1f} GiB)"


def row_of(model, world, network, answer):
    begin = f"| {MODELS[model][1]}, {MODELS[model][0]} | {world} | {network} |"
    if not answer["best"]:
        return f"{begin} nothing fits: {answer['least_needed_bytes'] / 2**30:.0f} GiB at least | | | | |"
    best = answer["best"][0]
    return (f"{begin} {best['words']} | {1e3 * best['seconds']:.0f} | {1e3 * best['exposed']:.0f} | {best['needed_bytes'] / 2**30:.1f} | "
            f"{why(answer)} |")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["of3b", "of9b", "llama3-70b"], choices=list(MODELS))
    parser.add_argument("--worlds", nargs="+", type=int, default=[8, 64, 512])
    parser.add_argument("--write", metavar="PAGE.md", help="put the table between the marks of this page")
    arguments = parser.parse_args()
    lines = ["| model, batch of a rank | GPUs | network | the best | ms | of them waiting | GiB | the next |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    print("\n".join(lines), flush=True)
    seconds = []
    for model in arguments.models:
        for world in arguments.worlds:
            # Inside of one node no network is crossed.
            networks = {"one node": None} if world <= 8 else NETWORKS
            for network, rate in networks.items():
                answer = best_of(model, world, rate)
                seconds.append(answer["seconds"])
                lines.append(row_of(model, world, network, answer))
                print(lines[-1], flush=True)
    lines += ["", f"{datetime.date.today()}; each answer took {min(seconds):.0f} to {max(seconds):.0f} s."]
    print(lines[-1])
    if arguments.write:
        plan.write(arguments.write, "\n".join(lines) + "\n", MARKS)


if __name__ == "__main__":
    main()
