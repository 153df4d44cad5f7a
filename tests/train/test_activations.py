"""What checkpointed modules keep changes no number of a run: neither recomputing all of them, nor keeping their
products, nor letting what they keep wait in host memory."""

import pytest

KEYS = ("loss_laion", "loss_mmc4", "grad_norm")
ALL = "strategy.activation_checkpointing=[DecoderLayer,GatedCrossAttention,PerceiverResampler]"
WAYS = {
    "inputs": (ALL,),
    "products": (ALL, "strategy.activations.keep=products"),
    "inputs_away": (ALL, "strategy.activations.offload=true"),
    "products_away": (ALL, "strategy.activations={keep: products, offload: true}"),
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
    wrong = train(golden("neox_x2"), "strategy.activations.keep=products", expect=2, name="wrong")
    assert "strategy.activations has no effect here; name what is checkpointed" in wrong.stderr
