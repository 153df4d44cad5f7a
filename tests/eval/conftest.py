"""Models of tests/models, which `floe eval` is run on."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))


@pytest.fixture(scope="session")
def goldens():
    return Path(__file__).parents[1] / "goldens" / "models"
