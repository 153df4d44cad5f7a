#!/usr/bin/env python3
"""What saves cost a run of OpenFlamingo's size on one GPU: `floe train` with random weights, saved asynchronously now and then.

    ./run bench h200_saves [--every 120] [--saves 2] [--gates 1 8]

--gates N puts gated cross-attention before every Nth layer: 1 is of3b on one rank, with 11 GB to save; 8 has about as much to save as
one of eight ranks of it; without files of weights a checkpoint also has what is frozen. A save's cost is `checkpoint_time` of the run's
log, the seconds for which it held the training, and what the steps until the next save were longer than those before the first one, in
the median. The longest step shows what the memory for saves costs, which is page-locked beside the first steps. A save waits for the one
before it, so --every must be more than a disk needs for one. Writes a dated table to bench/results/ (or --out).
"""

import argparse
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from h200_models import HERE, LANGUAGE_MODELS, ResultFile, command_line

NEEDS_GPU = True
DATA = HERE.parent / "tests/goldens/data"
VISION = {"layers": 24, "width": 1024, "head_width": 64, "patch_size": 14, "image_size": 224}
TINY_VISION = {"layers": 1, "width": 32, "head_width": 16, "patch_size": 14, "image_size": 28}


def make_model(folder, name):
    """Folders of a language model and an image tower as people have them, without weights."""
    lm, vision = folder / "lm", folder / "vision"
    shutil.copytree(DATA / "tokenizers/neox", lm)
    (lm / "config.json").write_text(json.dumps(LANGUAGE_MODELS[name] | {"max_seq_len": 2048}))
    vision.mkdir()
    tower = TINY_VISION if name == "tiny" else VISION
    (vision / "open_clip_config.json").write_text(json.dumps({"embed_dim": 768, "quick_gelu": True, "vision_cfg": tower,
                                                              "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 768, "heads": 12, "layers": 12}}))  # fmt: skip
    return lm, vision


def train(name, gates, arguments, folder):
    lm, vision = make_model(folder, name)
    words = [
        f"run.dir={folder / 'runs'}", "run.name=saves", "model.type=flamingo", f"model.lm={lm}", f"model.vision={vision}", "model.random_init=true",
        f"model.cross_attn_every_n_layers={gates}", f"data.laion.shards={DATA}/corpus/laion/{{000000..000004}}.tar", f"data.laion.batch_size={arguments.captions}",
        f"data.mmc4.shards={DATA}/corpus/mmc4/{{000000000..000000003}}.tar", f"data.mmc4.batch_size={max(1, arguments.captions // 2)}",
        f"train.steps={arguments.every * (arguments.saves + 1)}", f"checkpoint.every_steps={arguments.every}", "checkpoint.keep=1", "log.every_steps=1",
        "log.diagnostics=null", "data.max_bad_fraction=1",
    ]  # fmt: skip
    done = subprocess.run([Path(os.environ["FLOE_BIN_DIR"]) / "floe", "train", *words], capture_output=True, text=True, check=False,
                          timeout=arguments.timeout)  # fmt: skip
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1][:300], "stderr": done.stderr[-4000:]}
    records = [json.loads(line) for line in next((folder / "runs/saves").glob("metrics*.jsonl")).read_text().splitlines()]
    records = [record for record in records if "step_time" in record]
    newest = max((folder / "runs/saves/checkpoints").glob("step_*"), key=lambda path: int(path.name.split("_")[1]))
    size = sum(file.stat().st_size for file in newest.rglob("*") if file.is_file())
    return {"steps": [{key: record.get(key) for key in ("step", "step_time", "checkpoint_time", "checkpoint_wait_time", "other_time")} for record in records],
            "bytes": size}  # fmt: skip


def row_of(name, gates, arguments, result):
    begin = f"| {name}, gates before every {gates} | " if gates > 1 else f"| {name} | "
    if "error" in result:
        return begin + f"{result['error']} | | | | | |"
    steps = result["steps"]
    held = [step["checkpoint_time"] for step in steps if step["checkpoint_time"]]
    before = statistics.median(step["step_time"] for step in steps[3 : arguments.every - 1])
    after = statistics.median(step["step_time"] for step in steps[arguments.every :])
    longest = max(step["step_time"] for step in steps[1 : arguments.every - 1])
    *held, last = held
    return (begin + f"{result['bytes'] / 1e9:.2f} | {', '.join(f'{s:.3f}' for s in held)} | {last:.1f} | {longest:.1f} | "
            f"{1e3 * before:.0f} | {1e3 * after:.0f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="of3b", choices=list(LANGUAGE_MODELS))
    parser.add_argument("--gates", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--every", type=int, default=120, help="steps between saves")
    parser.add_argument("--saves", type=int, default=2, help="before the last one")
    parser.add_argument("--captions", type=int, default=32, help="of a batch; half as many documents")
    parser.add_argument("--timeout", type=int, default=300, help="seconds that one run may take")
    parser.add_argument("--out", default=str(HERE / "results"), help="folder of the results")
    arguments = parser.parse_args()
    results = ResultFile(arguments.out, "h200-saves", {})
    lines = [f"# What saves cost a run on one GPU, {datetime.date.today()}", "", f"`{command_line('h200_saves')}`", "",
             "| run | GB a save | each held the training, s | the last one | longest step from the second on, s | ms a step before the first save | after it |",
             "| --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    failed = False
    for gates in arguments.gates:
        with tempfile.TemporaryDirectory() as folder:
            results.found[str(gates)] = result = train(arguments.model, gates, arguments, Path(folder))
        results.save()
        failed |= "error" in result
        lines.append(row_of(arguments.model, gates, arguments, result))
        print(lines[-1], flush=True)
        if "error" in result:
            print(result["stderr"], file=sys.stderr)
    results.path(".md").write_text("\n".join(lines) + "\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
