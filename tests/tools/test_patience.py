"""Limits of tests are longer by one factor; what hangs is ended all the same."""

import subprocess
import sys
import time

import patience
import pytest


def test_limits_of_processes_are_longer(monkeypatch):
    monkeypatch.setattr(patience, "FACTOR", 100)
    assert subprocess.run(["sleep", "0.5"], timeout=0.2).returncode == 0
    with subprocess.Popen(["sleep", "0.5"]) as process:
        assert process.wait(timeout=0.2) == 0
    with subprocess.Popen(["sleep", "0.5"]) as process:
        process.communicate(timeout=0.2)
        assert process.returncode == 0


def test_they_are_limits_all_the_same(monkeypatch):
    monkeypatch.setattr(patience, "FACTOR", 2)
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(["sleep", "1000"], timeout=0.1)
    with pytest.raises(AssertionError, match="not within"):
        patience.wait_until(lambda: False, 0.1)
    assert patience.wait_until(lambda: "found", 0.1) == "found"


def test_a_test_that_hangs_ends(tmp_path):
    (tmp_path / "conftest.py").write_text(f"import sys; sys.path.insert(0, {str(patience.__file__)[:-12]!r})\n")
    (tmp_path / "test_it.py").write_text("import time\nimport pytest\n\n@pytest.mark.timeout(1)\ndef test_it():\n    time.sleep(1000)\n")
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", tmp_path, "-p", "no:cacheprovider"], capture_output=True, text=True,
                          timeout=100)
    assert done.returncode == 1 and "Timeout" in done.stdout, done.stdout
    assert time.monotonic() - begin < 100


@pytest.mark.timeout(7)
def test_the_limit_of_a_test_is_longer_as_well(request):
    assert request.node.get_closest_marker("timeout").args[0] == 7 * patience.FACTOR


def test_a_limit_without_its_name():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.communicate(b"some", 20) == (b"some", None)
        assert process.wait(20) == 0
    with subprocess.Popen(["sleep", "100"]) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.kill()
