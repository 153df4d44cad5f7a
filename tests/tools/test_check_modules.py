"""Plants violations of the module map in a small tree and expects each to be found."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("FLOE_SOURCE_DIR", Path(__file__).resolve().parents[2]))

MAP = """\
# The map of a small tree.
floe_module(core ENGINE)
floe_module(io ENGINE USES core LIBS z)
floe_module(launch USES core)
floe_module(watch/metrics USES core)
floe_module(watch/sinks USES core watch/metrics)

floe_module(comm TORCH USES core launch)
floe_module(nn TORCH ENGINE USES core io)
floe_module(shard TORCH USES core comm nn)
"""

FILES = {
    "core/error.h": '#include "floe/version.h"',
    "version.h.in": "",
    "io/file/file.h": '#include "floe/core/error.h"',
    "io/tar/tar.cc": '#include "floe/io/file/file.h"',
    "launch/launch.h": '#include "floe/core/error.h"',
    "watch/metrics/record.h": '#include "floe/core/error.h"',
    "watch/sinks/sink.cc": '#include "floe/core/error.h"\n#include "floe/watch/metrics/record.h"',
    "comm/group.h": "#include <torch/csrc/distributed/c10d/Work.hpp>",
    "comm/world.cc": '#include "floe/core/error.h"\n#include "floe/launch/launch.h"',
    "nn/module.h": '#include <ATen/core/Tensor.h>\n#include "floe/core/error.h"\n#include "floe/io/file/file.h"',
    "shard/engine.cc": '#include "floe/core/error.h"\n#include "floe/comm/group.h"\n#include "floe/nn/module.h"',
    "main.cc": '#include "floe/shard/engine.h"',
    "shard/engine.h": "",
}


def run_checker(root):
    done = subprocess.run([sys.executable, ROOT / "tools/check_modules.py", root], capture_output=True, text=True)
    return done.returncode, done.stdout


def plant(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text((file.read_text() if file.exists() else "") + text + "\n")


@pytest.fixture
def tree(tmp_path):
    plant(tmp_path, "src/floe/CMakeLists.txt", MAP)
    for path, text in FILES.items():
        plant(tmp_path, f"src/floe/{path}", text)
    return tmp_path


def test_the_tree_itself_is_clean():
    code, output = run_checker(ROOT)
    assert code == 0, output


def test_the_small_tree_is_clean(tree):
    code, output = run_checker(tree)
    assert code == 0, output


@pytest.mark.parametrize(
    ("path", "line", "complaint"),
    [
        ("src/floe/core/planted.cc", '#include "floe/io/file/file.h"', "core uses only nothing else"),
        ("src/floe/io/planted.h", '#include "floe/launch/launch.h"', "io uses only core"),
        ("src/floe/nn/planted.cc", '#include "floe/shard/engine.h"', "nn uses only core, io"),
        # Through nn it would be reachable, but it is not what shard says that it uses.
        ("src/floe/shard/planted.cc", '#include "floe/io/file/file.h"', "shard uses only core, comm, nn"),
        ("src/floe/watch/metrics/planted.h", '#include "floe/watch/sinks/sink.cc"', "watch/metrics uses only core"),
        ("src/floe/core/planted.cc", "#include <ATen/core/Tensor.h>", "core is without torch"),
        ("src/floe/io/tar/planted.cc", "  #  include <c10/util/Half.h>", "io is without torch"),
        ("src/floe/launch/planted.h", '#include "floe/comm/group.h"', "launch uses only core"),
        ("src/floe/shard/planted.cc", "#include <torch/csrc/distributed/c10d/Work.hpp>", "only comm may"),
        ("src/floe/nn/planted.cc", "#include <torch/torch.h>", "narrowest torch header"),
        ("examples/planted.cc", "#include <torch/torch.h>", "narrowest torch header"),
        ("src/floe/core/planted.cc", '#include "error.h"', 'write it as "floe/MODULE/..."'),
        ("src/floe/io/planted.cc", '#include "floe/core/gone.h"', "which does not exist"),
        ("tests/io/planted_test.cc", '#include "floe/io/gone.h"', "which does not exist"),
        ("src/floe/junk/planted.cc", "", "src/floe/junk: is neither a module nor part of one"),
        ("src/floe/watch/planted.cc", "", "src/floe/watch: is neither a module nor part of one"),
    ],
)
def test_a_planted_violation_is_found(tree, path, line, complaint):
    plant(tree, path, line)
    code, output = run_checker(tree)
    assert code == 1
    assert complaint in output
    assert len(output.splitlines()) == 1, output


@pytest.mark.parametrize(
    ("line", "include", "complaint"),
    [
        ("floe_module(new USES late)", "", "new uses late, which does not stand above it"),
        ("floe_module(new USES comm)", '#include "floe/comm/group.h"', "is not TORCH itself"),
        ("floe_module(new ENGINE USES launch)", '#include "floe/launch/launch.h"', "new is of the ENGINE, but uses launch"),
        ("floe_module(new)\nfloe_module(empty)", "", "empty is no folder with sources in it"),
        ("floe_module(new)\nfloe_module(new)", "", "new stands there twice"),
    ],
)
def test_a_map_that_cannot_be_is_found(tree, line, include, complaint):
    plant(tree, "src/floe/CMakeLists.txt", line)
    plant(tree, "src/floe/new/planted.cc", include)
    code, output = run_checker(tree)
    assert code == 1
    assert complaint in output
    assert len(output.splitlines()) == 1, output


@pytest.mark.parametrize(
    ("module", "unused"),
    [("launch USES core", "io"), ("watch/sinks USES core watch/metrics", "launch"), ("shard TORCH USES core comm nn", "io")],
)
def test_a_use_that_no_include_needs_is_found(tree, module, unused):
    file = tree / "src/floe/CMakeLists.txt"
    file.write_text(file.read_text().replace(module, f"{module} {unused}"))
    code, output = run_checker(tree)
    assert code == 1
    assert output == f"src/floe/CMakeLists.txt: {module.split()[0]} says that it uses {unused}, but includes nothing of it\n"


def test_a_use_whose_last_include_goes_is_found(tree):
    (tree / "src/floe/comm/world.cc").write_text('#include "floe/core/error.h"\n')
    code, output = run_checker(tree)
    assert code == 1
    assert "comm says that it uses launch, but includes nothing of it" in output


def test_a_folder_with_more_than_25_files_is_found(tree):
    for number in range(24):
        plant(tree, f"src/floe/core/part_{number}.{'h' if number % 2 else 'cc'}", "")
    code, output = run_checker(tree)
    assert code == 0, output
    plant(tree, "src/floe/core/table.inc", "")
    code, output = run_checker(tree)
    assert code == 1
    assert output == "src/floe/core: has 26 source files; more than 25 want folders that name their parts\n"


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("src/floe/comm/planted.cc", '#include "floe/launch/launch.h"'),
        ("src/floe/comm/planted.cc", "#include <torch/csrc/distributed/c10d/Work.hpp>"),
        ("tests/comm/planted_test.cc", "#include <torch/csrc/distributed/c10d/Work.hpp>"),
        ("tests/shard/planted_test.cc", '#include "floe/io/file/file.h"'),
        ("src/floe/core/planted.cc", "// #include <torch/torch.h>"),
        ("src/floe/watch/sinks/deep/planted.cc", '#include "floe/watch/metrics/record.h"'),
        ("src/floe/io/README.md", "Not a source."),
    ],
)
def test_what_the_map_allows_passes(tree, path, line):
    plant(tree, path, line)
    code, output = run_checker(tree)
    assert code == 0, output
