#!/usr/bin/env python3
"""One training step of OpenFlamingo on one GPU: floe beside PyTorch, same model, same work.

    ./run bench h200 [--models of3b of4b of9b] [--systems floe ...] [--steps 8] [--out NAME]

A step is LAION 64 samples of 32 tokens with an image each and MMC4 32 samples of 256 tokens with six
images each; random weights, images on the GPU; forward, backward, clipping, AdamW. `world` 8 means
rank 0 of 8 with collectives that are device copies of the right size. Writes a dated table and the
raw numbers to bench/results/.
"""

import argparse
import datetime
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TEXT_TOKENS = 50276
VOCABULARY = 50280
PEAK_TFLOPS = 790  # measured on this kind of GPU, bf16 8192³

LANGUAGE_MODELS = {
    "of3b": {"model_type": "mpt", "vocab_size": VOCABULARY, "d_model": 2048, "n_layers": 24, "n_heads": 16},
    "of4b": {
        "model_type": "gpt_neox", "vocab_size": VOCABULARY, "hidden_size": 2560, "num_hidden_layers": 32,
        "num_attention_heads": 32, "intermediate_size": 10240, "rotary_pct": 1.0,
        "use_parallel_residual": False,
    },
    "of9b": {"model_type": "mpt", "vocab_size": VOCABULARY, "d_model": 4096, "n_layers": 32, "n_heads": 32},
}
CROSS_ATTENTION_EVERY = {"of3b": 1, "of4b": 2, "of9b": 4}
# Arithmetic that the padded step needs, in TFLOP: the same for every system.
NEEDED_TFLOP = {"of3b": 161, "of4b": 218, "of9b": 395}

CHECKPOINTED = ["DecoderLayer", "GatedCrossAttention", "PerceiverAttention"]

# System: what differs from the plain configuration.
FLOE_SYSTEMS = {
    "floe W=1": {"world": 1},
    "floe W=8": {"world": 8},
    "floe W=8 resident": {"world": 8, "residency": "resident"},
    "floe W=8 checkpointed": {"world": 8, "checkpointing": CHECKPOINTED},
}

FAMILIES = [  # the first that matches a kernel's name
    ("attention", r"flash|fmha|attention"),
    ("matrix products", r"gemm|nvjet|cutlass|xmma|splitK|cublas"),
    ("norms", r"layer_?norm|LayerNorm|NormShape|GammaBeta|rms_norm|RowwiseMoments"),
    ("optimizer", r"FusedAdam|multi_tensor"),
    ("loss", r"softmax|logsumexp|cross_entropy|nll"),
    ("copies and casts", r"copy|Memcpy|Memset|CatArray|fill|cast"),
    ("gathers by index", r"index|gather|scatter|embedding"),
    ("elementwise", r"elementwise|gelu|rotary|where|reduce"),
]


def family_of(kernel):
    for name, pattern in FAMILIES:
        if re.search(pattern, kernel):
            return name
    return "other"


def sequences(lengths, seed):
    """[[tokens, images], ...] of each data set: the baseline's sizes, or sizes as data has them."""
    if lengths == "fixed":
        return [[[32, 1]] * 64, [[256, 6]] * 32]
    rng = random.Random(seed)
    captions = [[min(32, max(6, round(rng.lognormvariate(2.75, 0.45)))), 1] for _ in range(64)]
    documents = [[rng.randint(96, 256), rng.randint(1, 6)] for _ in range(32)]
    return [captions, documents]


