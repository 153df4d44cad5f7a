"""floe's models::Transformer in PyTorch: the same names, shapes and arithmetic."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # [B, H, T, D/H]
        return self.out(mixed.transpose(1, 2).reshape(B, T, D))


class Adapter(nn.Module):
    def __init__(self, dim, width):
        super().__init__()
        self.down = nn.Linear(dim, width)
        self.up = nn.Linear(width, dim)

    def forward(self, x):
        return x + self.up(F.gelu(self.down(x)))


class DecoderLayer(nn.Module):
    def __init__(self, dim, heads, adapter):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)
        self.adapter = Adapter(dim, adapter) if adapter else None

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return self.adapter(x) if self.adapter is not None else x


class Transformer(nn.Module):
    def __init__(self, vocab, dim, layers, heads, context, adapter, tied):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.positions = nn.Embedding(context, dim)
        self.layers = nn.ModuleList(DecoderLayer(dim, heads, adapter) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids) + self.positions(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def next_token_loss(logits, ids):
    return F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))
