#!/usr/bin/env python3
"""One training step of adapters beside a frozen language model on one GPU: floe beside transformers, same model, same work.

    ./run bench h200_lora [--models llama3-8b qwen2.5-7b] [--systems "floe" "transformers compiled" ...] [--lengths 2x4096 1x8192]

Rank 8 beside every linear layer of the decoder, random weights and tokens, bf16, one rank and no network; forward, backward,
clipping, AdamW. Writes a dated table and the raw numbers to bench/results/ (or --out), after every row; rows that are there
already are not measured again (--again measures them anew). The twin needs transformers. Losses are those of random weights
that each side draws for itself: near the logarithm of the vocabulary's size, and no more than that.
"""

import argparse
import datetime
import statistics
import sys

import timeline
from h200_models import ADAPTED_MODELS, ADAPTERS, HERE, ResultFile, ask_floe, ask_twin, command_line

NEEDS_GPU = True
FLOE_SYSTEMS = {
    "floe": {},
    "floe checkpointed": {"checkpointing": ["DecoderLayer"]},
    "floe 3/4 checkpointed": {"checkpointing": ["DecoderLayer"], "share": 0.75},
    "floe kept products": {"checkpointing": ["DecoderLayer"], "keep": True},
    "floe fp8 products": {"frozen_compute": "fp8"},
    "floe fp8 products checkpointed": {"frozen_compute": "fp8", "checkpointing": ["DecoderLayer"]},
    "floe fp8 products 3/4 checkpointed": {"frozen_compute": "fp8", "checkpointing": ["DecoderLayer"], "share": 0.75},
    "floe fp8 products kept products": {"frozen_compute": "fp8", "checkpointing": ["DecoderLayer"], "keep": True},
}
TWINS = ["transformers", "transformers compiled", "transformers checkpointed", "transformers checkpointed compiled"]
HEAD = ["| model | tokens | system | step ms | tokens/s | peak GiB | loss |", "| --- | --- | --- | --- | --- | --- | --- |"]


def config_of(model, lengths, arguments, overrides):
    count, length = map(int, lengths.split("x"))
    lm = ADAPTED_MODELS[model]
    return {
        "task": "steps", "device": arguments.device, "model": {"lm": lm, "lora": ADAPTERS},
        "data": [{"text_tokens": lm["vocab_size"], "slots": 0, "sequences": [[length, 0]] * count}], "loss_weights": [1.0],
        "precision": "bf16", "world": 1, "prefetch": 1, "residency": "resident", "checkpointing": [], "seed": arguments.seed, "lr": 1e-4,
        "warmup": arguments.warmup, "steps": arguments.steps, "profile": arguments.profile, **overrides,
    }  # fmt: skip


def measure(model, lengths, system, arguments):
    config = config_of(model, lengths, arguments, FLOE_SYSTEMS.get(system, {}))
    if system in FLOE_SYSTEMS:
        result = ask_floe(config, arguments.timeout)
    else:
        result = ask_twin("lora_step.py", config, system, timeout=arguments.timeout)
    if "timeline" in result:
        result["profile"] = timeline.analyse(result.pop("timeline"))
    return {"model": model, "lengths": lengths, "system": system, **result}


def row_of(row):
    begin = f"| {row['model']} | {row['lengths'].replace('x', ' × ')} | {row['system']} |"
    if "error" in row:
        return f"{begin} {row['error']} | | | |"
    step = statistics.median(row["step_ms"])
    spread = max(row["step_ms"]) - min(row["step_ms"])
    return f"{begin} {step:.0f} (±{spread / 2:.1f}) | {row['tokens'] / step * 1e3:,.0f} | {row['peak_bytes'] / 2**30:.1f} | {row['losses'][-1]:.3f} |"


def page(rows, command):
    lines = [f"# A training step of adapters beside a frozen language model on one GPU, {datetime.date.today()}", "", f"`{command}`", "", *HEAD]
    lines += [row_of(row) for row in rows]
    for row in rows:
        if row.get("profile"):
            lines += ["", f"{row['model']}, {row['lengths']}, {row['system']}:", "", *(f"- {line}" for line in timeline.lines(row["profile"]))]
    return "\n".join(lines) + "\n"


def key_of(row):
    return row["model"], row["lengths"], row["system"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["llama3-8b", "qwen2.5-7b"], choices=list(ADAPTED_MODELS))
    parser.add_argument("--systems", nargs="+", default=[*FLOE_SYSTEMS, *TWINS], choices=[*FLOE_SYSTEMS, *TWINS])
    parser.add_argument("--lengths", nargs="+", default=["2x4096", "1x8192"], help="sequences x tokens of each")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=int, default=300, help="seconds that one row may take")
    parser.add_argument("--profile", action="store_true", help="where the time of one more step goes")
    parser.add_argument("--top", type=int, default=0, help="with --profile: print the longest kernels by name")
    parser.add_argument("--again", action="store_true", help="measure rows that the results have already")
    parser.add_argument("--out", default=str(HERE / "results"), help="folder of the results")
    arguments = parser.parse_args()
    command = command_line("h200_lora")
    results, failed = ResultFile(arguments.out, "h200-lora", []), False
    print("\n".join(HEAD), flush=True)
    for wanted in [(m, lengths, s) for m in arguments.models for lengths in arguments.lengths for s in arguments.systems]:
        if not arguments.again and any(key_of(row) == wanted and "error" not in row for row in results.found):
            continue
        row = measure(*wanted, arguments)
        results.found = [other for other in results.found if key_of(other) != wanted] + [row]
        results.save()
        results.path(".md").write_text(page(results.found, command))
        failed |= "error" in row
        print(row_of(row), f"{row.get('seconds', '')} s", flush=True)
        for line in timeline.lines(row["profile"])[:3] if row.get("profile") else []:
            print(f"    {line}", flush=True)
        for name, milliseconds, launches in (row.get("profile") or {}).get("kernels", [])[: arguments.top]:
            print(f"    {milliseconds:8.2f} ms {launches:6d}  {name[:150]}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