def config_of(model, arguments, overrides):
    laion, mmc4 = sequences(arguments.lengths, arguments.seed)
    return {
        "model": {
            "lm": LANGUAGE_MODELS[model],
            "cross_attention_every": CROSS_ATTENTION_EVERY[model],
            "media_token": VOCABULARY - 2,
            "endofchunk_token": VOCABULARY - 1,
        },
        "data": [
            {"text_tokens": TEXT_TOKENS, "slots": 1, "sequences": laion},
            {"text_tokens": TEXT_TOKENS, "slots": 6, "sequences": mmc4},
        ],
        "loss_weights": [0.2, 1.0],
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


def environment():
    """Without what hides the GPU from other programs."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    return {key: value for key, value in os.environ.items() if not (hidden and key == "CUDA_VISIBLE_DEVICES")}


def run_floe(config):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(config, file)
        file.flush()
        program = Path(os.environ["FLOE_BIN_DIR"]) / "bench_h200"
        done = subprocess.run([program, file.name], stdout=subprocess.PIPE, text=True, check=False,
                              env=environment())
    if done.returncode:
        return {"error": f"exit status {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def run_python(config, system):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(config, file)
        file.flush()
        python = os.environ.get("FLOE_PYTHON", sys.executable)
        done = subprocess.run([python, HERE / "torch_twin" / "flamingo_step.py", file.name, system],
                              stdout=subprocess.PIPE, text=True, check=False, env=environment())
    if done.returncode:
        return {"error": f"exit status {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def row_of(model, system, result):
    if "error" in result:
        return f"| {model} | {system} | {result['error']} | | | | |"
    step = statistics.median(result["step_ms"])
    spread = max(result["step_ms"]) - min(result["step_ms"])
    share = NEEDED_TFLOP[model] / step * 1e3 / PEAK_TFLOPS * 100
    moved = f"{result['gathered_bytes'] / 1e9:.1f} / {result['reduced_bytes'] / 1e9:.1f}" if result.get("gathered_bytes") else ""
    return (f"| {model} | {system} | {step:.0f} (±{spread / 2:.1f}) | {result['peak_bytes'] / 2**30:.1f} | "
            f"{share:.0f} | {moved} | {result['losses'][-1]:.3f} |")


def families(result):
    sums = {}
    for name, milliseconds, launches in result["kernels"]:
        time, count = sums.get(family_of(name), (0, 0))
        sums[family_of(name)] = (time + milliseconds, count + launches)
    return dict(sorted(sums.items(), key=lambda item: -item[1][0]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(LANGUAGE_MODELS), choices=list(LANGUAGE_MODELS))
    parser.add_argument("--systems", nargs="+", default=["floe W=1", "floe W=8"])
    parser.add_argument("--lengths", choices=["fixed", "natural"], default="fixed")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", action="store_true", help="time by kernel family, of one more step")
    parser.add_argument("--top", type=int, default=0, help="with --profile: the longest kernels by name")
    parser.add_argument("--out", default=str(HERE / "results"), help="folder of the results")
    arguments = parser.parse_args()

    head = ["| model | system | step ms | peak GiB | % of 790 TFLOP/s | gathered / reduced GB | loss |",
            "| --- | --- | --- | --- | --- | --- | --- |"]
    lines, raw, profiles = list(head), [], []
    print("\n".join(head), flush=True)
    for model in arguments.models:
        for system in arguments.systems:
            if system in FLOE_SYSTEMS:
                result = run_floe(config_of(model, arguments, FLOE_SYSTEMS[system]))
            else:
                result = run_python(config_of(model, arguments, {}), system)
            raw.append({"model": model, "system": system, **result})
            lines.append(row_of(model, system, result))
            print(lines[-1], flush=True)
            if result.get("kernels"):
                sums = families(result)
                total = sum(time for time, _ in sums.values())
                text = ", ".join(f"{name} {time:.1f} ms ({count})" for name, (time, count) in sums.items())
                profiles.append(f"- {model}, {system}: {total:.0f} ms of kernels: {text}")
                print(profiles[-1], flush=True)
                for name, milliseconds, launches in result["kernels"][: arguments.top]:
                    print(f"    {milliseconds:8.2f} ms {launches:6d}  {name[:150]}", flush=True)
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    stem = f"{datetime.date.today()}-h200" + ("" if arguments.lengths == "fixed" else "-natural")
    (out / f"{stem}.json").write_text(json.dumps(raw, indent=1) + "\n")
    command = "./run bench h200 " + " ".join(sys.argv[1:])
    (out / f"{stem}.md").write_text(
        f"# A training step of OpenFlamingo on one GPU, {datetime.date.today()}\n\n`{command}`\n\n"
        + "\n".join(lines) + "\n\n" + "\n".join(profiles) + "\n")


if __name__ == "__main__":
    main()
