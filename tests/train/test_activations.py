"""What checkpointed modules keep changes no number of a run: neither recomputing all of them, nor keeping their
products, nor letting what they keep wait in host memory."""

import re

import pytest

KEYS = ("loss_laion", "loss_mmc4", "grad_norm")
ALL = "strategy.activation_checkpointing=[DecoderLayer,GatedCrossAttention,PerceiverResampler]"
WAYS = {
    "inputs": (ALL,),
    "products": (ALL, "strategy.activations.keep=products"),
    "inputs_away": (ALL, "strategy.activations.offload=true"),
    "products_away": (ALL, "strategy.activations={keep: products, offload: true}"),
    "half": (ALL, "strategy.activations.share=0.5"),
    "half_of_products_away": (ALL, "strategy.activations={keep: products, offload: true, share: 0.5}"),
}


def losses(run):
    return [[step[key] for key in KEYS] for step in run.steps()]


@pytest.mark.parametrize("name, ranks", [("neox_x2", 2), ("opt_x1", 1)])
def test_losses_are_those_of_a_run_that_keeps_everything(train, golden, name, ranks):
    everything = losses(train(golden(name, world2=ranks == 2), name="everything", ranks=ranks))
    assert len(everything) == 5
    for way, words in WAYS.items():
        assert losses(train(golden(name, world2=ranks == 2), *words, name=way, ranks=ranks)) == everything, way


def test_the_strategy_is_said(train, golden):
    config = golden("neox_x2")
    del config["log"]["diagnostics"]
    run = train(config, *WAYS["products_away"])
    assert "keep their inputs and the results of matrix products and attention" in run.stderr
    assert "what they keep waits for backward in host memory" in run.stderr
    some = train(config, *WAYS["half"], "train.steps=1", name="some")
    assert "of the modules that each entry names the first 50%, rounded up, are checkpointed, and the others keep everything" in some.stderr
    (said,) = re.findall("activation_checkpointing checkpoints: (.*)", some.stderr)
    assert said == "'DecoderLayer' 2 modules, 'GatedCrossAttention' 1 module, 'PerceiverResampler' 1 module", "of 4, 2 and 1"
    for share in ("0", "1.5", "-1", "nan"):
        wrong = train(golden("neox_x2"), ALL, f"strategy.activations.share={share}", expect=2, name="share")
        assert "strategy.activations.share" in wrong.stderr, share
    wrong = train(golden("neox_x2"), "strategy.activations.keep=products", expect=2, name="wrong")
    assert "strategy.activations has no effect here; name what is checkpointed" in wrong.stderr
