"""Small models of the Python systems, and `weights_tool`, for test_files*.py."""

import json
import os
import subprocess
from pathlib import Path

import torch
import transformers as tf
from safetensors import safe_open

TOOL = Path(os.environ["FLOE_BIN_DIR"]) / "weights_tool"

SIZES = dict(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
LLAMA = dict(SIZES, num_key_value_heads=2, intermediate_size=48, max_position_embeddings=64)
FAMILIES = {
    "opt": (
        tf.OPTForCausalLM,
        tf.OPTConfig,
        dict(SIZES, ffn_dim=64, max_position_embeddings=64, word_embed_proj_dim=32, dropout=0.0),
    ),
    "gpt_neox": (
        tf.GPTNeoXForCausalLM,
        tf.GPTNeoXConfig,
        dict(SIZES, intermediate_size=64, max_position_embeddings=64, rotary_pct=0.5),
    ),
    "mpt": (
        tf.MptForCausalLM,
        tf.MptConfig,
        dict(vocab_size=96, d_model=32, n_layers=2, n_heads=4, max_seq_len=64),
    ),
    "llama": (tf.LlamaForCausalLM, tf.LlamaConfig, LLAMA),
    "mistral": (tf.MistralForCausalLM, tf.MistralConfig, dict(LLAMA, sliding_window=None)),
    "qwen2": (tf.Qwen2ForCausalLM, tf.Qwen2Config, dict(LLAMA, tie_word_embeddings=True)),
}


def stir(module, seed=0):
    """No parameter at a value that another one could have by accident."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return module.eval()


def language_model(family, seed=0, **settings):
    make, config, sizes = FAMILIES[family]
    torch.manual_seed(seed)
    return stir(make(config(**{**sizes, **settings})), seed)


def ids(vocab=96, rows=2, length=9, seed=1):
    return torch.randint(3, vocab, (rows, length), generator=torch.Generator().manual_seed(seed))


def logits_of(model, tokens):
    with torch.no_grad():
        return model.float()(input_ids=tokens).logits


def causal_lm(folder, **more):
    return {"type": "causal_lm", "lm": str(folder), **more}


def write_yaml(path, model):
    path.write_text(json.dumps(model, default=str))
    return path


def save(layout, model, out, *options):
    """`model`: a YAML file, or the keys of one."""
    if isinstance(model, dict):
        model = write_yaml(Path(out).parent / (Path(out).name + ".yaml"), model)
    done = subprocess.run(
        [TOOL, layout, str(model), str(out), *map(str, options)],
        capture_output=True,
        text=True,
        timeout=120,
        env=dict(os.environ, OMP_NUM_THREADS="1"),
    )
    assert done.returncode == 0, done.stderr
    return Path(out)


def tensors_in(path):
    """Of a safetensors file or of all in a folder."""
    path = Path(path)
    found = {}
    for file in [path] if path.is_file() else sorted(path.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():
                assert name not in found
                found[name] = opened.get_tensor(name)
    return found


def assert_same(ours, theirs):
    """Bit for bit, types too."""
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype and ours[name].shape == tensor.shape, name
        assert torch.equal(ours[name].view(torch.uint8), tensor.contiguous().view(torch.uint8)), name


def close(ours, theirs):
    bound = 2e-5 * max(1.0, theirs.abs().max().item())
    assert (ours - theirs).abs().max().item() <= bound


FLAMINGO = {
    "type": "flamingo",
    "perceiver": {"depth": 1, "dim_head": 8, "heads": 2, "num_latents": 3, "ff_mult": 1},
    "cross_attn": {"dim_head": 8, "heads": 2, "ff_mult": 1},
    "media_token_id": 95,
    "endofchunk_token_id": 94,
}


def flamingo(lm, vision, **more):
    return {**FLAMINGO, "lm": str(lm), "vision": str(vision), **more}


def flamingo_inputs(side, rows=2, seed=3):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, 90, (rows, 7), generator=generator)
    tokens[:, 0] = 95
    return {"lang_x": tokens, "vision_x": torch.randn(rows, 1, 1, 3, side, side, generator=generator)}
