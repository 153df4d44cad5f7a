"""Files that are broken or do not fit: one clear sentence each, and the right exit code."""

import json
import shutil

import pytest
import torch
import yaml
from file_models import causal_lm, ids, language_model, tensors_in, write_yaml
from safetensors.torch import save_file

TABLE = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    language_model("llama").save_pretrained(folder / "single")
    language_model("llama").save_pretrained(folder / "sharded", max_shard_size="20KB")
    return folder


def cut(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def rewrite_header(folder, change):
    file = folder / "model.safetensors"
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def lying_offsets(folder):
    rewrite_header(folder, lambda header: header[TABLE].update(data_offsets=[0, 1 << 50]))


def lying_shape(folder):
    rewrite_header(folder, lambda header: header[TABLE].update(shape=[1 << 33, 1 << 33]))


def lying_length(folder):
    file = folder / "model.safetensors"
    file.write_bytes((1 << 60).to_bytes(8, "little") + file.read_bytes()[8:])


def change_tensors(folder, change):
    tensors = tensors_in(folder)
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def several_defects(folder):
    def change(tensors):
        del tensors["model.norm.weight"]
        tensors["model.layers.0.mlp.up_proj.weight"] = torch.zeros(47, 32)
        tensors["model.layers.7.mlp.up_proj.weight"] = torch.zeros(48, 32)
        tensors["model.layers.1.mlp.down_proj.weight"] = torch.zeros(32, 48, dtype=torch.int8)

    change_tensors(folder, change)


def narrow_table(folder):
    change_tensors(folder, lambda tensors: tensors.update({TABLE: torch.zeros(96, 16)}))


def without_weights(folder):
    (folder / "model.safetensors").unlink()


def without_config(folder):
    (folder / "config.json").unlink()


def missing_shard(folder):
    sorted(folder.glob("model-*.safetensors"))[1].unlink()


def swapped_shards(folder):
    first, second = sorted(folder.glob("model-*.safetensors"))[:2]
    shutil.copy(second, first)


def broken_index(folder):
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": 3}}')


def outside_index(folder):
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../../etc/passwd"}}')


def text_for_weights(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_text("version https://git-lfs.github.com/spec/v1\n")


def config(**changes):
    def change(folder):
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def config_text(text):
    return lambda folder: (folder / "config.json").write_text(text)


# What is done to a good folder, the exit code, and what the message must have.
CASES = {
    "cut": (cut, 1, ["model.safetensors"]),
    "lying_offsets": (lying_offsets, 1, ["model.safetensors", TABLE]),
    "lying_shape": (lying_shape, 1, ["model.safetensors", TABLE]),
    "lying_length": (lying_length, 1, ["model.safetensors"]),
    "several_defects": (
        several_defects,
        1,
        [
            "'model.norm.weight' [32] is missing",
            "'model.layers.0.mlp.up_proj.weight'",
            "has shape [47, 32], the model needs [48, 32]",
            "'model.layers.7.mlp.up_proj.weight' [48, 32]",
            "belongs to nothing in the model",
            "'model.layers.1.mlp.down_proj.weight'",
            "has type int8",
        ],
    ),
    "narrow_table": (narrow_table, 1, [TABLE, "has shape [96, 16], the model needs [96, 32]"]),
    "without_weights": (without_weights, 2, ["has no weights", "model.random_init=true"]),
    "without_config": (without_config, 2, ["no config.json"]),
    "missing_shard": (missing_shard, 1, ["model-00002-of-", "no such file", "download"]),
    "swapped_shards": (swapped_shards, 1, ["model-00001-of-", "does not have it"]),
    "broken_index": (broken_index, 1, ["model.safetensors.index.json", "must be a file name, not 3"]),
    "outside_index": (outside_index, 1, ["model.safetensors.index.json", "beside the index"]),
    "text_for_weights": (text_for_weights, 1, ["pytorch_model.bin"]),
    "no_json": (config_text('{"model_type": "llama",'), 1, ["config.json"]),
    "json_list": (config_text("[1, 2]"), 2, ["config.json", "model_type"]),
    "unknown_family": (config(model_type="lama"), 2, ["'model_type' is 'lama'", "llama", "docs/adding-a-model.md"]),
    "text_for_number": (config(hidden_size="32"), 2, ["'hidden_size' is \"32\", expected a whole number"]),
    "number_for_flag": (config(tie_word_embeddings=1), 2, ["'tie_word_embeddings' is 1, expected true or false"]),
    "negative": (config(num_hidden_layers=-2), 2, ["'num_hidden_layers' is -2"]),
    "absurd": (config(intermediate_size=1 << 39, hidden_size=1 << 39), 2, ["config.json"]),
    "fraction": (config(num_attention_heads=4.5), 2, ["'num_attention_heads' is 4.5"]),
    "odd_heads": (config(num_key_value_heads=3), 2, ["4 heads cannot share 3 key-value heads"]),
    "activation": (config(hidden_act="mish"), 2, ["'hidden_act' is \"mish\""]),
    "rope": (config(rope_scaling={"rope_type": "yarn", "factor": 2.0}), 2, ["rope_type", "yarn"]),
    "rope_without_type": (config(rope_scaling={"factor": 2.0}), 2, ["'rope_scaling' is", "rope_type"]),
    "rope_without_factor": (config(rope_scaling={"rope_type": "linear"}), 2, ["'rope_scaling.factor' is missing"]),
    "another_width": (config(intermediate_size=50), 1, ["has shape [48, 32], the model needs [50, 32]"]),
    "fewer_tokens": (config(vocab_size=90), 1, [f"'{TABLE}'", "has shape [96, 32], the model needs [90, 32]"]),
    "more_tokens": (config(vocab_size=99), 1, ["'lm_head.weight'", "has shape [96, 32], the model needs [99, 32]"]),
    "more_layers": (config(num_hidden_layers=3), 1, ["'model.layers.2.input_layernorm.weight' [32] is missing", "model.layers.2.* (9 tensors)"]),
}


def check(done, code, parts):
    assert done.returncode == code, done.stderr
    assert len(done.stderr.splitlines()) == 1 and "unexpected error" not in done.stderr, done.stderr
    for part in parts:
        assert part in done.stderr, done.stderr


@pytest.mark.parametrize("case", CASES)
def test_language_model(case, good, tmp_path, run_forward):
    harm, code, parts = CASES[case]
    folder = tmp_path / "lm"
    shutil.copytree(good / ("sharded" if "shard" in case or "index" in case else "single"), folder)
    harm(folder)
    check(run_forward(write_yaml(tmp_path / "model.yaml", causal_lm(folder)), "none", "none"), code, parts)


# What MPT's own code computes and floe does not.
MPT = {
    "norm_type": ("rmsnorm", "'norm_type' is \"rmsnorm\""),
    "ffn_config": ({"ffn_type": "mptmlp", "ffn_act_fn": {"name": "silu"}}, "'ffn_config.ffn_act_fn.name' is \"silu\""),
    "attn_config": ({"sliding_window_size": 4}, "'attn_config.sliding_window_size' is 4"),
    "final_logit_softcapping": (30.0, "'final_logit_softcapping' is 30.0"),
}


@pytest.mark.parametrize("key", MPT)
def test_mpt(key, tmp_path, run_forward):
    value, part = MPT[key]
    language_model("mpt").save_pretrained(tmp_path / "lm")
    config(**{key: value})(tmp_path / "lm")
    check(run_forward(write_yaml(tmp_path / "model.yaml", causal_lm(tmp_path / "lm")), "none", "none"), 2, [part])


def golden(goldens, tmp_path, **more):
    folder = goldens / "opt_x1"
    keys = yaml.safe_load((folder / "model.yaml").read_text())
    keys.update({key: str(folder / keys[key]) for key in ["lm", "vision", "weights"]})
    return write_yaml(tmp_path / "model.yaml", {**keys, **more})


def vision(tmp_path, goldens, **changes):
    folder = tmp_path / "vision"
    shutil.copytree(goldens / "opt_x1" / "vision", folder)
    file = folder / "open_clip_config.json"
    settings = json.loads(file.read_text())
    settings["vision_cfg"].update(changes)
    file.unlink()
    file.write_text(json.dumps(settings))
    return str(folder)


VISION = {
    "more_layers": (dict(layers=3), 1, ["'visual.transformer.resblocks.2.ln_1.weight' [32] is missing"]),
    "fewer_layers": (dict(layers=1), 1, ["'visual.transformer.resblocks.1.", "belongs to nothing in the model"]),
    "other_patches": (dict(patch_size=16), 1, ["'visual.conv1.weight'", "[32, 3, 8, 8]", "[32, 3, 16, 16]"]),
    "not_square": (dict(image_size=[32, 64]), 2, ["image_size"]),
    "wrong_type": (dict(width="wide"), 2, ["'vision_cfg.width'", "a whole number"]),
    "timm": (dict(timm_model_name="vit"), 2, ["timm_model_name"]),
    "no_patches": (dict(patch_size=0), 2, ["cannot be built"]),
    "absurd": (dict(image_size=1 << 39, patch_size=1), 2, ["cannot be built"]),
}


@pytest.mark.parametrize("case", VISION)
def test_vision(case, goldens, tmp_path, run_forward):
    changes, code, parts = VISION[case]
    model = golden(goldens, tmp_path, vision=vision(tmp_path, goldens, **changes))
    check(run_forward(model, "none", "none"), code, parts)


def test_flamingo_parts_that_do_not_fit(goldens, tmp_path, run_forward):
    """A trained part of another model: all kinds of differences in one message, and the likely cause."""
    other = goldens / "neox_x2" / "flamingo_init.safetensors"
    done = run_forward(golden(goldens, tmp_path, weights=str(other)), "none", "none")
    parts = [
        "'perceiver.latents'",
        "has shape [5, 32], the model needs [6, 32]",
        "layers.0.gated_cross_attn_layer.attn_gate' [1] is missing",
        "lang_encoder.model.decoder.layers.{0,1,2,3}.gated_cross_attn_layer.* (44 tensors)",
        "belongs to nothing in the model",
        "set model.cross_attn_every_n_layers to 2 instead of 1",
    ]
    check(done, 1, parts)


def test_weights_that_are_there_twice(goldens, tmp_path, run_forward):
    latents = torch.zeros(6, 32)
    torch.save({"perceiver.latents": latents, "module.perceiver.latents": latents}, tmp_path / "two.pt")
    done = run_forward(golden(goldens, tmp_path, weights=str(tmp_path / "two.pt")), "none", "none")
    check(done, 1, ["two.pt", "are both the weights of", "perceiver.latents"])


def test_a_tower_that_is_none(goldens, tmp_path, run_forward):
    save_file({"a": torch.zeros(2)}, tmp_path / "none.safetensors")
    for path, code, part in [
        (tmp_path / "none.safetensors", 1, "holds no CLIP image tower"),
        (tmp_path / "nowhere", 2, "there is no file or folder"),
        (tmp_path, 2, "neither open_clip_config.json nor config.json"),
        (goldens / "opt_x1" / "vision" / "open_clip_visual.safetensors", 2, "says nothing of its activation"),
    ]:
        check(run_forward(golden(goldens, tmp_path, vision=str(path)), "none", "none"), code, [part])


def test_ids_beyond_the_table_are_an_error(good, tmp_path, run_forward):
    save_file({"lang_x": ids() + 96}, tmp_path / "inputs.safetensors")
    model = write_yaml(tmp_path / "model.yaml", causal_lm(good / "single"))
    done = run_forward(model, tmp_path / "inputs.safetensors", tmp_path / "out.safetensors")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
