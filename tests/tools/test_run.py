"""The script ./run: its functions by themselves, with other systems' files and commands in place of this one's."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from patience import wait_until

SOURCE = Path(os.environ["FLOE_SOURCE_DIR"])


def shell(script, folder, path="", timeout=60, **settings):
    """Runs functions of the script; FAKE is a folder of commands that go before the system's."""
    environment = {"PATH": f"{folder / 'fake'}:{path or os.environ['PATH']}", "HOME": str(folder), **settings}
    return subprocess.run(["bash", "-c", f'source "{SOURCE}/run"\n{script}'], cwd=folder, env=environment,
                          capture_output=True, text=True, timeout=timeout)


def said(script, folder, **settings):
    done = shell(script, folder, **settings)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def fake(folder, name, script):
    program = folder / "fake" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/bash\n{script}\n")
    program.chmod(0o755)
    return program


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def test_shellcheck():
    """Of one version, since versions differ; it lies next to the Python of the tests."""
    program = Path(sys.executable).with_name("shellcheck")
    scripts = ["run", ".ci/run", *(str(path.relative_to(SOURCE)) for path in sorted((SOURCE / "examples").glob("*.sh")))]
    done = subprocess.run([program, *scripts], cwd=SOURCE, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# ---- how many jobs ----


@pytest.fixture
def system(tmp_path):
    """A machine of 64 GB and 16 cores; returns a function that gives it groups of processes."""
    fake(tmp_path, "nproc", "echo 16")
    write(tmp_path / "proc/meminfo", "MemTotal:       64000000 kB")

    def make(groups, **files):
        write(tmp_path / "proc/self/cgroup", groups)
        for name, text in files.items():
            write(tmp_path / "sys/fs/cgroup" / name, text)
        return said(f"SYSTEM={tmp_path}; echo $(num_jobs) $(memory_kb) $(num_cores)", tmp_path)

    return make


UNLIMITED_1 = "9223372036854771712"  # what version 1 says


@pytest.mark.parametrize("groups, files, wanted", [
    # Not in a container: the root group of version 2 has no limits at all.
    ("0::/", {}, "16 64000000 16"),
    # In one that sees its own group as the root.
    ("0::/", {"cgroup.controllers": "cpu memory", "memory.max": "8192000000", "cpu.max": "max 100000"}, "4 8000000 16"),
    ("0::/", {"cgroup.controllers": "cpu memory", "memory.max": "max", "cpu.max": "250000 100000"}, "3 64000000 3"),
    ("0::/", {"memory.max": "100000000", "cpu.max": "50000 100000"}, "1 97656 1"),
    # A group in a group: the smallest limit of both counts, whichever has it.
    ("0::/user.slice/job.scope", {"user.slice/memory.max": "6144000000", "user.slice/job.scope/memory.max": "max"}, "3 6000000 16"),
    ("0::/user.slice/job.scope", {"user.slice/memory.max": "6144000000", "user.slice/job.scope/memory.max": "4096000000",
                                  "user.slice/cpu.max": "1200000 100000", "user.slice/job.scope/cpu.max": "max 100000"},
     "2 4000000 12"),
    # The path is the host's, which is not to be seen inside.
    ("0::/docker/0123abcd", {"memory.max": "10240000000"}, "5 10000000 16"),
    # Version 1, with and without nesting.
    ("4:memory:/\n3:cpu,cpuacct:/\n", {"memory/memory.limit_in_bytes": UNLIMITED_1, "cpu/cpu.cfs_quota_us": "-1",
                                       "cpu/cpu.cfs_period_us": "100000"}, "16 64000000 16"),
    ("4:memory:/docker/ab/job\n3:cpu,cpuacct:/docker/ab/job\n",
     {"memory/memory.limit_in_bytes": UNLIMITED_1, "memory/docker/ab/memory.limit_in_bytes": "12288000000",
      "memory/docker/ab/job/memory.limit_in_bytes": UNLIMITED_1,
      "cpu,cpuacct/docker/ab/job/cpu.cfs_quota_us": "400000", "cpu,cpuacct/docker/ab/job/cpu.cfs_period_us": "100000"},
     "4 12000000 4"),
    # Both at once: version 1 has the controllers, version 2 stands beside it.
    ("4:memory:/job\n1:name=systemd:/\n0::/job\n", {"memory/job/memory.limit_in_bytes": "4096000000", "unified/cgroup.procs": "1"},
     "2 4000000 16"),
    ("1:name=systemd:/\n0::/job\n", {"unified/job/memory.max": "4096000000"}, "2 4000000 16"),
], ids=["no container", "memory", "quota", "less than one", "outer limit", "inner limit", "path of the host", "version 1",
        "version 1 nested", "both", "both, limits in 2"])
def test_jobs(system, groups, files, wanted):
    assert system(groups, **files) == wanted


def test_jobs_as_told(tmp_path):
    assert said("num_jobs", tmp_path, FLOE_JOBS="7") == "7"
    for jobs in ("0", "two", "-1", "1.5"):
        done = subprocess.run([SOURCE / "run", "help"], capture_output=True, text=True, env={**os.environ, "FLOE_JOBS": jobs})
        assert (done.returncode, done.stderr) == (2, f"run: FLOE_JOBS is a number of jobs from 1 on, got '{jobs}'\n")


# ---- one build at a time ----


@pytest.fixture
def checkout(tmp_path):
    """The script alone, in a folder of its own."""
    shutil.copy(SOURCE / "run", tmp_path / "run")
    (tmp_path / "CMakePresets.json").write_text("{}\n")
    (tmp_path / "torch/include/ATen/core").mkdir(parents=True)
    (tmp_path / "torch/include/ATen/core/Tensor.h").touch()
    # Builds until there is a file `go`; two at once would find each other's file.
    fake(tmp_path, "cmake", """
        if [[ $1 == --preset ]]; then
          mkdir -p "build/$2/bin"; touch "build/$2/build.ninja"; echo configure >>log; exit
        fi
        [[ ! -e $2/busy ]] || echo "two at once" >>log
        echo begin >>log; touch "$2/busy"; until [[ -e go ]]; do sleep 0.05; done; rm "$2/busy"; echo end >>log
        printf '#!/bin/bash\\nls -l /proc/self/fd\\nsleep "${1:-0}"\\n' >"$2/bin/floe"; chmod +x "$2/bin/floe"
        """)
    return tmp_path


def start(checkout, *words, **settings):
    environment = {**os.environ, "PATH": f"{checkout / 'fake'}:{os.environ['PATH']}", "FLOE_TORCH": str(checkout / "torch"),
                   "FLOE_CUDA": "0", **settings}
    return subprocess.Popen(["bash", checkout / "run", *words], cwd=checkout, env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)


def wait_for(path, text):
    wait_until(lambda: path.exists() and text in path.read_text(), 30)


WAITING = "==> Waiting for another ./run that is building build/release\n"


def test_two_at_once(checkout):
    first = start(checkout, "build")
    wait_for(checkout / "log", "begin")
    second = start(checkout, "build")
    assert second.stdout.readline() == WAITING
    (checkout / "go").touch()
    texts = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], texts
    assert WAITING not in texts[0]
    # The second finds what the first has configured.
    assert (checkout / "log").read_text().split() == ["configure", "begin", "end", "begin", "end"]


