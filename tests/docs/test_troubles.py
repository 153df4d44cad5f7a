"""The lines that docs/troubleshooting.md shows are those that floe says when that happens. Each trouble is made."""

import concurrent.futures
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from pages import blocks, split
from scene import FLOE, default_signals, environment
from test_commands import missing_line
from patience import patient

PAGE = "docs/troubleshooting.md"


@pytest.fixture(scope="module")
def scene(base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("troubles") / "here"
    shutil.copytree(base, folder, symlinks=True)
    return folder


def ranks_of(launcher):
    """Processes of the ranks, by rank."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
            rank = re.search(rb"(?:^|\0)RANK=(\d+)\0", (path / "environ").read_bytes())
        except OSError:
            continue
        if parent == launcher and rank:
            found[int(rank.group(1))] = int(path.name)
    return found


def hit(scene, name, number, *words, grace="30"):
    """What a run of two ranks says when rank 1 gets a signal in the middle of training."""
    command = [FLOE, "launch", "-n", "2", "--grace", grace, "--", "train", "my.yaml", f"run.name={name}", "train.steps=1000000",
               "log.diagnostics=null", "checkpoint.every_steps=null", *words]  # fmt: skip
    with subprocess.Popen(command, cwd=scene, env=environment(scene), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          preexec_fn=default_signals) as process:  # fmt: skip
        until = time.time() + patient(60)
        steps = scene / "runs" / name / "metrics.jsonl"
        while not steps.exists() or not steps.read_text():
            assert process.poll() is None and time.time() < until
            time.sleep(0.05)
        os.kill(ranks_of(process.pid)[1], number)
        said, _ = process.communicate(timeout=90)
    assert process.returncode != 0
    return said


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def alone(scene, rank, *words, before=""):
    """What one process says, as a rank of two or by itself."""
    port = free_port()
    more = {} if rank is None else {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    line = f'{before} exec "{FLOE}" train my.yaml run.name=alone-{port} "$@"'
    done = subprocess.run(["bash", "-c", line, "floe", *words], cwd=scene, env={**environment(scene), **more}, capture_output=True,
                          text=True, timeout=90)  # fmt: skip
    assert done.returncode != 0
    return done.stdout + done.stderr


HUGE = "model.perceiver={depth: 60, dim_head: 64, heads: 4096, num_latents: 4, ff_mult: 4}"
TROUBLES = {
    "a rank is killed": lambda scene: hit(scene, "killed", signal.SIGKILL),
    "a rank is stuck": lambda scene: hit(scene, "stuck", signal.SIGSTOP, "dist.timeout_s=5", grace="2"),
    "rank 0 is missing": lambda scene: alone(scene, 1, "dist.timeout_s=2"),
    "rank 1 is missing": lambda scene: alone(scene, 0, "dist.timeout_s=2"),
    "too little host memory": lambda scene: alone(scene, None, HUGE, before="ulimit -v 6000000;"),
}
# Lines of tables that only other machines say.
ELSEWHERE = {
    "CUDA out of memory. Tried to allocate …": "needs a GPU",
    "rank 0 cannot listen at port … Address already in use": "by tests/control/control_test.cc",
    "was refused by rank 0 at … two jobs use one port": "by tests/control/control_test.cc",
    "the ranks differ in their configuration": "by tests/cluster/test_two_hosts.py",
}


@pytest.fixture(scope="module")
def said(scene):
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        return dict(zip(TROUBLES, pool.map(lambda make: make(scene), TROUBLES.values())))


def same_each_time(text):
    """Lines without rank and clock; in which collective a rank is caught, and how Gloo puts
    it, is chance."""
    text = re.sub(r"^(?:  )?(?:\[\d+\] )?(?:\d\d:\d\d:\d\d )?", "", text, flags=re.MULTILINE)
    text = re.sub(r"error: [a-z-]+ '[^']*' on rank", "error: COLLECTIVE on rank", text)
    text = re.sub(r"failed: .*(?:Timed out waiting|Application timeout).*", "failed: TIMEOUT", text)
    gone = "Connection reset by peer|Connection closed by peer|Broken pipe|ended without a word"
    return re.sub(rf"failed: .*(?:{gone}).*", "failed: GONE", text)


@pytest.mark.timeout(300)
def test_blocks_are_what_floe_says(said):
    shown = [block for block in blocks(PAGE) if block.language == "text"]
    assert len(shown) >= 3
    for block in shown:
        # A block is of one trouble; between its lines there may be others.
        lines = [part for line in block.lines for part in (same_each_time(line), "…")]
        assert any(missing_line(lines, same_each_time(text)) is None for text in said.values()), (
            f"{block.place}: no trouble says this:\n{block.text}\nbut these:\n" + "\n\n".join(said.values())[-8000:])  # fmt: skip


def test_lines_of_tables_are_what_floe_says(said):
    """Those of the first column, under a heading 'line'."""
    lines, inside = [], False
    for _, line in split(PAGE)[1]:
        inside = line.startswith("| line |") or (inside and line.startswith("|"))
        if inside and (quoted := re.match(r"\| `([^`]+)`", line)):
            lines.append(quoted.group(1))
    assert len(lines) >= 5
    everything = "\n".join(map(same_each_time, said.values()))
    for line in lines:
        if line in ELSEWHERE:
            continue
        assert missing_line(["…" + same_each_time(line) + "…"], everything) is None, f"no trouble says `{line}`:\n{everything[-6000:]}"
    assert set(ELSEWHERE) <= set(lines)
