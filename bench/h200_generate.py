"""Captions and scores a second, beside OpenFlamingo's own generation with the same weights, in the same run.

usage: ./run bench h200_generate [--model of3b] [--images 1000] [--few 100] [--shots 32] [--batches 8 32 64] [--out FOLDER]

Zero-shot captions of most pictures and few-shot captions of --few of them (three beams, 20 new tokens, as OpenFlamingo's
evaluation of COCO has it), and scores of four candidates each. OpenFlamingo runs with each of the batch sizes, and its best
counts; `model` leaves its decoding of pictures out, which floe's seconds contain. Of the answers, the share that is equal:
both compute in bf16, whose rounding decides between random weights' near ties. PYTHONPATH must have open_flamingo 2.0.1
(torch_twin/generate.py says what else).
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from h200_models import CROSS_ATTENTION_EVERY, LANGUAGE_MODELS, ResultFile, ask_twin, command_line
from PIL import Image

NEW_TOKENS, BEAMS = 20, 3


def write_pictures(folder, count):
    """Photographs in size, not in content."""
    folder.mkdir()
    names = []
    for i in range(count):
        rng = random.Random(i)
        small = Image.new("RGB", (16, 12))
        small.putdata([tuple(rng.randrange(256) for _ in range(3)) for _ in range(16 * 12)])
        names.append(str(folder / f"{i}.jpg"))
        small.resize((640, 480), Image.Resampling.BICUBIC).save(names[-1], quality=85)
    return names


def write_requests(path, model, pictures, shots, rng):
    vocab = LANGUAGE_MODELS[model]["vocab_size"]
    media, end = vocab - 2, vocab - 1

    def words(count):
        return [rng.randrange(10, vocab - 10) for _ in range(count)]

    lines = []
    candidates = [words(3) for _ in range(4)]
    for picture in pictures:
        ids, images = [], []
        for _ in range(shots):
            ids += [media, *words(12), end]
            images.append(rng.choice(pictures))
        lines.append(dict(ids=[*ids, media, *words(2)], images=[*images, picture], candidates=candidates))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def floe(task, folder, requests, options):
    words = {"generate": ["generate", folder / "model.yaml", "--requests", requests, "--max-new-tokens", NEW_TOKENS, "--min-new-tokens",
                          NEW_TOKENS, "--num-beams", BEAMS, "--length-penalty", 0],
             "score": ["score", folder / "model.yaml", requests]}[task]  # fmt: skip
    out = folder / f"floe-{task}-{requests.name}"
    words += ["--output", out, "--force", "--dtype", options.dtype_name, "--device", options.device, "--batch-tokens", options.batch_tokens]
    done = subprocess.run([Path(os.environ["FLOE_BIN_DIR"]) / "floe", *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1]}
    records = [json.loads(line) for line in out.read_text().splitlines()]
    errors = [record["error"] for record in records if "error" in record]
    assert not errors, errors[0]
    answers = [record["ids"][0] if task == "generate" else record["log_probs"] for record in records]
    return {"requests": len(records), "seconds": float(re.findall(r", ([0-9.]+) s$", done.stderr.strip())[-1]), "answers": answers[:64]}


def agreement(task, ours, theirs):
    pairs = list(zip(ours, theirs))
    if task == "generate":
        return sum(a == b for a, b in pairs) / len(pairs)
    return max(abs(x - y) for a, b in pairs for x, y in zip(a, b))


def compare(job, ours, tried):
    row = {**job, "floe": {key: value for key, value in ours.items() if key != "answers"}}
    good = [one for one in tried if "error" not in one]
    row["tried"] = [{key: value for key, value in one.items() if key not in ("answers", "stderr")} for one in tried]
    if "error" in ours or not good:
        return row
    best = min(good, key=lambda one: one["seconds"])
    fastest = min(good, key=lambda one: one["model_seconds"])
    rate = ours["requests"] / ours["seconds"]
    row["per_second"] = {"floe": rate, "openflamingo": best["requests"] / best["seconds"], "its model alone": fastest["requests"] / fastest["model_seconds"]}
    row["ratio"] = {"whole": rate * best["seconds"] / best["requests"], "model": rate * fastest["model_seconds"] / fastest["requests"]}
    row["agreement"] = agreement(job["task"], ours["answers"], best["answers"])
    return row


def whole(task, rows):
    """All requests of a task one after the other, each side at its best."""
    rows = [row for row in rows if row["task"] == task]
    if not all("ratio" in row for row in rows):
        return None
    count = sum(row["floe"]["requests"] for row in rows)
    rates = {name: count / sum(row["floe"]["requests"] / row["per_second"][name] for row in rows) for name in rows[0]["per_second"]}
    ratio = {"whole": rates["floe"] / rates["openflamingo"], "model": rates["floe"] / rates["its model alone"]}
    return {"task": task, "requests": "all", "per_second": rates, "ratio": ratio}


def ask_openflamingo(folder, jobs, options):
    """What it says to each job with each of the batch sizes, those that it had no time for left out; it loads its model once."""
    asked = [dict(job, requests=str(job["requests"]), batch=batch) for batch in options.batches for job in jobs]
    results = folder / "openflamingo.jsonl"
    found = ask_twin("generate.py", dict(folder=str(folder), model=options.model, device=options.device, dtype=options.dtype, new_tokens=NEW_TOKENS,
                                         beams=BEAMS, jobs=asked, results=str(results)), timeout=options.timeout)  # fmt: skip
    answers = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    if "error" in found:
        print(found["error"], found.get("stderr", ""), file=sys.stderr)

    def is_of(answer, job):
        return (answer["job"]["task"], answer["job"]["requests"]) == (job["task"], str(job["requests"]))

    return [[answer for answer in answers if is_of(answer, job)] for job in jobs]


def table(rows):
    lines = ["| task | requests | floe /s | OpenFlamingo /s | its model alone /s | ratio | ratio to its model alone | equal texts, or largest difference of scores |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for row in rows:
        if "ratio" not in row:
            lines.append(f"| {row['task']} | {row['requests']} | {row['floe'].get('error', '')} | {[one.get('error') for one in row['tried']]} | | | | |")
            continue
        rates, ratio = row["per_second"], row["ratio"]
        agreed = f"{row['agreement']:.3g}" if "agreement" in row else ""
        lines.append(f"| {row['task']} | {row['requests']} | {rates['floe']:.1f} | {rates['openflamingo']:.1f} | {rates['its model alone']:.1f} "
                     f"| {ratio['whole']:.2f} | {ratio['model']:.2f} | {agreed} |")  # fmt: skip
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="of3b", choices=list(LANGUAGE_MODELS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--few", type=int, default=100)
    parser.add_argument("--shots", type=int, default=32)
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 32, 64])
    parser.add_argument("--batch-tokens", type=int, default=131072)
    parser.add_argument("--timeout", type=int, default=900)
    parser.add_argument("--tasks", nargs="+", default=["generate", "score"], choices=["generate", "score"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.dtype_name = {"bfloat16": "bf16", "float32": "fp32"}[options.dtype]
    with tempfile.TemporaryDirectory(prefix="floe-generate-") as name:
        folder = Path(name)
        made = ask_twin("generate.py", dict(prepare=True, folder=name, model=options.model, device=options.device))
        assert "error" not in made, made
        spec = LANGUAGE_MODELS[options.model]
        (folder / "model.yaml").write_text(json.dumps(dict(
            type="flamingo", lm="lm", vision="vision", weights="trained.pt", cross_attn_every_n_layers=CROSS_ATTENTION_EVERY[options.model],
            media_token_id=spec["vocab_size"] - 2, endofchunk_token_id=spec["vocab_size"] - 1)))  # fmt: skip
        pictures = write_pictures(folder / "pictures", options.images)
        rng = random.Random(3)
        zero, few = folder / "zero-shot.jsonl", folder / f"{options.shots}-shot.jsonl"
        write_requests(zero, options.model, pictures[options.few :], 0, rng)
        write_requests(few, options.model, pictures[: options.few], options.shots, rng)
        jobs = [dict(task=task, requests=requests) for task in options.tasks for requests in (zero, few)]
        ours = []
        for job in jobs:
            ours.append(floe(job["task"], folder, job["requests"], options))
            print(job["task"], job["requests"].name, {key: value for key, value in ours[-1].items() if key != "answers"}, file=sys.stderr, flush=True)
        theirs = ask_openflamingo(folder, jobs, options)
        rows = [compare(dict(job, requests=job["requests"].stem), *both) for job, *both in zip(jobs, ours, theirs)]
    rows += filter(None, (whole(task, rows) for task in options.tasks))
    print(table(rows))
    if options.out:
        results = ResultFile(options.out, "h200-generate", {})
        results.found = {"command": command_line("h200_generate"), "rows": rows}
        results.save()
        results.path(".md").write_text(f"# Captions and scores beside OpenFlamingo\n\n`{command_line('h200_generate')}`\n\n{table(rows)}\n")


main()