def test_a_program_does_not_hold_the_lock(checkout):
    """What ./run floe executes runs as long as it likes, and others build."""
    (checkout / "go").touch()
    program = start(checkout, "floe", "60")
    try:
        wait_for(checkout / "log", "end")
        for line in program.stdout:  # of the program: its open files
            assert ".lock" not in line
            if re.search(r"\b2 -> ", line):
                break
        text, _ = start(checkout, "build").communicate(timeout=40)
        assert WAITING not in text
        assert program.poll() is None
    finally:
        os.killpg(program.pid, signal.SIGKILL)
        program.communicate()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_who_is_stopped_blocks_nobody(checkout, how):
    first = start(checkout, "build")
    wait_for(checkout / "log", "begin")
    os.killpg(first.pid, how)  # as Ctrl-C does: to the script and the compilers
    first.communicate(timeout=40)
    assert first.returncode != 0
    (checkout / "build/release/busy").unlink(missing_ok=True)
    (checkout / "go").touch()
    second = start(checkout, "build")
    text, _ = second.communicate(timeout=40)
    assert second.returncode == 0 and WAITING not in text, text


def test_a_build_that_outlives_its_script_is_waited_for(checkout):
    first = start(checkout, "build")
    wait_for(checkout / "log", "begin")
    os.kill(first.pid, signal.SIGKILL)  # the script alone
    second = start(checkout, "build")
    assert second.stdout.readline() == WAITING
    (checkout / "go").touch()
    text, _ = second.communicate(timeout=40)
    assert second.returncode == 0, text
    assert "two at once" not in (checkout / "log").read_text()
    first.communicate()


