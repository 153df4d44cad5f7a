"""A small LLaMA in plain torch, of which a part trains, in every precision that floe has: fp32 masters, a copy in another
type that computes, autocast, torch's GradScaler, frozen matrices rounded by hand, products of 8-bit codes. Needs no
transformers, so that it runs wherever torch is."""

import json
import math

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

WIDTH, INNER, LAYERS, HEADS, KV_HEADS, VOCAB = 128, 256, 3, 4, 2, 320
HEAD = WIDTH // HEADS
ROWS, LENGTH = 2, 32
USED = 24  # tokens of the vocabulary: that others never come is what can be learnt
LR, EPS = 2e-3, 1e-3  # of such an eps: phase_loop.py
PATTERNS = ["lm_head.*", "*o_proj*", "*norm*"]  # what trains; gradients come through all frozen matrices to the first norm


def trains(name):
    return "lm_head" in name or "o_proj" in name or "norm" in name


def matrix(name):
    """Of those that floe stores in 8 bits."""
    return "_proj" in name and not trains(name)


def write_model(folder):
    """As a Hugging Face folder; every weight is of its own."""
    generator = torch.Generator().manual_seed(7)

    def random(*shape):
        return torch.randn(*shape, generator=generator) / math.sqrt(shape[-1])

    weights = {"model.embed_tokens.weight": random(VOCAB, WIDTH) * 8, "lm_head.weight": random(VOCAB, WIDTH)}
    weights["model.norm.weight"] = 1 + random(WIDTH)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name, rows, columns in (("self_attn.q_proj", WIDTH, WIDTH), ("self_attn.k_proj", KV_HEADS * HEAD, WIDTH),
                                    ("self_attn.v_proj", KV_HEADS * HEAD, WIDTH), ("self_attn.o_proj", WIDTH, WIDTH),
                                    ("mlp.gate_proj", INNER, WIDTH), ("mlp.up_proj", INNER, WIDTH),
                                    ("mlp.down_proj", WIDTH, INNER)):
            weights[f"{at}{name}.weight"] = random(rows, columns)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{at}{name}.weight"] = 1 + random(WIDTH)
    folder.mkdir(parents=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCAB, "hidden_size": WIDTH,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float32"}))
    return weights


def write_batches(path, steps, ranks):
    """`path` has {rank} in it. Other data on every rank, of two shapes in turn: with more labels and with fewer."""
    generator = torch.Generator().manual_seed(3)
    pairs = []
    for rank in range(ranks):
        tensors, of_rank = {}, []
        for step in range(steps):
            ids = torch.randint(0, USED, (ROWS, LENGTH), generator=generator)
            wanted = ids.clone()
            wanted[:, : LENGTH - (9 + 8 * rank + 6 * (step % 2))] = -100
            of_rank.append((ids, wanted))
            tensors |= {f"step{step}.text.input_ids": ids, f"step{step}.text.labels": wanted,
                        f"step{step}.text.attention_mask": torch.ones_like(ids)}
        save_file(tensors, str(path).format(rank=rank))
        pairs.append(of_rank)
    return pairs


# ------------------------------------------------------------------------------------------- 8 bits


def e4m3(value):
    """Codes by row, and their scales: a row's largest magnitude becomes the largest code."""
    value = value.float()
    scale = (value.abs().amax(-1, keepdim=True) / 448).clamp_min(torch.finfo(torch.float32).tiny)
    return (value / scale).to(torch.float8_e4m3fn).float(), scale


def rounded(value, kind):
    if kind == "fp8":
        codes, scale = e4m3(value)
        return codes * scale
    scale = value.abs().amax(1, keepdim=True) / 127
    return (value / scale).round() * scale


class Products(torch.autograd.Function):
    """What docs/engine.md says of FP8 through frozen linear layers."""

    @staticmethod
    def forward(context, x, weight):
        codes, scale = e4m3(weight)
        context.save_for_backward(codes, scale)
        entering, by_row = e4m3(x)
        return ((entering @ codes.T) * by_row * scale.T).to(x.dtype)

    @staticmethod
    def backward(context, gradient):
        codes, scale = context.saved_tensors
        coming, by_row = e4m3(gradient.float() * scale.T)
        return ((coming @ codes) * by_row).to(gradient.dtype), None


# -------------------------------------------------------------------------------------------- the model


def norm(x, weight):
    exact = x.float()
    exact = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + 1e-6)
    return weight * exact.to(x.dtype)


