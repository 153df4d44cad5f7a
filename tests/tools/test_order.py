"""What takes longest begins first, so that no core is idle at the end."""

from pathlib import Path
from types import SimpleNamespace

import pytest

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture
def conftest(pytestconfig):
    """tests/conftest.py, as pytest has loaded it."""
    (found,) = (plugin for plugin in pytestconfig.pluginmanager.get_plugins() if hasattr(plugin, "longest_first"))
    return found


def item(file, name):
    return SimpleNamespace(path=TESTS / file, name=name)


def test_longest_first_then_most_tests(conftest):
    first, last = conftest.LONGEST[0], conftest.LONGEST[-1]
    items = [item("few.py", "a"), item(last, "b"), item("many.py", "c"), item("few.py", "d"), item("many.py", "e"),
             item("many.py", "f"), item(first, "g"), item(last, "h")]  # fmt: skip
    assert "".join(i.name for i in conftest.longest_first(items)) == "gbhcefad"  # the tests of a file keep their order


def test_the_list_names_files(conftest):
    assert len(set(conftest.LONGEST)) == len(conftest.LONGEST)
    for file in conftest.LONGEST:
        assert (TESTS / file).is_file(), file
