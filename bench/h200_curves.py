#!/usr/bin/env python3
"""Losses of floe and of the Python twin from the same weights and the same batches, a new batch each step.

    ./run bench h200_curves [--parts bf16 fp32 gradients] [--steps 50] [--systems floe "floe int8" ...]

bf16: at the benchmark's size. Beside floe and the twin, the twin a second time, once with rows and data sets the
other way round, which changes the order of all sums, and once compiled, which changes where numbers are rounded:
how far those lie from the first is the noise that a curve has, at most and in the mean; floe has to stay within that of
the one in the middle.
fp32 (no tf32): with smaller batches; floe and the twin must agree within 1e-4, relatively.
gradients: those of the gates in the very first step, when all gates are closed and nothing else has one; in
bf16 with floe's fused steps, with plain operators and in the twin, each against fp32.
Writes a dated page, the raw numbers and a plot to bench/results/ (or --out), after every curve; what is there
already is not computed again (--again). Exits with 1 when curves do not agree.
"""

import argparse
import datetime
import math
import statistics
import sys
import tempfile
from pathlib import Path

from h200_models import (HERE, LANGUAGE_MODELS, ResultFile, ask_floe, ask_twin, command_line, data_of, model_spec,
                         sequences)

NEEDS_GPU = True
FLOE = {
    "floe": {},
    "floe plain": {"plain": True},
    "floe int8": {"frozen_dtype": "int8"},
    "floe fp8": {"frozen_dtype": "fp8"},
}
TWIN = {"twin": {}, "twin again": {}, "twin reordered": {"reverse": True}, "twin compiled": {"compile": True}}
BF16_FLOOR = 1e-3  # of the loss: differences below a quarter of bf16's own step are none
FP32_TOLERANCE = 1e-4
COLORS = ["#1f5fa8", "#c2531d", "#7a7a7a", "#2d8a4e", "#8a4fa8", "#c9a227", "#17898a", "#b0306a"]


def small_sequences():
    return [[32, 1]] * 8, [[256, 3]] * 4


def config_of(arguments, part, weights):
    """For fp32, and for gradients in fp32, only the data and the precision differ."""
    laion, mmc4 = sequences(arguments.model, "fixed", 0)
    if part == "fp32":
        laion, mmc4 = small_sequences()
    lr = arguments.lr
    return {
        "device": arguments.device,
        # Few distinct tokens, so that there is something to learn in 50 steps.
        "model": model_spec(arguments.model) | {"freeze_embeddings": True},
        "data": data_of(laion, mmc4, arguments.text_tokens),
        "loss_weights": [0.2, 1.0],
        "precision": "fp32" if part == "fp32" else "bf16",
        "world": 1,
        "prefetch": 1,
        "residency": "sharded",
        "checkpointing": [],
        "seed": arguments.seed,
        "weights": str(weights),
        "lrs": [lr * min(1, (step + 1) / 10) for step in range(arguments.steps)],
    }


def compute(name, config, timeout):
    if name in FLOE:
        return ask_floe(config | FLOE[name], timeout)
    return ask_twin("flamingo_curve.py", config | TWIN[name], timeout=timeout)


def differences(a, b):
    return [abs(x - y) for x, y in zip(a, b, strict=True)]


def relative(a, b):
    return max(abs(x - y) / abs(y) for x, y in zip(a, b, strict=True))


