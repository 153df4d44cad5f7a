"""tools/house.py counts what it says it counts."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(os.environ.get("FLOE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "tools"))
import house  # noqa: E402

SOURCE = """\
#include "floe/core/error.h"
namespace floe {
namespace {
// A comment with a { in it.
constexpr int kTable[] = {1, 2, 3};
struct Point {
  int x = 0;
  int sum() const { return x + 1; }
};
}  // namespace

template <typename T>
__global__ void __launch_bounds__(128) kernel(T* out) {
  for (int i = 0; i < 3; ++i) {
    out[i] = "}"[0];
  }
}

Engine::Engine(Options options) : options_(std::move(options)), units_{1, 2} {
  start();
}
}  // namespace floe
"""


def test_functions_are_found_with_their_lines():
    found = {name: (lines, first) for lines, name, first in house.functions(SOURCE)}
    assert found["sum"] == (1, 8)
    assert found["kernel"] == (5, 13)
    assert "kTable" not in found


def test_the_table_has_a_column_for_each_tree():
    done = subprocess.run([sys.executable, ROOT / "tools/house.py", ROOT, ROOT], capture_output=True, text=True, check=True)
    head, _, files, small, *_ = done.stdout.splitlines()
    assert head == "|  | before | after |"
    assert files.startswith("| source files | ")
    assert small.startswith("| of them under 60 lines | ")
    assert "| edges that are not declared | 0 | 0 |" in done.stdout
