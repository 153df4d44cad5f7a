"""The real wandb package is the reference: its protobuf classes parse what floe writes, and `wandb sync`
uploads it to a server on loopback, where the same numbers arrive."""

import json
import math
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

from google.protobuf import unknown_fields
from logged_runs import CONFIG, TOOL, log, log_and_die, make_run, record, tool, values_of
from wandb.proto import wandb_internal_pb2
from wandb_server import wandb_server

BLOCK = 32768


def entries(path):
    """The entries of a .wandb file; every chunk's checksum is checked."""
    data = path.read_bytes()
    assert data[:7] == b":W&B\xe1\xbe\x00"
    at, entry = 7, b""
    while at < len(data):
        left = BLOCK - at % BLOCK
        if left < 7:
            assert data[at : at + left].strip(b"\0") == b""
            at += left
            continue
        crc, size, kind = struct.unpack_from("<IHB", data, at)
        chunk = data[at + 7 : at + 7 + size]
        assert len(chunk) == size and zlib.crc32(bytes([kind]) + chunk) == crc
        entry += chunk
        at += 7 + size
        if kind in (1, 4):
            yield entry
            entry = b""


def run_folder(run):
    (folder,) = (run / "wandb").glob("offline-run-*")
    return folder


def run_file(run):
    (path,) = run_folder(run).glob("*.wandb")
    return path


def run_id(run):
    return run_file(run).stem.removeprefix("run-")


def sync(server, run, *options):
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(run),
        "WANDB_BASE_URL": server.url,
        "WANDB_API_KEY": "a" * 40,
        "WANDB_ERROR_REPORTING": "false",
        "NO_PROXY": "127.0.0.1",
    }
    words = [Path(sys.executable).with_name("wandb"), "sync", *options, run / "wandb"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment, cwd=run)
    assert done.returncode == 0, done.stdout + done.stderr
    return server.runs[run_id(run)]


def check_rows(rows, steps):
    assert [row["_step"] for row in rows] == list(steps)
    for row, step in zip(rows, steps, strict=True):
        numbers = {name: value for name, value in row.items() if not name.startswith("_")}
        assert numbers == values_of(step)
        assert row["_timestamp"] == record(step)[1]


def test_their_classes_parse_every_record(tmp_path):
    run = make_run(tmp_path / "run")
    log(run, 0, 300)
    records = [wandb_internal_pb2.Record.FromString(entry) for entry in entries(run_file(run))]
    assert [entry.num for entry in records] == list(range(1, len(records) + 1))
    kinds = [entry.WhichOneof("record_type") for entry in records]
    for entry, kind in zip(records, kinds, strict=True):
        assert len(unknown_fields.UnknownFieldSet(entry)) == len(unknown_fields.UnknownFieldSet(getattr(entry, kind))) == 0
    assert kinds == ["header", "run", "environment", *["summary", "history"] * 300, "exit"]
    assert run_file(run).stat().st_size > 3 * BLOCK
    history = [entry.history for entry in records if entry.HasField("history")]
    rows = [{item.nested_key[0]: json.loads(item.value_json) for item in row.item} for row in history]
    check_rows(rows, range(1, 301))


def test_sync_uploads_the_same_numbers(tmp_path):
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "model.bin").write_bytes(b"weights")
    run = make_run(tmp_path / "run", entity="penguins", files=[[str(tmp_path / "checkpoint"), "step_40"]])
    log(run, 0, 40)
    (tmp_path / "checkpoint" / "model.bin").unlink()  # as a trainer that keeps only the newest does
    with wandb_server() as server:
        uploaded = sync(server, run)
        check_rows(uploaded.history, range(1, 41))
        assert uploaded.config == CONFIG
        assert uploaded.exit_code == 0
        assert uploaded.upserts[0]["project"] == "ice"
        assert uploaded.upserts[0]["entity"] == "penguins"
        assert uploaded.upserts[0]["displayName"] == "demo"
        assert uploaded.files["step_40/model.bin"] == b"weights"
        summary = json.loads(uploaded.files["wandb-summary.json"])
        assert {name: summary[name] for name in values_of(40)} == values_of(40)
        assert summary["_step"] == 40 and summary["_wandb"]["runtime"] >= 70