def test_a_failed_build_is_the_end(checkout):
    fake(checkout, "cmake", 'if [[ $1 == --preset ]]; then mkdir -p "build/$2"; touch "build/$2/build.ninja"; else exit 1; fi')
    process = start(checkout, "floe")
    text, _ = process.communicate(timeout=40)
    assert process.returncode == 1, text


# ---- a GPU without the CUDA toolkit ----


@pytest.fixture
def gpu(checkout):
    """A machine with a GPU and torch, without nvcc; pip is `pip`, a script. Returns a function that builds."""
    fake(checkout, "nvidia-smi", "echo 'GPU 0: a fake'")
    fake(checkout, "cmake", """
        if [[ $1 == --preset ]]; then
          mkdir -p "build/$2/bin"; touch "build/$2/build.ninja"; printf '%s\\n' "$@" >"configured-$2"
        fi""")
    venv = checkout / ".deps/venv"
    (venv / "bin").mkdir(parents=True)
    (venv / ".floe-torch-2.11.0").touch()
    (venv / "lib/python3.11/site-packages/torch").mkdir(parents=True)
    for folder in (checkout / ".deps/torch-cpu/torch",):
        folder.mkdir(parents=True)
        (folder.parent / ".floe-torch-2.11.0").touch()

    def build(pip="exit 1", nvcc=None, **settings):
        write(venv / "bin/python", f'#!/bin/bash\necho "$@" >>"{checkout}/pip.log"\n{pip}')
        (venv / "bin/python").chmod(0o755)
        if nvcc:
            fake(checkout, "nvcc", f"echo 'Cuda compilation tools, release {nvcc}, V{nvcc}.88'")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("FLOE_")}
        path = f"{checkout / 'fake'}:/usr/sbin:/usr/bin:/sbin:/bin"
        # Nothing of this machine's own CUDA, wherever it is.
        script = f'source ./run; SYSTEM={checkout}/none; have_package() {{ return 0; }}; cmd_build'
        return subprocess.run(["bash", "-c", script], cwd=checkout, env={**environment, "PATH": path, **settings},
                              capture_output=True, text=True, timeout=60)

    return build


INSTALLS = """
cuda=$(dirname "$0")/../lib/python3.11/site-packages/nvidia/cu13
mkdir -p "$cuda/bin" "$cuda/lib"
touch "$cuda/lib/libcudart.so.13"
"""


def test_nvcc_by_pip(gpu, checkout):
    done = gpu(pip=INSTALLS)
    assert done.returncode == 0, done.stderr
    cuda = checkout / ".deps/venv/lib/python3.11/site-packages/nvidia/cu13"
    options = (checkout / "configured-cuda").read_text().splitlines()
    assert f"-DCUDAToolkit_ROOT={cuda}" in options and f"-DCMAKE_CUDA_COMPILER={cuda}/bin/nvcc" in options
    assert (cuda / "lib/libcudart.so").exists() and (cuda / "lib64/libcudart.so.13").exists()
    (line,) = (checkout / "pip.log").read_text().splitlines()
    assert line == "-m pip install cuda-toolkit[nvcc,crt,nvvm,cccl,cudart]==13.0.2"
    # It is installed once, and nothing is configured anew.
    (checkout / "configured-cuda").unlink()
    assert gpu().returncode == 0
    assert len((checkout / "pip.log").read_text().splitlines()) == 1
    assert not (checkout / "configured-cuda").exists()


def test_without_nvcc_the_cpu(gpu, checkout):
    done = gpu(pip="echo 'no network' >&2; exit 1")
    assert done.returncode == 0, done.stderr
    assert ("==> there is no nvcc 13.0 here, and pip could not install one: floe is built for the CPU, although there is a GPU\n"
            in done.stdout)
    assert "no network" in done.stderr
    assert (checkout / "configured-release").exists() and not (checkout / "configured-cuda").exists()


