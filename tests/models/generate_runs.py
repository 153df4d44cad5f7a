"""Runs of `floe generate` and of transformers' `generate`, in one form: new ids and scores per prompt."""

import json
import os
import subprocess
from pathlib import Path

import torch

FLOE = Path(os.environ["FLOE_BIN_DIR"]) / "floe"


def flags(options):
    """transformers' names as floe's: num_beams=3 → --num-beams 3, True → true."""
    words = []
    for name, value in options.items():
        if name == "do_sample":
            words.append("--sample")
            continue
        words.append("--" + name.replace("_", "-"))
        words.append(str(value).lower() if isinstance(value, bool) else str(value))
    return words


def run_floe(*words):
    return subprocess.run(
        [FLOE, "generate", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        env=dict(os.environ, OMP_NUM_THREADS="1"),
    )


def model_file(path, keys):
    path.write_text(json.dumps(keys, default=str))  # JSON is YAML
    return path


def floe_generate(model, prompts, *words, **options):
    """The object that --json prints."""
    ids = [word for prompt in prompts for word in ("--ids", ",".join(map(str, prompt)))]
    done = run_floe(model, *ids, "--json", *words, *flags(options))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def left_padded(prompts, pad):
    length = max(map(len, prompts))
    ids = torch.tensor([[pad] * (length - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids, mask


def up_to_end(ids, ends):
    for place, token in enumerate(ids):
        if token in ends:
            return ids[: place + 1]
    return ids


def new_ids(sequences, prompt_length, ends):
    """What transformers put behind the prompts, without its padding."""
    return [up_to_end(row[prompt_length:], ends) for row in sequences.tolist()]
