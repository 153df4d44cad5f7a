"""The model of bench/h200.py in plain PyTorch: OpenFlamingo's layers, written for speed as far as eager
PyTorch goes (fused attention everywhere, masks made once per batch, the language model's embedding
frozen as a whole)."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Self-attention over fused projections; `rotary` and `bias` as the decoder says."""

    def __init__(self, dim, heads, bias):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=bias)
        self.out = nn.Linear(dim, dim, bias=bias)

    def forward(self, x, mask=None, causal=False, rotary=None):
        batch, tokens, dim = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if rotary is not None:
            q, k = rotate(q, rotary), rotate(k, rotary)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, dim))


def rotate(x, rotary):
    cos, sin = rotary
    half = x.shape[-1] // 2
    crossed = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * cos + crossed * sin


class QuickGelu(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class Block(nn.Module):
    """A layer of the image tower or of a decoder."""

    def __init__(self, dim, heads, mlp_dim, activation, bias=True, norm_bias=True):
        super().__init__()
        self.norm_1 = nn.LayerNorm(dim, bias=norm_bias)
        self.attention = Attention(dim, heads, bias)
        self.norm_2 = nn.LayerNorm(dim, bias=norm_bias)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp_dim, bias=bias), activation, nn.Linear(mlp_dim, dim, bias=bias))

    def forward(self, x, mask=None, causal=False, rotary=None):
        x = x + self.attention(self.norm_1(x), mask, causal, rotary)
        return x + self.mlp(self.norm_2(x))


class ImageTower(nn.Module):
    def __init__(self, size, width, layers, heads, patch=14):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch, bias=False)
        self.first = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, heads, 4 * width, QuickGelu()) for _ in range(layers))

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = self.norm(torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.places)
        for block in self.blocks:
            x = block(x)
        return x[:, 1:]


def feed_forward(dim):
    return nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim, bias=False), nn.GELU(),
                         nn.Linear(4 * dim, dim, bias=False))


class PerceiverLayer(nn.Module):
    def __init__(self, dim, heads=8, dim_head=64):
        super().__init__()
        self.heads = heads
        inner = heads * dim_head
        self.norm_media, self.norm_latents = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim, 2 * inner, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)
        self.ff = feed_forward(dim)

    def forward(self, media, latents):
        own = self.norm_latents(latents)
        batch, count, _ = own.shape
        q = self.to_q(own).view(batch, count, self.heads, -1).transpose(1, 2)
        kv = self.to_kv(torch.cat([self.norm_media(media), own], 1))
        k, v = kv.view(batch, kv.shape[1], 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, count, -1)
        latents = self.to_out(mixed) + latents
        return self.ff(latents) + latents


class Perceiver(nn.Module):
    def __init__(self, dim, depth, latents=64):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(latents, dim))
        self.layers = nn.ModuleList(PerceiverLayer(dim) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)

    def forward(self, media):
        x = self.latents.expand(len(media), -1, -1)
        for layer in self.layers:
            x = layer(media, x)
        return self.norm(x)


class Gate(nn.Module):
    def __init__(self, dim, media_dim, heads=8, dim_head=64):
        super().__init__()
        self.heads = heads
        inner = heads * dim_head
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(media_dim, 2 * inner, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)
        self.ff = feed_forward(dim)
        self.attn_gate, self.ff_gate = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x, media, mask):
        batch, tokens, _ = x.shape
        q = self.to_q(self.norm(x)).view(batch, tokens, self.heads, -1).transpose(1, 2)
        kv = self.to_kv(media)
        k, v = kv.view(batch, kv.shape[1], 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.to_out(mixed.transpose(1, 2).reshape(batch, tokens, -1)) * self.attn_gate.tanh() + x
        return self.ff(x) * self.ff_gate.tanh() + x


class Flamingo(nn.Module):
    """`spec` is what bench/h200.py says of the model."""

    def __init__(self, spec):
        super().__init__()
        lm, every = spec["lm"], spec["cross_attention_every"]
        width = spec.get("vision_width", 1024)
        mpt = lm["model_type"] == "mpt"
        self.alibi = mpt
        dim = lm["d_model"] if mpt else lm["hidden_size"]
        layers = lm["n_layers"] if mpt else lm["num_hidden_layers"]
        self.heads = lm["n_heads"] if mpt else lm["num_attention_heads"]
        self.vision = ImageTower(spec.get("image_size", 224), width, spec.get("vision_layers", 24),
                                 spec.get("vision_heads", 16))
        self.perceiver = Perceiver(width, spec.get("perceiver_depth", 6))
        self.num_latents = len(self.perceiver.latents)
        self.embed = nn.Embedding(lm["vocab_size"], dim)
        self.layers = nn.ModuleList(
            Block(dim, self.heads, 4 * dim, nn.GELU(), bias=not mpt, norm_bias=not mpt) for _ in range(layers))
        self.gated = [(i + 1) % every == 0 for i in range(layers)]
        self.gates = nn.ModuleList(Gate(dim, width) if gated else nn.Identity() for gated in self.gated)
        self.norm = nn.LayerNorm(dim, bias=not mpt)
        self.head = nn.Linear(dim, lm["vocab_size"], bias=False)
        if mpt:
            self.head.weight = self.embed.weight

    def freeze(self):
        self.requires_grad_(False)
        self.perceiver.requires_grad_(True)
        self.gates.requires_grad_(True)

    def positions(self, tokens, device, dtype):
        """What the decoder's layers are given beside the hidden states."""
        place = torch.arange(tokens, device=device)
        if self.alibi:
            slopes = 2.0 ** (-8.0 * torch.arange(1, self.heads + 1, device=device) / self.heads)
            distance = (place[:, None] - place).float()
            bias = torch.where(distance < 0, -math.inf, -slopes[:, None, None] * distance)
            return {"mask": bias[None].to(dtype)}
        dim = self.embed.embedding_dim // self.heads
        angle = torch.outer(place.float(), 10000.0 ** (-torch.arange(0, dim, 2, device=device) / dim))
        angle = torch.cat([angle, angle], -1)
        return {"causal": True, "rotary": (angle.cos().to(dtype), angle.sin().to(dtype))}

    def hidden(self, batch):
        images, ids = batch["images"], batch["ids"]
        rows, slots = images.shape[:2]
        with torch.no_grad():
            seen = self.vision(images.flatten(0, 1))
        media = self.perceiver(seen).view(rows, -1, seen.shape[-1])
        x = self.embed(ids)
        for gated, gate, layer in zip(self.gated, self.gates, self.layers, strict=True):
            if gated:
                x = gate(x, media, batch["sees"])
            x = layer(x, **batch["positions"])
        return self.norm(x)

    def forward(self, batch):
        return self.loss(self.hidden(batch), batch["labels"])

    def loss(self, hidden, labels):
        """Mean cross entropy of the labelled tokens, in fp32."""
        logits = self.head(hidden)[:, :-1].flatten(0, 1).float()
        return F.cross_entropy(logits, labels[:, 1:].flatten())


def compile_layers(model):
    """Compiles the layers' forwards, so that hooks of FSDP2 and checkpointing stay outside, and the loss; each of
    the two data sets' shapes has its own code."""
    torch._dynamo.config.recompile_limit = 64
    for module in model.modules():
        if isinstance(module, (Block, Gate, PerceiverLayer)):
            module.forward = torch.compile(module.forward, dynamic=False)
    model.loss = torch.compile(model.loss, dynamic=False)
