"""transformers is the reference: every family of decoders gives its logits, loss and gradients.

To compare a new family, add a line to FAMILIES: its classes, and settings that floe must get right. Each
settings is tried with sizes, weights and texts drawn from several seeds.
"""

import random

import pytest
import torch
import transformers as tf

DROPOUT_OFF = {"dropout": 0.0, "attention_dropout": 0.0}

FAMILIES = {
    "opt": (
        tf.OPTConfig,
        tf.OPTForCausalLM,
        [
            dict(DROPOUT_OFF),
            dict(DROPOUT_OFF, tie_word_embeddings=False, activation_function="gelu"),
            dict(DROPOUT_OFF, enable_bias=False),
            # OPT-350m: norms behind the blocks, a narrower embedding.
            dict(DROPOUT_OFF, do_layer_norm_before=False, word_embed_proj_dim=20),
        ],
    ),
    "gpt_neox": (
        tf.GPTNeoXConfig,
        tf.GPTNeoXForCausalLM,
        [
            dict(rotary_pct=0.25),
            dict(rotary_pct=1.0, use_parallel_residual=False, rotary_emb_base=500),
            dict(rotary_pct=0.5, attention_bias=False, tie_word_embeddings=True, hidden_act="gelu_new"),
        ],
    ),
    "mpt": (
        tf.MptConfig,
        tf.MptForCausalLM,
        [
            dict(),
            dict(tie_word_embeddings=False, attn_config=dict(clip_qkv=0.7, softmax_scale=0.4)),
            dict(layer_norm_epsilon=1e-3, attn_config=dict(softmax_scale=0.2)),
        ],
    ),
    "llama": (
        tf.LlamaConfig,
        tf.LlamaForCausalLM,
        [
            dict(),
            dict(num_key_value_heads=2, head_dim=10, attention_bias=True, tie_word_embeddings=True),
            dict(num_key_value_heads=1, mlp_bias=True, rope_theta=777.0, rms_norm_eps=1e-3),
            dict(num_key_value_heads=2, rope_scaling=dict(rope_type="linear", factor=3.0)),
            dict(
                rope_scaling=dict(
                    rope_type="llama3",
                    factor=8.0,
                    low_freq_factor=1.0,
                    high_freq_factor=4.0,
                    original_max_position_embeddings=64,
                ),
            ),
        ],
    ),
    "mistral": (
        tf.MistralConfig,
        tf.MistralForCausalLM,
        [
            dict(sliding_window=5, num_key_value_heads=2),
            dict(sliding_window=1, num_key_value_heads=1, tie_word_embeddings=True),
            dict(sliding_window=None, num_key_value_heads=2, head_dim=6),
        ],
    ),
    "qwen2": (
        tf.Qwen2Config,
        tf.Qwen2ForCausalLM,
        [dict(num_key_value_heads=2), dict(num_key_value_heads=1, tie_word_embeddings=True, rope_theta=1e6)],
    ),
}
SEEDS = [1, 2]
CASES = [
    pytest.param(family, settings, seed, id=f"{family}-{number}-seed{seed}")
    for family, (_, _, all_settings) in FAMILIES.items()
    for number, settings in enumerate(all_settings)
    for seed in SEEDS
]


def sizes(family, rng):
    """Names differ; one number of heads is no power of two, for alibi."""
    heads = rng.choice([4, 6])
    width = heads * rng.choice([8, 12])
    layers, vocab = rng.choice([1, 2, 3]), rng.choice([53, 97])
    if family == "mpt":
        return dict(d_model=width, n_heads=heads, n_layers=layers, vocab_size=vocab, max_seq_len=64)
    common = dict(
        hidden_size=width,
        num_attention_heads=heads,
        num_hidden_layers=layers,
        vocab_size=vocab,
        max_position_embeddings=64,
    )
    inner = {"opt": "ffn_dim"}.get(family, "intermediate_size")
    return common | {inner: rng.choice([2, 3]) * width + 4}


