"""Flamingo in plain torch, from the words of tests/goldens/models/README.md: the reference of random models.

The language model and the image tower are transformers' own; this adds the resampler, the gated
blocks (in front of every n-th layer, as hooks) and OpenFlamingo's rule of which rows train.
"""

import torch
from torch import nn
from torch.nn import functional as F

LOWEST = torch.finfo(torch.float32).min


def split_heads(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(-2, -3)


def join_heads(x):
    return x.transpose(-2, -3).flatten(-2)


def feed_forward(dim, mult):
    return nn.Sequential(
        nn.LayerNorm(dim), nn.Linear(dim, mult * dim, bias=False), nn.GELU(), nn.Linear(mult * dim, dim, bias=False)
    )


class ResamplerAttention(nn.Module):
    def __init__(self, dim, dim_head, heads):
        super().__init__()
        self.heads, self.scale = heads, dim_head**-0.5
        self.norm_media, self.norm_latents = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, heads * dim_head, bias=False)
        self.to_kv = nn.Linear(dim, 2 * heads * dim_head, bias=False)
        self.to_out = nn.Linear(heads * dim_head, dim, bias=False)

    def forward(self, media, latents):
        latents = self.norm_latents(latents)
        keys, values = self.to_kv(torch.cat([self.norm_media(media), latents], 1)).chunk(2, -1)
        q, k, v = (split_heads(x, self.heads) for x in (self.to_q(latents) * self.scale, keys, values))
        return self.to_out(join_heads((q @ k.transpose(-1, -2)).softmax(-1) @ v))


class Resampler(nn.Module):
    def __init__(self, dim, depth, dim_head, heads, num_latents, ff_mult):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(num_latents, dim))
        self.layers = nn.ModuleList(
            nn.ModuleList([ResamplerAttention(dim, dim_head, heads), feed_forward(dim, ff_mult)]) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, media):  # [images, tokens, dim]
        x = self.latents.expand(media.shape[0], -1, -1)
        for attend, transform in self.layers:
            x = attend(media, x) + x
            x = transform(x) + x
        return self.norm(x)


class GatedAttention(nn.Module):
    def __init__(self, dim, media_dim, dim_head, heads):
        super().__init__()
        self.heads, self.scale = heads, dim_head**-0.5
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, heads * dim_head, bias=False)
        self.to_kv = nn.Linear(media_dim, 2 * heads * dim_head, bias=False)
        self.to_out = nn.Linear(heads * dim_head, dim, bias=False)

    def forward(self, x, media, times, only_immediate):
        """x [B, T, dim], media [B, images, latents, media_dim], times [B, T]"""
        number = torch.arange(1, media.shape[1] + 1).repeat_interleave(media.shape[2])
        q = split_heads(self.to_q(self.norm(x)) * self.scale, self.heads)
        keys, values = self.to_kv(media.flatten(1, 2)).chunk(2, -1)
        k, v = split_heads(keys, self.heads), split_heads(values, self.heads)
        time = times[:, None, :, None]
        sees = number == time if only_immediate else number <= time
        weights = (q @ k.transpose(-1, -2)).masked_fill(~sees, LOWEST).softmax(-1)
        if only_immediate:
            weights = weights.masked_fill(time == 0, 0)
        return self.to_out(join_heads(weights @ v))


class GatedBlock(nn.Module):
    def __init__(self, dim, media_dim, dim_head, heads, ff_mult):
        super().__init__()
        self.attn_gate, self.ff_gate = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
        self.attn = GatedAttention(dim, media_dim, dim_head, heads)
        self.ff = feed_forward(dim, ff_mult)

    def forward(self, x, media, times, only_immediate):
        x = x + self.attn(x, media, times, only_immediate) * self.attn_gate.tanh()
        return x + self.ff(x) * self.ff_gate.tanh()


class FlamingoReference(nn.Module):
    def __init__(self, lm, layers, tower, tower_norm, every, perceiver, cross_attn, media_token, only_immediate):
        """`layers`: the dotted name of the language model's list of layers; `tower`: a CLIPVisionModel."""
        super().__init__()
        dim, media_dim = lm.get_input_embeddings().weight.shape[1], tower.config.hidden_size
        self.lm, self.tower, self.tower_norm = lm, tower, tower_norm
        self.layers, self.media_token, self.only_immediate = layers, media_token, only_immediate
        self.perceiver = Resampler(media_dim, **perceiver)
        blocks = lm.get_submodule(layers)
        self.gates = nn.ModuleDict(
            {str(i): GatedBlock(dim, media_dim, **cross_attn) for i in range(len(blocks)) if (i + 1) % every == 0}
        )
        for index, gate in self.gates.items():
            blocks[int(index)].register_forward_pre_hook(self.hook(gate), with_kwargs=True)
        lm.requires_grad_(False)
        tower.requires_grad_(False)

    def hook(self, gate):
        def before(module, args, kwargs):
            seen = [self.media, self.times, self.only_immediate]
            if args:
                return (gate(args[0], *seen), *args[1:]), kwargs
            return args, kwargs | {"hidden_states": gate(kwargs["hidden_states"], *seen)}

        return before

    def trained_part(self):
        """Under OpenFlamingo's names."""
        names = {f"perceiver.{name}": p for name, p in self.perceiver.named_parameters()}
        for index, gate in self.gates.items():
            for name, p in gate.named_parameters():
                names[f"lang_encoder.{self.layers}.{index}.gated_cross_attn_layer.{name}"] = p
        return names

    def forward(self, vision_x, ids, mask, labels):
        """vision_x [B, images, 1, 3, H, W]"""
        rows, images = vision_x.shape[:2]
        with torch.no_grad():
            tokens = self.tower(vision_x.flatten(0, 2)).last_hidden_state
            if self.tower_norm:
                tokens = self.tower.vision_model.post_layernorm(tokens)
        self.media = self.perceiver(tokens[:, 1:]).unflatten(0, (rows, images))
        self.times = (ids == self.media_token).cumsum(1)
        logits = self.lm(input_ids=ids, attention_mask=mask).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        return logits, loss
