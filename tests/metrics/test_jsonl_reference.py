"""Python's json and pandas read metrics.jsonl, whatever happened to the run."""

import io
import json
import math

import pandas
from logged_runs import log, log_and_die, make_run, record, tool, values_of


def no_constants(name):
    raise AssertionError(f"{name} is not JSON")


def read(run):
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line, parse_constant=no_constants) for line in lines]


def check(run, steps):
    rows = read(run)
    assert [row["step"] for row in rows] == list(steps)
    for row, step in zip(rows, steps, strict=True):
        assert list(row)[:2] == ["step", "time"]
        assert row == {"step": step, "time": record(step)[1], **values_of(step)}


def test_one_line_per_step(tmp_path):
    run = make_run(tmp_path / "run")
    log(run, 0, 40)
    check(run, range(1, 41))


def test_killed_run_keeps_every_record_and_resumes(tmp_path):
    run = make_run(tmp_path / "run")
    log_and_die(run, 0, 25)
    check(run, range(1, 26))
    done = log(run, 20, 30)
    assert "took back 5 lines" in done.stderr
    check(run, range(1, 31))
    log(run, 30, 32)
    check(run, range(1, 33))


def test_fresh_run_in_an_old_folder(tmp_path):
    run = make_run(tmp_path / "run")
    log(run, 0, 9)
    log(run, 0, 3)
    check(run, range(1, 4))


def test_torn_and_damaged_lines_leave(tmp_path):
    run = make_run(tmp_path / "run")
    log(run, 0, 5)
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'not json\n{"step":6}\n\xff\xfe\n{"loss":1}\n[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]\n{"step":7,"lo')
    done = log(run, 5, 7)
    assert "removed 5 lines that were damaged, beginning with line 6" in done.stderr
    check(run, range(1, 8))


def test_not_finite_is_null_and_named(tmp_path):
    run = make_run(tmp_path / "run")
    odd = {"a": "NaN", "b": 1, "c": "Infinity", "d": "-Infinity", "phase": 'the "b" \u6c34'}
    assert tool("log", run, 0, 0, [record(1, odd), record(2, {"a": 0.5, "b": 2})]).returncode == 0
    first, second = read(run)
    assert (first["a"], first["b"], first["c"], first["d"]) == (None, 1, None, None)
    assert first["not_finite"] == {"a": "NaN", "c": "Infinity", "d": "-Infinity"}
    assert first["phase"] == odd["phase"]
    assert second == {"step": 2, "time": record(2)[1], "a": 0.5, "b": 2}

    table = pandas.read_json(io.StringIO((run / "metrics.jsonl").read_text()), lines=True)
    assert math.isnan(table.a[0]) and table.a[1] == 0.5
    assert table.a.dtype == float and list(table.b) == [1, 2]


def test_numbers_survive_exactly(tmp_path):
    run = make_run(tmp_path / "run")
    numbers = [0.1, 1 / 3, 1e-300, 1.7976931348623157e308, 5e-324, -0.0, 2**53 + 2.0, 100000.0, 123456789012345680.0]
    assert tool("log", run, 0, 0, [record(1, {f"n{i}": number for i, number in enumerate(numbers)})]).returncode == 0
    (row,) = read(run)
    assert [row[f"n{i}"] for i in range(len(numbers))] == numbers


def test_steps_must_grow(tmp_path):
    run = make_run(tmp_path / "run")
    done = tool("log", run, 0, 0, [record(2), record(2)])
    assert done.returncode == 1 and "step 2 came after those of step 2" in done.stderr
    done = tool("log", run, 2, 0, [record(2)])
    assert done.returncode == 1 and "steps must grow" in done.stderr


def test_a_folder_that_cannot_be_written(tmp_path):
    run = make_run(tmp_path / "run")
    (run / "tensorboard").write_text("a file where a folder should be")
    done = tool("log", run, 0, 0, [record(1)])
    assert done.returncode == 1 and "cannot write the logs" in done.stderr
    assert len(done.stderr.splitlines()) == 1
