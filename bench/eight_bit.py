"""What 8 bits for frozen matrices cost in loss: the same runs with the frozen part in mixed_precision.param, stored in int8
and fp8, and multiplied in fp8; steps of training, and the perplexity of a forward, all through `floe train`.

usage: ./run bench eight_bit [--device cuda] [--steps N] [--pretrain N] [--out FILE]

Two jobs:
- flamingo: the goldens of tests/goldens/models (tiny, random frozen weights, OpenFlamingo's own batches, gone
  through again and again), trained as OpenFlamingo does. Perplexities are those of the batches, before any step.
- causal_lm: a small LLaMA over bytes learns this repository's documentation first, four fifths of it; then its weights are
  frozen and LoRA adapters learn from the rest. Perplexities are those of the rest, before any step.

Besides, which codes gradients should have on their way back through a frozen matrix, e4m3 (finer) or e5m2 (wider): real gradients
of that language model, and of one with random weights, by torch alone. floe's choice is e4m3; e5m2 must not be nearer anywhere.

What products in fp8 have to keep: the loss of a forward is within 2% of that in fp32 with random weights, as it has to be of the
curves in h200_fp8_quality.py, and within 1% where the model has learnt something, which was written down before it was measured.
Prints tables and writes them to bench/results/DATE-eight-bit.md. Exits with 1 when fp8 does not keep that.
"""

import argparse
import datetime
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
import yaml
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parents[1]
GOLDENS = ROOT / "tests" / "goldens" / "models"
WAYS = (None, "int8", "fp8", "fp8 products")  # the last: also multiplied in fp8, which gives bf16
MOST_OFF, MOST_OFF_OF_LEARNT = 0.02, 0.01  # a forward's loss, of that in fp32
SIZES = dict(
    vocab_size=256, hidden_size=192, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4,
    intermediate_size=512, max_position_embeddings=128, bos_token_id=0, eos_token_id=0,
)
DEVICE = "cpu"
QUIET = {"every_steps": 1, "tensorboard": False, "wandb": None, "diagnostics": None}


def floe(*words):
    done = subprocess.run(
        [Path(os.environ["FLOE_BIN_DIR"]) / "floe", *map(str, words)], capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise SystemExit(f"floe {words[0]} failed: {done.stderr[-2000:]}")


def steps_of(folder, name, config):
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    floe("train", path, f"run.dir={folder}", f"run.name={name}", f"dist.device={DEVICE}", "dist.backend=gloo")
    lines = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "step" in line]


def train(folder, name, config):
    """The losses of each step: the sum over sources, before weights."""
    return [sum(value for key, value in line.items() if key.startswith("loss_")) for line in steps_of(folder, name, config)]


def forward(folder, name, config, batches):
    """The mean loss of a token by source, before anything is trained."""
    still = {**config["train"], "steps": 1, "optimizer": {"lr": 0}, "validation": {"every_steps": 1, "batches": str(batches)}}
    (step,) = steps_of(folder, name, {**config, "train": still})
    prefix = "val_loss_"
    return {key.removeprefix(prefix): value for key, value in step.items() if key.startswith(prefix)}


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


def text_batches(path, text, steps, rows=8, length=128):
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


def perplexities(title, make, batches, most_off, folder):
    """Rows of the table, and what is not as it should be."""
    rows, wrong, exact = [], [], None
    for param, way in (("fp32", None), *(("bf16", way) for way in WAYS)):
        losses = forward(folder, f"{title}-forward-{param}-{way}", make(param, way), batches)
        exact = exact or losses
        for source, loss in losses.items():
            off = loss / exact[source] - 1
            rows.append(f"| {title}, {source} | {param} | {way or param} | {math.exp(loss):.6g} | {loss:.5f} | {100 * off:+.2f}% |")
            if way == "fp8 products" and not abs(off) <= most_off:
                wrong.append(f"{title}, {source}: the loss of products in fp8 is {100 * off:+.2f}% off (limit {100 * most_off:.0f}%)")
    return rows, wrong


def coded(x, dtype, axis):
    """What codes with one scale along the axis stand for."""
    scale = x.abs().amax(axis, keepdim=True).clamp_min(1e-30) / torch.finfo(dtype).max
    return (x / scale).to(dtype).float() * scale


