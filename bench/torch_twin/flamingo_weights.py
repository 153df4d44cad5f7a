"""Random weights of the twin, and their names in OpenFlamingo's state dict, which are floe's."""

import re

import torch

# Twin's names: the first pattern that matches; MPT only.
NAMES = [
    (r"vision\.patches\.", "vision_encoder.conv1."),
    (r"vision\.first$", "vision_encoder.class_embedding"),
    (r"vision\.places$", "vision_encoder.positional_embedding"),
    (r"vision\.norm\.", "vision_encoder.ln_pre."),
    (r"vision\.blocks\.(\d+)\.norm_(\d)\.", r"vision_encoder.transformer.resblocks.\1.ln_\2."),
    (r"vision\.blocks\.(\d+)\.attention\.qkv\.", r"vision_encoder.transformer.resblocks.\1.attn.in_proj_"),
    (r"vision\.blocks\.(\d+)\.attention\.out\.", r"vision_encoder.transformer.resblocks.\1.attn.out_proj."),
    (r"vision\.blocks\.(\d+)\.mlp\.0\.", r"vision_encoder.transformer.resblocks.\1.mlp.c_fc."),
    (r"vision\.blocks\.(\d+)\.mlp\.2\.", r"vision_encoder.transformer.resblocks.\1.mlp.c_proj."),
    (r"perceiver\.layers\.(\d+)\.ff\.", r"perceiver.layers.\1.1."),
    (r"perceiver\.layers\.(\d+)\.", r"perceiver.layers.\1.0."),
    (r"embed\.", "lang_encoder.transformer.wte."),
    (r"norm\.", "lang_encoder.transformer.norm_f."),
    (r"layers\.(\d+)\.norm_(\d)\.", r"lang_encoder.transformer.blocks.\1.decoder_layer.norm_\2."),
    (r"layers\.(\d+)\.attention\.qkv\.", r"lang_encoder.transformer.blocks.\1.decoder_layer.attn.Wqkv."),
    (r"layers\.(\d+)\.attention\.out\.", r"lang_encoder.transformer.blocks.\1.decoder_layer.attn.out_proj."),
    (r"layers\.(\d+)\.mlp\.0\.", r"lang_encoder.transformer.blocks.\1.decoder_layer.ffn.up_proj."),
    (r"layers\.(\d+)\.mlp\.2\.", r"lang_encoder.transformer.blocks.\1.decoder_layer.ffn.down_proj."),
    (r"gates\.(\d+)\.(ff|attn)_gate$", r"lang_encoder.transformer.blocks.\1.gated_cross_attn_layer.\2_gate"),
    (r"gates\.(\d+)\.ff\.", r"lang_encoder.transformer.blocks.\1.gated_cross_attn_layer.ff."),
    (r"gates\.(\d+)\.", r"lang_encoder.transformer.blocks.\1.gated_cross_attn_layer.attn."),
]


def floe_name(name):
    for pattern, replacement in NAMES:
        if re.match(pattern, name):
            return re.sub("^" + pattern, replacement, name)
    return name


def make_random(model, seed):
    """Matrices of deviation 0.02, norms and gates as they are: what both systems of bench/h200.py begin with."""
    torch.manual_seed(seed)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.02)


def save(model, path):
    """In bf16: frozen weights are used so, and masters begin so on both sides."""
    from safetensors.torch import save_file
    tensors = {}
    for name, tensor in model.named_parameters():
        if name in ("vision.first", "vision.places"):
            tensor = tensor.flatten(0, 1) if name == "vision.places" else tensor.flatten()
        tensors[floe_name(name)] = tensor.detach().to(torch.bfloat16).cpu()
    save_file(tensors, path)


def load(model, path):
    """The values that `save` wrote, in the dtype that the model has."""
    from safetensors import safe_open
    with safe_open(path, "pt") as file, torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(file.get_tensor(floe_name(name)).view(parameter.shape))
