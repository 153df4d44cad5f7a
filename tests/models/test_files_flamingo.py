"""OpenFlamingo's files: training checkpoints, trained parts, whole state dicts; vocabulary; what is new."""

import json
import shutil

import pytest
import scipy.stats
import torch
import transformers as tf
import yaml
from file_models import assert_same, flamingo, flamingo_inputs, language_model, save, stir, tensors_in, write_yaml
from safetensors.torch import load_file, save_file

MODELS = ["opt_x1", "neox_x2"]


def golden_yaml(goldens, model, tmp_path, **more):
    """The model of a golden folder with some keys of its own."""
    keys = yaml.safe_load((goldens / model / "model.yaml").read_text())
    for key in ["lm", "vision", "weights"]:
        keys[key] = str(goldens / model / keys[key])
    return write_yaml(tmp_path / f"{model}.yaml", {**keys, **more})


def golden_logits(goldens, model, tmp_path, forward, **more):
    inputs = goldens / model / "forward.safetensors"
    return forward(golden_yaml(goldens, model, tmp_path, **more), inputs)["logits"]


def with_marks(state):
    """The same state dict behind the names of wrappers."""
    marked = {}
    for name, tensor in state.items():
        name = name.replace("gated_cross_attn_layer.", "gated_cross_attn_layer._fsdp_wrapped_module.")
        name = name.replace("perceiver.", "perceiver._checkpoint_wrapped_module._fsdp_wrapped_module.")
        marked[f"_orig_mod.module.{name}"] = tensor
    return marked


@pytest.mark.parametrize("model", MODELS)
def test_checkpoints(model, goldens, tmp_path, forward):
    """Whatever wraps the trained part, the numbers are the same."""
    trained = goldens / f"{model}-train"
    state = load_file(trained / "final_trainable.safetensors")
    expected = golden_logits(goldens, model, tmp_path, forward, weights=str(trained / "final_trainable.safetensors"))
    begin = golden_logits(goldens, model, tmp_path, forward)
    assert (begin - expected).abs().max() > 1e-3
    torch.save(state, tmp_path / "bare.pt")
    torch.save({f"module.{name}": tensor for name, tensor in state.items()}, tmp_path / "ddp.pt")
    torch.save({"epoch": 0, "model_state_dict": with_marks(state)}, tmp_path / "fsdp.pt")
    save_file(with_marks(state), tmp_path / "fsdp.safetensors")
    for file in [trained / "checkpoint_0.pt", *tmp_path.glob("*.pt"), tmp_path / "fsdp.safetensors"]:
        assert torch.equal(golden_logits(goldens, model, tmp_path, forward, weights=str(file)), expected), file


@pytest.mark.parametrize("model", MODELS)
def test_trained_part(model, goldens, tmp_path, forward):
    """Exactly the tensors that OpenFlamingo's own filter kept, bit for bit."""
    theirs = load_file(goldens / model / "flamingo_init.safetensors")
    description = golden_yaml(goldens, model, tmp_path)
    assert_same(load_file(save("trained", description, tmp_path / "part.safetensors")), theirs)
    part = torch.load(save("trained", description, tmp_path / "part.pt"), weights_only=True)
    assert_same(dict(part), theirs)
    if model == "opt_x1":  # tied in Python as well
        head, table = part["lang_encoder.lm_head.weight"], part["lang_encoder.model.decoder.embed_tokens.weight"]
        assert head.data_ptr() == table.data_ptr()
    expected = golden_logits(goldens, model, tmp_path, forward)
    for file in ["part.pt", "part.safetensors"]:
        assert torch.equal(golden_logits(goldens, model, tmp_path, forward, weights=str(tmp_path / file)), expected)


@pytest.mark.parametrize("model", MODELS)
def test_whole_state_dict(model, goldens, tmp_path, forward):
    config = json.loads((goldens / model / "config.json").read_text())
    description = golden_yaml(goldens, model, tmp_path)
    whole = load_file(save("flamingo", description, tmp_path / "whole.safetensors"))
    tied = {"lang_encoder.lm_head.weight"} if model == "opt_x1" else set()
    assert whole.keys() == set(config["parameter_names_in_order"]) | tied
    theirs = load_file(goldens / model / "flamingo_init.safetensors")
    assert_same({name: whole[name] for name in theirs}, theirs)
    for name, tensor in load_file(goldens / model / "vision" / "open_clip_visual.safetensors").items():
        assert torch.equal(whole[name.replace("visual.", "vision_encoder.", 1)], tensor)

    state = torch.load(save("flamingo", description, tmp_path / "whole.pt"), weights_only=True)
    assert_same({name: state[name] for name in whole}, whole)
    # OpenFlamingo registers decoder layers and gates twice; here that costs no bytes.
    second = state.keys() - whole.keys()
    layers = config["decoder_layers_attr"]
    for name in second:
        kind, index, rest = name.removeprefix("lang_encoder.").split(".", 2)
        part = {"old_decoder_blocks": "decoder_layer", "gated_cross_attn_layers": "gated_cross_attn_layer"}[kind]
        first = f"lang_encoder.{layers}.{index}.{part}.{rest}"
        assert state[name].data_ptr() == state[first].data_ptr()
    assert len(second) == sum(".decoder_layer." in n or ".gated_cross_attn_layer." in n for n in whole)

    # The whole file needs nothing of the folders but their configurations.
    other = tmp_path / "other"
    shutil.copytree(goldens / model, other)
    generator = torch.Generator().manual_seed(1)
    for file in [other / "lm" / "model.safetensors", other / "vision" / "open_clip_visual.safetensors"]:
        noise = {n: torch.randn(t.shape, generator=generator) for n, t in load_file(file).items()}
        file.unlink()
        save_file(noise, file)
    expected = golden_logits(goldens, model, tmp_path, forward)
    for file in ["whole.pt", "whole.safetensors"]:
        keys = dict(lm=str(other / "lm"), vision=str(other / "vision"), weights=str(tmp_path / file))
        assert torch.equal(golden_logits(goldens, model, tmp_path, forward, **keys), expected)


