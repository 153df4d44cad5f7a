"""tools/compile_times.py adds up ninja's log and fails when an object takes too long."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(os.environ.get("FLOE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
LOG = """\
# ninja log v5
0\t9000\t1\tsrc/floe/CMakeFiles/floe_core.dir/a.cc.o\tx
0\t2500\t1\tsrc/floe/CMakeFiles/floe_core.dir/a.cc.o\tx
100\t4100\t1\tsrc/floe/CMakeFiles/floe_core.dir/b.cc.o\tx
0\t50000\t1\tsrc/floe/CMakeFiles/floe_core.dir/gone.cc.o\tx
0\t7000\t1\ttests/core/CMakeFiles/core_test.dir/core_test.cc.o\tx
0\t90000\t1\tbin/core_test\tx
"""


def compile_times(build, *words):
    done = subprocess.run([sys.executable, ROOT / "tools/compile_times.py", build, *words], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_sums_and_limits(tmp_path):
    (tmp_path / ".ninja_log").write_text(LOG)
    for line in LOG.splitlines()[1:]:
        output = tmp_path / line.split("\t")[3]
        if output.name != "gone.cc.o":
            output.parent.mkdir(parents=True, exist_ok=True)
            output.touch()
    code, said = compile_times(tmp_path)
    # The last build of an object counts; what is gone, and what a linker made, does not.
    assert code == 0 and said.startswith("3 objects, 14 s, of them floe itself 6 s\n"), said
    assert ["floe_core", "2", "6"] in [line.split() for line in said.splitlines()]
    assert compile_times(tmp_path, "--most", "7")[0] == 0
    code, said = compile_times(tmp_path, "--most", "6")
    assert code == 1 and "core_test.cc.o took 7 s to compile, more than 6 s" in said


def test_without_a_build(tmp_path):
    code, said = compile_times(tmp_path)
    assert code == 1 and said.count("\n") == 1 and "build first" in said
