"""A disk that is full for a while costs a run nothing: what the logs could not take waits in memory and is
written later, and no file ever has half a record. The disk is a limit on the size of files, which another
process may move while the run goes on."""

import json
import resource
import signal
import subprocess
import time

import pytest
from logged_runs import TOOL, make_run, record, values_of
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from test_wandb_reference import check_rows, run_file, sync
from wandb_server import wandb_server
from patience import patient

FOREVER = resource.RLIM_INFINITY


class Disk:
    """A logging process, fed with records, and the size that its files may have."""

    def __init__(self, run):
        self.run, self.lines = run, run / "metrics.jsonl"
        words = [TOOL, "log", run, "0", "0"]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1,
            preexec_fn=lambda: signal.signal(signal.SIGXFSZ, signal.SIG_IGN), restore_signals=False,
        )

    def limit(self, size):
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size, FOREVER))

    def write(self, first, last):
        for step in range(first, last + 1):
            self.process.stdin.write(json.dumps(record(step)) + "\n")

    def wait_for(self, count):
        end = time.time() + patient(30)
        while len(self.text().splitlines()) < count:
            assert time.time() < end and self.process.poll() is None
            time.sleep(0.01)

    def text(self):
        return self.lines.read_text() if self.lines.exists() else ""

    def finish(self):
        _, stderr = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, stderr
        return stderr


@pytest.fixture
def disk(tmp_path):
    disks = []

    def make(**info):
        disks.append(Disk(make_run(tmp_path / "run", **info)))
        return disks[-1]

    yield make
    for disk in disks:
        disk.process.kill()
        disk.process.communicate()


def steps(path):
    text = path.read_text()
    assert text.endswith("\n")
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        assert {name: line[name] for name in values_of(line["step"])} == values_of(line["step"])
    return [line["step"] for line in lines]


def tensorboard_steps(run):
    (path,) = (run / "tensorboard").iterdir()
    events = list(EventFileLoader(str(path)).Load())
    return [event.step for event in events if any(value.tag == "lr" for value in event.summary.value)]


def test_what_a_full_disk_does_not_take_is_written_later(disk):
    full = disk()
    full.write(1, 5)
    full.wait_for(5)
    full.limit(full.lines.stat().st_size + 20)  # less than a line: what is written in part is taken back
    full.write(6, 40)
    time.sleep(0.3)
    assert steps(full.lines) == [1, 2, 3, 4, 5]
    full.limit(FOREVER)
    full.write(41, 42)
    full.wait_for(42)
    full.write(43, 60)
    stderr = full.finish()
    assert steps(full.lines) == tensorboard_steps(full.run) == list(range(1, 61))
    with wandb_server() as server:
        check_rows(sync(server, full.run).history, range(1, 61))
    # Each file says it once, with what and where.
    for path in (full.lines, run_file(full.run), next((full.run / "tensorboard").iterdir())):
        said = [line for line in stderr.splitlines() if str(path) in line]
        assert len(said) == 2, stderr
        assert "warning: " in said[0] and "cannot be written (File too large)" in said[0]
        assert "is written again; nothing is missing in it" in said[1]


def test_what_is_missing_at_the_end_is_said(disk):
    full = disk(wandb_mode="disabled")
    full.write(1, 5)
    full.wait_for(5)
    full.limit(full.lines.stat().st_size + 20)
    full.write(6, 20)
    stderr = full.finish()  # the run itself is done
    assert steps(full.lines) == [1, 2, 3, 4, 5]
    assert f"'{full.lines}': 15 records are missing in it: it could not be written (File too large)" in stderr


def test_a_full_disk_from_the_start(tmp_path):
    run = make_run(tmp_path / "run", wandb_mode="disabled")

    def small_files():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))

    text = "".join(json.dumps(record(step)) + "\n" for step in range(1, 100))
    words = [TOOL, "log", run, "0", "0"]
    done = subprocess.run(words, input=text, capture_output=True, text=True, preexec_fn=small_files, timeout=60)
    assert done.returncode == 0, done.stderr
    written = steps(run / "metrics.jsonl")
    assert written == list(range(1, len(written) + 1)) and len(written) > 3
    assert f"{99 - len(written)} records are missing in it" in done.stderr