def test_without_nvcc_cuda_cannot_be_demanded(gpu, checkout):
    done = gpu(FLOE_CUDA="1")
    assert done.returncode == 1
    assert done.stderr.endswith("run: there is no nvcc 13.0 here, and pip could not install one, so FLOE_CUDA=1 cannot be done\n")
    assert not list(checkout.glob("configured-*"))


def test_torch_of_the_user_without_nvcc(gpu, checkout):
    done = gpu(FLOE_TORCH=str(checkout / "torch"))
    assert done.returncode == 0, done.stderr
    assert "floe is built for the CPU" in done.stdout
    assert (checkout / "configured-release").exists()


def test_nvcc_of_the_system(gpu, checkout):
    done = gpu(nvcc="13.0")
    assert done.returncode == 0, done.stderr
    assert not (checkout / "pip.log").exists()
    assert "CUDA_COMPILER" not in (checkout / "configured-cuda").read_text()
    # One of another version cannot compile for this torch; the folder is configured from the beginning.
    done = gpu(pip=INSTALLS, nvcc="11.8")
    assert done.returncode == 0, done.stderr
    assert (checkout / "pip.log").exists()
    options = (checkout / "configured-cuda").read_text()
    assert "CUDA_COMPILER" in options and "--fresh" in options


def test_a_gpu_that_is_not_wanted(gpu, checkout):
    done = gpu(FLOE_CUDA="0")
    assert done.returncode == 0, done.stderr
    assert "nvcc" not in done.stdout and not (checkout / "pip.log").exists()


# ---- a machine with nothing ----


