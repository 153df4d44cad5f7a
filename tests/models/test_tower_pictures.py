"""Pictures are normalised as a tower's folder says, by open_clip's and transformers' own code as judges."""

import json
import os
import subprocess
from pathlib import Path

import open_clip
import pytest
import torch
import transformers as tf
from flamingo_reference import FlamingoReference
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from safetensors.torch import save_file
from test_flamingo import make_lively

FLOE = Path(os.environ["FLOE_BIN_DIR"]) / "floe"
TOKENIZER = Path(__file__).resolve().parents[1] / "goldens" / "data" / "tokenizers" / "neox"
SIDE = 32
PERCEIVER = dict(depth=1, dim_head=8, heads=2, num_latents=4, ff_mult=2)
CROSS_ATTN = dict(dim_head=8, heads=2, ff_mult=2)
# As of LAION-2B's ViT-L-14 (laion2b_s32b_b82k), and three that are each of their own.
COLOURS = [dict(mean=[0.5, 0.5, 0.5], std=[0.5, 0.5, 0.5]), dict(mean=[0.1, 0.5, 0.7], std=[0.3, 0.2, 0.9])]


def generated(model, *words):
    done = subprocess.run([FLOE, "generate", model, *words, "--num-beams=2", "--max-new-tokens=5", "--json"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["scores"]


def save_tower(layout, folder, colours):
    """Also what makes a tensor of a picture there; no colours: a folder that says nothing of them."""
    folder.mkdir()
    if layout == "open_clip":
        sizes = dict(image_size=SIDE, patch_size=8, width=24, head_width=8, layers=1, mlp_ratio=2.0)
        text = dict(context_length=4, vocab_size=8, width=8, heads=1, layers=1)
        config = dict(embed_dim=12, quick_gelu=False, vision_cfg=sizes, text_cfg=text)
        torch.manual_seed(1)
        model = open_clip.CLIP(**config)
        save_file({name: value.contiguous() for name, value in model.state_dict().items()},
                  folder / "open_clip_model.safetensors")
        usual = dict(interpolation="bicubic", resize_mode="shortest")
        whole = {"model_cfg": config, **({"preprocess_cfg": {**usual, **colours}} if colours else {})}
        (folder / "open_clip_config.json").write_text(json.dumps(whole))
        return image_transform_v2(PreprocessCfg(size=SIDE, **usual, **(colours or {})), is_train=False)
    torch.manual_seed(1)
    tf.CLIPVisionModel(tf.CLIPVisionConfig(
        hidden_size=24, num_attention_heads=3, num_hidden_layers=1, intermediate_size=48, image_size=SIDE, patch_size=8,
        hidden_act="relu",
    )).save_pretrained(folder)
    named = {f"image_{key}": value for key, value in (colours or {}).items()}
    processor = tf.CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=SIDE, **named)
    if colours:
        processor.save_pretrained(folder)
    return lambda picture: processor(picture, return_tensors="pt")["pixel_values"][0]


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    """A language model with gates that are open, so that pictures count."""
    folder = tmp_path_factory.mktemp("language")
    tokenizer = tf.AutoTokenizer.from_pretrained(TOKENIZER)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|endofchunk|>", "<image>"]})
    lm = tf.GPTNeoXForCausalLM(tf.GPTNeoXConfig(
        hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=48, vocab_size=len(tokenizer),
        max_position_embeddings=64,
    ))
    make_lively(lm, 1)
    lm.save_pretrained(folder / "lm")
    tower = tf.CLIPVisionModel(tf.CLIPVisionConfig(
        hidden_size=24, num_attention_heads=3, num_hidden_layers=1, intermediate_size=48, image_size=SIDE, patch_size=8))
    image = tokenizer.convert_tokens_to_ids("<image>")
    reference = FlamingoReference(lm, "gpt_neox.layers", tower, False, 1, PERCEIVER, CROSS_ATTN, image, True)
    for part in (reference.perceiver, reference.gates):
        make_lively(part, 3)
    save_file({name: p.detach().clone() for name, p in reference.trained_part().items()}, folder / "weights.safetensors")
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (50, 70, 3), generator=generator, dtype=torch.uint8)
    Image.fromarray(pixels.numpy()).save(folder / "picture.png")
    return folder, ",".join(map(str, tokenizer("<image>A photo of")["input_ids"]))


def model_of(language, vision, path):
    path.write_text(json.dumps(dict(
        type="flamingo", lm=str(language / "lm"), vision=str(vision), weights=str(language / "weights.safetensors"),
        perceiver=PERCEIVER, cross_attn=CROSS_ATTN, tokenizer=str(TOKENIZER), cross_attn_every_n_layers=1,
    )))
    return path


@pytest.mark.parametrize("layout", ["open_clip", "hugging_face"])
def test_pictures_are_those_of_the_tower(layout, language, tmp_path):
    folder, ids = language
    picture = ("--prompt=<image>A photo of", f"--image={folder / 'picture.png'}")
    seen = []
    for number, colours in enumerate([None, *COLOURS]):
        transform = save_tower(layout, tmp_path / f"vision{number}", colours)
        model = model_of(folder, tmp_path / f"vision{number}", tmp_path / f"{number}.yaml")
        pixels = transform(Image.open(folder / "picture.png").convert("RGB"))
        save_file({"vision_x": pixels[None, None, None].contiguous()}, tmp_path / "x.safetensors")
        wanted = generated(model, f"--ids={ids}", f"--images={tmp_path / 'x.safetensors'}")
        assert generated(model, *picture) == pytest.approx(wanted, abs=2e-5)
        seen.append(wanted[0])
        # What is exported says it as well: the whole model, and the tower alone.
        done = subprocess.run([FLOE, "export", model, tmp_path / f"whole{number}"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert generated(tmp_path / f"whole{number}", *picture) == pytest.approx(wanted, abs=2e-5)
    assert min(abs(a - b) for a, b in zip(seen, seen[1:] + seen[:1], strict=True)) > 1e-3, "colours must show"