def verdict(part, curves):
    """[(sentence, whether it is as it should be)]"""
    floe, twin = curves["floe"]["losses"], curves["twin"]["losses"]
    fell = floe[0] - min(floe)
    out = [(f"{part}: the loss fell from {floe[0]:.3f} to {floe[-1]:.3f} in {len(floe)} steps", fell > 0.5)]
    same = {answer["tokens_sum"] for name, answer in curves.items()}
    out.append((f"{part}: the same tokens everywhere", len(same) == 1))
    if part == "fp32":
        worst = relative(floe, twin)
        out.append((f"fp32: floe and twin differ by at most {worst:.1e} of the loss (limit {FP32_TOLERANCE:.0e})",
                    worst <= FP32_TOLERANCE))
        return out
    apart = {name: differences(answer["losses"], twin) for name, answer in curves.items() if name != "twin"}
    limits = {}
    for what, measure in (("most", max), ("mean", statistics.mean)):
        # The noise is that of the twin in the middle: one more of them may raise or lower it.
        noise = [measure(apart[name]) for name in apart if name in TWIN]
        limits[what] = max(BF16_FLOOR * max(twin), statistics.median(noise) if noise else 0)
    for name, values in apart.items():
        # 8-bit weights are another function; they are shown, not judged.
        judged = name in ("floe", "floe plain")
        most, mean = max(values), statistics.mean(values)
        out.append((f"bf16: |{name} - twin| at most {most:.4f}, mean {mean:.4f}"
                    + (f" (limits {limits['most']:.4f}, {limits['mean']:.4f})" if judged else ""),
                    not judged or (most <= limits["most"] and mean <= limits["mean"])))
    return out


def gate_error(run, reference):
    """How far the gates' gradients lie from those in fp32: the norm of the difference, relatively."""
    off = math.sqrt(sum((run["gates"][name] - value) ** 2 for name, value in reference.items()))
    return off / math.sqrt(sum(value**2 for value in reference.values()))


def gate_norm(run):
    return math.sqrt(sum(value**2 for value in run["gates"].values()))


def gradient_lines(answers):
    reference = answers["twin fp32"]["runs"][0]["gates"]
    lines = ["| computed by | gradient norm of each run | norm of the gates' part | off fp32, of the gates' norm |",
             "| --- | --- | --- | --- |"]
    for name, answer in answers.items():
        runs = answer["runs"]
        norms = ", ".join(f"{run['gradient_norm']:.4f}" for run in runs)
        gates = f"{min(map(gate_norm, runs)):.4f} to {max(map(gate_norm, runs)):.4f}"
        off = [gate_error(run, reference) for run in runs]
        lines.append(f"| {name} | {norms} | {gates} | {100 * min(off):.1f} to {100 * max(off):.1f} % |")
    return lines


def plot(curves, title):
    """An SVG of losses by step."""
    width, height, margin = 640, 320, 48
    highest = max(max(c["losses"]) for c in curves.values())
    lowest = min(min(c["losses"]) for c in curves.values())
    count = max(len(c["losses"]) for c in curves.values())

    def place(step, loss):
        x = margin + step / max(count - 1, 1) * (width - 2 * margin)
        return f"{x:.1f},{margin + (highest - loss) / max(highest - lowest, 1e-9) * (height - 2 * margin):.1f}"

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
           f'font-size="12"><rect width="100%" height="100%" fill="#fff"/><text x="{margin}" y="20">{title}</text>']
    for loss in (highest, (highest + lowest) / 2, lowest):
        y = place(0, loss).split(",")[1]
        out.append(f'<line x1="{margin}" x2="{width - margin}" y1="{y}" y2="{y}" stroke="#ddd"/>'
                   f'<text x="4" y="{y}">{loss:.2f}</text>')
    out.append(f'<text x="{margin}" y="{height - 12}">step 0</text>'
               f'<text x="{width - margin - 16}" y="{height - 12}">{count - 1}</text>')
    for index, (name, curve) in enumerate(curves.items()):
        points = " ".join(place(step, loss) for step, loss in enumerate(curve["losses"]))
        color = COLORS[index % len(COLORS)]
        dash = ' stroke-dasharray="5 3"' if index else ""
        out.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"{dash}/>'
                   f'<text x="{width - 190}" y="{margin + 16 * index}" fill="{color}">{name}</text>')
    return "\n".join([*out, "</svg>", ""])


def table(curves):
    names = list(curves)
    count = len(curves[names[0]]["losses"])
    chosen = sorted({0, 1, 2, *range(4, count, 5), count - 1})
    return ["| step | " + " | ".join(names) + " |", "| --- " * (len(names) + 1) + "|",
            *(f"| {step} | " + " | ".join(f"{curves[name]['losses'][step]:.5f}" for name in names) + " |"
              for step in chosen)]


