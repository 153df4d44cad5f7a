"""peft is the reference of adapters: apart, merged, saved and loaded."""

import json

import pytest
import torch
import transformers as tf
from file_models import assert_same, causal_lm, close, ids, language_model, logits_of, save, tensors_in
from peft import LoraConfig, PeftModel, get_peft_model

CASES = {
    "gpt_neox": ["query_key_value", "dense"],
    "opt": ["q_proj", "v_proj", "fc1"],
    "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "mpt": ["Wqkv", "up_proj"],
}


def adapted(family, folder, rslora=False, **more):
    """A model with adapters that do something, saved apart from its base."""
    base = language_model(family)
    base.save_pretrained(folder / "base")
    config = LoraConfig(
        r=3,
        lora_alpha=5,
        lora_dropout=0.3,
        use_rslora=rslora,
        target_modules=CASES[family],
        task_type="CAUSAL_LM",
        **more,
    )
    model = get_peft_model(base, config)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def lora(family, **more):
    return {"targets": CASES[family], "rank": 3, "alpha": 5, "dropout": 0.3, **more}


@pytest.mark.parametrize("family", CASES)
@pytest.mark.parametrize("rslora", [False, True], ids=["", "rslora"])
def test_adapters(family, rslora, tmp_path, forward):
    theirs = adapted(family, tmp_path, rslora)
    theirs.save_pretrained(tmp_path / "adapter", safe_serialization=not rslora)  # or adapter_model.bin
    expected = logits_of(theirs, ids())
    plain = forward(causal_lm(tmp_path / "base"), {"lang_x": ids()})["logits"]
    assert (plain - expected).abs().max() > 0.1

    model = causal_lm(tmp_path / "base", lora=lora(family, rslora=rslora, weights=tmp_path / "adapter"))
    close(forward(model, {"lang_x": ids()})["logits"], expected)

    # Apart: peft finds the same numbers in what floe wrote, and so does floe.
    ours = save("peft", model, tmp_path / "ours")
    if not rslora:
        assert_same(tensors_in(ours), tensors_in(tmp_path / "adapter"))
    fresh = tf.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    close(logits_of(PeftModel.from_pretrained(fresh, ours).eval(), ids()), expected)
    again = causal_lm(tmp_path / "base", lora=lora(family, rslora=rslora, weights=ours))
    assert_same(tensors_in(save("peft", again, tmp_path / "again")), tensors_in(ours))

    # Merged: a plain folder, whether the adapters were merged in memory or while writing.
    for number, options in enumerate([["--merge"], []]):
        merged = save("lm", model, tmp_path / f"merged{number}", *options)
        assert not any("lora" in name for name in tensors_in(merged))
        close(logits_of(tf.AutoModelForCausalLM.from_pretrained(merged).eval(), ids()), expected)
        close(forward(causal_lm(merged), {"lang_x": ids()})["logits"], expected)


def test_new_adapters_change_nothing(tmp_path, forward):
    """B begins with zeros, A as torch's own linear layers do."""
    language_model("llama").save_pretrained(tmp_path / "base")
    model = causal_lm(tmp_path / "base", lora=lora("llama", rank=64))
    plain = forward(causal_lm(tmp_path / "base"), {"lang_x": ids()})["logits"]
    assert torch.equal(forward(model, {"lang_x": ids()})["logits"], plain)
    for name, tensor in tensors_in(save("peft", model, tmp_path / "new")).items():
        if "lora_B" in name:
            assert not tensor.any()
        else:
            bound = tensor.shape[1] ** -0.5
            assert tensor.abs().max() <= bound and tensor.abs().max() > 0.99 * bound
            assert abs(tensor.std().item() / (bound / 3**0.5) - 1) < 0.05


REFUSED = {
    "rank_pattern": ({"rank_pattern": {"q_proj": 4}}, "rank_pattern"),
    "alpha_pattern": ({"alpha_pattern": {"q_proj": 4}}, "alpha_pattern"),
    "dora": ({"use_dora": True}, "use_dora"),
    "bias": ({"bias": "all"}, "bias"),
    "modules_to_save": ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
    "pissa": ({"init_lora_weights": "pissa"}, "init_lora_weights"),
    "other_rank": ({"r": 4}, "'r' is 4, but model.lora has 3"),
    "other_alpha": ({"lora_alpha": 6}, "'lora_alpha' is 6, but model.lora has 5"),
    "other_scale": ({"use_rslora": True}, "use_rslora"),
    "other_kind": ({"peft_type": "IA3"}, "peft_type"),
    "wrong_type": ({"r": "three"}, "'r' is \"three\", expected a number"),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("opt")
    adapted("opt", folder).save_pretrained(folder / "adapter")
    return folder


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case, saved, tmp_path, run_forward):
    changes, message = REFUSED[case]
    folder = tmp_path / "adapter"
    folder.mkdir()
    config = json.loads((saved / "adapter" / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, **changes}))
    (folder / "adapter_model.safetensors").symlink_to(saved / "adapter" / "adapter_model.safetensors")
    model = tmp_path / "model.yaml"
    model.write_text(json.dumps(causal_lm(saved / "base", lora=lora("opt", weights=str(folder)))))
    done = run_forward(model, "none", "none")
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_adapters_that_do_not_fit(saved, tmp_path, run_forward):
    """Targets that are not in the folder are missing, tensors without a target are superfluous."""
    model = tmp_path / "model.yaml"
    keys = {**lora("opt", weights=str(saved / "adapter")), "targets": ["q_proj", "fc2"]}
    model.write_text(json.dumps(causal_lm(saved / "base", lora=keys)))
    done = run_forward(model, "none", "none")
    assert done.returncode == 1
    missing = "'model.decoder.layers.1.fc2.lora_A.weight' [3, 64] is missing"
    for part in [missing, "fc1.* (4 tensors)", "belongs to nothing"]:
        assert part in done.stderr, done.stderr


def test_a_target_that_matches_nothing(saved, tmp_path, run_forward):
    model = tmp_path / "model.yaml"
    model.write_text(json.dumps(causal_lm(saved / "base", lora={"targets": ["q_porj"], "rank": 3})))
    done = run_forward(model, "none", "none")
    assert done.returncode == 2 and "'q_porj' matches no linear layer" in done.stderr and "q_proj" in done.stderr
