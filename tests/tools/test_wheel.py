"""The wheel: installed into an empty environment it works there, and says what is wrong when torch is not the right one."""
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

BIN = Path(os.environ["FLOE_BIN_DIR"])
SOURCE = Path(os.environ["FLOE_SOURCE_DIR"])
SITE = Path(sysconfig.get_paths()["purelib"])
SENTENCE = re.compile(r"\Afloe: [^\n]+\n\Z")


def clean_environment(**more):
    """What a user's shell has: nothing that leads to the checkout or to its libraries."""
    kept = {k: v for k, v in os.environ.items()
            if not k.startswith(("FLOE_", "PYTHON", "LD_")) and k not in ("VIRTUAL_ENV", "RANK", "WORLD_SIZE")}
    return {**kept, **more}


def run(*words, cwd, env=None, timeout=600):
    return subprocess.run([str(w) for w in words], cwd=cwd, env=env or clean_environment(), capture_output=True,
                          text=True, timeout=timeout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    done = run(sys.executable, SOURCE / "tools" / "wheel.py", BIN.parent, folder, cwd=folder)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    assert done.stdout.strip() == str(made)
    return made


def link_torch(site):
    """Puts torch and all that it needs into an environment, file by file as links: what pip would download."""
    for path in SITE.iterdir():
        if path.name.startswith(("floe", "pip", "setuptools", "__pycache__")) or (site / path.name).exists():
            continue
        if path.is_dir():
            shutil.copytree(path, site / path.name, copy_function=link, symlinks=True)
        else:
            link(path, site / path.name)


def link(source, target):
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another file system
        os.symlink(source, target)


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The folder bin of an environment that holds torch and, by pip, the wheel."""
    # Beside the packages, so that links can be made.
    folder = Path(tmp_path_factory.mktemp("environment"))
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    link_torch(site)
    done = run(folder / "bin" / "python", "-m", "pip", "install", "--no-index", wheel, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    yield folder / "bin"
    shutil.rmtree(folder, ignore_errors=True)


def test_the_wheel_names_its_torch_and_brings_its_licenses(wheel):
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        (metadata,) = [n for n in names if n.endswith(".dist-info/METADATA")]
        text = files.read(metadata).decode()
    import torch
    version = torch.__version__.split("+")[0]
    assert f"Requires-Dist: torch=={version}\n" in text
    assert re.fullmatch(rf"floe-[0-9.]+\+torch{re.escape(version)}\.(cpu|cu\d+)-py3-none-manylinux_2_\d+_x86_64\.whl", wheel.name)
    libraries = [n for n in names if n.startswith("floe.libs/")]
    assert any("libyaml-cpp" in n for n in libraries)
    assert not [n for n in libraries if re.search(r"lib(torch|c10|cud|nccl|c\.so|stdc)", n)]
    assert len([n for n in names if ".dist-info/licenses/" in n]) >= 10
    assert wheel.stat().st_size < 100 * 2**20, "torch itself must not be in it"


@pytest.mark.timeout(900)
def test_pip_install_then_floe_demo(installed, tmp_path):
    """From data to captions with the program that pip installed, its configurations and its demo; nothing of the
    checkout, and in a folder that has other runs."""
    runs = tmp_path / "a place" / "runs"
    mine = runs / "mine" / "metrics.jsonl"
    mine.parent.mkdir(parents=True)
    mine.write_text("{}\n")
    # What an interrupted demo has left is no hindrance.
    for left in ("demo/checkpoints", "demo-data"):
        (runs / left).mkdir(parents=True)
    (runs / "demo-data/drawing.txt").write_text("of an earlier demo\n")
    done = run(installed / "floe", "demo", "a place", cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Each rank holds" in done.stdout
    assert os.listdir(tmp_path) == ["a place"] and os.listdir(tmp_path / "a place") == ["runs"]
    assert sorted(path.name for path in runs.iterdir()) == ["demo", "demo-data", "demo-lm", "mine"]
    assert mine.read_text() == "{}\n"
    steps = [json.loads(line) for line in (runs / "demo/metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == list(range(1, 401))
    # Killed after step 100 and resumed from there: no step is missing or twice.
    assert "continuing after step 100" in done.stderr
    for name in ("loss_laion", "loss_mmc4"):
        assert steps[-1][name] < 0.5 * steps[0][name]
    assert steps[-1]["val_loss_laion"] < 0.3  # without looking at the picture: 0.64
    assert (runs / "demo-data/drawing.txt").read_text().strip() in done.stdout.splitlines()
    assert (runs / "demo/report.html").exists()
    assert str(SOURCE) not in done.stdout + done.stderr

    # The ranks that torchrun starts are floe's.
    (configs,) = installed.parent.glob("lib/python3*/site-packages/floe/share/floe/configs")
    path = f"{installed}{os.pathsep}{os.environ['PATH']}"
    again = run(installed / "python", "-m", "torch.distributed.run", "--nproc_per_node", "2", "--no-python", "floe", "train",
                configs / "demo_lm.yaml", "run.name=by-torchrun", "train.steps=3", cwd=tmp_path / "a place",
                env=clean_environment(PATH=path))
    assert again.returncode == 0, again.stdout + again.stderr
    log = (runs / "by-torchrun/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in log] == [1, 2, 3]


def test_the_programs_find_torch_by_their_own_path(installed, tmp_path):
    (program,) = installed.parent.glob("lib/python3*/site-packages/floe/bin/floe")
    (torch,) = installed.parent.glob("lib/python3*/site-packages/torch/lib")
    done = run(program, "doctor", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "LibTorch:" in line]
    assert Path(line.split("LibTorch: ")[1]).resolve().parent == torch.resolve()


@pytest.fixture(scope="module")
def unpacked(wheel, tmp_path_factory):
    """The wheel's files in a folder, without torch beside them."""
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(folder)
    for name in ("floe", "demo_data"):
        (folder / "floe" / "bin" / name).chmod(0o755)
    return folder


def bare_python(tmp_path):
    """A Python without packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    return tmp_path / "bare" / "bin" / "python"


def pretend_torch(folder, version):
    (folder / "torch" / "lib").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("raise RuntimeError('torch was imported')\n")
    information = folder / f"torch-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    return folder


def refusal(python, *path, cwd):
    done = run(python, "-m", "floe", "version", cwd=cwd, env=clean_environment(PYTHONPATH=os.pathsep.join(map(str, path))))
    assert done.returncode == 2, done.stdout + done.stderr
    assert SENTENCE.match(done.stderr), done.stderr
    return done.stderr


def test_a_missing_or_other_torch_is_one_sentence(unpacked, tmp_path):
    python = bare_python(tmp_path)
    said = refusal(python, unpacked, cwd=tmp_path)
    assert "has none" in said and "-m pip install torch==" in said
    said = refusal(python, unpacked, pretend_torch(tmp_path / "newer", "2.99.1+cu140"), cwd=tmp_path)
    assert "has torch 2.99.1+cu140" in said and "-m pip install torch==" in said and "./run wheel" in said


def test_a_wheel_with_cuda_and_a_torch_without_is_one_sentence(unpacked, tmp_path):
    import torch
    version = torch.__version__.split("+")[0]
    package = shutil.copytree(unpacked, tmp_path / "package")
    told = (package / "floe/_build.py").read_text()
    (package / "floe/_build.py").write_text(re.sub(r"NEEDS_CUDA_TORCH = \w+", "NEEDS_CUDA_TORCH = True", told))
    said = refusal(bare_python(tmp_path), package, pretend_torch(tmp_path / "cpu", f"{version}+cpu"), cwd=tmp_path)
    assert f"torch {version}+cpu" in said and "comes without it" in said


def test_torch_may_lie_in_another_folder(unpacked, tmp_path):
    """As with --system-site-packages or PYTHONPATH."""
    done = run(bare_python(tmp_path), "-m", "floe", "version", cwd=tmp_path,
               env=clean_environment(PYTHONPATH=os.pathsep.join([str(unpacked), str(SITE)])))
    assert done.returncode == 0 and done.stdout.startswith("floe "), done.stderr


def test_what_cannot_be_packed_is_refused(tmp_path):
    done = run(sys.executable, SOURCE / "tools" / "wheel.py", tmp_path, tmp_path / "out", cwd=tmp_path)
    assert done.returncode == 1 and "is no build folder" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_pip_downloads_torch_into_an_empty_environment(wheel, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "empty"], check=True)
    done = run(tmp_path / "empty/bin/python", "-m", "pip", "install", wheel, cwd=tmp_path, timeout=3000)
    assert done.returncode == 0, done.stdout + done.stderr
    done = run(tmp_path / "empty/bin/floe", "demo", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The loss fell from" in done.stdout
