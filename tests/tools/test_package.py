"""The C++ package: floe is installed from the build folder, and projects outside of its tree use what is there.

The judge of the sharded training is plain torch::nn in tests/consumer/plain.h.
"""

import os
import re
import shutil
import subprocess
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("FLOE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("FLOE_BIN_DIR", ROOT / "build/release/bin")).parent
CONSUMER = ROOT / "tests/consumer"
VERSION = re.search(r"project\(floe VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
# What the program needs and the engine must not.
NOT_OF_THE_ENGINE = "yaml-cpp", "jpeg", "webp", "pcre2", "utf8proc", "sentencepiece", "simdjson"
CCACHE = shutil.which("ccache")


def run(*command, env=None, code=0, **options):
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, env={**os.environ, **(env or {})}, **options
    )
    assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def cached(name):
    text = (BUILD / "CMakeCache.txt").read_text()
    return re.search(rf"^{name}:\w+=(.*)$", text, re.MULTILINE).group(1)


def launcher():
    return [f"-DCMAKE_CXX_COMPILER_LAUNCHER={CCACHE}"] if CCACHE else []


@pytest.fixture(scope="module")
def torch():
    return Path(cached("FLOE_TORCH"))


@pytest.fixture(scope="module")
def prefix():
    """A whole installation. Always at the same place, so that ccache knows what is compiled against it."""
    folder = BUILD / "test_package/prefix"
    shutil.rmtree(folder, ignore_errors=True)
    run("cmake", "--install", BUILD, "--prefix", folder)
    return folder


def headers(prefix):
    return sorted(path.relative_to(prefix / "include").as_posix() for path in (prefix / "include").rglob("*.h"))


def test_what_is_installed(prefix):
    listed = re.findall(r"^  ([\w/]+\.h)\)?$", (ROOT / "cmake/FloePackage.cmake").read_text(), re.MULTILINE)
    assert headers(prefix) == sorted(f"floe/{header}" for header in [*listed, "version.h"])
    assert (prefix / "lib/libfloe_engine.a").is_file() and (prefix / "lib/libfloe.a").is_file()
    configs = {path.relative_to(ROOT / "configs") for path in (ROOT / "configs").rglob("*") if path.is_file()}
    there = prefix / "share/floe/configs"
    assert configs == {path.relative_to(there) for path in there.rglob("*") if path.is_file()}
    assert run(prefix / "bin/floe", "--version").split() == ["floe", VERSION]


def test_the_engine_can_be_installed_alone(tmp_path):
    run("cmake", "--install", BUILD, "--prefix", tmp_path, "--component", "engine")
    assert (tmp_path / "lib/libfloe_engine.a").is_file()
    assert not (tmp_path / "bin").exists() and not (tmp_path / "lib/libfloe.a").exists()
    assert all("floe/cli/" not in header for header in headers(tmp_path))


def test_public_headers_include_public_headers_only(prefix):
    there = set(headers(prefix))
    for header in there:
        for quoted in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', (prefix / "include" / header).read_text(), re.M):
            known = quoted in there if quoted.startswith("floe/") else not re.match("nlohmann|yaml-cpp", quoted)
            assert known, f"{header} includes {quoted}, which is not public"


@pytest.mark.timeout(900)
def test_each_public_header_compiles_alone(prefix, torch):
    """With LibTorch and the installed folder, and nothing else of floe, on the include path."""

    def compiles(header):
        source = BUILD / "test_package/headers" / (re.sub(r"\W", "_", header) + ".cc")
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(f'#include "{header}"\n')
        command = [*([CCACHE] if CCACHE else []), "g++", "-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror"]
        command += ["-Wno-unused-parameter", "-DNDEBUG", "-I", prefix / "include"]
        for folder in ("include", "include/torch/csrc/api/include"):
            command += ["-isystem", torch / folder]
        return run(*command, "-c", source, "-o", source.with_suffix(".o"))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compiles, headers(prefix)))


def build_outside(project, prefix, torch):
    """A project of tests/consumer, copied out of the tree and built against the installation: its build folder."""
    folder = BUILD / "test_package" / project.name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(project, folder / "source")
    run("cmake", "-G", "Ninja", "-S", folder / "source", "-B", folder / "build", "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_PREFIX_PATH={prefix}", f"-DFLOE_TORCH={torch}", *launcher())  # fmt: skip
    run("cmake", "--build", folder / "build")
    return folder / "build"


