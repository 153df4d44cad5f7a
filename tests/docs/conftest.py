import sys
from pathlib import Path

import pytest

# Helpers of several tests (pages.py, scene.py) are imported as plain modules.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """A folder with everything that pages take for granted; copy it before you change anything."""
    from scene import build

    return build(tmp_path_factory.mktemp("scene"))
