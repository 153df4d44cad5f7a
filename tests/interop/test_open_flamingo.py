"""open_flamingo 2.0.1 itself loads what `floe train` wrote: every trained number is there, and the logits are floe's."""

import pytest
import torch
from open_flamingo_models import LANGUAGE_MODELS, SIDE, STEPS, Flamingo
from safetensors.torch import load_file, save_file
from small_runs import floe

BOUND = 2e-5  # they are apart by 2e-6, and a picture moves them by 3e-3 and more


def inputs(tokenizer):
    generator = torch.Generator().manual_seed(4)
    image = tokenizer.convert_tokens_to_ids("<image>")
    ids = torch.randint(5, 60, (2, 19), generator=generator)
    ids[:, 1] = ids[0, 9] = image
    pictures = torch.randn((2, 2, 1, 3, SIDE, SIDE), generator=generator)
    return dict(vision_x=pictures, lang_x=ids, attention_mask=torch.ones_like(ids))


def as_evaluated(path):
    """As OpenFlamingo's evaluation reads a file."""
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    checkpoint = checkpoint.get("model_state_dict", checkpoint)
    return {name.replace("module.", ""): value for name, value in checkpoint.items()}


def load_as_openflamingo_does(model, checkpoint):
    """strict=False, which hides wrong names; here none may be wrong, and no trained parameter without a value."""
    report = model.load_state_dict(checkpoint, strict=False)
    assert report.unexpected_keys == []
    loaded = {value.data_ptr() for name, value in model.state_dict(keep_vars=True).items() if name in checkpoint}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            assert parameter.data_ptr() in loaded, name  # under one of its names
            assert torch.isfinite(parameter).all(), name
    missing = dict(model.named_parameters(remove_duplicate=False))
    frozen = [name for name in report.missing_keys if name in missing and missing[name].data_ptr() not in loaded]
    assert frozen and all(not missing[name].requires_grad for name in frozen)


@torch.no_grad()
@pytest.mark.parametrize("family, after_norm, layout", [
    *((family, True, "trainable") for family in LANGUAGE_MODELS), ("gpt_neox", False, "sharded"),
])  # fmt: skip
def test_what_was_trained(family, after_norm, layout, worst, tmp_path):
    flamingo = Flamingo(tmp_path, family, every=1 if family == "opt" else 2, layout=layout, after_norm=after_norm)
    floe("export", flamingo.run, tmp_path / "part.pt", "--trainable-only")
    files = [tmp_path / "part.pt"]
    if layout == "trainable":
        assert flamingo.newest.name == f"checkpoint_{STEPS}.pt"
        files.append(flamingo.newest)
    asked = inputs(flamingo.openflamingo()[2])
    save_file(asked, tmp_path / "inputs.safetensors")
    floe("forward", flamingo.run, tmp_path / "inputs.safetensors", tmp_path / "outputs.safetensors")
    expected = load_file(tmp_path / "outputs.safetensors")["logits"]
    for path in files:
        model, _, _ = flamingo.openflamingo()
        load_as_openflamingo_does(model, as_evaluated(path))
        logits = model(**asked).logits
        assert logits.std() > 0.3
        worst.note("open_flamingo, logits", (logits - expected).abs().max(), BOUND)
    dark = model(**dict(asked, vision_x=torch.zeros_like(asked["vision_x"]))).logits
    assert (dark - logits).abs().max() > 50 * BOUND
