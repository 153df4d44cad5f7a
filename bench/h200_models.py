"""What bench/h200*.py ask of every system: models, data, how the programs are started, and where answers go."""

import datetime
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TEXT_TOKENS = 50276
VOCABULARY = 50280

LANGUAGE_MODELS = {
    "of3b": {"model_type": "mpt", "vocab_size": VOCABULARY, "d_model": 2048, "n_layers": 24, "n_heads": 16},
    "of4b": {
        "model_type": "gpt_neox", "vocab_size": VOCABULARY, "hidden_size": 2560, "num_hidden_layers": 32,
        "num_attention_heads": 32, "intermediate_size": 10240, "rotary_pct": 1.0,
        "use_parallel_residual": False,
    },
    "of9b": {"model_type": "mpt", "vocab_size": VOCABULARY, "d_model": 4096, "n_layers": 32, "n_heads": 32},
    # For trying the flow where there is no GPU.
    "tiny": {"model_type": "mpt", "vocab_size": 512, "d_model": 64, "n_layers": 2, "n_heads": 4},
}
# Whose adapters train in bench/h200_lora.py.
ADAPTED_MODELS = {
    "llama3-8b": {
        "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192, "rope_theta": 500000.0, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    },
    "qwen2.5-7b": {
        "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "max_position_embeddings": 32768, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
    },
    "llama3.2-1b": {
        "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192, "rope_theta": 500000.0, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    },
    # Planned, never run.
    "llama3-70b": {
        "model_type": "llama", "vocab_size": 128256, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 8192, "rope_theta": 500000.0, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    },
    "tiny-llama": {
        "model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 128, "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    },
}
ADAPTERS = {"rank": 8, "alpha": 16, "targets": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}

CROSS_ATTENTION_EVERY = {"of3b": 1, "of4b": 2, "of9b": 4, "tiny": 1}
TINY_VISION = {"image_size": 28, "vision_width": 32, "vision_layers": 1, "vision_heads": 2, "perceiver_depth": 1}


def model_spec(name):
    lm = LANGUAGE_MODELS[name]
    spec = {"lm": lm, "cross_attention_every": CROSS_ATTENTION_EVERY[name], "media_token": lm["vocab_size"] - 2,
            "endofchunk_token": lm["vocab_size"] - 1}
    return spec | TINY_VISION if name == "tiny" else spec


def sequences(name, lengths, seed):
    """[[tokens, images], ...] of each data set: the baseline's sizes, or sizes as data has them."""
    captions, documents = (4, 3) if name == "tiny" else (64, 32)
    if lengths == "fixed":
        return [[[32, 1]] * captions, [[256, 6]] * documents]
    rng = random.Random(seed)
    laion = [[min(32, max(6, round(rng.lognormvariate(2.75, 0.45)))), 1] for _ in range(captions)]
    mmc4 = [[rng.randint(96, 256), rng.randint(1, 6)] for _ in range(documents)]
    return [laion, mmc4]


def data_of(laion, mmc4, text_tokens):
    return [{"text_tokens": text_tokens, "slots": max(images for _, images in laion), "sequences": laion},
            {"text_tokens": text_tokens, "slots": max(images for _, images in mmc4), "sequences": mmc4}]


def ask(command, config, timeout=None):
    """The last line of what the program prints, as JSON; {"error": ...} when it fails."""
    begin = time.monotonic()
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(config, file)
        file.flush()
        try:
            done = subprocess.run([*command, file.name] if not callable(command) else command(file.name),
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, timeout=timeout)
        except subprocess.TimeoutExpired:
            return {"error": f"no answer within {timeout} s"}
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:] or [""]
        return {"error": f"exit status {done.returncode}: {last[0][:300]}", "stderr": done.stderr[-4000:]}
    return json.loads(done.stdout.splitlines()[-1]) | {"seconds": round(time.monotonic() - begin, 1)}


def ask_floe(config, timeout=None):
    return ask([Path(os.environ["FLOE_BIN_DIR"]) / "bench_h200"], config, timeout)


def ask_twin(script, config, *arguments, timeout=None):
    python = os.environ.get("FLOE_PYTHON", sys.executable)
    return ask(lambda path: [python, HERE / "torch_twin" / script, path, *arguments], config, timeout)


class ResultFile:
    """Raw results of a day as JSON: whole after each `save`, so that a run that was cut can go on."""

    def __init__(self, folder, name, empty):
        self._stem = Path(folder) / f"{datetime.date.today()}-{name}"
        self._stem.parent.mkdir(parents=True, exist_ok=True)
        self.found = json.loads(self.path(".json").read_text()) if self.path(".json").exists() else empty

    def path(self, ending):
        return self._stem.with_name(self._stem.name + ending)

    def save(self):
        self.path(".json").write_text(json.dumps(self.found, indent=1) + "\n")


def command_line(name):
    words = [f'"{word}"' if " " in word else word for word in sys.argv[1:]]
    return " ".join(["./run bench", name, *words])
