"""open_clip and transformers are the references of the image tower: its tokens, before and behind the last
norm, and the pooled output, for random sizes in either layout of files."""

import json

import open_clip
import pytest
import torch
import transformers as tf
from safetensors.torch import save_file

TINY_LM = tf.OPTConfig(
    hidden_size=16, num_attention_heads=2, num_hidden_layers=1, ffn_dim=16, word_embed_proj_dim=16, vocab_size=20
)
# image size, patch, width, head width, layers, ratio of the MLP, width of the pooled output
SIZES = [(32, 8, 32, 16, 2, 2.0, 24), (28, 14, 48, 8, 3, 4.0, 20), (24, 4, 16, 16, 1, 3.0, 16)]


def make_lively(module, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise * (1.4 / parameter[0].numel() ** 0.5))
            else:
                parameter.copy_(noise * 0.2 + (parameter if parameter.min() == parameter.max() else 0))


def tokens_of_floe(forward, folder, images, after_norm):
    tf.OPTForCausalLM(TINY_LM).save_pretrained(folder / "lm")
    rows = images.shape[0]
    model = dict(
        type="flamingo", lm=folder / "lm", vision=folder / "vision", media_token_id=19, endofchunk_token_id=18,
        vision_tokens_after_ln_post=after_norm, perceiver=dict(depth=1, dim_head=4, heads=1, num_latents=2, ff_mult=1),
    )
    inputs = dict(vision_x=images[:, None, None], lang_x=torch.full((rows, 3), 5))
    return forward(model, inputs, "--stages")


def embed(visual, images):
    x = visual.conv1(images).flatten(2).transpose(1, 2)
    first = visual.class_embedding.expand(x.shape[0], 1, -1)
    return torch.cat([first, x], 1) + visual.positional_embedding


@pytest.mark.parametrize("after_norm", [True, False], ids=["after_norm", "before_norm"])
@pytest.mark.parametrize("quick", [True, False], ids=["quick_gelu", "gelu"])
@pytest.mark.parametrize("size", SIZES, ids=["a", "b", "c"])
def test_open_clip(size, quick, after_norm, tmp_path, forward, worst):
    image, patch, width, head, layers, ratio, pooled = size
    config = dict(
        embed_dim=pooled,
        quick_gelu=quick,
        vision_cfg=dict(image_size=image, patch_size=patch, width=width, head_width=head, layers=layers, mlp_ratio=ratio),
        text_cfg=dict(context_length=4, vocab_size=8, width=8, heads=1, layers=1),
    )
    clip = open_clip.model.CLIP(**config).eval()
    visual = clip.visual
    make_lively(visual, 1)
    visual.output_tokens = True
    (tmp_path / "vision").mkdir()
    (tmp_path / "vision" / "open_clip_config.json").write_text(json.dumps(dict(model_cfg=config)))
    save_file(
        {"visual." + name: value.contiguous() for name, value in visual.state_dict().items()},
        tmp_path / "vision" / "open_clip_model.safetensors",
    )
    images = torch.randn(2, 3, image, image, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        pooled_theirs, _ = visual(images)
        # Old versions of open_clip pool first and hand on the tokens without the norm.
        before = visual.transformer(visual.ln_pre(embed(visual, images)))
        expected = (visual.ln_post(before) if after_norm else before)[:, 1:]
    ours = tokens_of_floe(forward, tmp_path, images, after_norm)
    scale = max(1, expected.abs().max().item())
    worst.note("open_clip tokens", (ours["vision_tokens"] - expected).abs().max().item() / scale, 2e-5)
    worst.note("open_clip pooled", (ours["vision_pooled"] - pooled_theirs).abs().max().item() / scale, 2e-5)


@pytest.mark.parametrize("kind", ["CLIPVisionModel", "CLIPVisionModelWithProjection", "CLIPModel"])
@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
def test_hugging_face(kind, activation, tmp_path, forward, worst):
    for number, (image, patch, width, head, layers, ratio, pooled) in enumerate(SIZES[:2]):
        folder = tmp_path / str(number)
        vision = dict(
            image_size=image, patch_size=patch, hidden_size=width, num_attention_heads=width // head,
            num_hidden_layers=layers, intermediate_size=int(ratio * width), projection_dim=pooled,
            hidden_act=activation, layer_norm_eps=1e-4,
        )
        if kind == "CLIPModel":
            text = dict(hidden_size=8, num_attention_heads=1, num_hidden_layers=1, intermediate_size=8, vocab_size=9)
            model = tf.CLIPModel(tf.CLIPConfig(vision_config=vision, text_config=text, projection_dim=pooled))
        else:
            model = getattr(tf, kind)(tf.CLIPVisionConfig(**vision))
        make_lively(model.eval(), 3)
        model.save_pretrained(folder / "vision")
        images = torch.randn(2, 3, image, image, generator=torch.Generator().manual_seed(4))
        with torch.no_grad():
            seen = model.vision_model(images)
            after_norm = number == 1
            last = seen.last_hidden_state
            expected = (model.vision_model.post_layernorm(last) if after_norm else last)[:, 1:]
        ours = tokens_of_floe(forward, folder, images, after_norm)
        scale = max(1, expected.abs().max().item())
        worst.note("transformers tokens", (ours["vision_tokens"] - expected).abs().max().item() / scale, 2e-5)
        if kind != "CLIPVisionModel":
            with torch.no_grad():
                projected = model.visual_projection(seen.pooler_output)
            worst.note("transformers pooled", (ours["vision_pooled"] - projected).abs().max().item() / scale, 2e-5)
