"""What a person sees of a run: on a terminal, and in a log."""

import json
import os
import pty
import re
import struct
import subprocess
import termios
from fcntl import ioctl

from logged_runs import START, TOOL

LINE = re.compile(r"\d\d:\d\d:\d\d (.*)")


def records(count):
    same = {"tokens_per_second": 48123.0, "memory": 3 * 2**30}
    rows = [[step, START, {"loss_laion": 5 / step, **same}] for step in range(1, count + 1)]
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_plain_lines_without_a_terminal():
    words = [TOOL, "progress", "0", "10", "4"]
    done = subprocess.run(words, input=records(10), capture_output=True, text=True, timeout=60)
    lines = [LINE.fullmatch(line).group(1) for line in done.stderr.splitlines()]
    lines = [line for line in lines if not line.startswith("a line about")]
    assert lines[0] == "step 1/10  loss_laion 5.0000  48.1k tokens/s  memory 3.00 GiB"
    assert re.fullmatch(r"step 4/10  \d+ s left  loss_laion 1.2500  48.1k tokens/s  memory 3.00 GiB", lines[1])
    assert lines[-1] == "step 10/10  loss_laion 0.5000  48.1k tokens/s  memory 3.00 GiB"
    assert len(lines) == 4
    assert "\x1b" not in done.stderr and "\r" not in done.stderr


def screen(output, columns):
    """What a terminal of this width shows after these bytes."""
    rows, row, column = [""], 0, 0
    for piece in re.findall(r"\x1b\[K|\r|\n|[^\x1b\r\n]+", output):
        if piece == "\x1b[K":
            rows[row] = rows[row][:column]
        elif piece == "\r":
            column = 0
        elif piece == "\n":
            rows.append("")
            row += 1
        else:
            rows[row] = rows[row][:column] + piece + rows[row][column + len(piece) :]
            column += len(piece)
            assert column < columns, f"wraps: {rows[row]!r}"
    return rows


def on_terminal(columns, count=7):
    leader, follower = pty.openpty()
    ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    words = [TOOL, "progress", "0", str(count), "1"]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stderr=follower, text=True)
    os.close(follower)
    process.stdin.write(records(count))
    process.stdin.close()
    output = b""
    while True:
        try:
            output += os.read(leader, 4096)
        except OSError:  # the other side is gone
            break
    os.close(leader)
    assert process.wait(60) == 0
    return output.decode().replace("\r\n", "\n")


def test_one_renewed_line_on_a_terminal():
    output = on_terminal(120)
    rows = screen(output, 120)
    shown = [LINE.fullmatch(row).group(1) for row in rows[:-1]]
    assert shown == [
        "a line about step 3",
        "a line about step 6",
        "step 7/7  loss_laion 0.7143  48.1k tokens/s  memory 3.00 GiB",
    ]
    assert rows[-1] == ""
    for step in range(1, 7):
        assert f"step {step}/7" in output


def test_narrow_terminal_never_wraps():
    output = on_terminal(30, count=3)
    renewed = re.findall(r"\r\x1b\[K(step[^\r\n]*)", output)
    assert renewed[0] == "step 1/3  loss_laion 5.0000"
    assert re.fullmatch(r"step 2/3  \d+ s left", renewed[1])
    assert all(len(line) < 30 for line in renewed)
