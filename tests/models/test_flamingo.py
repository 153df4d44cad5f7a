"""Random Flamingos on every family of decoders against a reference in plain torch: logits, loss and
gradients, with the odd texts that real data has."""

import pytest
import torch
import transformers as tf
from flamingo_reference import FlamingoReference
from safetensors.torch import save_file

VOCAB, ENDOFCHUNK, IMAGE, PAD = 90, 90, 91, 92  # the three special tokens come behind the vocabulary
IMAGE_SIZE = 16
TINY = dict(hidden_size=32, num_attention_heads=4, num_hidden_layers=3, max_position_embeddings=64)
DECODERS = {
    "opt": (
        tf.OPTForCausalLM,
        tf.OPTConfig(**TINY, ffn_dim=48, word_embed_proj_dim=32, dropout=0.0, vocab_size=VOCAB),
        "model.decoder.layers",
    ),
    "opt_untied": (
        tf.OPTForCausalLM,
        tf.OPTConfig(**TINY, ffn_dim=48, word_embed_proj_dim=32, dropout=0.0, vocab_size=VOCAB, tie_word_embeddings=False),
        "model.decoder.layers",
    ),
    "gpt_neox": (
        tf.GPTNeoXForCausalLM,
        tf.GPTNeoXConfig(**TINY, intermediate_size=48, vocab_size=VOCAB),
        "gpt_neox.layers",
    ),
    "mpt": (
        tf.MptForCausalLM,
        tf.MptConfig(d_model=32, n_heads=4, n_layers=3, max_seq_len=64, vocab_size=VOCAB),
        "transformer.blocks",
    ),
    "llama": (
        tf.LlamaForCausalLM,
        tf.LlamaConfig(**TINY, num_key_value_heads=2, intermediate_size=48, vocab_size=VOCAB, tie_word_embeddings=True),
        "model.layers",
    ),
    "mistral": (
        tf.MistralForCausalLM,
        tf.MistralConfig(**TINY, num_key_value_heads=2, intermediate_size=48, vocab_size=VOCAB, sliding_window=6),
        "model.layers",
    ),
    "qwen2": (
        tf.Qwen2ForCausalLM,
        tf.Qwen2Config(**TINY, num_key_value_heads=2, intermediate_size=48, vocab_size=VOCAB, tie_word_embeddings=True),
        "model.layers",
    ),
}
# every_n, only_attend_immediate_media, freeze_lm_embeddings, vision_tokens_after_ln_post
WAYS = [(1, True, False, False), (2, False, False, True), (3, True, True, False)]


