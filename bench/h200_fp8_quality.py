#!/usr/bin/env python3
"""What FP8 products through frozen layers do to training: losses and first gradients beside bf16's, and bf16's own noise.

    ./run bench h200_fp8_quality [--models of3b llama3.2-1b] [--parts curve gradients] [--steps 500]

curve: the same random weights, the same batches, a new one each step, whose tokens mostly follow from the ones before them by a
rule that takes hundreds of steps to learn; bf16, bf16 with data sets and sequences the other way round, which sums everything in
another order and so shows bf16's own noise, and FP8 products.
gradients: those of one batch, by layer, with gates half open or adapters at work, in bf16 and with FP8 products, each against
fp32: the cosine between them and the ratio of their norms.

What FP8 has to keep, written down before the first run: in the mean over all steps its loss is within 2% of bf16's, over the
last tenth of them within 1%; every layer's gradient has a cosine of at least 0.95 with fp32's and a norm within 5% of it.
Written down on 2026-11-18 and 19, after bf16 beside itself had missed the first two with of3b: where bf16's own noise misses
them, FP8's loss is no higher than they allow above the worse of the two bf16 curves. And in any case FP8 comes as far down as
bf16, by each tenth of the way of its loss (means of ten steps), at most 1% of all steps later. Seeds other than 0 had not been
run by then.
Writes a dated page, the raw numbers and plots to bench/results/ (or --out), after every answer; what is there already, and was
asked alike, is not computed again (--again). Exits with 1 when FP8 does not keep that.
"""

import argparse
import datetime
import math
import statistics
import sys

from h200_curves import plot
from h200_models import (ADAPTED_MODELS, ADAPTERS, HERE, LANGUAGE_MODELS, ResultFile, ask_floe, command_line, data_of,
                         model_spec)

NEEDS_GPU = True
SYSTEMS = {"bf16": {}, "bf16 reordered": {"reverse": True}, "fp8 products": {"frozen_compute": "fp8"}}
MOST_OFF, MOST_OFF_AT_THE_END = 0.02, 0.01
MOST_LATER = 0.01  # of all steps
LEAST_COSINE, MOST_RATIO = 0.95, 0.05
FOLLOWS = 0.9  # how often a token is the one that always follows the one before it: what there is to learn


