"""`forward(model, inputs, *options)` runs `floe forward` and gives its outputs as tensors.

Needs FLOE_BIN_DIR, the folder of built programs.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

FLOE = Path(os.environ["FLOE_BIN_DIR"]) / "floe"
GOLDENS = Path(__file__).parents[1] / "goldens" / "models"

# Helpers of several tests (flamingo_reference.py) are imported as plain modules.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def goldens():
    return GOLDENS


@pytest.fixture
def run_forward():
    """The process itself, for errors."""

    def run(model, inputs, outputs, *options):
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        return subprocess.run(
            [FLOE, "forward", str(model), str(inputs), str(outputs), *options],
            capture_output=True,
            text=True,
            timeout=120,
            env=environment,
        )

    return run


@pytest.fixture
def forward(tmp_path, run_forward):
    """`model`: a YAML file, or the keys of one; `inputs`: a file, or tensors by name."""
    count = 0

    def run(model, inputs, *options):
        nonlocal count
        count += 1
        if isinstance(model, dict):
            keys, model = model, tmp_path / f"model{count}.yaml"
            model.write_text(json.dumps(keys, default=str))  # JSON is YAML
        if isinstance(inputs, dict):
            tensors, inputs = inputs, tmp_path / f"inputs{count}.safetensors"
            save_file({name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}, inputs)
        outputs = tmp_path / f"outputs{count}.safetensors"
        done = run_forward(model, inputs, outputs, *options)
        assert done.returncode == 0, done.stderr
        return load_file(outputs)

    return run


class Worst:
    """The worst errors of a test run, shown with `pytest -rP`."""

    def __init__(self):
        self.errors = {}

    def note(self, what, error, bound):
        assert error == error, f"{what} is not a number"
        self.errors[what] = max(self.errors.get(what, 0.0), float(error))
        assert error <= bound, f"{what}: {error:.3g} is more than {bound:.3g}"


@pytest.fixture(scope="module")
def worst(request):
    worst = Worst()
    yield worst
    for what, error in sorted(worst.errors.items()):
        print(f"{request.module.__name__}: {what}: {error:.2e}")


def check_gradients(worst, what, ours, theirs):
    """Each gradient within 1e-4 of the reference, in norm and element by element.

    A gradient that is zero in exact arithmetic (of a key's bias) is rounding noise on both sides: noise
    below a millionth of the largest gradient counts as zero.
    """
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    largest = max(gradient.abs().max().item() for gradient in theirs.values())
    for name, expected in theirs.items():
        assert ours[name].shape == expected.shape, name
        difference = (ours[name] - expected).double()
        noise = 1e-6 * largest
        norm = max(expected.double().norm().item(), noise * expected.numel() ** 0.5 / 1e-4)
        peak = max(expected.abs().max().item(), noise / 1e-4)
        worst.note(f"{what}, norm of the difference", difference.norm().item() / norm, 1e-4)
        worst.note(f"{what}, largest element of the difference", difference.abs().max().item() / peak, 1e-4)


@pytest.fixture(scope="session")
def same_gradients():
    return check_gradients


def gradients_of(outputs):
    return {name[5:]: value for name, value in outputs.items() if name.startswith("grad.")}


@pytest.fixture(scope="session")
def gradients():
    return gradients_of