def gradient_codes(lm, batches):
    """By kind of matrix: the relative error of dX = dY W for e4m3 and e5m2 codes of dY, the worst of all layers, and the share of dY
    that becomes zero. W has its own codes, whose scales, one a row, are multiplied into dY before that gets its codes, as floe has it."""
    model = transformers.AutoModelForCausalLM.from_pretrained(lm, dtype=torch.float32)
    worst = {}

    def look(name):
        def hook(module, _, slopes):
            slope = slopes[0].flatten(0, -2)
            scale = module.weight.abs().amax(1, keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
            codes = (module.weight / scale).to(torch.float8_e4m3fn).float()
            folded = slope * scale.t()
            exact = folded @ codes
            row = worst.setdefault(name.rsplit(".", 1)[-1], {})
            for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
                ours = coded(folded, dtype, 1)
                off = float((ours @ codes - exact).norm() / exact.norm())
                lost = float(((ours == 0) & (folded != 0)).float().mean())
                row[dtype] = tuple(map(max, row.get(dtype, (0, 0)), (off, lost)))

        return hook

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and ".layers." in name:
            module.register_full_backward_hook(look(name))
    for key, ids in load_file(batches).items():
        if key.endswith("input_ids"):
            model(ids, labels=ids).loss.backward()
    return worst


def code_rows(title, worst):
    """Rows of the table, and what is not as it should be."""
    rows, wrong = [], []
    for kind, row in worst.items():
        (fine, fine_lost), (wide, wide_lost) = row[torch.float8_e4m3fn], row[torch.float8_e5m2]
        rows.append(f"| {title}, {kind} | {fine:.4f} | {wide:.4f} | {wide / fine:.2f} | {100 * fine_lost:.1f}% | {100 * wide_lost:.1f}% |")
        if not fine < wide:
            wrong.append(f"{title}, {kind}: gradients in e5m2 are nearer ({wide:.4f}) than in e4m3 ({fine:.4f})")
    return rows, wrong


def main():
    global DEVICE
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="products in fp8 are emulated on the CPU")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pretrain", type=int, default=800)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "bench" / "results" / f"{datetime.date.today()}-eight-bit.md"
    )
    arguments = parser.parse_args()
    DEVICE = arguments.device
    table = [
        "| job | computed in | frozen matrices in | first loss | last loss | mean relative difference | largest |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    forwards = ["| job, source | computed in | frozen matrices in | perplexity | loss | off fp32 |", "| --- " * 6 + "|"]
    wrong = []

    def look(title, make, batches, most_off, folder):
        rows, problems = perplexities(title, make, batches, most_off, folder)
        forwards.extend(rows)
        wrong.extend(problems)
        table.extend(compare(title, make, folder))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for golden in ("neox_x2", "opt_x1"):
            look(f"flamingo {golden}", lambda param, way: flamingo(golden, arguments.steps, param, way),
                 GOLDENS / f"{golden}-train" / "batches.safetensors", MOST_OFF, folder)  # fmt: skip
        learnt = language_model(folder, arguments.pretrain)
        look("causal_lm with LoRA", lambda param, way: adapted(folder, arguments.steps, param, way), folder / "adapt.safetensors",
             MOST_OFF_OF_LEARNT, folder)  # fmt: skip
        codes = ["| model, matrix | off by e4m3 | by e5m2 | ratio | zeros by e4m3 | by e5m2 |", "| --- " * 6 + "|"]
        for title, lm in (("learnt", folder / "lm"), ("random", folder / "first")):
            rows, problems = code_rows(title, gradient_codes(lm, folder / "adapt.safetensors"))
            codes.extend(rows)
            wrong.extend(problems)
    where = "the CPU, where products in fp8 are emulated" if DEVICE == "cpu" else "a GPU"
    text = "\n".join([
        f"# 8-bit frozen matrices: effect on the loss, {datetime.date.today()}", "",
        f"`./run bench eight_bit {' '.join(sys.argv[1:])}`".replace(" `", "`") + f", on {where}.", "",
        f"The language model learnt for {arguments.pretrain} steps before it was frozen (loss {learnt[0]:.2f} to "
        f"{learnt[-1]:.2f} nats per byte). The flamingo models have random weights: their numbers show the error of "
        "the arithmetic, not what a trained model loses.", "",
        "## Perplexity of a forward", "",
        "Before anything is trained: of the goldens' batches, and of text that the language model has not seen. The loss of products in "
        f"fp8 has to be within {100 * MOST_OFF:.0f}% of that in fp32, within {100 * MOST_OFF_OF_LEARNT:.0f}% where the model has learnt.", "",
        *(f"- NOT AS IT SHOULD BE: {problem}" for problem in wrong), *[""] * bool(wrong),
        *forwards, "",
        "## Codes of gradients", "",
        "Of dX = dY W through a frozen matrix, with dY in one format or the other, one scale a row: the relative error that is dY's, "
        "and how much of dY becomes zero; the worst of 4 layers and 20 batches. Real gradients of the language model, by torch.", "",
        *codes, "",
        "## Training", "",
        f"The same {arguments.steps} steps, one rank, AdamW at lr 1e-3. Differences are those of each step's loss, "
        "relative to the run whose frozen weights are stored as they are computed with; those of bf16 itself are to "
        "fp32.", "",
        *table, "",
    ])  # fmt: skip
    print(text)
    arguments.out.write_text(text)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