def make_lively(model, seed):
    """Weights as large as trained ones, with no bias and no norm at its trivial value."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise * (1.4 / parameter.shape[-1] ** 0.5))
            else:
                parameter.copy_(noise * 0.2 + (parameter if parameter.min() == parameter.max() else 0))


def build(family, settings, seed, folder):
    config_class, model_class, _ = FAMILIES[family]
    settings = dict(settings)
    rng = random.Random(f"{family}{sorted(settings)}{seed}")
    config = config_class(**sizes(family, rng), pad_token_id=1, bos_token_id=0, eos_token_id=2, **settings)
    model = model_class(config).eval()
    make_lively(model, seed)
    model.save_pretrained(folder)
    return model


def some_rows(vocab, seed):
    """A full row, two padded at the right, two at the left; labels on about three tokens of four."""
    generator = torch.Generator().manual_seed(seed)
    length = 21
    ids = torch.randint(3, vocab, (5, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 13:] = 0
    mask[2, 4:] = 0
    mask[3, :6] = 0
    mask[4, :17] = 0
    labels = ids.masked_fill(torch.rand(ids.shape, generator=generator) < 0.25, -100).masked_fill(mask == 0, -100)
    # What padding says about the first token behind it means nothing.
    for row in (3, 4):
        labels[row, mask[row].argmax()] = -100
    return dict(lang_x=ids, attention_mask=mask, labels=labels)


def reference(model, inputs):
    model.zero_grad()
    result = model(input_ids=inputs["lang_x"], attention_mask=inputs["attention_mask"], labels=inputs["labels"])
    return result.logits.float(), result.loss.float()


@pytest.mark.parametrize("family, settings, seed", CASES)
def test_logits_loss_and_gradients(family, settings, seed, tmp_path, forward, gradients, same_gradients, worst):
    model = build(family, settings, seed, tmp_path / "lm")
    inputs = some_rows(model.config.vocab_size, seed)
    logits, loss = reference(model, inputs)
    loss.backward()
    ours = forward(dict(type="causal_lm", lm=tmp_path / "lm"), inputs, "--grads")
    real = inputs["attention_mask"] == 1
    scale = max(1, logits[real].abs().max().item())
    assert logits[real].std() > 0.3, "the logits must be worth comparing"
    worst.note(f"{family} logits", (ours["logits"] - logits)[real].abs().max().item() / scale, 2e-5)
    worst.note(f"{family} loss", (ours["loss"] - loss).abs().item() / scale, 2e-5)
    same_gradients(
        worst,
        f"{family} gradients",
        gradients(ours),
        {name: parameter.grad for name, parameter in model.named_parameters()},
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_equals_padded(family, tmp_path, forward, gradients, worst):
    """Also with a text so long that its attention lies in another bucket."""
    for number, settings in enumerate(FAMILIES[family][2][:2]):
        folder = tmp_path / f"lm{number}"
        model = build(family, settings, 7, folder)
        inputs = some_rows(model.config.vocab_size, 7)
        longer = torch.randint(3, model.config.vocab_size, (5, 30), generator=torch.Generator().manual_seed(1))
        inputs = {name: torch.cat([rows, longer if name != "attention_mask" else torch.zeros_like(longer)], 1)
                  for name, rows in inputs.items()}
        inputs["labels"][:, 21:] = -100
        inputs["attention_mask"][0, 21:] = 1
        inputs["labels"][0, 21:] = longer[0]
        padded = forward(dict(type="causal_lm", lm=folder), inputs, "--grads")
        packed = forward(dict(type="causal_lm", lm=folder), inputs, "--grads", "--packed")
        real = inputs["attention_mask"] == 1
        scale = max(1, padded["logits"].abs().max().item())
        worst.note("packed logits", (packed["logits"] - padded["logits"])[real].abs().max().item() / scale, 2e-5)
        assert packed["logits"][~real].abs().max() == 0
        worst.note("packed loss", (packed["loss"] - padded["loss"]).abs().item() / scale, 1e-6)
        for name, gradient in gradients(padded).items():
            largest = max(g.abs().max().item() for g in gradients(padded).values())
            difference = (gradients(packed)[name] - gradient).abs().max().item()
            worst.note("packed gradients", difference / max(gradient.abs().max().item(), 0.1 * largest), 1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_bf16_is_as_near_as_transformers(family, tmp_path, forward, worst):
    """Largest and mean distance from fp32, over settings and seeds: at most 1.5 times transformers' own."""
    sums = {"ours": [0.0, 0.0], "theirs": [0.0, 0.0]}
    count = 0
    for number, settings in enumerate(FAMILIES[family][2][:3]):
        folder = tmp_path / f"lm{number}"
        model = build(family, settings, 3, folder)
        inputs = some_rows(model.config.vocab_size, 3)
        real = inputs["attention_mask"] == 1
        with torch.no_grad():
            exact = reference(model, inputs)[0][real]
            theirs = reference(model.to(torch.bfloat16), inputs)[0][real]
        ours = forward(dict(type="causal_lm", lm=folder), inputs, "--dtype", "bf16")["logits"][real]
        for who, logits in (("ours", ours), ("theirs", theirs)):
            error = (logits - exact).abs()
            sums[who][0] = max(sums[who][0], error.max().item())
            sums[who][1] += error.sum().item()
        count += exact.numel()
    assert sums["theirs"][1] / count > 1e-4, "bf16 must differ from fp32 visibly"
    worst.note(f"{family} bf16, largest error over theirs", sums["ours"][0] / sums["theirs"][0], 1.5)
    worst.note(f"{family} bf16, mean error over theirs", sums["ours"][1] / sums["theirs"][1], 1.5)
