"""transformers is the reference of Hugging Face folders: floe reads what it writes, it reads what floe writes."""

import json

import pytest
import torch
import transformers as tf
from file_models import (
    FAMILIES,
    assert_same,
    causal_lm,
    close,
    ids,
    language_model,
    logits_of,
    save,
    tensors_in,
)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def load(folder, dtype=torch.float32):
    """What transformers makes of a folder; it must find everything and nothing else."""
    model, seen = tf.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    assert not seen["missing_keys"] and not seen["unexpected_keys"] and not seen["mismatched_keys"], seen
    return model.eval()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_round_trip(family, tied, tmp_path):
    model = language_model(family, tie_word_embeddings=tied)
    model.save_pretrained(tmp_path / "theirs")
    ours = save("lm", causal_lm(tmp_path / "theirs"), tmp_path / "ours")
    # The same tensors in the file, so a tied head is left out as well.
    assert_same(tensors_in(ours), tensors_in(tmp_path / "theirs"))
    assert_same(dict(load(ours).state_dict()), dict(model.state_dict()))
    assert (ours / "generation_config.json").exists()
    again = save("lm", causal_lm(ours), tmp_path / "again")
    assert (again / "model.safetensors").read_bytes() == (ours / "model.safetensors").read_bytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_shards_and_types(dtype, tmp_path):
    model = language_model("llama")
    model.save_pretrained(tmp_path / "theirs")
    ours = save(
        "lm", causal_lm(tmp_path / "theirs"), tmp_path / "ours", "--dtype", dtype, "--max-shard-bytes", 9000
    )
    index = json.loads((ours / "model.safetensors.index.json").read_text())
    shards = sorted(ours.glob("model-*.safetensors"))
    assert len(shards) > 2 and {shard.name for shard in shards} == set(index["weight_map"].values())
    for shard in shards:
        tensors = tensors_in(shard)
        bytes_in = sum(tensor.nbytes for tensor in tensors.values())
        assert bytes_in <= 9000 or len(tensors) == 1
    expected = {name: tensor.to(DTYPES[dtype]) for name, tensor in tensors_in(tmp_path / "theirs").items()}
    assert_same(tensors_in(ours), expected)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in expected.values())
    loaded = load(ours, dtype="auto")
    assert loaded.dtype == DTYPES[dtype]
    assert_same(dict(loaded.state_dict()), dict(model.to(DTYPES[dtype]).state_dict()))
    # Without a type of its own, a save keeps that of the files.
    again = save("lm", causal_lm(ours), tmp_path / "again")
    assert_same(tensors_in(again), expected)


def test_a_folder_with_weights_is_not_mixed_with_others(tmp_path):
    language_model("llama").save_pretrained(tmp_path / "lm")
    with pytest.raises(AssertionError, match="holds weights already"):
        save("lm", causal_lm(tmp_path / "lm"), tmp_path / "lm")


@pytest.mark.parametrize("family", ["opt", "gpt_neox", "llama"])
@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "bin"])
@pytest.mark.parametrize("shard", ["10GB", "30KB"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_we_read_theirs(family, safe, shard, dtype, tmp_path, forward):
    model = language_model(family).to(DTYPES[dtype])
    model.save_pretrained(tmp_path / "lm", safe_serialization=safe, max_shard_size=shard)
    names = {path.name for path in (tmp_path / "lm").iterdir()}
    assert any("index" in name for name in names) == (shard == "30KB")
    assert any(name.endswith(".bin") for name in names) != safe
    ours = forward(causal_lm(tmp_path / "lm"), {"lang_x": ids()})["logits"]
    close(ours, logits_of(load(tmp_path / "lm"), ids()))


@pytest.mark.parametrize("family", ["opt", "qwen2"])
def test_files_of_the_bare_model(family, tmp_path, forward):
    model = language_model(family, tie_word_embeddings=True)
    model.base_model.save_pretrained(tmp_path / "lm")
    assert not any(name.startswith("model.") for name in tensors_in(tmp_path / "lm"))
    close(forward(causal_lm(tmp_path / "lm"), {"lang_x": ids()})["logits"], logits_of(model, ids()))


def test_weights_win_over_the_folder(tmp_path, forward):
    """`weights` may hold a part of a language model; the rest comes from its folder, bare or not."""
    base, tuned = language_model("opt", seed=0), language_model("opt", seed=5)
    base.model.save_pretrained(tmp_path / "lm")
    part = {name: value for name, value in tuned.state_dict().items() if "layers.1" in name or "embed_tokens" in name}
    torch.save(part, tmp_path / "part.pt")
    base.load_state_dict(part, strict=False)
    base.tie_weights()
    ours = forward(causal_lm(tmp_path / "lm", weights=tmp_path / "part.pt"), {"lang_x": ids()})["logits"]
    close(ours, logits_of(base, ids()))
