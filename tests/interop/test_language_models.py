"""transformers loads the exported folder of every family after real training and says what floe says; peft loads the
adapters, and what it merges is what floe merges."""

import json
from pathlib import Path

import pytest
import torch
import transformers as tf
from generate_runs import new_ids
from peft import PeftModel
from safetensors.torch import load_file, save_file
from small_runs import floe
from test_decoders import FAMILIES, build
from test_mosaic_gpt import CONFIG as MOSAIC
from test_mosaic_gpt import random_weights

ENDS = [2]
NEW = 10


@torch.no_grad()
def said_by_transformers(model, prompts, beams):
    """Prompt by prompt, as padding has a say in alibi and in windows."""
    said = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        # Without a cache, which a model of remote code need not have.
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=beams, max_new_tokens=NEW,
                             eos_token_id=ENDS, pad_token_id=1, use_cache=False)  # fmt: skip
        said += new_ids(out, len(prompt), ENDS)
    return said


@torch.no_grad()
def logits_of(model, ids):
    return model(ids).logits


def some_ids(vocab):
    return torch.randint(3, vocab, (2, 17), generator=torch.Generator().manual_seed(9))


def floe_logits(model, vocab, folder):
    save_file({"lang_x": some_ids(vocab)}, folder / "inputs.safetensors")
    floe("forward", model, folder / "inputs.safetensors", folder / "outputs.safetensors")
    return load_file(folder / "outputs.safetensors")["logits"]


def assert_same_model(worst, theirs, run, before, vocab, folder):
    """Logits within 1e-4 and the same ids, greedy and by beams, of a model that has really been trained."""
    expected = logits_of(theirs, some_ids(vocab))
    assert (expected - before).abs().max() > 0.1, "training must matter"
    worst.note("transformers, logits of an exported folder", (floe_logits(run.run, vocab, folder) - expected).abs().max(), 1e-4)
    prompts = [[5, 9, 31], [7], list(range(3, 20))]
    for beams in (1, 3):
        words = ("--max-new-tokens", NEW, "--eos-id", ",".join(map(str, ENDS)), "--num-beams", beams)
        assert run.generate(prompts, *words) == said_by_transformers(theirs, prompts, beams)


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_loads_what_was_trained(family, trained, worst, tmp_path):
    base = build(family, FAMILIES[family][2][0], 11, tmp_path / "lm")
    vocab = base.config.vocab_size
    run = trained({"lm": str(tmp_path / "lm")}, vocab)
    model, report = tf.AutoModelForCausalLM.from_pretrained(run.export("out"), output_loading_info=True)
    assert {key: list(found) for key, found in report.items() if found} == {}
    assert type(model) is type(base)
    assert_same_model(worst, model.eval(), run, logits_of(base, some_ids(vocab)), vocab, tmp_path)


REMOTE_CODE = '''
import sys
import torch
import transformers
from transformers.modeling_outputs import CausalLMOutput
sys.path.insert(0, {tests!r})
from test_mosaic_gpt import random_weights, written_out


class Config(transformers.PretrainedConfig):
    model_type = "mosaic_gpt"
    def __init__(self, n_layers=2, **more):
        self.n_layers = self.num_hidden_layers = n_layers
        super().__init__(**more)


class Model(transformers.PreTrainedModel, transformers.GenerationMixin):
    config_class = Config
    def __init__(self, config):
        super().__init__(config)
        for name, value in random_weights(config.to_dict(), 0).items():
            here = self
            *parents, leaf = name.split(".")
            for parent in parents:
                if parent not in here._modules:
                    here.add_module(parent, torch.nn.Module())
                here = here._modules[parent]
            here.register_parameter(leaf, torch.nn.Parameter(value.detach()))
        self.post_init()
    def _init_weights(self, module):
        pass
    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **more):
        return dict(input_ids=input_ids)
    def forward(self, input_ids, attention_mask=None, **more):
        return CausalLMOutput(logits=written_out(self.config.to_dict(), dict(self.named_parameters()), input_ids))
'''


def test_code_of_a_model_goes_along(trained, worst, tmp_path):
    """MPT-1B is in no release of transformers: its folder brings code, which the exported one must bring as well."""
    lm = tmp_path / "lm"
    lm.mkdir()
    auto = {"AutoConfig": "modeling_mosaic.Config", "AutoModelForCausalLM": "modeling_mosaic.Model"}
    (lm / "config.json").write_text(json.dumps(MOSAIC | {"auto_map": auto, "architectures": ["Model"]}))
    (lm / "modeling_mosaic.py").write_text(REMOTE_CODE.format(tests=str(Path(__file__).parents[1] / "models")))
    weights = {name: value.detach() for name, value in random_weights(MOSAIC, 3).items()}
    save_file(weights, lm / "model.safetensors", metadata={"format": "pt"})
    vocab = MOSAIC["vocab_size"]
    run = trained({"lm": str(lm)}, vocab)
    base = tf.AutoModelForCausalLM.from_pretrained(lm, trust_remote_code=True)
    model, report = tf.AutoModelForCausalLM.from_pretrained(run.export("out"), trust_remote_code=True, output_loading_info=True)
    assert {key: list(found) for key, found in report.items() if found} == {}
    assert_same_model(worst, model.eval(), run, logits_of(base, some_ids(vocab)), vocab, tmp_path)


TARGETS = {
    "opt": ["q_proj", "v_proj", "fc1"],
    "gpt_neox": ["query_key_value", "dense_4h_to_h"],
    "mpt": ["Wqkv", "down_proj"],
    "llama": ["q_proj", "o_proj", "gate_proj"],
    "mistral": ["k_proj", "v_proj", "down_proj"],
    "qwen2": ["q_proj", "up_proj"],
}


@pytest.mark.parametrize("family", FAMILIES)
def test_peft_merges_what_was_trained(family, trained, worst, tmp_path):
    base = build(family, FAMILIES[family][2][0], 12, tmp_path / "lm")
    vocab = base.config.vocab_size
    lora = {"targets": TARGETS[family], "rank": 3, "alpha": 6}
    run = trained({"lm": str(tmp_path / "lm"), "lora": lora}, vocab, lr=5e-2)
    before = logits_of(base, some_ids(vocab))
    apart = PeftModel.from_pretrained(base, run.export("apart", "--no-merge-lora")).eval()
    layers = {name.rsplit(".lora_A", 1)[0] for name, _ in apart.named_parameters() if ".lora_A" in name}
    assert len(layers) == len(TARGETS[family]) * base.config.num_hidden_layers
    difference = logits_of(apart, some_ids(vocab)) - floe_logits(run.run, vocab, tmp_path)
    worst.note("peft, logits of adapters apart", difference.abs().max(), 1e-4)
    theirs = apart.merge_and_unload()
    ours = tf.AutoModelForCausalLM.from_pretrained(run.export("merged")).eval()
    assert (logits_of(ours, some_ids(vocab)) - before).abs().max() > 0.1, "training must matter"
    difference = logits_of(theirs, some_ids(vocab)) - logits_of(ours, some_ids(vocab))
    worst.note("peft, logits of merge_and_unload beside those of a merged export", difference.abs().max(), 1e-4)
