"""A small language model with its tokenizer, as the hub has them."""

import json
import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

TOKENIZER = Path(os.environ["FLOE_SOURCE_DIR"]) / "tests/goldens/data/tokenizers/neox"


def llama_config(vocab=3040, dim=32, layers=2, heads=2, mlp=64, positions=512):
    return {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": vocab, "hidden_size": dim,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads,
        "intermediate_size": mlp, "max_position_embeddings": positions, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "tie_word_embeddings": False, "rope_theta": 10000.0,
    }  # fmt: skip


def llama_shapes(config):
    dim, mlp, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    shapes = {"model.embed_tokens.weight": [vocab, dim], "lm_head.weight": [vocab, dim], "model.norm.weight": [dim]}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        for name in "qkvo":
            shapes[f"{layer}self_attn.{name}_proj.weight"] = [dim, dim]
        for name, shape in (("gate", [mlp, dim]), ("up", [mlp, dim]), ("down", [dim, mlp])):
            shapes[f"{layer}mlp.{name}_proj.weight"] = shape
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{layer}{name}.weight"] = [dim]
    return shapes


def make_llama(folder):
    shutil.copytree(TOKENIZER, folder)
    config = llama_config()
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(5)
    weights = {
        name: torch.ones(shape) if "norm" in name else torch.randn(shape) * 0.05
        for name, shape in llama_shapes(config).items()
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder
