"""fresh_machine.py with a debootstrap that makes a system of a dozen programs: what it shows, and that nothing of it
stays. The real one is for ./run test machines."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import patient

SCRIPT = Path(os.environ["FLOE_SOURCE_DIR"]) / "tests/machines/fresh_machine.py"
PROGRAMS = ("bash", "env", "dirname", "cat", "mkdir", "sed", "tail", "du", "cut", "sleep", "rm", "awk", "flock")


def can_make_namespaces():
    return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True).returncode == 0


needs_root = pytest.mark.skipif(not can_make_namespaces(), reason="only root can make a bare system, where namespaces are allowed")


@pytest.fixture
def machine(tmp_path):
    """Starts it; `script` is apt-get inside."""
    (tmp_path / "fake").mkdir()
    (tmp_path / "folder").mkdir()

    def start(*words, script="exit 1"):
        lines = ["#!/bin/bash", "set -e", 'root=$5', 'mkdir -p "$root"/{proc,sys,dev,root,etc/apt/apt.conf.d,usr/bin,tmp,var/lib/apt/lists}',
                 'ln -s usr/bin "$root/bin"', 'echo "$@" >&2']
        for program in PROGRAMS:
            lines.append(f'cp -L "{shutil.which(program)}" "$root/usr/bin/{program}"')
        lines += ['for file in $(ldd "$root"/usr/bin/* | grep -o "/[^ ]*\\.so[^ ]*" | sort -u); do',
                  '  mkdir -p "$root$(dirname "$file")"; cp -L "$file" "$root$file"', "done",
                  'mkdir -p "$root/lib64"; cp -L /lib64/* "$root/lib64/" 2>/dev/null || true',
                  f"cat >\"$root/usr/bin/apt-get\" <<'END'\n#!/bin/bash\n{script}\nEND", 'chmod +x "$root/usr/bin/apt-get"']
        (tmp_path / "fake/debootstrap").write_text("\n".join(lines) + "\n")
        (tmp_path / "fake/debootstrap").chmod(0o755)
        return subprocess.Popen([sys.executable, SCRIPT, *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                start_new_session=True, env={**os.environ, "TMPDIR": str(tmp_path / "folder"),
                                                             "PATH": f"{tmp_path / 'fake'}:{os.environ['PATH']}"})

    return start


def assert_nothing_stays(tmp_path):
    assert list((tmp_path / "folder").iterdir()) == []
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


@needs_root
def test_stages(machine, tmp_path):
    inside = 'case $1 in update) exit ;; esac\nfor i in {1..200000}; do :; done\nls /dev/nvidia* /dev/vda* /dev/sda*\necho it said this >&2\nexit 9'
    process = machine("debian", "build", script=inside)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 1, text
    # ./run's own output, with the time; the packages it asks for; the end of a step that failed.
    assert re.search(r"^ +0:\d\d  ==> Reading the list of packages\n", text, re.M)
    assert re.search(r"^ +\d:\d\d  ==> Installing g\+\+ cmake ninja-build .* python3 .*\n", text, re.M)
    assert re.search(r"^ +\d:\d\d +it said this\n", text, re.M)
    assert re.search(r"run: 'Installing g\+\+ .*' failed \(exit 9\); the whole output is in .deps/log/", text)
    # The table: what took how long, in the order in which it happened.
    table = text[text.index("\nstage "):].splitlines()[2:]
    assert [row.split()[0] for row in table] == ["Reading", "Installing", "all", "exit"]
    cpu = [float(row.split()[-2]) for row in table[:3]]
    assert cpu[1] > 0.1 and cpu[2] >= cpu[0] + cpu[1] - 0.05
    assert_nothing_stays(tmp_path)


@needs_root
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_stopped(machine, tmp_path, how):
    """Ctrl-C, or the end of the session: no mount, no process and no folder is left."""
    seconds = f"7654.{os.getpid()}"
    process = machine("debian", "build", script=f"sleep {seconds}")
    for line in process.stdout:
        if "Reading the list" in line:
            break
    until = time.time() + patient(30)
    while subprocess.run(["pgrep", "-f", f"^sleep {seconds}$"], capture_output=True).returncode != 0:
        assert time.time() < until
        time.sleep(0.05)
    (os.killpg if how == signal.SIGINT else os.kill)(process.pid, how)
    process.communicate(timeout=60)
    assert process.returncode == 128 + how
    assert subprocess.run(["pgrep", "-f", f"^sleep {seconds}$"], capture_output=True).returncode == 1
    assert_nothing_stays(tmp_path)


def test_refused():
    done = subprocess.run([sys.executable, SCRIPT, "gentoo"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "fresh_machine: say which system: debian or ubuntu\n")