def make_lively(module, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "gate" in name and parameter.numel() == 1:
                parameter.fill_(0.6 + 0.2 * noise.item())
            elif parameter.dim() > 1:
                parameter.copy_(noise * (1.2 / parameter[0].numel() ** 0.5))
            else:
                parameter.copy_(noise * 0.2 + (parameter if parameter.min() == parameter.max() else 0))


def build(family, way, folder):
    every, only_immediate, freeze, after_norm = way
    lm_class, config, layers = DECODERS[family]
    lm = lm_class(config).eval()
    lm.resize_token_embeddings(VOCAB + 3)
    make_lively(lm, 5)
    lm.save_pretrained(folder / "lm")
    tower = tf.CLIPVisionModel(
        tf.CLIPVisionConfig(
            hidden_size=24, num_attention_heads=3, num_hidden_layers=2, intermediate_size=40,
            image_size=IMAGE_SIZE, patch_size=8, projection_dim=16,
        )
    ).eval()
    make_lively(tower, 6)
    tower.save_pretrained(folder / "vision")
    perceiver = dict(depth=2, dim_head=8, heads=2, num_latents=4, ff_mult=2)
    cross_attn = dict(dim_head=8, heads=3, ff_mult=2)
    reference = FlamingoReference(lm, layers, tower, after_norm, every, perceiver, cross_attn, IMAGE, only_immediate)
    make_lively(reference.perceiver, 8)
    make_lively(reference.gates, 9)
    save_file({name: p.detach().clone() for name, p in reference.trained_part().items()}, folder / "weights.safetensors")
    model = dict(
        type="flamingo", lm=folder / "lm", vision=folder / "vision", weights=folder / "weights.safetensors",
        cross_attn_every_n_layers=every, perceiver=perceiver, cross_attn=cross_attn,
        vision_tokens_after_ln_post=after_norm, only_attend_immediate_media=only_immediate,
        freeze_lm_embeddings=freeze, media_token_id=IMAGE, endofchunk_token_id=ENDOFCHUNK,
    )
    return reference, model


def some_rows(seed):
    """Rows with: text before the first image; more markers than images; no marker at all; an image
    that is only zeros behind a literal marker; padding at the right, once with <PAD>."""
    generator = torch.Generator().manual_seed(seed)
    rows, length, images = 5, 18, 3
    ids = torch.randint(3, VOCAB, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    ids[0, [2, 7, 12]] = IMAGE
    ids[0, [6, 11, 17]] = ENDOFCHUNK
    ids[1, [0, 3, 4, 9, 12]] = IMAGE  # three images
    ids[1, 10] = ENDOFCHUNK
    ids[3, [0, 8]] = IMAGE  # the second is literal text: its slot is a zero image
    ids[3, 14:] = PAD
    ids[4, 5] = IMAGE
    ids[4, 9] = ENDOFCHUNK
    ids[4, 10:] = PAD
    mask[ids == PAD] = 0
    vision = torch.randn((rows, images, 1, 3, IMAGE_SIZE, IMAGE_SIZE), generator=generator)
    vision[2] = 0
    vision[3, 1:] = 0
    vision[4, 1:] = 0
    labels = ids.clone()
    labels[(mask == 0) | (ids == IMAGE)] = -100
    return dict(vision_x=vision, lang_x=ids, attention_mask=mask, labels=labels)


@pytest.mark.parametrize("way", WAYS, ids=["every1", "every2_all_previous", "every3_frozen_embeddings"])
@pytest.mark.parametrize("family", DECODERS)
def test_equals_reference(family, way, tmp_path, forward, gradients, same_gradients, worst):
    reference, model = build(family, way, tmp_path)
    table = reference.lm.get_input_embeddings().weight.requires_grad_()
    inputs = some_rows(11)
    logits, loss = reference(*(inputs[name] for name in ("vision_x", "lang_x", "attention_mask", "labels")))
    loss.backward()
    expected = {name: parameter.grad for name, parameter in reference.trained_part().items()}
    frozen = way[2]
    if not frozen:
        # OpenFlamingo's mask: of the whole table's gradient two rows stay, <PAD>'s does not.
        kept = torch.zeros_like(table)
        kept[[ENDOFCHUNK, IMAGE]] = table.grad[[ENDOFCHUNK, IMAGE]]
        assert kept.abs().max() > 0
        name = next(n for n, p in reference.lm.named_parameters() if p is table)
        expected[f"lang_encoder.{name}"] = kept

    ours = forward(model, inputs, "--grads")
    real = inputs["attention_mask"] == 1
    scale = max(1, logits[real].abs().max().item())
    assert logits[real].std() > 0.3
    worst.note("logits", (ours["logits"] - logits)[real].abs().max().item() / scale, 2e-5)
    worst.note("loss", (ours["loss"] - loss).abs().item() / scale, 2e-5)
    same_gradients(worst, "gradients", gradients(ours), expected)

    packed = forward(model, inputs, "--grads", "--packed")
    worst.note("packed loss", (packed["loss"] - ours["loss"]).abs().item() / scale, 1e-6)
    worst.note("packed logits", (packed["logits"] - ours["logits"])[real].abs().max().item() / scale, 2e-5)
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    for name, gradient in gradients(ours).items():
        difference = (gradients(packed)[name] - gradient).abs().max().item()
        worst.note("packed gradients", difference / max(gradient.abs().max().item(), 0.1 * largest), 1e-5)


def test_images_matter(tmp_path, forward):
    """The comparison would be worth nothing if the logits did not depend on the images."""
    _, model = build("opt", WAYS[0], tmp_path)
    inputs = some_rows(11)
    first = forward(model, inputs)["logits"]
    inputs["vision_x"] = inputs["vision_x"].flip(1)
    assert (forward(model, inputs)["logits"] - first).abs().max() > 0.1
