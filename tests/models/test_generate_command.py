"""`floe generate` on the command line: text and pictures, sampling, what it refuses and how it says so."""

import json
import math
import os
import signal
import subprocess
import time
from collections import Counter

import numpy as np
import pytest
import torch
import transformers as tf
from flamingo_reference import FlamingoReference
from generate_runs import FLOE, floe_generate, model_file, run_floe
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from safetensors.torch import save_file
from test_decoders import build as build_lm
from test_flamingo import make_lively

IMAGE_SIZE = 32
PERCEIVER = dict(depth=1, dim_head=8, heads=2, num_latents=4, ff_mult=2)
CROSS_ATTN = dict(dim_head=8, heads=2, ff_mult=2)


@pytest.fixture(scope="module")
def captioner(captioner_and_reference):
    """A random Flamingo with a tokenizer."""
    return captioner_and_reference[:2]


@pytest.fixture(scope="module")
def captioner_and_reference(tmp_path_factory, goldens):
    folder = tmp_path_factory.mktemp("captioner")
    tokenizer = tf.AutoTokenizer.from_pretrained(goldens.parent / "data" / "tokenizers" / "neox")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|endofchunk|>", "<image>"]})
    lm = tf.GPTNeoXForCausalLM(
        tf.GPTNeoXConfig(
            hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=48,
            vocab_size=len(tokenizer), max_position_embeddings=64,
        )
    )
    make_lively(lm, 1)
    lm.save_pretrained(folder / "lm")
    tower = tf.CLIPVisionModel(
        tf.CLIPVisionConfig(
            hidden_size=24, num_attention_heads=3, num_hidden_layers=1, intermediate_size=40,
            image_size=IMAGE_SIZE, patch_size=8, projection_dim=16,
        )
    )
    make_lively(tower, 2)
    tower.save_pretrained(folder / "vision")
    image = tokenizer.convert_tokens_to_ids("<image>")
    trained = FlamingoReference(lm, "gpt_neox.layers", tower, False, 1, PERCEIVER, CROSS_ATTN, image, True)
    make_lively(trained.perceiver, 3)
    make_lively(trained.gates, 4)
    save_file({name: p.detach().clone() for name, p in trained.trained_part().items()}, folder / "weights.safetensors")
    model = model_file(
        folder / "model.yaml",
        dict(
            type="flamingo", lm="lm", vision="vision", weights="weights.safetensors", perceiver=PERCEIVER,
            cross_attn=CROSS_ATTN, tokenizer=goldens.parent / "data" / "tokenizers" / "neox",
        ),
    )
    return model, tokenizer, trained.eval()