@pytest.fixture(scope="module")
def consumer(prefix, torch):
    return build_outside(CONSUMER, prefix, torch) / "consumer"


@pytest.mark.timeout(900)
def test_all_of_floe_in_another_program(prefix, torch):
    program = build_outside(CONSUMER / "whole", prefix, torch) / "whole"
    assert run(program, "--version").split() == ["floe", VERSION]
    shard = ROOT / "tests/goldens/data/corpus/laion/000000.tar"
    assert run(program, "inspect", shard) == run(BUILD / "bin/floe", "inspect", shard)
    assert run(program, "inspect", "/nowhere.tar", code=2).startswith("whole: ")


@pytest.mark.timeout(900)
def test_the_engine_links_no_yaml_images_or_tokenizers(consumer):
    needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", consumer))
    assert any(library.startswith("libtorch_cpu") for library in needed)
    assert not [library for library in needed if any(word in library for word in NOT_OF_THE_ENGINE)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["train", "phases"])
def test_a_foreign_model_trains_as_without_floe(consumer, prefix, tmp_path, mode):
    """Saved on two ranks, resumed on three; each time every parameter is compared with plain torch's."""
    environment = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

    def train(ranks, steps):
        return run(prefix / "bin/floe", "launch", "-n", ranks, "--exec", consumer, mode, tmp_path / "run", steps,
                   env=environment, timeout=200)  # fmt: skip

    first = train(2, 5)
    assert re.search(r"28 parameters agree with plain torch after 5 steps", first), first
    second = train(3, 12)
    assert "resumed step 5, saved by 2 ranks" in second
    assert re.search(r"28 parameters agree with plain torch after 12 steps", second), second
    assert (tmp_path / "run/checkpoints/last").resolve().name == "step_12"


PROBE = """
cmake_minimum_required(VERSION 3.25)
project(probe LANGUAGES NONE)
find_package(floe {words})
"""


def probe(tmp_path, prefix, *options, words="REQUIRED", env=None, code=1):
    (tmp_path / "CMakeLists.txt").write_text(PROBE.format(words=words))
    output = run("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-Dfloe_DIR={prefix}/lib/cmake/floe", *options,
                 env={"FLOE_TORCH": "", "CMAKE_PREFIX_PATH": "", **(env or {})}, code=code)  # fmt: skip
    return " ".join(output.split())


def fake_torch(folder, version):
    (folder / "include/ATen/core").mkdir(parents=True)
    (folder / "include/ATen/core/Tensor.h").write_text("")
    (folder / "include/torch/headeronly").mkdir(parents=True)
    numbers = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True)
    text = "".join(f"#define TORCH_VERSION_{name} {number}\n" for name, number in numbers)
    (folder / "include/torch/headeronly/version.h").write_text(text)
    return folder


