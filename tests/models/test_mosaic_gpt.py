"""MPT-1B's variant against a decoder written out in torch: transformers has no such model.

Its files call themselves `mosaic_gpt`: queries and keys are normalised over their whole width before
they are split into heads, and the parameters have names of their own.
"""

import json
import math

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

CONFIG = dict(
    model_type="mosaic_gpt", d_model=36, n_heads=6, n_layers=2, mlp_ratio=3, vocab_size=61, max_seq_len=32,
    attn_qk_ln=True, alibi=True, alibi_bias_max=8, no_bias=True, softmax_scale=None, attn_clip_qkv=None,
    logit_scale=None, prefix_lm=False, embedding_fraction=1.0,
)


def slopes(heads, most):
    power = 2 ** math.ceil(math.log2(heads))
    values = [2 ** (-most * i / power) for i in range(1, power + 1)]
    return torch.tensor(values if power == heads else (values[1::2] + values[::2])[:heads])


def random_weights(config, seed):
    generator = torch.Generator().manual_seed(seed)
    width, inner = config["d_model"], config["mlp_ratio"] * config["d_model"]
    shapes = {"transformer.wte.weight": [config["vocab_size"], width], "transformer.ln_f.weight": [width]}
    if not config["alibi"]:
        shapes["transformer.wpe.weight"] = [config["max_seq_len"], width]
    for layer in range(config["n_layers"]):
        block = f"transformer.blocks.{layer}."
        shapes |= {
            block + "ln_1.weight": [width],
            block + "ln_2.weight": [width],
            block + "attn.Wqkv.weight": [3 * width, width],
            block + "attn.out_proj.weight": [width, width],
            block + "mlp.mlp_up.weight": [inner, width],
            block + "mlp.mlp_down.weight": [width, inner],
        }
        if config["attn_qk_ln"]:
            shapes |= {block + "attn.q_ln.weight": [width], block + "attn.k_ln.weight": [width]}
    if not config["no_bias"]:
        shapes |= {n.removesuffix("weight") + "bias": s[:1] for n, s in shapes.items() if "wte" not in n and "wpe" not in n}
    weights = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        scale = 1.3 / shape[-1] ** 0.5 if len(shape) > 1 else 0.2
        weights[name] = (noise * scale + (1.0 if len(shape) == 1 and "weight" in name else 0.0)).requires_grad_()
    return weights


def written_out(config, weights, ids):
    """[B, T] without padding → logits."""
    width, heads = config["d_model"], config["n_heads"]
    length = ids.shape[1]
    distance = torch.arange(length)[:, None] - torch.arange(length)

    def norm(name, x):
        return F.layer_norm(x, [width], weights[name + ".weight"], weights.get(name + ".bias"))

    def linear(name, x):
        return F.linear(x, weights[name + ".weight"], weights.get(name + ".bias"))

    x = weights["transformer.wte.weight"][ids]
    if not config["alibi"]:
        x = x + weights["transformer.wpe.weight"][:length]
    for layer in range(config["n_layers"]):
        block = f"transformer.blocks.{layer}."
        qkv = linear(block + "attn.Wqkv", norm(block + "ln_1", x))
        if config["attn_clip_qkv"]:
            qkv = qkv.clamp(-config["attn_clip_qkv"], config["attn_clip_qkv"])
        q, k, v = qkv.chunk(3, -1)
        if config["attn_qk_ln"]:
            q, k = norm(block + "attn.q_ln", q), norm(block + "attn.k_ln", k)
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in (q, k, v))
        scores = q @ k.transpose(-1, -2) * (config["softmax_scale"] or (width / heads) ** -0.5)
        if config["alibi"]:
            scores = scores - slopes(heads, config["alibi_bias_max"])[:, None, None] * distance
        seen = scores.masked_fill(distance < 0, -torch.inf).softmax(-1) @ v
        x = x + linear(block + "attn.out_proj", seen.transpose(1, 2).flatten(-2))
        x = x + linear(block + "mlp.mlp_down", F.gelu(linear(block + "mlp.mlp_up", norm(block + "ln_2", x))))
    return norm("transformer.ln_f", x) @ weights["transformer.wte.weight"].T


CHANGES = {
    "as_released": {},
    "eight_heads_other_bias": dict(d_model=32, n_heads=8, alibi_bias_max=5, softmax_scale=0.3),
    "biases_and_clipping": dict(no_bias=False, attn_clip_qkv=0.6),
    "learned_positions": dict(alibi=False, attn_qk_ln=False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_equals_written_out(change, tmp_path, forward, gradients, same_gradients, worst):
    config = CONFIG | CHANGES[change]
    weights = random_weights(config, 3)
    (tmp_path / "lm").mkdir()
    (tmp_path / "lm" / "config.json").write_text(json.dumps(config))
    save_file({name: value.detach() for name, value in weights.items()}, tmp_path / "lm" / "model.safetensors")
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(0, config["vocab_size"], (3, 19), generator=generator)
    logits = written_out(config, weights, ids)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    ours = forward(dict(type="causal_lm", lm=tmp_path / "lm"), dict(lang_x=ids, labels=ids), "--grads")
    scale = max(1, logits.abs().max().item())
    worst.note("mosaic_gpt logits", (ours["logits"] - logits).abs().max().item() / scale, 2e-5)
    worst.note("mosaic_gpt loss", (ours["loss"] - loss).abs().item() / scale, 2e-5)
    same_gradients(worst, "mosaic_gpt gradients", gradients(ours), {n: w.grad for n, w in weights.items()})


def test_refuses_what_it_does_not_compute(tmp_path, run_forward):
    (tmp_path / "lm").mkdir()
    (tmp_path / "model.yaml").write_text("type: causal_lm\nlm: lm\n")
    save_file({"lang_x": torch.zeros(1, 2, dtype=torch.long)}, tmp_path / "inputs.safetensors")
    for key, value in dict(prefix_lm=True, logit_scale=0.5, embedding_fraction=0.5).items():
        (tmp_path / "lm" / "config.json").write_text(json.dumps(CONFIG | {key: value}))
        done = run_forward(tmp_path / "model.yaml", tmp_path / "inputs.safetensors", tmp_path / "outputs.safetensors")
        assert done.returncode == 2 and f"'{key}'" in done.stderr and "config.json" in done.stderr, done.stderr
