"""Plants violations of the module map in a copy of the sources and expects each to be found."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("FLOE_SOURCE_DIR", Path(__file__).resolve().parents[2]))


def run_checker(root):
    done = subprocess.run([sys.executable, ROOT / "tools/check_modules.py", root], capture_output=True, text=True)
    return done.returncode, done.stdout


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(ROOT / "src", tmp_path / "src")
    return tmp_path


def plant(root, path, line):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text((file.read_text() if file.exists() else "") + line + "\n")


def test_the_tree_itself_is_clean():
    code, output = run_checker(ROOT)
    assert code == 0, output


@pytest.mark.parametrize(
    ("path", "line", "complaint"),
    [
        ("src/floe/core/planted.cc", '#include "floe/io/file.h"', "core may use only nothing else"),
        ("src/floe/io/planted.h", '#include "floe/config/value.h"', "io may use only core"),
        ("src/floe/nn/planted.cc", '#include "floe/shard/unit.h"', "nn may use only"),
        ("src/floe/core/planted.cc", "#include <ATen/core/Tensor.h>", "core is without torch"),
        ("src/floe/config/planted.cc", "  #  include <c10/util/Half.h>", "config is without torch"),
        ("src/floe/comm/launch_planted.cc", "#include <ATen/core/Tensor.h>", "launch is without torch"),
        ("src/floe/comm/launch_planted.h", '#include "floe/comm/group.h"', "launch may use only core"),
        ("src/floe/shard/planted.cc", "#include <torch/csrc/distributed/c10d/Work.hpp>", "only comm may"),
        ("src/floe/nn/planted.cc", "#include <torch/torch.h>", "narrowest torch header"),
        ("examples/planted.cc", "#include <torch/torch.h>", "narrowest torch header"),
        ("src/floe/core/planted.cc", '#include "error.h"', 'write it as "floe/MODULE/..."'),
        ("src/floe/junk/planted.cc", "", "there is no floe_module(junk"),
        ("src/floe/CMakeLists.txt", "floe_module(early USES late)", "early uses late, which does not stand above it"),
        ("src/floe/CMakeLists.txt", "floe_module(plain USES comm)", "is not TORCH itself"),
    ],
)
def test_a_planted_violation_is_found(copy, path, line, complaint):
    plant(copy, path, line)
    code, output = run_checker(copy)
    assert code == 1
    assert complaint in output
    assert len(output.splitlines()) == 1, output


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("src/floe/shard/planted.cc", '#include "floe/batch/packed_batch.h"'),  # through nn
        ("src/floe/comm/planted.cc", '#include "floe/comm/launch.h"'),
        ("src/floe/comm/planted.cc", "#include <torch/csrc/distributed/c10d/Work.hpp>"),
        ("tests/comm/planted_test.cc", "#include <torch/csrc/distributed/c10d/Work.hpp>"),
        ("src/floe/core/planted.cc", "// #include <torch/torch.h>"),
    ],
)
def test_what_the_map_allows_passes(copy, path, line):
    plant(copy, path, line)
    code, output = run_checker(copy)
    assert code == 0, output