def without_python(tmp_path):
    """A PATH with cmake's needs and no python3."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("ninja", "make", "cmake", "sh"):
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    return str(folder)


def python_with(tmp_path, torch=None):
    """A PATH with a python3 that has this torch, or none, and nothing else."""
    folder = tmp_path / "python"
    folder.mkdir()
    if torch:
        (folder / "torch").symlink_to(torch)
    script = f"#!/bin/sh\nPYTHONPATH={folder} exec {shutil.which('python3')} -S \"$@\"\n"
    (folder / "python3").write_text(script)
    (folder / "python3").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_no_torch_is_one_sentence(prefix, tmp_path):
    said = probe(tmp_path, prefix, env={"PATH": without_python(tmp_path)})
    assert "There is no LibTorch: FLOE_TORCH is not set, Torch_DIR and CMAKE_PREFIX_PATH lead to none; pass" in said
    said = probe(tmp_path, prefix, env=python_with(tmp_path))
    assert f"lead to none, and {tmp_path}/python/python3 has no package torch; pass -DFLOE_TORCH=DIR" in said


def test_a_folder_that_is_no_torch_is_one_sentence(prefix, tmp_path):
    said = probe(tmp_path, prefix, f"-DFLOE_TORCH={tmp_path}/nothing")
    assert f"FLOE_TORCH='{tmp_path}/nothing' is no LibTorch folder: pass -DFLOE_TORCH=DIR" in said


@pytest.mark.parametrize("where", ["FLOE_TORCH", "environment", "Torch_DIR", "CMAKE_PREFIX_PATH", "python"])
def test_another_torch_is_one_sentence(prefix, torch, tmp_path, where):
    fake = fake_torch(tmp_path / "fake", "2.99.7")
    (fake / "__init__.py").write_text("")
    options, env = [], {}
    if where == "FLOE_TORCH":
        options = [f"-DFLOE_TORCH={fake}"]
    elif where == "environment":
        env = {"FLOE_TORCH": str(fake)}
    elif where == "Torch_DIR":
        options = [f"-DTorch_DIR={fake}/share/cmake/Torch"]
    elif where == "CMAKE_PREFIX_PATH":
        options = [f"-DCMAKE_PREFIX_PATH=/nowhere;{fake}"]
    else:
        env = python_with(tmp_path, fake)
    (fake / "share/cmake/Torch").mkdir(parents=True)
    said = probe(tmp_path, prefix, *options, env=env)
    built_for = re.search(r"was built for torch ([\d.]+),", said).group(1)
    assert f"' is torch 2.99.7: pass -DFLOE_TORCH=DIR of torch {built_for}, or build floe against this one." in said


def test_components_and_versions(prefix, torch, tmp_path):
    options = [f"-DFLOE_TORCH={torch}"]
    said = probe(tmp_path, prefix, *options, words="REQUIRED COMPONENTS wheels")
    assert "floe has no component 'wheels': there are engine and floe." in said
    major, minor, _ = VERSION.split(".")
    assert "version" in probe(tmp_path, prefix, *options, words=f"{major}.{int(minor) + 1} REQUIRED")
    engine = tmp_path / "engine"
    run("cmake", "--install", BUILD, "--prefix", engine, "--component", "engine")
    said = probe(tmp_path, engine, *options, words="REQUIRED COMPONENTS floe")
    assert "This floe was installed without the component floe" in said


@pytest.mark.timeout(900)
def test_as_a_part_of_another_project(torch):
    """add_subdirectory: nothing of floe's own settings, tests or tools reaches the project around it."""
    build = BUILD / "test_package/subdirectory"  # always the same place: ccache knows what is compiled there
    shutil.rmtree(build, ignore_errors=True)
    said = run("cmake", "-G", "Ninja", "-S", CONSUMER / "subdirectory", "-B", build, f"-DFLOE_SOURCE={ROOT}",
               f"-DFLOE_TORCH={torch}", "-DCMAKE_BUILD_TYPE=Release", *launcher())  # fmt: skip
    assert "yaml" not in said
    targets = run("ninja", "-C", build, "-t", "targets", "all")
    assert not re.search(r"_test\b|floe_tests|bench_|shard_mlp|floe_cli|libfloe\.a", targets)
    # The program of the project lies in its own build folder, and is linked with the engine.
    commands = run("ninja", "-C", build, "-t", "commands", "inside")
    link = [line for line in commands.splitlines() if "-o inside " in line]
    assert len(link) == 1 and "libfloe_engine.a" in link[0]
    assert not [word for word in NOT_OF_THE_ENGINE if re.search(rf"-l\S*{word}", link[0])]
    # What needs no torch is compiled in earnest: here, not in floe's own tree.
    before = set(ROOT.glob("*"))
    run("ninja", "-C", build, "floe_schema", "floe_io")
    assert {path.name for path in (build / "floe/src/floe").glob("*.a")} >= {"libfloe_schema.a", "libfloe_io.a"}
    assert set(ROOT.glob("*")) == before


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def test_the_tutorial_shows_what_the_consumer_has():
    """Every snippet of docs/library.md stands in a file of tests/consumer, line for line."""
    page = (ROOT / "docs/library.md").read_text()
    files = [path.read_text() for path in CONSUMER.rglob("*") if path.suffix in (".cc", ".h", ".txt")]
    lines = [[line.strip() for line in text.splitlines() if line.strip()] for text in files]
    shown = blocks(page, "cpp") + blocks(page, "cmake")
    assert len(shown) >= 8
    for block in shown:
        wanted = [line.strip() for line in textwrap.dedent(block).splitlines() if line.strip()]
        assert any(
            text[start : start + len(wanted)] == wanted for text in lines for start in range(len(text))
        ), f"tests/consumer has no such lines:\n{block}"


def test_the_tutorial_lists_the_public_headers(prefix):
    page = (ROOT / "docs/library.md").read_text()
    assert sorted(set(re.findall(r"`(floe/[\w/]+\.h)`", page))) == headers(prefix)
