"""`floe generate` gives the ids and scores of the goldens, and those of transformers for random models."""

import json

import pytest
import torch
from generate_runs import floe_generate, left_padded, model_file, new_ids
from safetensors.torch import load_file, save_file
from test_decoders import FAMILIES, build

GOLDEN_MODELS = ["opt_x1", "neox_x2"]
GOLDEN_RUNS = [
    "greedy",
    "beam3",
    "beam3_length_penalty_-2",
    "greedy_min_new_6",
    "beam4_early_stop",
    "greedy_prompt0_alone_unpadded",
    "greedy_prompt1_alone_unpadded",
]


def test_all_golden_runs_are_tried(goldens):
    for name in GOLDEN_MODELS:
        assert sorted(json.loads((goldens / name / "generate.json").read_text())["runs"]) == sorted(GOLDEN_RUNS)


def same_scores(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert a == pytest.approx(b, rel=2e-5, abs=2e-5)


@pytest.mark.parametrize("run", GOLDEN_RUNS)
@pytest.mark.parametrize("name", GOLDEN_MODELS)
def test_goldens(name, run, goldens, tmp_path):
    folder = goldens / name
    golden = json.loads((folder / "generate.json").read_text())
    expected = golden["runs"][run]
    images = load_file(folder / "generate_images.safetensors")["vision_x_i8"]
    if "prompt_ids" in expected:
        prompts = expected["prompt_ids"]
        row = int(run.removeprefix("greedy_prompt")[0])
        images = images[row : row + 1, : expected["n_images"]]
        padded = 0
    else:
        prompts = [
            [token for token, real in zip(ids, mask) if real]
            for ids, mask in zip(golden["prompt_ids"], golden["attention_mask"])
        ]
        padded = len(golden["prompt_ids"][0])
    save_file({"vision_x_i8": images.contiguous()}, tmp_path / "images.safetensors")
    found = floe_generate(
        folder / "model.yaml",
        prompts,
        "--images",
        tmp_path / "images.safetensors",
        max_new_tokens=golden["max_new_tokens"],
        **expected["args"],
    )
    behind = padded or len(prompts[0])
    assert found["ids"] == new_ids(torch.tensor(expected["sequences"]), behind, [golden["eos_token_id"]])
    assert found["sequences"] == [prompt + ids for prompt, ids in zip(prompts, found["ids"])]
    if "sequences_scores" in expected:
        same_scores(found["scores"], expected["sequences_scores"])
    else:
        assert found["scores"] == [None] * len(prompts)


def test_golden_rows_with_their_padding(goldens):
    """Rows as the goldens have them, with --pad-id."""
    folder = goldens / "opt_x1"
    golden = json.loads((folder / "generate.json").read_text())
    found = floe_generate(
        folder / "model.yaml",
        golden["prompt_ids"],
        "--images",
        folder / "generate_images.safetensors",
        max_new_tokens=golden["max_new_tokens"],
        pad_id=golden["pad_token_id"],
        num_beams=3,
    )
    expected = golden["runs"]["beam3"]
    behind = len(golden["prompt_ids"][0])
    assert found["ids"] == new_ids(torch.tensor(expected["sequences"]), behind, [golden["eos_token_id"]])


# Padding counts as text in transformers' rules on repetition; there it is asked prompt by prompt.
REPETITION = ("repetition_penalty", "no_repeat_ngram_size")
WAYS = [
    dict(),
    dict(min_new_tokens=6),
    dict(repetition_penalty=1.8),
    dict(no_repeat_ngram_size=2),
    dict(repetition_penalty=0.7, no_repeat_ngram_size=1),
    dict(num_beams=2),
    dict(num_beams=3, length_penalty=-2.0),
    dict(num_beams=3, length_penalty=0.0, repetition_penalty=1.3),
    dict(num_beams=4, early_stopping=True, num_return_sequences=4),
    dict(num_beams=5, early_stopping="never", length_penalty=2.0, num_return_sequences=3),
    dict(num_beams=5, early_stopping="never", length_penalty=-1.0),
    dict(num_beams=3, min_new_tokens=5, no_repeat_ngram_size=3),
    dict(num_beams=2, no_repeat_ngram_size=2, early_stopping=True, length_penalty=0.5),
]
CASES = [
    pytest.param(family, number % len(settings), seed, id=f"{family}-{number % len(settings)}-seed{seed}")
    for family, (_, _, settings) in FAMILIES.items()
    for number, seed in enumerate((3, 4))
]


@torch.no_grad()
def by_transformers(model, prompts, ends, options):
    """New ids and scores, prompt by prompt where padding would have a say."""
    apart = any(name in options for name in REPETITION)
    ids, scores = [], []
    for group in [[prompt] for prompt in prompts] if apart else [prompts]:
        batch, mask = left_padded(group, pad=1)
        out = model.generate(
            batch,
            attention_mask=mask,
            eos_token_id=ends or None,
            pad_token_id=1,
            do_sample=False,
            # With a sliding window of 1 transformers' cache keeps everything instead of nothing.
            use_cache=getattr(model.config, "sliding_window", None) != 1,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
        ids += new_ids(out.sequences, batch.shape[1], ends)
        scores += out.sequences_scores.tolist() if "num_beams" in options else [None] * len(group)
    return ids, scores


@pytest.mark.parametrize("family, number, seed", CASES)
def test_equals_transformers(family, number, seed, tmp_path):
    torch_model = build(family, FAMILIES[family][2][number], seed, tmp_path / "lm")
    model = model_file(tmp_path / "model.yaml", dict(type="causal_lm", lm=tmp_path / "lm"))
    generator = torch.Generator().manual_seed(seed)
    vocab = torch_model.config.vocab_size
    prompts = [torch.randint(3, vocab, (length,), generator=generator).tolist() for length in (4, 9, 1, 6)]
    # Ends that really come: tokens of what the model says anyway.
    said, _ = by_transformers(torch_model, prompts, [], dict(max_new_tokens=8))
    ends = [said[0][5], said[1][3]]
    ended = 0
    for options in WAYS:
        options = dict(options, max_new_tokens=12)
        ids, scores = by_transformers(torch_model, prompts, ends, options)
        words = ("--eos-id", ",".join(map(str, ends)))
        found = floe_generate(model, prompts, *words, **options)
        assert found["ids"] == ids, options
        returned = options.get("num_return_sequences", 1)
        assert found["prompt"] == [p for p in range(len(prompts)) for _ in range(returned)]
        if "num_beams" in options:
            same_scores(found["scores"], scores)
        ended += sum(row[-1] in ends for row in ids)
    assert ended > 5, "the ends must matter"


def test_end_tokens_come_from_the_files(tmp_path):
    torch_model = build("llama", {}, 5, tmp_path / "lm")
    model = model_file(tmp_path / "model.yaml", dict(type="causal_lm", lm=tmp_path / "lm"))
    everything = floe_generate(model, [[5, 6, 7]], "--eos-id", "none", max_new_tokens=10)["ids"][0]
    assert len(everything) == 10
    for ends in (everything[4], [everything[2], everything[6]]):
        torch_model.generation_config.eos_token_id = ends
        torch_model.generation_config.save_pretrained(tmp_path / "lm")
        wanted, _ = by_transformers(
            torch_model, [[5, 6, 7]], ends if isinstance(ends, list) else [ends], dict(max_new_tokens=10)
        )
        assert floe_generate(model, [[5, 6, 7]], max_new_tokens=10)["ids"] == wanted
        assert len(wanted[0]) < 10


@pytest.mark.parametrize("family", ["opt", "mistral"])
def test_several_prompts_give_what_each_gives_alone(family, tmp_path):
    build(family, FAMILIES[family][2][0], 6, tmp_path / "lm")
    model = model_file(tmp_path / "model.yaml", dict(type="causal_lm", lm=tmp_path / "lm"))
    prompts = [[9], [4, 8, 15, 16, 23, 42], [7, 7, 7]]
    for options in (dict(), dict(num_beams=3, num_return_sequences=2)):
        together = floe_generate(model, prompts, **options)
        alone = [floe_generate(model, [prompt], **options) for prompt in prompts]
        assert together["ids"] == [ids for one in alone for ids in one["ids"]]


def test_long_texts(tmp_path):
    """Longer than the room that the cache has at first."""
    settings = dict(num_key_value_heads=2)
    torch_model = build("qwen2", settings, 8, tmp_path / "lm")
    model = model_file(tmp_path / "model.yaml", dict(type="causal_lm", lm=tmp_path / "lm"))
    for options in (dict(max_new_tokens=150), dict(max_new_tokens=90, num_beams=2)):
        ids, _ = by_transformers(torch_model, [[5, 6], [7]], [], options)
        assert floe_generate(model, [[5, 6], [7]], "--eos-id", "none", **options)["ids"] == ids


def test_low_precision_stays_close(goldens):
    """bf16 follows the goldens' safe greedy choice (a gap of 0.97 in the logits)."""
    folder = goldens / "opt_x1"
    golden = json.loads((folder / "generate.json").read_text())
    words = ("--images", folder / "generate_images.safetensors", "--dtype", "bf16")
    found = floe_generate(
        folder / "model.yaml", golden["prompt_ids"], *words, pad_id=golden["pad_token_id"], max_new_tokens=10
    )
    expected = torch.tensor(golden["runs"]["greedy"]["sequences"])
    assert found["ids"] == new_ids(expected, len(golden["prompt_ids"][0]), [golden["eos_token_id"]])