def turned(x):
    """Rotary positions of [B, H, T, D]."""
    angles = torch.outer(torch.arange(LENGTH, dtype=torch.float32), 10000.0 ** -(torch.arange(0, HEAD, 2) / HEAD))
    angles = torch.cat([angles, angles], -1).to(x.device)
    half = torch.cat([-x[..., HEAD // 2:], x[..., : HEAD // 2]], -1)
    return x * angles.cos().to(x.dtype) + half * angles.sin().to(x.dtype)


def logits_of(weights, ids, product):
    x = F.embedding(ids, weights["model.embed_tokens.weight"])

    def split(y):
        return y.view(ROWS, LENGTH, -1, HEAD).transpose(1, 2)

    for layer in range(LAYERS):
        def linear(y, name):
            return product(y, f"model.layers.{layer}.{name}.weight")

        at = f"model.layers.{layer}."
        y = norm(x, weights[f"{at}input_layernorm.weight"])
        q, k, v = (split(linear(y, f"self_attn.{name}_proj")) for name in "qkv")
        q, k = turned(q), turned(k).repeat_interleave(HEADS // KV_HEADS, 1)
        y = F.scaled_dot_product_attention(q, k.to(v.dtype), v.repeat_interleave(HEADS // KV_HEADS, 1), is_causal=True)
        x = x + linear(y.transpose(1, 2).reshape(ROWS, LENGTH, WIDTH), "self_attn.o_proj")
        y = norm(x, weights[f"{at}post_attention_layernorm.weight"])
        x = x + linear(F.silu(linear(y, "mlp.gate_proj")) * linear(y, "mlp.up_proj"), "mlp.down_proj")
    return product(norm(x, weights["model.norm.weight"]), "lm_head.weight")


class Trained:
    """Losses and norms by step, weights at the end, and of a scaled loss the scales of all attempts with whether they
    fitted."""

    def __init__(self):
        self.losses, self.norms, self.scales, self.weights = [], [], [], {}


def train(weights, batches, steps, device, dtype=torch.float32, autocast=None, scale=None, storage=None, products=False,
          sets=None, turn=1):
    """`batches` by rank. `storage`: int8 or fp8, of frozen matrices. `products`: those with them are of codes. `sets`: what
    says of a name whether it trains, in turns of so many steps; what rests is frozen like the rest."""
    def frozen_value(name, value):
        return rounded(value, storage) if storage and matrix(name) else value

    sets = sets or [trains]
    frozen = {name: frozen_value(name, value).to(device, dtype)
              for name, value in weights.items() if not any(in_set(name) for in_set in sets)}
    of_all = {name: value.to(device).clone().requires_grad_() for name, value in weights.items() if name not in frozen}
    of_sets = [{name: value for name, value in of_all.items() if in_set(name)} for in_set in sets]
    optimizers = [torch.optim.AdamW(masters.values(), lr=LR, eps=EPS, weight_decay=0.1) for masters in of_sets]
    scaler = torch.amp.GradScaler(device, init_scale=scale) if scale else None
    out = Trained()
    raw = {name: value.to(device) for name, value in weights.items()}  # codes are made of what the files have
    for step in range(len(batches[0])):
        if len(out.losses) == steps:
            break
        masters, optimizer = (of_either[step // turn % len(sets)] for of_either in (of_sets, optimizers))
        resting = {name: value.detach() for name, value in of_all.items() if name not in masters}
        raw |= resting
        optimizer.zero_grad()
        loss_sum = 0.0
        for of_rank in batches:
            ids, wanted = (value.to(device) for value in of_rank[step])
            computing = {name: value.detach().to(dtype, copy=True).requires_grad_() for name, value in masters.items()}
            everything = frozen | {name: value.to(dtype) for name, value in resting.items()} | computing

            def product(x, name):
                if products and "_proj" in name and name not in masters:
                    return Products.apply(x, raw[name])
                return F.linear(x, everything[name])

            with torch.autocast(device, dtype=autocast or torch.bfloat16, enabled=autocast is not None):
                logits = logits_of(everything, ids, product)
            loss = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), wanted[:, 1:].flatten(), ignore_index=-100)
            (scaler.scale(loss) if scaler else loss).backward()
            loss_sum += loss.item()
            for name, master in masters.items():  # averaged after that, as by DDP
                share = computing[name].grad.float() / len(batches)
                master.grad = share if master.grad is None else master.grad + share
        finite = all(torch.isfinite(master.grad).all() for master in masters.values())
        if scaler:
            out.scales.append((scaler.get_scale(), finite))
            scaler.unscale_(optimizer)
        if finite:
            out.losses.append(loss_sum / len(batches))
            out.norms.append(math.sqrt(sum(master.grad.square().sum().item() for master in masters.values())))
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
    out.weights = {name: master.detach().cpu() for name, master in of_all.items()}
    return out
