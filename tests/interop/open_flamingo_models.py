"""A small Flamingo of files that floe and OpenFlamingo both begin from, trained by floe, loaded by OpenFlamingo's own code."""

import contextlib
import io
import json
import subprocess

import open_clip
import torch
import transformers as tf
import yaml
from running import GOLDENS, command, environment
from safetensors.torch import save_file
from small_data import write_shards
from small_runs import RANKS
from test_decoders import FAMILIES, make_lively

# The tokenizer of each family, and where OpenFlamingo finds its layers if it does not know the name. Its layers do not fit
# into transformers' Qwen2, which asks each for its kind of attention.
LANGUAGE_MODELS = {
    "opt": ("opt", None),
    "gpt_neox": ("neox", None),
    "mpt": ("neox", None),
    "llama": ("llama", None),
    "mistral": ("llama", "model.layers"),
}
SIDE, STEPS = 32, 4
CLIP = dict(
    embed_dim=16,
    quick_gelu=True,
    vision_cfg=dict(image_size=SIDE, layers=2, width=24, head_width=8, patch_size=8, mlp_ratio=1.5),
    text_cfg=dict(context_length=8, vocab_size=64, width=16, heads=2, layers=1),
)


def tokenizer_of(family):
    return GOLDENS.parent / "data" / "tokenizers" / LANGUAGE_MODELS[family][0]


def write_language_model(family, folder, positions):
    """As people have it: without the words that a Flamingo adds."""
    tokenizer = tf.AutoTokenizer.from_pretrained(tokenizer_of(family))
    sizes = dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, max_position_embeddings=positions)
    inner = {"opt": dict(ffn_dim=48, word_embed_proj_dim=32, dropout=0.0)}.get(family, dict(intermediate_size=48))
    if family == "mpt":
        sizes, inner = dict(d_model=32, n_heads=4, n_layers=2, max_seq_len=positions), {}
    config, model, _ = FAMILIES[family]
    model = model(config(vocab_size=len(tokenizer), **sizes, **inner))
    make_lively(model, 5)
    model.save_pretrained(folder)


def write_image_tower(folder, after_norm):
    """A folder for floe; a name and a file for open_clip, which hands tokens on behind the last norm since 2.23."""
    folder.mkdir()
    torch.manual_seed(3)
    clip = open_clip.CLIP(**CLIP)
    make_lively(clip, 6)
    tensors = {name: tensor.contiguous() for name, tensor in clip.state_dict().items()}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": CLIP}))
    save_file(tensors, folder / "open_clip_model.safetensors")
    torch.save(tensors, folder / "clip.pt")
    (folder / "models").mkdir()
    name = f"floe-test-{folder.parent.name}-{after_norm}"
    config = dict(CLIP, vision_cfg=dict(CLIP["vision_cfg"], final_ln_after_pool=not after_norm))
    (folder / "models" / f"{name}.json").write_text(json.dumps(config))
    open_clip.add_model_config(folder / "models")
    return name


class Flamingo:
    """`run` is what `floe train` left on two ranks with full_shard."""

    def __init__(self, folder, family, every=2, layout="sharded", lr=0.1, steps=STEPS, after_norm=True, positions=256):
        self.folder, self.family, self.every = folder, family, every
        write_language_model(family, folder / "lm", positions)
        self.tower = write_image_tower(folder / "vision", after_norm)
        shards = write_shards(folder / "data", 2, 8)
        config = {
            "run": {"dir": str(folder / "runs"), "name": "a"},
            "model": {
                "type": "flamingo", "lm": str(folder / "lm"), "vision": str(folder / "vision"),
                "tokenizer": str(tokenizer_of(family)), "cross_attn_every_n_layers": every,
                "vision_tokens_after_ln_post": after_norm,
            },
            "data": {"laion": {"shards": str(folder / "data" / shards), "batch_size": 2}, "threads": 1},
            "train": {"steps": steps, "optimizer": {"lr": lr}, "schedule": {"warmup_steps": 0}},
            "strategy": {"sharding": "full_shard", "mixed_precision": {"param": "fp32"}},
            "checkpoint": {"state_dict_type": layout},
            "log": {"every_steps": 1, "tensorboard": False, "wandb": None, "diagnostics": None},
        }  # fmt: skip
        (folder / "train.yaml").write_text(yaml.safe_dump(config))
        done = subprocess.run(
            command([folder / "train.yaml"], RANKS), capture_output=True, text=True, timeout=120, env=environment()
        )
        assert done.returncode == 0, done.stderr
        self.run = folder / "runs" / "a"
        self.newest = (self.run / "checkpoints" / "last").resolve()

    def openflamingo(self):
        """Its own model, with no number in what is to be loaded; the picture transform and the tokenizer."""
        from open_flamingo import create_model_and_transforms

        with contextlib.redirect_stdout(io.StringIO()):
            model, transform, tokenizer = create_model_and_transforms(
                self.tower, str(self.folder / "vision" / "clip.pt"), str(self.folder / "lm"), str(tokenizer_of(self.family)),
                cross_attn_every_n_layers=self.every, decoder_layers_attr_name=LANGUAGE_MODELS[self.family][1],
            )  # fmt: skip
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.fill_(torch.nan)
        return model.eval(), transform, tokenizer