def test_resumed_run_stays_one_run(tmp_path):
    """Killed at step 25, resumed from 20, uploaded, resumed again from 30: always the same W&B run."""
    run = make_run(tmp_path / "run")
    log_and_die(run, 0, 25)
    with wandb_server() as server:
        killed = sync(server, run)
        check_rows(killed.history, range(1, 26))
        assert killed.exit_code != 0

        log(run, 20, 30)
        resumed = sync(server, run)
        assert resumed is killed and len(server.runs) == 1
        check_rows(resumed.history, range(1, 31))
        assert resumed.exit_code == 0
        runtimes = [row["_runtime"] for row in resumed.history]
        assert runtimes == sorted(runtimes)

        log(run, 30, 35)
        check_rows(sync(server, run).history, range(1, 36))
        assert len(server.runs) == 1


def test_resume_after_the_local_rows_were_cleaned_away(tmp_path):
    run = make_run(tmp_path / "run")
    log(run, 0, 10)
    first_id = run_id(run)
    with wandb_server() as server:
        sync(server, run)
        for path in sorted(run_folder(run).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        run_folder(run).rmdir()
        log(run, 10, 15)
        assert run_id(run) == first_id
        uploaded = sync(server, run)
        assert uploaded.asked_to_resume
        check_rows(uploaded.history, range(1, 16))

        uploaded.asked_to_resume = False
        log(run, 15, 18)  # and once more: the server still knows rows that the file does not hold
        assert sync(server, run).asked_to_resume
        assert [row["_step"] for row in uploaded.history][:10] == list(range(1, 11))


def test_upload_while_the_run_goes_on(tmp_path):
    """The end of the run is uploaded by a plain second sync."""
    run = make_run(tmp_path / "run")
    with wandb_server() as server:
        words = [TOOL, "log", run, "0", "0"]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, text=True, bufsize=1)
        for step in range(1, 6):
            process.stdin.write(json.dumps(record(step)) + "\n")
        while not (run / "metrics.jsonl").exists() or len((run / "metrics.jsonl").read_text().splitlines()) < 5:
            assert process.poll() is None
        check_rows(sync(server, run).history[:5], range(1, 6))
        process.stdin.write(json.dumps(record(6)) + "\n")
        process.stdin.close()
        assert process.wait(60) == 0
        uploaded = sync(server, run)
        check_rows(uploaded.history, range(1, 7))
        assert uploaded.exit_code == 0


def test_torn_end_loses_nothing_before_it(tmp_path):
    run = make_run(tmp_path / "run")
    log_and_die(run, 0, 12)
    with run_file(run).open("ab") as file:
        file.write(b"\x12\x34\x56\x78\xff\x7f\x01half of an entry")
    log(run, 12, 14)
    with wandb_server() as server:
        check_rows(sync(server, run).history, range(1, 15))


def test_numbers_that_are_not_finite(tmp_path):
    run = make_run(tmp_path / "run")
    odd = {"a": "NaN", "b": "Infinity", "c": "-Infinity", "phase": "warm \u201eup\u201c"}
    assert tool("log", run, 0, 3, [record(1, odd)]).returncode == 0
    with wandb_server() as server:
        uploaded = sync(server, run)
        (row,) = uploaded.history
        assert math.isnan(row["a"]) and row["b"] == math.inf and row["c"] == -math.inf
        assert row["phase"] == odd["phase"]
        assert uploaded.exit_code == 3


def test_other_modes_are_refused(tmp_path):
    done = tool("log", make_run(tmp_path / "run", wandb_mode="of"), 0, 0, [])
    assert done.returncode == 2 and "wandb.mode must be one of disabled, offline, online, not 'of'" in done.stderr


def test_disabled_writes_nothing(tmp_path):
    run = make_run(tmp_path / "run", wandb_mode="disabled")
    log(run, 0, 2)
    assert not (run / "wandb").exists()


def test_project_names_that_wandb_refuses(tmp_path):
    done = tool("log", make_run(tmp_path / "run", project="a/b"), 0, 0, [])
    assert done.returncode == 2 and "log.wandb.project" in done.stderr and "'a/b'" in done.stderr