def picture(path, width, height, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def test_text_and_pictures(captioner, tmp_path):
    """--prompt and --image are the tokenizer and the transform in front of --ids and --images."""
    model, tokenizer = captioner
    texts = ["<image>A photo of", "<image>two<|endofchunk|><image>Output:"]
    files = [
        picture(tmp_path / "a.png", 50, 40, 1),
        picture(tmp_path / "b.jpg", 33, 90, 2),
        picture(tmp_path / "c.webp", 32, 32, 3),
    ]
    words = [word for text in texts for word in ("--prompt", text)]
    words += [word for file in files for word in ("--image", file)]
    options = ["--num-beams", 2, "--max-new-tokens", 6]
    done = run_floe(model, *words, "--json", *options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    transform = image_transform_v2(PreprocessCfg(size=IMAGE_SIZE), is_train=False)
    seen = [transform(Image.open(file)) for file in files]
    start = 0
    for row, text in enumerate(texts):
        ids = tokenizer(text)["input_ids"]
        count = text.count("<image>")
        images = torch.stack(seen[start : start + count])[None, :, None]
        start += count
        save_file({"vision_x": images.contiguous()}, tmp_path / "images.safetensors")
        expected = floe_generate(
            model, [ids], "--images", tmp_path / "images.safetensors", num_beams=2, max_new_tokens=6
        )
        assert found["sequences"][row] == ids + expected["ids"][0]
        assert found["scores"][row] == pytest.approx(expected["scores"][0], abs=1e-5)
        assert found["text"][row] == tokenizer.decode(expected["ids"][0], skip_special_tokens=True)
    plain = run_floe(model, *words, *options)
    assert plain.stdout == "".join(text + "\n" for text in found["text"])


def test_pictures_matter(captioner, tmp_path):
    model, _ = captioner
    scores = set()
    for seed in range(2):
        file = picture(tmp_path / f"{seed}.png", 32, 32, seed)
        done = run_floe(model, "--prompt", "<image>A", "--image", file, "--json", "--num-beams", 2)
        scores.add(json.loads(done.stdout)["scores"][0])
    assert len(scores) == 2


def test_pictures_that_are_not_there(captioner, tmp_path):
    model, _ = captioner
    for words in (["--prompt", "<image>A", "--image"], ["--ids", "116,5", "--images"]):
        done = run_floe(model, *words, tmp_path / "nope")
        assert done.returncode == 2 and f"'{tmp_path / 'nope'}'" in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1, done.stderr


@pytest.fixture(scope="module")
def plain_lm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    torch_model = build_lm("opt", dict(dropout=0.0, attention_dropout=0.0), 7, folder / "lm")
    return model_file(folder / "model.yaml", dict(type="causal_lm", lm=folder / "lm")), torch_model


@torch.no_grad()
def test_sampling_follows_the_chances(plain_lm):
    """Second tokens of many samples against the chances that transformers' processors give."""
    model, torch_model = plain_lm
    options = dict(temperature=0.8, top_k=6, top_p=0.9)
    draws = 4000
    found = floe_generate(
        model, [[5, 6, 7]], "--eos-id", "none", do_sample=True, max_new_tokens=2, num_return_sequences=draws, seed=11, **options
    )
    counts = Counter(map(tuple, found["ids"]))
    warpers = [
        tf.TemperatureLogitsWarper(0.8),
        tf.TopKLogitsWarper(6),
        tf.TopPLogitsWarper(0.9),
    ]

    def chances(ids):
        ids = torch.tensor([ids])
        scores = torch_model(ids).logits[:, -1]
        for warper in warpers:
            scores = warper(ids, scores)
        return scores.softmax(-1)[0]

    expected = {}
    for a, first in enumerate(chances([5, 6, 7]).tolist()):
        if first > 0:
            for b, second in enumerate(chances([5, 6, 7, a]).tolist()):
                if second > 0:
                    expected[a, b] = first * second
    assert len(expected) > 3 and set(counts) <= set(expected)
    chi = sum((counts[pair] - draws * p) ** 2 / (draws * p) for pair, p in expected.items() if draws * p >= 5)
    freedom = sum(draws * p >= 5 for p in expected.values())
    assert (chi - freedom) / math.sqrt(2 * freedom) < 4


def test_sampling_repeats(plain_lm):
    model, _ = plain_lm
    options = dict(do_sample=True, max_new_tokens=12, num_return_sequences=4)
    first = floe_generate(model, [[9, 8]], seed=3, **options)["ids"]
    assert first == floe_generate(model, [[9, 8]], seed=3, **options)["ids"]
    assert first != floe_generate(model, [[9, 8]], seed=4, **options)["ids"]
    assert len(set(map(tuple, first))) > 1
    beams = dict(options, num_beams=4)
    drawn = floe_generate(model, [[9, 8]], seed=3, **beams)
    assert drawn == floe_generate(model, [[9, 8]], seed=3, **beams)
    assert drawn["ids"] != floe_generate(model, [[9, 8]], num_beams=4, max_new_tokens=12, num_return_sequences=4)["ids"]


def test_sampling_without_choice_is_greedy(plain_lm):
    model, _ = plain_lm
    greedy = floe_generate(model, [[9, 8], [4]])["ids"]
    assert greedy == floe_generate(model, [[9, 8], [4]], do_sample=True, top_k=1)["ids"]
    assert greedy == floe_generate(model, [[9, 8], [4]], do_sample=True, top_p=1e-9)["ids"]


REFUSED = [
    (["--ids", "1,2", "--prompt", "x"], "either --ids or --prompt"),
    ([], "either --ids or --prompt"),
    (["--ids", "1,,2"], "token ids such as 1,2,3"),
    (["--ids", ""], "token ids such as 1,2,3"),
    (["--ids", "1,-2"], "token ids such as 1,2,3"),
    (["--ids", "1,99999"], "vocabulary"),
    (["--ids", "1", "--eos-id", "99999"], "vocabulary"),
    (["--ids", "7", "--pad-id", "7"], "empty"),
    (["--ids", "1", "--num-beam", "2"], "did you mean"),
    (["--ids", "1", "--num-beams", "0"], "--num-beams"),
    (["--ids", "1", "--num-beams", "two"], "--num-beams"),
    (["--ids", "1", "--early-stopping", "maybe", "--num-beams", "2"], "true, false or never"),
    (["--ids", "1", "--length-penalty", "2"], "without beams"),
    (["--ids", "1", "--temperature", "0.5"], "without --sample"),
    (["--ids", "1", "--seed", "5"], "without --sample"),
    (["--ids", "1", "--sample", "--temperature", "0"], "temperature"),
    (["--ids", "1", "--sample", "--top-p", "1.5"], "top_p"),
    (["--ids", "1", "--num-return-sequences", "2"], "num_return_sequences"),
    (["--ids", "1", "--min-new-tokens", "30"], "min_new_tokens"),
    (["--ids", ",".join(["3"] * 65)], "65 tokens, but the model has only 64 positions"),
    (["--ids", ",".join(["3"] * 60)], "at most 5"),
    (["--prompt", "hello"], "needs a tokenizer"),
    (["--ids", "1", "--image", "cat.jpg"], "takes no images"),
    (["--ids", "1", "--images", "a", "--image", "b"], "not both"),
    (["--prompt", "x", "--images", "a"], "--images goes with --ids"),
]


@pytest.mark.parametrize("words, says", REFUSED, ids=[" ".join(words)[:40] for words, _ in REFUSED])
def test_refuses_with_a_sentence(words, says, plain_lm):
    done = run_floe(plain_lm[0], *words)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert says in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_the_last_position_can_be_used(plain_lm):
    model, _ = plain_lm
    found = floe_generate(model, [[3] * 60], "--eos-id", "none", max_new_tokens=5)
    assert len(found["ids"][0]) == 5


def test_number_of_images(captioner, goldens, tmp_path):
    """More and fewer images than <image> are computed, with a warning; rows must fit the prompts."""
    folder = goldens / "opt_x1"
    vision = torch.zeros((1, 2, 1, 3, 32, 32))
    save_file({"vision_x": vision}, tmp_path / "two.safetensors")
    cases = {"116,5": "2 images but only 1 <image>", "116,116,5,116": "3 <image> but only 2 images"}
    for ids, says in cases.items():
        done = run_floe(folder / "model.yaml", "--ids", ids, "--images", tmp_path / "two.safetensors")
        assert done.returncode == 0 and says in done.stderr, done.stderr
    done = run_floe(folder / "model.yaml", "--ids", "116,5,116", "--images", tmp_path / "two.safetensors")
    assert done.returncode == 0 and done.stderr == ""
    done = run_floe(folder / "model.yaml", "--ids", "5,6")
    assert done.returncode == 0, done.stderr
    refused = [
        (["--ids", "116,5"], "has 1 <image> but no image"),
        (["--ids", "116", "--ids", "116", "--images", tmp_path / "two.safetensors"], "images for 1 rows"),
    ]
    for words, says in refused:
        done = run_floe(folder / "model.yaml", *words)
        assert done.returncode == 2 and says in done.stderr, done.stderr
    model, _ = captioner
    file = picture(tmp_path / "a.png", 8, 8, 1)
    done = run_floe(model, "--prompt", "<image>a", "--prompt", "<image>b", "--image", file)
    assert done.returncode == 2 and "have 2 <image> together" in done.stderr


def test_broken_files(captioner, goldens, tmp_path):
    model, _ = captioner
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture")
    (tmp_path / "broken.safetensors").write_bytes(b"\xff" * 20)
    save_file({"vision_x": torch.zeros((1, 1, 1, 3, 8, 8))}, tmp_path / "small.safetensors")
    save_file({"other": torch.zeros(1)}, tmp_path / "other.safetensors")
    ids = goldens / "opt_x1" / "model.yaml"
    for words in (
        [model, "--prompt", "<image>a", "--image", tmp_path / "broken.jpg"],
        [ids, "--ids", "116", "--images", tmp_path / "broken.safetensors"],
        [ids, "--ids", "116", "--images", tmp_path / "small.safetensors"],
        [ids, "--ids", "116", "--images", tmp_path / "other.safetensors"],
    ):
        done = run_floe(*words)
        assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
        if "small" not in str(words[-1]):
            assert str(words[-1]) in done.stderr


def test_ctrl_c(goldens):
    """The first Ctrl-C ends the work with a sentence."""
    model = goldens / "neox_x2" / "model.yaml"
    process = subprocess.Popen(
        [FLOE, "generate", model, "--ids", "5", "--eos-id", "none", "--max-new-tokens", "1000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ, OMP_NUM_THREADS="1"),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    # It works once it has warned that a million tokens are more than the model was made for.
    assert "made for" in process.stderr.readline()
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1 and out == ""
    assert "stopped by a signal after" in err