def page(results, sentences, command):
    lines = [f"# Losses of floe and of the Python twin, {datetime.date.today()}", "", f"`{command}`", "",
             "From the same weights and the same batches; what the parts are says bench/h200_curves.py.", ""]
    for part in ("bf16", "fp32"):
        curves = {name: answer for name, answer in results.found.get(part, {}).items() if "error" not in answer}
        if {"floe", "twin"} <= set(curves):
            picture = results.path(f"-{part}.svg")
            picture.write_text(plot(curves, f"{part}: loss by step"))
            lines += [f"## {part}", "", *(f"- {s}" for s in sentences.get(part, [])), "", f"![{part}]({picture.name})",
                      "", *table(curves), ""]
    answers = {n: a for n, a in results.found.get("gradients", {}).items() if "error" not in a}
    if "twin fp32" in answers:
        lines += ["## The first step's gradient", "", *gradient_lines(answers), ""]
    return "\n".join(lines)


def curve_names(part, arguments):
    twins = arguments.twins if part == "bf16" else ["twin"]
    return [*twins, *(name for name in arguments.systems if part == "bf16" or name == "floe")]


def jobs(part, arguments, weights):
    """(name of the result, system, configuration) of everything that a part computes."""
    if part in ("bf16", "fp32"):
        config = config_of(arguments, part, weights) | {"task": "curve"}
        return [(name, name, config) for name in curve_names(part, arguments)]
    config = config_of(arguments, "bf16", weights) | {"task": "gradients"}
    exact = config | {"precision": "fp32", "repeats": 1}
    several = config | {"repeats": arguments.repeats}
    return [("twin fp32", "twin", exact), ("floe fp32", "floe", exact), ("floe bf16, fused", "floe", several),
            ("floe bf16, plain", "floe plain", several), ("twin bf16", "twin", several),
            ("twin bf16, reordered", "twin reordered", several)]


def make_weights(weights, arguments):
    if weights.exists():
        return
    made = ask_twin("flamingo_curve.py", config_of(arguments, "bf16", weights) | {"task": "init"},
                    timeout=arguments.timeout)
    if "error" in made:
        sys.exit(f"no weights: {made}")
    print(f"{made['parameters'] / 1e9:.2f} B random weights, {made['seconds']} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ["bf16", "fp32", "gradients"]
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--model", choices=list(LANGUAGE_MODELS), default="of3b")
    parser.add_argument("--systems", nargs="+", choices=list(FLOE), default=["floe"])
    parser.add_argument("--twins", nargs="+", choices=list(TWIN), default=list(TWIN), help="in bf16")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=4, help="of the first step's gradients in bf16")
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--text-tokens", type=int, default=50, help="distinct tokens that texts consist of")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=int, default=300, help="seconds that one answer may take")
    parser.add_argument("--again", action="store_true", help="compute what the results have already")
    parser.add_argument("--out", default=str(HERE / "results"), help="folder of the results")
    parser.add_argument("--weights", help="file for the common weights; kept, and used again when it is there")
    arguments = parser.parse_args()

    results, sentences, good = ResultFile(arguments.out, "h200-curves", {}), {}, True
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(arguments.weights or Path(folder) / "weights.safetensors")
        for part in arguments.parts:
            answers = results.found.setdefault(part, {})
            for shown, name, config in jobs(part, arguments, weights):
                if arguments.again or "error" in answers.get(shown, {"error": "none yet"}):
                    make_weights(weights, arguments)
                    answers[shown] = compute(name, config, arguments.timeout)
                    results.save()
                answer = answers[shown]
                print(f"{part}, {shown}: " + (answer.get("error") or f"{answer['seconds']} s"), flush=True)
                good &= "error" not in answer
            if any("error" in answer for answer in answers.values()):
                continue
            if part == "gradients":
                print("\n".join(gradient_lines(answers)), flush=True)
                continue
            sentences[part] = [s if ok else f"NOT AS IT SHOULD BE: {s}" for s, ok in verdict(part, answers)]
            good &= all(ok for _, ok in verdict(part, answers))
            print("\n".join(sentences[part]), flush=True)
    results.path(".md").write_text(page(results, sentences, command_line("h200_curves")))
    sys.exit(not good)


if __name__ == "__main__":
    main()
