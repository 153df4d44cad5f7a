#!/usr/bin/env python3
"""What floe plan says of steps that were measured on an H200, beside what was measured. Needs no GPU.

    ./run bench plan [FILE.json...] [--rows of3b "W=8 resident"] [--write docs/plan.md]

Every row of floe in the raw results of bench/h200.py and bench/h200_lora.py (by default all of bench/results) is
rehearsed with the same model, sharding and batch, and simulated on the machine that floe knows as h200. Rows with CUDA graphs are
left out: the pool of a graph is no part of the plan. Prints a table; --write puts it between the marks in a page.
"""

import argparse
import datetime
import json
import statistics
import sys
from pathlib import Path

import h200
import h200_lora
from h200_models import HERE, ask_floe

MARKS = ("<!-- bench/plan.py -->\n", "<!-- end of bench/plan.py -->\n")
LEFT_OUT = ("graphs",)
SYSTEMS = {*h200.FLOE_SYSTEMS, *h200_lora.FLOE_SYSTEMS}


def rows_of(files):
    rows = {}
    for file in files:
        for row in json.loads(Path(file).read_text()):
            known = isinstance(row, dict) and row.get("system") in SYSTEMS and "step_ms" in row
            if known and not any(word in row["system"] for word in LEFT_OUT):
                rows[h200.key_of(row)] = row  # the newest of a name
    return list(rows.values())


def planned(row, arguments):
    settings = argparse.Namespace(device="cpu", lengths=row["lengths"], seed=arguments.seed, warmup=0, steps=0,
                                  profile=False)
    if row["system"] in h200_lora.FLOE_SYSTEMS:
        config = h200_lora.config_of(row["model"], row["lengths"], settings, h200_lora.FLOE_SYSTEMS[row["system"]])
    else:
        config = h200.config_of(row["model"], settings, h200.FLOE_SYSTEMS[row["system"]])
    answer = ask_floe(config | {"task": "plan", "machine": arguments.machine})
    if "error" in answer:
        sys.exit(f"{row['model']}, {row['system']}: {answer['error']}\n{answer.get('stderr', '')}")
    return answer


def off(planned_value, measured):
    return 100 * (planned_value / measured - 1)


def short(row):
    """The system without the name that all have."""
    return row["system"].replace("floe", "LoRA") if row["system"] in h200_lora.FLOE_SYSTEMS else row["system"].removeprefix("floe ")


def table(compared):
    lines = ["| model | system | lengths | measured ms | planned ms | off | measured GiB | planned GiB | off |",
             "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row, plan in compared:
        ms, gib = statistics.median(row["step_ms"]), row["peak_bytes"] / 2**30
        lines.append(f"| {row['model']} | {short(row)} | {row['lengths']} | {ms:.0f} | "
                     f"{plan['step_ms']:.0f} | {off(plan['step_ms'], ms):+.1f}% | {gib:.2f} | "
                     f"{plan['peak_bytes'] / 2**30:.2f} | {off(plan['peak_bytes'], row['peak_bytes']):+.1f}% |")
    return lines


def verdict(compared):
    def worst(key, measured):
        return max(compared, key=lambda pair: abs(off(pair[1][key], measured(pair[0]))))

    def name(pair):
        return f"{pair[0]['model']}, {short(pair[0])}"

    slow = worst("step_ms", lambda row: statistics.median(row["step_ms"]))
    large = worst("peak_bytes", lambda row: row["peak_bytes"])
    times = [off(plan["step_ms"], statistics.median(row["step_ms"])) for row, plan in compared]
    memory = [off(plan["peak_bytes"], row["peak_bytes"]) for row, plan in compared]
    return (f"{len(compared)} rows, {datetime.date.today()}. Worst in time: {name(slow)} ({max(times, key=abs):+.1f}%); in "
            f"memory: {name(large)} ({max(memory, key=abs):+.1f}%). "
            f"{sum(abs(value) <= 10 for value in times)} rows are within 10% in time, "
            f"{sum(abs(value) <= 5 for value in memory)} within 5% in memory.")


def write(page, text, marks=MARKS):
    path = Path(page)
    before, rest = path.read_text().split(marks[0])
    after = rest.split(marks[1])[1]
    path.write_text(before + marks[0] + text + marks[1] + after)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", default=sorted(HERE.glob("results/*-h200*.json")),
                        help="raw results of bench/h200.py")
    parser.add_argument("--rows", nargs="+", default=[], help="only rows that have one of these in their names")
    parser.add_argument("--machine", default="h200", help="a name or file that floe plan --gpu takes")
    parser.add_argument("--seed", type=int, default=0, help="of the natural lengths, as they were measured")
    parser.add_argument("--write", metavar="PAGE.md", help="put the table between the marks of this page")
    arguments = parser.parse_args()
    compared = []
    for row in rows_of(arguments.files):
        name = f"{row['model']} {short(row)}"
        if not arguments.rows or any(word in name for word in arguments.rows):
            compared.append((row, planned(row, arguments)))
    if not compared:
        sys.exit("no row of floe has such a name")
    text = "\n".join([*table(compared), "", verdict(compared)]) + "\n"
    print(text, end="")
    if arguments.write:
        write(arguments.write, text)


if __name__ == "__main__":
    main()
