"""What `floe train` itself wrote, judged by the Python packages that people load it with."""

import sys
from pathlib import Path

import pytest
import torch

for folder in ("interop", "train", "models"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))
from small_runs import Trained  # noqa: E402

torch.set_num_threads(1)  # tests run side by side


@pytest.fixture
def trained(tmp_path):
    """trained(model, ...): a run of `floe train` on two ranks with full_shard, as small as its language model."""
    return lambda *arguments, **more: Trained(tmp_path, *arguments, **more)


class Worst:
    """The worst differences of a test run, shown with `pytest -rP`."""

    def __init__(self):
        self.found = {}

    def note(self, what, difference, bound):
        difference = float(difference)
        self.found[what] = max(self.found.get(what, (0.0, bound)), (difference, bound))
        assert difference <= bound, f"{what}: {difference:.3g} is more than {bound:.3g}"


@pytest.fixture(scope="session")
def worst():
    worst = Worst()
    yield worst
    for what, (difference, bound) in sorted(worst.found.items()):
        print(f"{what}: {difference:.1e}, at most {bound:.0e}")