def test_long_names_have_logs(checkout):
    """On a bare system the names of all packages are one step."""
    script = 'source ./run; slowly "Installing $(printf "package-%d " {1..60})" /tmp bash -c "echo what it said; exit 7"'
    done = subprocess.run(["bash", "-c", script], cwd=checkout, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    found = re.search(r"\nrun: 'Installing package-1 .*\.\.\.' failed \(exit 7\); the whole output is in (\S+)\n$", done.stderr)
    assert (checkout / found[1]).read_text() == "what it said\n"
    assert "    what it said\n" in done.stderr


@pytest.mark.parametrize("kill", ["builtin kill \"$@\"", ":"], ids=["sent", "lost"])
def test_a_step_that_ends_at_once_is_left_at_once(tmp_path, kill):
    """Also where the signal to the heartbeat, which has hardly begun, is lost."""
    script = f'DEPS={tmp_path}/deps; kill() {{ {kill}; }}; for i in {{1..100}}; do try_slowly "Step $i" /tmp true; done'
    assert said(script, tmp_path).count("done in") == 100


# ---- browsers ----


@pytest.fixture
def browser(tmp_path):
    """What is found where only these programs are."""

    def find(**programs):
        for name, script in programs.items():
            fake(tmp_path, name.replace("_", "-"), script)
        return subprocess.run([sys.executable, SOURCE / "tests/report/browser.py"], capture_output=True, text=True,
                              env={"PATH": str(tmp_path / "fake")})

    return find


SHIM = """if ! [ -x /snap/bin/chromium ]; then
    echo "requires the chromium snap to be installed: snap install chromium" >&2
    exit 1
fi
exec /snap/bin/chromium "$@" """


def test_browser(browser, tmp_path):
    none = browser()
    assert none.returncode == 1
    assert none.stderr == "there is no Chromium or Chrome here; Debian's package chromium or Google Chrome would do\n"
    shim = browser(chromium_browser=SHIM)
    assert shim.returncode == 1
    assert shim.stderr.startswith("chromium-browser is only a snap here")
    chrome = browser(google_chrome="exec /opt/google/chrome/chrome")
    assert (chrome.returncode, chrome.stdout) == (0, f"{tmp_path}/fake/google-chrome\n")


SUMMARY = """
ensure_browser
[[ -z $NO_BROWSER ]] || leave_out "pages in a browser" "$NO_BROWSER"
summary
"""


@pytest.mark.parametrize("package, result", [
    ("exit 100", "there is no Chromium"),  # no such package
    ("printf 'Package: chromium\\nVersion: 1.0\\nDescription-en: Transitional package - chromium snap\\n'", "there is no Chromium"),
    ("printf 'Package: chromium\\nVersion: 2:1snap1-0ubuntu2\\nDescription-en: Transitional package\\n'", "there is no Chromium"),
    ("printf 'Package: chromium\\nVersion: 150.0\\nDepends: libsnappy1v5 (>= 1.1.9)\\nDescription-en: web browser\\n a snap\\n'", None),
])
def test_no_browser_breaks_nothing(tmp_path, package, result):
    """As in Ubuntu, where chromium is no package or one that fetches a snap, and as in Debian."""
    fake(tmp_path, "apt-cache", package)
    fake(tmp_path, "apt-get", f"[[ $1 == install ]] || exit 0\necho \"$@\" >>{tmp_path}/apt.log\nprintf '#!/bin/sh\\n' >{tmp_path}/fake/chromium\nchmod +x {tmp_path}/fake/chromium")
    fake(tmp_path, "sudo", 'shift; exec "$@"')
    programs = tmp_path / "programs"  # this system's, without its browser
    programs.mkdir()
    for name in ("bash", "env", "true", "mkdir", "sed", "tail", "du", "cut", "sleep", "dirname", "cat", "rm", "chmod", "grep"):
        (programs / name).symlink_to(shutil.which(name))
    done = subprocess.run([shutil.which("bash"), "-c", f'source "{SOURCE}/run"; DEPS={tmp_path}/deps; find_python() {{ echo "{sys.executable}"; }}\n{SUMMARY}'], cwd=tmp_path,
                          env={"PATH": f"{tmp_path}/fake:{programs}", "HOME": str(tmp_path)}, capture_output=True, text=True,
                          timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr
    if result:
        assert re.search(f"pages in a browser .* left out: {result}", done.stdout)
        assert not (tmp_path / "apt.log").exists()
    else:
        assert "left out" not in done.stdout
        assert (tmp_path / "apt.log").read_text().split()[0] == "install"


# ---- the GPU tests of a packed build ----


def test_packed_tests_run_side_by_side(tmp_path):
    """Two that wait for each other pass; what fails, and what takes longer than it may, does not."""
    meets = 'touch "$1"; for i in {1..200}; do [[ ! -e $2 ]] || exit 0; sleep 0.1; done; exit 1'
    for name, script in {"meets": meets, "fails": "echo 'not equal'; exit 3", "hangs": "sleep 60"}.items():
        program = fake(tmp_path, name, script)
        write(tmp_path / "build/bin" / name, program.read_text())
        (tmp_path / "build/bin" / name).chmod(0o755)
    lines = {"one": f"50 env HERE=@SOURCE@ @BIN@/meets {tmp_path}/a {tmp_path}/b", "other": f"50 @BIN@/meets {tmp_path}/b {tmp_path}/a",
             "hangs": "1 @BIN@/hangs", "fails": "10 @BIN@/fails"}  # fmt: skip
    write(tmp_path / "build/gpu_tests.txt", "\n".join(f"{name} {line}" for name, line in lines.items()))
    script = f"BUILD={tmp_path}/build FLOE_JOBS=3; test_packed"
    done = shell(script + "; summary", tmp_path)
    assert done.returncode == 1, done.stderr
    ends = dict(re.findall(r"^(\w+) +\d+ s +(\w+)$", done.stdout, re.MULTILINE))
    assert ends == {"one": "passed", "other": "passed", "hangs": "FAILED", "fails": "FAILED", "all": "FAILED"}, done.stdout + done.stderr
    assert "--- fails\nnot equal\n" in done.stdout
    done = shell(script + " other_one", tmp_path)
    assert done.returncode == 2 and "no GPU test is called other_one; there are: one other hangs fails" in done.stderr


def test_packed_tests_end_with_the_script(tmp_path):
    write(tmp_path / "build/gpu_tests.txt", f"hangs 50 bash -c touch${{IFS}}{tmp_path}/begun;sleep${{IFS}}50;touch${{IFS}}{tmp_path}/over")
    script = f'source "{SOURCE}/run"; BUILD={tmp_path}/build FLOE_JOBS=3; test_packed'
    process = subprocess.Popen(["bash", "-c", script], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: (tmp_path / "begun").exists(), 20)
    process.send_signal(signal.SIGTERM)
    assert "run: stopped" in process.communicate(timeout=20)[1] and process.returncode == 143
    mine = subprocess.run(["pgrep", "-f", f"touch.*{tmp_path}/over"], capture_output=True, text=True)
    assert mine.stdout == ""
