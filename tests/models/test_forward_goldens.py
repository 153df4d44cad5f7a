"""`floe forward` gives the numbers that OpenFlamingo's own classes gave for the golden models."""

import json
from types import SimpleNamespace

import pytest
import torch
import transformers as tf
from flamingo_reference import FlamingoReference
from safetensors.torch import load_file

FOLDERS = ["opt_x1", "neox_x2"]
STAGES = ("vision_", "perceiver_", "layer")


@pytest.mark.parametrize("folder", FOLDERS)
def test_logits_loss_and_stages(folder, goldens, forward, worst):
    golden = load_file(goldens / folder / "forward.safetensors")
    ours = forward(goldens / folder / "model.yaml", goldens / folder / "forward.safetensors", "--stages")
    scale = max(1, golden["logits"].abs().max().item())
    # What is computed at padded places means nothing.
    real = golden["attention_mask"] == 1
    worst.note(f"{folder} logits", (ours["logits"] - golden["logits"])[real].abs().max().item() / scale, 2e-5)
    worst.note(f"{folder} loss", (ours["loss"] - golden["loss"]).abs().item() / scale, 2e-5)
    stages = [name for name in golden if name.startswith(STAGES) and not name.startswith("vision_x")]
    assert len(stages) >= 9
    for name in stages:
        difference = (ours[name] - golden[name]).abs()
        if name.startswith("layer"):
            difference = difference[real]
        bound = 2e-5 * max(1, golden[name].abs().max().item())
        worst.note(f"{folder} stages over their bound of 2e-5", difference.max().item() / bound, 1)


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("options", [[], ["--packed"]], ids=["padded", "packed"])
def test_norms_and_sums_of_gradients(folder, options, goldens, forward, gradients, worst):
    expected = json.loads((goldens / folder / "forward_grads.json").read_text())
    config = json.loads((goldens / folder / "config.json").read_text())
    ours = forward(
        goldens / folder / "model.yaml", goldens / folder / "forward.safetensors", "--grads", *options
    )
    found = gradients(ours)
    assert found.keys() == set(config["trainable_parameter_names"])
    for name, (norm, total) in expected["grad_l2_and_sum"].items():
        if "embed" in name:
            continue  # theirs is of the whole table, ours of two rows: test_flamingo.py compares it
        gradient = found[name].double()
        worst.note(f"{folder} norms of gradients", abs(gradient.norm().item() - norm) / norm, 1e-4)
        # A sum may cancel; its error counts against the norm.
        size = gradient.numel() ** 0.5 * norm
        worst.note(f"{folder} sums of gradients", abs(gradient.sum().item() - total) / size, 1e-4)


def golden_reference(path):
    """The golden model on transformers' decoder and the plain torch reference."""
    config = json.loads((path / "config.json").read_text())
    lm = tf.AutoModelForCausalLM.from_pretrained(path / "lm", dtype=torch.float32).eval()

    class Tower(torch.nn.Module):
        """Stands in for the tower: its tokens are in the goldens."""

        def __init__(self):
            super().__init__()
            self.config = SimpleNamespace(hidden_size=config["vis_dim"])

        def forward(self, images):
            tokens = load_file(path / "forward.safetensors")["vision_tokens"]
            return SimpleNamespace(last_hidden_state=torch.cat([tokens[:, :1], tokens], 1))

    reference = FlamingoReference(
        lm,
        config["decoder_layers_attr"],
        Tower(),
        False,
        config["cross_attn_every_n_layers"],
        config["perceiver"],
        config["gated_cross_attn"],
        config["tokens"]["<image>"],
        True,
    )
    weights = load_file(path / "flamingo_init.safetensors")
    with torch.no_grad():
        for name, parameter in reference.trained_part().items():
            parameter.copy_(weights[name])
        lm.get_input_embeddings().weight.copy_(
            next(w for n, w in weights.items() if n.endswith(("embed_tokens.weight", "embed_in.weight")))
        )
    return reference, config["tokens"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_gradients_element_by_element(folder, goldens, forward, gradients, same_gradients, worst):
    """Against a reference that itself gives the golden logits."""
    path = goldens / folder
    golden = load_file(path / "forward.safetensors")
    reference, tokens = golden_reference(path)
    table = reference.lm.get_input_embeddings().weight.requires_grad_()
    logits, loss = reference(golden["vision_x_i8"] / 64, golden["lang_x"], golden["attention_mask"], golden["labels"])
    real = golden["attention_mask"] == 1
    assert (logits - golden["logits"])[real].abs().max() < 2e-5 * golden["logits"].abs().max()
    loss.backward()
    expected = {name: parameter.grad for name, parameter in reference.trained_part().items()}
    special = [tokens["<|endofchunk|>"], tokens["<image>"]]
    kept = torch.zeros_like(table)
    kept[special] = table.grad[special]
    name = next(n for n, p in reference.lm.named_parameters() if p is table)
    expected[f"lang_encoder.{name}"] = kept
    whole = json.loads((path / "forward_grads.json").read_text())["grad_l2_and_sum"][f"lang_encoder.{name}"]
    assert abs(table.grad.double().norm().item() - whole[0]) < 1e-4 * whole[0], "the reference itself is right"
    ours = forward(path / "model.yaml", path / "forward.safetensors", "--grads")
    same_gradients(worst, f"{folder} gradients", gradients(ours), expected)