def config_of(model, arguments):
    if model in ADAPTED_MODELS:
        tokens = 16 if model == "tiny-llama" else arguments.tokens
        spec = {"lm": ADAPTED_MODELS[model], "lora": ADAPTERS}
        data = [{"text_tokens": arguments.text_tokens, "slots": 0, "sequences": [[tokens, 0]] * 4}]
    else:
        spec = model_spec(model) | {"freeze_embeddings": True}
        data = data_of([[32, 1]] * arguments.captions, [[256, 6]] * (arguments.captions // 2), arguments.text_tokens)
    for source in data:
        source["follows"] = FOLLOWS
    return {
        "device": arguments.device, "model": spec, "data": data, "loss_weights": [0.2, 1.0][-len(data):], "precision": "bf16", "world": 1,
        "prefetch": 1, "residency": "resident", "checkpointing": [], "seed": arguments.seed,
    }  # fmt: skip


def curve(model, system, arguments):
    lr = arguments.lr or (1e-3 if model in ADAPTED_MODELS else 1e-4)
    lrs = [lr * min(1, (step + 1) / 10) for step in range(arguments.steps)]
    return ask_floe(config_of(model, arguments) | SYSTEMS[system] | {"task": "curve", "lrs": lrs}, arguments.timeout)


def gradients(model, arguments):
    config = config_of(model, arguments) | {"opened": True}
    systems = {name: config | changes for name, changes in SYSTEMS.items()}
    return ask_floe({"task": "match_gradients", "device": arguments.device, "exact": config | {"precision": "fp32"}, "systems": systems},
                    arguments.timeout)


def smooth(losses):
    """Means of ten steps, each at the last of them."""
    width = min(10, max(1, len(losses) // 10))
    return [statistics.mean(losses[max(0, i + 1 - width) : i + 1]) for i in range(len(losses))]


def steps_to(levels, losses):
    """By each level the first step at which it is reached; that after the last, where it is not."""
    return [next((i + 1 for i, loss in enumerate(smooth(losses)) if loss <= level), len(losses) + 1) for level in levels]


def way_down(model, curves):
    """As curve_verdict: how much later than bf16 the others come as far down."""
    bf16 = curves["bf16"]["losses"]
    top, bottom = smooth(bf16)[0], min(smooth(bf16))
    levels = [top - tenth / 10 * (top - bottom) for tenth in range(1, 10)]
    own = steps_to(levels, bf16)
    allowed = max(1, round(MOST_LATER * len(bf16)))
    out = [(f"{model}: bf16 is down to " + ", ".join(f"{level:.1f}" for level in levels) + f" in step {', '.join(map(str, own))}", True)]
    for name in list(curves)[1:]:
        theirs = steps_to(levels, curves[name]["losses"])
        later = max(a - b for a, b in zip(theirs, own, strict=True))
        judged = name == "fp8 products"
        out.append((f"{model}: {name} in step {', '.join(map(str, theirs))}, at most {later} later" + f" (limit {allowed})" * judged,
                    not judged or later <= allowed))  # fmt: skip
    return out


def distance(losses, bf16, count):
    """Of the first `count` steps' losses, in the mean and over their last tenth."""
    last = max(1, len(bf16) // 10)
    mean = statistics.mean(abs(a - b) for a, b in zip(losses[:count], bf16, strict=False)) / statistics.mean(bf16[:count])
    end = abs(statistics.mean(losses[count - last : count]) / statistics.mean(bf16[count - last : count]) - 1)
    return mean, end


def is_near(mean, end):
    return mean <= MOST_OFF and end <= MOST_OFF_AT_THE_END


def worse_than_both(losses, others, count):
    """How much higher it is than the higher one of the others, as shares of that: in the mean and over the last tenth."""
    last = max(1, count // 10)
    return [statistics.mean(losses[part]) / max(statistics.mean(other[part]) for other in others) - 1
            for part in (slice(count), slice(count - last, count))]  # fmt: skip


def curve_verdict(model, curves):
    """[(sentence, whether it is as it should be)]"""
    bf16 = curves["bf16"]["losses"]
    last = max(1, len(bf16) // 10)
    broken = [name for name, answer in curves.items() if not all(map(math.isfinite, answer["losses"]))]
    if broken:
        return [(f"{model}: a loss of {', '.join(broken)} is not a number", False)]
    out = [(f"{model}: bf16's loss fell from {bf16[0]:.3f} to {statistics.mean(bf16[-last:]):.3f} in {len(bf16)} steps", bf16[0] - bf16[-1] > 0.5),
           (f"{model}: the same tokens everywhere", len({c["tokens_sum"] for c in curves.values()}) == 1)]  # fmt: skip
    for name in list(curves)[1:]:
        for count in sorted({min(50, len(bf16)), len(bf16)}):
            mean, end = distance(curves[name]["losses"], bf16, count)
            limits, good = "", True
            if name == "fp8 products":
                limits = f" (limits {100 * MOST_OFF:.0f}%, {100 * MOST_OFF_AT_THE_END:.0f}%)"
                reordered = curves["bf16 reordered"]["losses"]
                if is_near(*distance(reordered, bf16, count)):
                    good = is_near(mean, end)
                elif not is_near(mean, end):
                    above = worse_than_both(curves[name]["losses"], (bf16, reordered), count)
                    good = is_near(*above)
                    limits = (limits[:-1] + ": missed, as bf16 itself does with its sums in another order; above the worse of those two "
                              f"{100 * above[0]:.2f}% in the mean, {100 * above[1]:.2f}% at the end)")
            out.append((f"{model}: {name}, {count} steps: |loss - bf16's| {100 * mean:.2f}% of it in the mean, {100 * end:.2f}% at the end{limits}",
                        good))  # fmt: skip
    return out + way_down(model, curves)


def gradient_verdict(model, answer):
    out = []
    for name in SYSTEMS:
        layers = answer[name]
        worst = min(layers, key=lambda layer: layers[layer]["cosine"])
        ratio = max((entry["ratio"] for entry in layers.values()), key=lambda r: abs(r - 1))
        judged = name == "fp8 products"
        limits = f" (limits {LEAST_COSINE}, {MOST_RATIO})" if judged else ""
        out.append((f"{model}: {name} against fp32, {len(layers)} layers: cosine at least {layers[worst]['cosine']:.5f} ({worst}), "
                    f"norm at most {abs(ratio - 1):.4f} off{limits}",
                    not judged or (layers[worst]["cosine"] >= LEAST_COSINE and abs(ratio - 1) <= MOST_RATIO)))  # fmt: skip
    return out


def said(verdict):
    return [sentence if good else f"NOT AS IT SHOULD BE: {sentence}" for sentence, good in verdict]


def page(results, command):
    lines = [f"# FP8 products through frozen layers: losses and gradients, {datetime.date.today()}", "", f"`{command}`", "",
             "Random weights; what the parts are, the limits, and when these were written down, says bench/h200_fp8_quality.py.", ""]  # fmt: skip
    for model, parts in results.found.items():
        curves = parts.get("curve", {})
        lines += [f"## {model}", ""]
        if len(curves) == len(SYSTEMS) and not any("error" in answer for answer in curves.values()):
            picture = results.path(f"-{model}.svg")
            picture.write_text(plot(curves, f"{model}: loss by step"))
            lines += [*(f"- {s}" for s in said(curve_verdict(model, curves))), "", f"![{model}]({picture.name})", ""]
        answer = parts.get("gradients", {"error": ""})
        if "error" not in answer:
            lines += [*(f"- {s}" for s in said(gradient_verdict(model, answer))), "",
                      "| layer | " + " | ".join(f"{name}: cosine, norm" for name in SYSTEMS) + " |", "| --- " * (1 + len(SYSTEMS)) + "|",
                      *(f"| {layer} | " + " | ".join("{cosine:.5f}, {ratio:.4f}".format(**answer[name][layer]) for name in SYSTEMS) + " |"
                        for layer in answer["bf16"]), ""]  # fmt: skip
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["of3b", "llama3.2-1b"], choices=[*LANGUAGE_MODELS, *ADAPTED_MODELS])
    parser.add_argument("--parts", nargs="+", default=["gradients", "curve"], choices=["curve", "gradients"])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--captions", type=int, default=8, help="of a Flamingo's batch; half as many documents")
    parser.add_argument("--tokens", type=int, default=256, help="of each of the four sequences of a language model's batch")
    parser.add_argument("--text-tokens", type=int, default=500, help="distinct tokens that texts consist of")
    parser.add_argument("--lr", type=float, help="1e-3 for adapters; for Flamingos OpenFlamingo's own 1e-4, since bf16 itself is not steady at 2e-4")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=int, default=300, help="seconds that one answer may take")
    parser.add_argument("--again", action="store_true", help="compute what the results have already")
    parser.add_argument("--out", default=str(HERE / "results"), help="folder of the results")
    arguments = parser.parse_args()

    results, good = ResultFile(arguments.out, "h200-fp8-quality", {}), True
    asked = {name: getattr(arguments, name) for name in ("device", "steps", "captions", "tokens", "text_tokens", "lr", "seed")}

    def have(answers, name, compute):
        before = answers.get(name, {"error": "none yet"})
        if arguments.again or "error" in before or before.get("asked") != asked:
            answers[name] = compute() | {"asked": asked}
            results.save()
            results.path(".md").write_text(page(results, command_line("h200_fp8_quality")))
        print(f"{name}: " + (answers[name].get("error") or f"{answers[name]['seconds']} s"), flush=True)
        return "error" not in answers[name]

    for model in arguments.models:
        parts = results.found.setdefault(model, {})
        for part in arguments.parts:
            verdict = []
            if part == "gradients":
                if have(parts, part, lambda: gradients(model, arguments)):
                    verdict = gradient_verdict(model, parts[part])
            else:
                curves = parts.setdefault(part, {})
                if all([have(curves, name, lambda name=name: curve(model, name, arguments)) for name in SYSTEMS]):
                    verdict = curve_verdict(model, curves)
            print("\n".join(said(verdict)), flush=True)
            good &= bool(verdict) and all(ok for _, ok in verdict)
    sys.exit(not good)


if __name__ == "__main__":
    main()
