"""`floe launch` with real processes: places, failures, signals, output."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from patience import patient

FLOE = Path(os.environ["FLOE_BIN_DIR"]) / "floe"

HANG = "while true; do sleep 0.1; done"


def shell(script):
    return ["--exec", "sh", "-c", script]


def lines_of(text, rank):
    return [line[4:] for line in text.splitlines() if line.startswith(f"[{rank}] ")]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pids, seconds=10):
    end = time.monotonic() + patient(seconds)
    while any(alive(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(alive(pid) for pid in pids)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def read_lines(stream, count):
    return [stream.readline().rstrip("\n") for _ in range(count)]


def test_ranks_know_their_place(floe):
    done = floe("launch", "-n", "4", *shell("env"))
    assert done.returncode == 0
    ports = set()
    for rank in range(4):
        env = dict(line.split("=", 1) for line in lines_of(done.stdout, rank) if "=" in line)
        assert env["RANK"] == env["LOCAL_RANK"] == str(rank)
        assert env["WORLD_SIZE"] == env["LOCAL_WORLD_SIZE"] == "4"
        assert env["MASTER_ADDR"] == "127.0.0.1"
        assert env["FLOE_LAUNCHED"] == "1"
        assert int(env["OMP_NUM_THREADS"]) == max(1, len(os.sched_getaffinity(0)) // 4)
        ports.add(int(env["MASTER_PORT"]))
    assert len(ports) == 1


def test_runs_floes_own_commands(floe):
    done = floe("launch", "-n", "2", "--", "version")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [f"[{r}] " + floe("version").stdout.strip() for r in (0, 1)]
    assert floe("launch", "-n", "1", "version").stdout == "[0] " + floe("version").stdout


def test_help_behind_the_dashes_is_the_commands(floe):
    assert "usage: floe version" in floe("launch", "-n", "1", "--", "version", "--help").stdout
    assert floe("launch", "-n", "1", *shell("echo $1"), "name", "--help").stdout == "[0] --help\n"


def test_variables_for_all_ranks(floe):
    done = floe("launch", "-n", "2", "--env", "A=1 2", "--env=B=x=y", *shell('echo "$A|$B"'))
    assert sorted(done.stdout.splitlines()) == ["[0] 1 2|x=y", "[1] 1 2|x=y"]


def test_without_prefix(floe):
    done = floe("launch", "-n", "2", "--no-prefix", *shell("echo out; echo err >&2"))
    assert done.stdout == "out\nout\n"
    assert done.stderr == "err\nerr\n"


def test_output_that_is_lost_is_no_success():
    """A full disk behind `> file`; who stops reading (`| head`) has what they wanted."""
    words = [FLOE, "launch", "-n", "2", *shell("seq 20000")]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1 and "is there room?" in done.stderr.splitlines()[-1]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as left:
        left.stdout.readline()
        left.stdout.close()
        assert left.wait(timeout=60) == 0, left.stderr.read()


def test_a_failing_rank_is_reported_last(floe):
    script = "if [ $RANK = 2 ]; then echo first cause >&2; exit 9; fi; sleep 0.5; echo peer lost >&2; exit 1"
    done = floe("launch", "-n", "3", *shell(script))
    assert done.returncode == 9
    assert done.stderr.splitlines()[-3:] == [
        "last lines of rank 2:",
        "  first cause",
        "floe: rank 2 of 3 failed first: it returned exit code 9",
    ]
    assert lines_of(done.stderr, 0) == ["peer lost"]


def test_a_killed_rank_ends_the_others(floe):
    began = time.monotonic()
    done = floe("launch", "-n", "2", "--grace", "0.5", *shell(f"if [ $RANK = 1 ]; then kill -9 $$; fi; {HANG}"))
    assert done.returncode == 128 + signal.SIGKILL
    assert done.stderr.splitlines()[-1] == "floe: rank 1 of 2 failed first: it was ended by SIGKILL"
    assert "rank 0 still running 0.5 s after rank 1 failed; sending SIGTERM" in done.stderr
    assert 0.5 <= time.monotonic() - began < 20


def test_a_rank_that_ignores_sigterm_is_killed(floe):
    began = time.monotonic()
    script = f"if [ $RANK = 0 ]; then exit 3; fi; trap '' TERM; {HANG}"
    done = floe("launch", "-n", "2", "--grace=0.2", *shell(script))
    assert done.returncode == 3
    assert "rank 1 did not end; sending SIGKILL" in done.stderr
    assert 5 <= time.monotonic() - began < 30


def test_ctrl_c_once_lets_ranks_end_well(start):
    process = start("launch", "-n", "2", *shell(f"trap 'echo bye; exit 0' INT; echo ready; {HANG}"))
    assert sorted(read_lines(process.stdout, 2)) == ["[0] ready", "[1] ready"]
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert sorted(out.splitlines()) == ["[0] bye", "[1] bye"]
    assert process.returncode == 0


def test_ctrl_c_ends_ranks_without_a_handler(start):
    process = start("launch", "-n", "2", "--exec", "sh", "-c", "echo ready; exec sleep 60")
    read_lines(process.stdout, 2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGINT
    assert "floe: stopped by SIGINT; rank " in err and "failed" not in err


def test_ctrl_c_twice_reaches_ranks_that_took_the_first_as_a_request(start):
    """As `floe train` does: it ends at once, and not only when the launcher kills it."""
    process = start("launch", "-n", "2", *shell(f"trap 'trap - INT; echo soon' INT; trap '' TERM; echo ready; {HANG}"))
    read_lines(process.stdout, 2)
    process.send_signal(signal.SIGINT)
    assert sorted(read_lines(process.stdout, 2)) == ["[0] soon", "[1] soon"]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGINT


def test_ctrl_c_twice_ends_ranks_that_do_not_react(start):
    process = start("launch", "-n", "2", *shell(f"trap '' INT; echo ready $$; {HANG}"))
    pids = [int(line.split()[-1]) for line in read_lines(process.stdout, 2)]
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None and all(alive(pid) for pid in pids)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM
    assert "after a second SIGINT" in err
    assert wait_until_gone(pids)


def test_sigterm_is_passed_on(start):
    process = start("launch", "-n", "2", *shell(f"trap 'echo saved; exit 0' TERM; echo ready; {HANG}"))
    read_lines(process.stdout, 2)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    assert sorted(out.splitlines()) == ["[0] saved", "[1] saved"]
    assert process.returncode == 0


def test_no_rank_outlives_a_killed_launcher(start):
    process = start("launch", "-n", "3", "--exec", "sh", "-c", "echo $$; exec sleep 60")
    pids = [int(line.split()[-1]) for line in read_lines(process.stdout, 3)]
    assert all(alive(pid) for pid in pids)
    process.kill()
    assert wait_until_gone(pids)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["version"], "say how many ranks to start: -n N"),
        (["-n"], "-n needs a value behind it"),
        (["-n", "0", "version"], "-n takes a number from 1 to 4096, got '0'"),
        (["-n", "two", "version"], "-n takes a number from 1 to 4096, got 'two'"),
        (["-n", "2"], "say what the ranks shall run"),
        (["-n", "2", "--grace", "-1", "version"], "--grace takes a number"),
        (["-n", "2", "--env", "A", "version"], "--env takes NAME=VALUE, got 'A'"),
        (["-n", "2", "--fast", "version"], "there is no option '--fast'"),
        (["-n", "2", "--", "vresion"], "there is no command 'vresion'; did you mean 'version'?"),
        (["-n", "2", "--exec", "/no/such"], "cannot start '/no/such': No such file or directory"),
    ],
)
def test_bad_usage_is_one_sentence_and_exit_2(floe, args, sentence):
    done = floe("launch", *args)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


# ------------------------------------------------------------------------ again, and on several hosts


def test_ranks_are_started_again(floe):
    again = 'echo start $FLOE_RESTARTS; [ "$RANK" = 1 ] && [ "$FLOE_RESTARTS" -lt 2 ] && exit 3; exit 0'
    done = floe("launch", "-n", "2", "--max-restarts", "2", *shell(again))
    assert done.returncode == 0, done.stderr
    assert lines_of(done.stdout, 0) == lines_of(done.stdout, 1) == ["start 0", "start 1", "start 2"]
    assert "rank 1 of 2 failed first: it returned exit code 3; starting again (2 of 2)" in done.stderr
    done = floe("launch", "-n", "2", "--max-restarts", "1", *shell(again))
    assert done.returncode == 3 and lines_of(done.stdout, 0) == ["start 0", "start 1"]


@pytest.mark.parametrize("code", [2, 75])
def test_what_is_final_is_not_started_again(floe, code):
    done = floe("launch", "-n", "2", "--max-restarts", "5", *shell(f"echo once; exit {code}"))
    assert done.returncode == code and lines_of(done.stdout, 0) == ["once"]


def test_launchers_meet_and_number_the_ranks(start):
    """Two on one host, as on two: ranks in the order in which the launchers came."""
    place = f"127.0.0.1:{free_port()}"
    words = ["--nnodes", "2", "--rdzv", place, *shell("echo $RANK $WORLD_SIZE $LOCAL_RANK $MASTER_ADDR $MASTER_PORT")]
    first = start("launch", "-n", "2", *words)
    assert "hosts meet here" in first.stderr.readline()
    second = start("launch", "-n", "1", *words)
    outputs = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0]
    lines = sorted(line.split() for text in outputs for line in text.splitlines())
    assert [line[:5] for line in lines] == [["[0]", "0", "3", "0", "127.0.0.1"], ["[1]", "1", "3", "1", "127.0.0.1"],
                                            ["[2]", "2", "3", "0", "127.0.0.1"]]
    assert len({line[5] for line in lines}) == 1


def test_ranks_that_were_asked_to_end_are_not_started_again(start):
    for meeting in ([], ["--nnodes", "1", "--rdzv", f"127.0.0.1:{free_port()}"]):
        launcher = start("launch", "-n", "1", "--max-restarts", "5", *meeting, *shell(f"echo up; {HANG}"))
        assert launcher.stdout.readline() == "[0] up\n"
        launcher.send_signal(signal.SIGTERM)
        out, _ = launcher.communicate(timeout=30)
        assert launcher.returncode == 128 + signal.SIGTERM and out == ""


@pytest.mark.parametrize("words, said", [
    (["--nnodes", "2"], "--nnodes 2 needs --rdzv HOST:PORT"),
    (["--nnodes", "3:2", "--rdzv", "h:1"], "--nnodes takes a number from 3 to 4096, got '2'"),
    (["--rdzv", "host"], "--rdzv takes HOST:PORT, got 'host'"),
    (["--rdzv", "host:0"], "the port of --rdzv takes a number from 1 to 65535, got '0'"),
    (["--host-wait", "5"], "--host-wait needs --nnodes and --rdzv"),
    (["--max-restarts", "-1"], "--max-restarts takes a number from 0 to 1000000, got '-1'"),
])
def test_wrong_words_about_hosts(floe, words, said):
    done = floe("launch", "-n", "1", *words, *shell("true"))
    assert done.returncode == 2 and said in done.stderr, done.stderr
