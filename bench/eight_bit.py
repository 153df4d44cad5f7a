"""What 8-bit storage of frozen matrices costs in loss: the same training runs with the frozen part in
mixed_precision.param, int8 and fp8, and multiplied in fp8, compared step by step.

    FLOE_BIN_DIR=build/.../bin python3 bench/eight_bit.py [--steps N] [--pretrain N] [--out FILE]

Two jobs, both through `floe train`:
- flamingo: the goldens of tests/goldens/models (tiny, random frozen weights, OpenFlamingo's own batches, gone
  through again and again), trained as OpenFlamingo does.
- causal_lm: a small LLaMA over bytes learns this repository's documentation first, all of it; then its
  weights are frozen and LoRA adapters learn from text that it has not seen.

Prints a table and writes it to bench/results/DATE-eight-bit.md.
"""

import argparse
import datetime
import json
import os
import subprocess
import tempfile
from pathlib import Path

import torch
import transformers
import yaml
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parents[1]
GOLDENS = ROOT / "tests" / "goldens" / "models"
WAYS = (None, "int8", "fp8", "fp8 products")  # the last: also multiplied in fp8, which gives bf16
SIZES = dict(
    vocab_size=256, hidden_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4,
    intermediate_size=256, max_position_embeddings=128, bos_token_id=0, eos_token_id=0,
)
QUIET = {"every_steps": 1, "tensorboard": False, "wandb": None, "diagnostics": None}


def floe(*words):
    done = subprocess.run(
        [Path(os.environ["FLOE_BIN_DIR"]) / "floe", *map(str, words)], capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise SystemExit(f"floe {words[0]} failed: {done.stderr[-2000:]}")


def train(folder, name, config):
    """The losses of each step: the sum over sources, before weights."""
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    floe("train", path, f"run.dir={folder}", f"run.name={name}")
    lines = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    return [sum(value for key, value in line.items() if key.startswith("loss_")) for line in lines if "step" in line]


def frozen(way):
    return {"compute": "fp8"} if way == "fp8 products" else {"dtype": way}


def flamingo(golden, steps, param, way):
    model = yaml.safe_load((GOLDENS / golden / "model.yaml").read_text())
    for key in ("lm", "vision", "weights"):
        model[key] = str(GOLDENS / golden / model[key])
    return {
        "model": model,
        "data": {"batches": str(GOLDENS / f"{golden}-train" / "batches.safetensors")},
        "train": {"steps": steps, "optimizer": {"lr": 1e-3}, "schedule": {"warmup_steps": 0}},
        "strategy": {"mixed_precision": {"param": param}, "frozen": frozen(way)},
        "checkpoint": {"every_steps": None}, "log": QUIET,
    }


def text_batches(path, text, steps, rows=4, length=96):
    """Windows of bytes, spread evenly over the text."""
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    places = torch.linspace(0, len(data) - length - 1, steps * rows).long()
    places = places[torch.randperm(len(places), generator=torch.Generator().manual_seed(0))]
    tensors = {}
    for step in range(steps):
        ids = torch.stack([data[p:p + length] for p in places[step * rows:(step + 1) * rows]])
        tensors[f"step{step}.text.input_ids"] = ids
        tensors[f"step{step}.text.labels"] = ids.clone()
        tensors[f"step{step}.text.attention_mask"] = torch.ones_like(ids)
    save_file(tensors, path)


def language_model(folder, pretrain):
    """A folder with a language model that has learnt something."""
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).save_pretrained(folder / "first")
    text = b"".join(path.read_bytes() for path in sorted((ROOT / "docs").glob("*.md")))
    text_batches(folder / "pretrain.safetensors", text[: len(text) * 4 // 5], pretrain)
    text_batches(folder / "adapt.safetensors", text[len(text) * 4 // 5:], 20)
    losses = train(folder, "pretrain", {
        "model": {"type": "causal_lm", "lm": str(folder / "first")},
        "data": {"batches": str(folder / "pretrain.safetensors")},
        "train": {"steps": pretrain, "optimizer": {"lr": 3e-3}, "schedule": {"type": "cosine", "warmup_steps": 20}},
        "strategy": {"mixed_precision": {"param": "fp32"}},
        "checkpoint": {"every_steps": None, "content": "full"}, "log": QUIET,
    })
    floe("export", folder / "pretrain" / "checkpoints" / "last", folder / "lm")
    return losses


def adapted(folder, steps, param, way):
    return {
        "model": {"type": "causal_lm", "lm": str(folder / "lm"),
                  "lora": {"targets": ["*.q_proj", "*.v_proj", "*.up_proj", "*.down_proj"], "rank": 8, "alpha": 16}},
        "data": {"batches": str(folder / "adapt.safetensors")},
        "train": {"steps": steps, "optimizer": {"lr": 1e-3}, "schedule": {"warmup_steps": 0}},
        "strategy": {"mixed_precision": {"param": param}, "frozen": frozen(way)},
        "checkpoint": {"every_steps": None}, "log": QUIET,
    }


def compare(title, make, folder):
    """Rows of the table: each way beside the plain one, and bf16 itself beside fp32."""
    rows, exact = [], None
    for param in ("fp32", "bf16"):
        plain = exact
        for way in WAYS if param == "bf16" else WAYS[:3]:
            losses = train(folder, f"{title}-{param}-{way}", make(param, way))
            apart = [abs(a - b) / b for a, b in zip(losses, plain or losses)]
            difference = f"{sum(apart) / len(apart):.1e} | {max(apart):.1e}" if plain else " | "
            rows.append(f"| {title} | {param} | {way or param} | {losses[0]:.5f} | {losses[-1]:.5f} | {difference} |")
            plain = plain if way else losses
        exact = exact or plain
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pretrain", type=int, default=300)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "bench" / "results" / f"{datetime.date.today()}-eight-bit.md"
    )
    arguments = parser.parse_args()
    table = [
        "| job | computed in | frozen matrices in | first loss | last loss | mean relative difference | largest |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for golden in ("neox_x2", "opt_x1"):
            table += compare(
                f"flamingo {golden}", lambda param, way: flamingo(golden, arguments.steps, param, way), folder
            )
        learnt = language_model(folder, arguments.pretrain)
        table += compare("causal_lm with LoRA", lambda param, way: adapted(folder, arguments.steps, param, way), folder)
    text = "\n".join([
        f"# 8-bit frozen matrices: effect on the loss, {datetime.date.today()}", "",
        f"`python3 bench/eight_bit.py --steps {arguments.steps} --pretrain {arguments.pretrain}`: the same "
        f"{arguments.steps} steps on the CPU, one rank, AdamW at lr 1e-3. Differences are those of each step's loss, "
        "relative to the run whose frozen weights are stored as they are computed with; those of bf16 itself are to "
        "fp32.", "",
        *table, "",
        f"The language model learnt for {arguments.pretrain} steps before it was frozen (loss {learnt[0]:.2f} to "
        f"{learnt[-1]:.2f} nats per byte). The flamingo models have random weights: their numbers show the error of "
        "the arithmetic, not what a trained model loses.", "",
    ])
    print(text)
    arguments.out.write_text(text)


if __name__ == "__main__":
    main()