@pytest.mark.parametrize("model", MODELS)
def test_language_model_of_a_flamingo(model, goldens, tmp_path):
    """The language model alone: its folder again, with the trained rows in the table."""
    theirs = load_file(goldens / model / "lm" / "model.safetensors")
    trained = load_file(goldens / f"{model}-train" / "final_trainable.safetensors")
    table = "model.decoder.embed_tokens.weight" if model == "opt_x1" else "gpt_neox.embed_in.weight"
    description = golden_yaml(
        goldens, model, tmp_path, weights=str(goldens / f"{model}-train" / "final_trainable.safetensors")
    )
    assert not torch.equal(theirs[table], trained[f"lang_encoder.{table}"])
    theirs[table] = trained[f"lang_encoder.{table}"]
    assert_same(tensors_in(save("lm", description, tmp_path / "lm")), theirs)


@pytest.fixture(scope="module")
def tower(goldens):
    return goldens / "opt_x1" / "vision"


# difference: rows of the table in the file beyond those of the tokenizer with what Flamingo adds.
@pytest.mark.parametrize("family,tied", [("opt", True), ("gpt_neox", False)])
@pytest.mark.parametrize("difference", [0, -37, 40], ids=["same", "longer", "padded"])
def test_vocabulary(family, tied, difference, goldens, tower, tmp_path, forward):
    tokenizer = goldens.parent / "data" / "tokenizers" / ("opt" if family == "opt" else "neox")
    theirs = tf.AutoTokenizer.from_pretrained(tokenizer)
    # As OpenFlamingo adds them.
    theirs.add_special_tokens({"additional_special_tokens": ["<|endofchunk|>", "<image>"]})
    if theirs.pad_token is None:
        theirs.add_special_tokens({"pad_token": "<PAD>"})
    rows = len(theirs)
    model = language_model(family, vocab_size=rows + difference, tie_word_embeddings=tied)
    model.save_pretrained(tmp_path / "lm")
    keys = flamingo(tmp_path / "lm", tower, tokenizer=str(tokenizer))
    keys = {key: value for key, value in keys.items() if not key.endswith("_token_id")}
    out = save("lm", keys, tmp_path / "out")
    assert json.loads((out / "config.json").read_text())["vocab_size"] == rows
    ours, files = tensors_in(out), tensors_in(tmp_path / "lm")
    assert ours.keys() == files.keys()
    tables = [name for name in files if files[name].shape[0] == rows + difference]
    assert len(tables) == (1 if tied else 2)
    kept = min(rows, rows + difference)
    for name in files:
        if name not in tables:
            assert torch.equal(ours[name], files[name])
            continue
        assert ours[name].shape == (rows, 32)
        assert torch.equal(ours[name][:kept], files[name][:kept])
        if kept < rows:
            new = ours[name][kept:].flatten()
            deviation = model.config.init_std if family == "opt" else model.config.initializer_range
            assert scipy.stats.kstest(new, "norm", args=(0, deviation)).pvalue > 1e-3
    # transformers takes the folder, and floe's logits have as many columns.
    loaded = tf.AutoModelForCausalLM.from_pretrained(out)
    assert loaded.get_input_embeddings().weight.shape[0] == rows
    inputs = flamingo_inputs(32)
    inputs["lang_x"][:, 0] = theirs.convert_tokens_to_ids("<image>")
    assert forward(keys, inputs)["logits"].shape[-1] == rows
    # Rows that are new are the same in every run.
    assert_same(tensors_in(save("lm", keys, tmp_path / "again")), ours)


def follows(values, distribution, *args):
    return scipy.stats.kstest(values.flatten(), distribution, args=args).pvalue > 1e-3


def test_what_is_new_begins_as_in_openflamingo(tower, tmp_path):
    """Latents N(0, 1), linear layers U(±1/sqrt(inputs)), norms 1 and 0, gates closed."""
    stir(language_model("opt")).save_pretrained(tmp_path / "lm")
    sizes = {"depth": 2, "dim_head": 16, "heads": 4, "num_latents": 128, "ff_mult": 4}
    keys = flamingo(tmp_path / "lm", tower, perceiver=sizes, cross_attn={"dim_head": 16, "heads": 4, "ff_mult": 4})
    new = load_file(save("trained", keys, tmp_path / "new.safetensors"))
    linears, equal = 0, []
    for name, tensor in new.items():
        if "embed" in name or "lm_head" in name:
            continue
        if name == "perceiver.latents":
            assert follows(tensor, "norm", 0, 1)
            assert abs(tensor.mean()) < 0.05 and abs(tensor.std() - 1) < 0.05
        elif name.endswith("gate"):
            assert tensor.shape == (1,) and tensor.item() == 0
        elif tensor.dim() == 2:
            bound = tensor.shape[1] ** -0.5
            assert follows(tensor, "uniform", -bound, 2 * bound), name
            assert tensor.abs().max() <= bound and tensor.max() > 0.98 * bound and tensor.min() < -0.98 * bound
            linears += 1
            equal.append(tensor.flatten()[:64])
        else:
            assert torch.equal(tensor, torch.full_like(tensor, 1.0 if name.endswith("weight") else 0.0)), name
    assert linears == 2 * 5 + 2 * 5  # two layers of the resampler, two gated layers
    # No two begin with the same numbers.
    assert len({tuple(values.sign().tolist()) for values in equal}) == linears
