"""What can happen to a run on several hosts. Each function makes it happen to `c`, a campaign.Chain
with a run under way (or about to be started), and returns an Event: what is to come of it."""

import dataclasses
import os
import re
import resource
import shutil
import signal
import sys
import time
from typing import Callable

from jobs import AGENTS_PORT, GONE_S, LM, PORT, other_weights

STOPPED = 75  # the exit code of a run that was asked to stop
REFUSED = 2


@dataclasses.dataclass
class Event:
    what: str  # for the table
    ends: bool | None  # the run; None: it may, or it goes on
    cause: Callable | str = ""  # what the last line of a rank must match; of one that ends
    limit: float = GONE_S  # seconds until the last process has ended
    code: int | None = None  # the exit code of every rank
    spared: tuple = ()  # ranks that end without a word
    undo: Callable = lambda: None  # before the same command goes on
    stopped: int | None = None  # a rank that does not end by itself: it hangs


FAULTS = {}  # by name: (how likely, when, function)


def fault(weight, when="running"):
    """`when`: to a run that is under way, before one is started, or instead of its usual start."""

    def register(function):
        FAULTS[function.__name__] = (weight, when, function)
        return function

    return register


def rank_and_host(c, rank):
    return rf"\brank {rank}\b.*\b{c.hosts[rank].name}\b|\b{c.hosts[rank].name}\b.*\brank {rank}\b"


def some_rank(c, text):
    """It is gone or hangs: its number, in a range too; while ranks meet its host is not known."""
    return lambda rank: rank_and_host(c, text) if c.has_met() else rf"\brank {text}\b|\branks\b.*\b{text}\b"


# ---------------------------------------------------------------------------- processes that end


def kill(c, rank):
    c.signal(rank, signal.SIGKILL)
    restarts = c.scenario.restarts
    return Event(f"SIGKILL of rank {rank}", not restarts, some_rank(c, rank), limit=c.met_or_timeout(), spared=(rank,))


@fault(10)
def kill_a_rank(c):
    return kill(c, c.random.randrange(1, len(c.hosts)))


@fault(5)
def kill_rank_0(c):
    return kill(c, 0)


@fault(4)
def kill_two_ranks(c):
    first, second = c.random.sample(range(len(c.hosts)), 2)
    event = kill(c, first)
    c.signal(second, signal.SIGKILL)
    event.what, event.spared = f"SIGKILL of ranks {first} and {second}", (first, second)
    event.cause = lambda rank: "|".join(some_rank(c, each)(rank) for each in (first, second))
    return event


@fault(3)
def kill_a_host(c):
    """All of its processes, launchers and ranks, at once."""
    number = c.random.randrange(len(c.run.different))
    host = c.run.different[number]
    host.kill_all_but(c.daemons)
    ranks = tuple(rank for rank, each in enumerate(c.hosts) if each is host)
    restarted = c.scenario.restarts and number > 0
    if restarted:
        c.start_launcher(host)
    names = "|".join([rf"\brank {rank}\b" for rank in ranks] + [rf"\branks\b.*\b{ranks[0]}\b", host.name])
    return Event(f"SIGKILL of all on {host.name}", not restarted, names, limit=c.met_or_timeout(), spared=ranks)


@fault(3)
def kill_a_launcher(c):
    """Or an agent. Under `by_hand` there is none: a rank it is."""
    if c.scenario.launcher == "by_hand":
        return kill_a_rank(c)
    if c.scenario.launcher != "floe_launch":
        return kill_a_host(c)  # agents of others leave their ranks alone, for good or ill
    number = c.random.randrange(len(c.run.different))
    host = c.run.different[number]
    c.run.processes[host.name].kill()
    ranks = tuple(rank for rank, each in enumerate(c.hosts) if each is host)
    restarted = c.scenario.restarts and number > 0
    if restarted:
        c.run.processes[host.name].wait()
        c.start_launcher(host)
    names = "|".join([rf"\brank {rank}\b" for rank in ranks] + [host.name])
    return Event(f"SIGKILL of the launcher on {host.name}", not restarted, names, limit=c.met_or_timeout(), spared=ranks)


# ------------------------------------------------------------------------------ processes that hang


@fault(3)
def stop_a_rank(c):
    """It neither works nor ends, until it is let go when the others have ended."""
    rank = c.random.randrange(len(c.hosts))
    c.signal(rank, signal.SIGSTOP)
    return Event(f"SIGSTOP of rank {rank}", not c.scenario.restarts, some_rank(c, rank), limit=c.scenario.timeout_s + GONE_S,
                 spared=(rank,), stopped=rank)


@fault(6)
def stop_a_rank_for_a_moment(c):
    rank, seconds = c.random.randrange(len(c.hosts)), c.random.uniform(0.5, 4)
    c.signal(rank, signal.SIGSTOP)
    time.sleep(seconds)
    c.signal(rank, signal.SIGCONT)
    return Event(f"SIGSTOP of rank {rank} for {seconds:.1f} s", False)


# ----------------------------------------------------------------------------------------- signals


def terminate(c, names, what):
    """To processes by name, or to ranks by number."""
    for name in names:
        if isinstance(name, str):
            c.run.processes[name].send_signal(signal.SIGTERM)
        else:
            c.signal(name, signal.SIGTERM)
    return Event(what, True, "", limit=c.stop_limit(), code=STOPPED)


@fault(6)
def terminate_one(c):
    rank = c.random.randrange(len(c.hosts))
    if c.scenario.launcher != "by_hand":
        return terminate_all(c)
    return terminate(c, [rank], f"SIGTERM to rank {rank}")


@fault(6)
def terminate_all(c):
    """As a scheduler does: whatever was started, and the ranks as well."""
    if c.slurm:  # srun takes a signal of its own for a wish to kill
        c.places[0].run("scancel", "--user=root", env=c.slurm.environment())
        return Event("scancel", True, "", limit=c.stop_limit(), code=STOPPED)
    ranks = list(range(len(c.hosts))) if c.scenario.launcher == "by_hand" else c.ranks_there()
    launchers = [name for name in c.run.processes if isinstance(name, str)]
    names = launchers + ranks
    c.random.shuffle(names)
    return terminate(c, names, "SIGTERM to all")


@fault(4)
def terminate_all_twice(c):
    terminate_all(c)
    time.sleep(c.random.uniform(0, 0.3))
    try:
        terminate_all(c)
    except (ProcessLookupError, AssertionError):
        pass  # some have ended
    return Event("SIGTERM to all, twice", True, "", limit=c.stop_limit(), code=STOPPED)


@fault(3)
def hang_up(c):
    c.signal(0, signal.SIGHUP)
    return Event("SIGHUP to rank 0", True, "", limit=c.stop_limit(), code=STOPPED if c.scenario.launcher == "by_hand" else None)


@fault(4)
def save_now(c):
    rank = c.random.randrange(len(c.hosts))
    c.signal(rank, signal.SIGUSR1)
    return Event(f"SIGUSR1 to rank {rank}", False)


# -------------------------------------------------------------------------------------------- links


@fault(3)
def cut_a_link(c):
    host = c.random.choice(c.run.different)
    host.cut()

    def names(rank):
        there = c.hosts[rank] is host
        others = [(number, each) for number, each in enumerate(c.hosts) if (each is host) != there]
        return "|".join([rank_and_host(c, number) for number, _ in others] + [each.name for _, each in others])

    return Event(f"link of {host.name} down", True, names, limit=c.met_or_timeout(), undo=host.mend)


@fault(6)
def cut_a_link_for_a_moment(c):
    host, seconds = c.random.choice(c.run.different), c.random.uniform(0.3, 5)
    host.cut()
    time.sleep(seconds)
    host.mend()
    return Event(f"link of {host.name} down for {seconds:.1f} s", False)


@fault(6)
def lose_packets(c):
    host, percent = c.random.choice(c.run.different), c.random.randint(5, 25)
    host.lose(percent)
    c.some_steps(2)
    host.lose(0)
    return Event(f"{percent}% of packets of {host.name} lost", False)


@fault(5)
def slow_link(c):
    host = c.random.choice(c.run.different)
    host.slow(20)
    c.some_steps(2)
    host.slow(None)
    return Event(f"20 Mbit/s at {host.name}", False)


# -------------------------------------------------------------------------------------------- disks


@fault(4)
def fill_the_disk(c):
    c.wait_for_a_checkpoint()
    ballast = c.runs / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file:
            while file.write(bytes(1 << 16)):
                pass
    except OSError:
        pass
    return Event("disk full", True, "No space left", undo=ballast.unlink)


@fault(3)
def limit_files(c):
    """As a full disk of one rank."""
    c.wait_for_a_checkpoint()
    rank, most = c.random.randrange(len(c.hosts)), 32 << 10
    resource.prlimit(c.run.pid(rank), resource.RLIMIT_FSIZE, (most, most))
    return Event(f"files of rank {rank} may not grow", True, "File too large")


@fault(3)
def read_only_disk(c):
    c.wait_for_a_checkpoint()
    host, folder = c.random.choice(c.run.different), c.run.folder
    host.run("mount", "--bind", folder, folder)
    host.run("mount", "-o", "remount,ro,bind", folder)
    return Event(f"disk of {host.name} read-only", True, "Read-only",
                 undo=lambda: host.run("umount", "--lazy", folder))


@fault(4)
def slow_disk(c):
    host, ms = c.random.choice(c.run.different), c.random.randint(5, 150)
    c.tamper("slow", host, ms)
    c.some_steps(2)
    c.tamper("slow", host, None)
    return Event(f"disk of {host.name} slower by {ms} ms a write", False)


@fault(5)
def few_descriptors(c):
    """As many as are open, and up to three: a save needs one or two."""
    rank = c.random.randrange(len(c.hosts))
    pid = c.run.pid(rank)
    highest = max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
    most = max(4, highest + 1 + c.random.randrange(4))
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, before[1]))

    def restore():
        try:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        except ProcessLookupError:
            pass

    return Event(f"{most} file descriptors for rank {rank}", None, "Too many open files", undo=restore)


@fault(6, when="between")
def damage_the_newest_checkpoint(c):
    """A byte changed, a file cut off or missing."""
    checkpoints = sorted((c.runs / "run" / "checkpoints").glob("step_*"), key=lambda path: int(path.name[5:]))
    if len(checkpoints) < 2:
        return None
    files = [path for path in sorted(checkpoints[-1].rglob("*")) if path.is_file() and path.stat().st_size]
    path, way = c.random.choice(files), c.random.choice(["a byte changed", "cut off", "missing"])
    if way == "a byte changed":
        content = bytearray(path.read_bytes())
        content[c.random.randrange(len(content))] ^= 1 << c.random.randrange(8)
        path.write_bytes(content)
    elif way == "cut off":
        os.truncate(path, c.random.randrange(path.stat().st_size))
    else:
        path.unlink()
    return Event(f"newest checkpoint: {path.name} {way}", False)


# ------------------------------------------------------------------- what does not belong together


@fault(4, when="start")
def another_setting(c):
    rank = c.random.randrange(len(c.hosts))
    key, value = c.random.choice([("train.optimizer.lr", "0.5"), ("data.laion.batch_size", "3"),
                                  ("train.clip.norm", "0.1"), ("log.every_steps", "3")])
    if c.scenario.launcher != "by_hand":
        return None
    c.start(words_of={rank: [f"{key}={value}"]})
    return Event(f"{key}={value} on rank {rank}", True, re.escape(key), code=REFUSED, limit=c.start_limit())


@fault(4, when="start")
def other_weights_on_a_host(c):
    host = c.random.choice(c.places[1:])
    folder = c.folder / f"weights{len(c.rows)}"
    folder.mkdir()
    host.bind(other_weights(folder, c.random.choice([1, 7])), LM)
    c.start()

    def undo():
        host.run("umount", "--lazy", LM)
        shutil.rmtree(folder)

    return Event(f"other weights on {host.name}", True, r"model\.safetensors", limit=c.start_limit(), undo=undo,
                 code=REFUSED if c.scenario.launcher == "by_hand" else None)


STRANGER = """
import os, random, socket, sys
kind, seed = sys.argv[3], int(sys.argv[4])
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20) as s:
    if kind == "hello":
        s.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
    elif kind == "bytes":
        s.sendall(random.Random(seed).randbytes(1000))
    elif kind == "half":
        s.sendall((1 << 20).to_bytes(4, "little") + bytes(10))
    s.settimeout(1)
    try:
        s.recv(100)
    except OSError:
        pass
"""


@fault(5)
def a_stranger(c):
    host, kind = c.random.choice(c.run.different), c.random.choice(["hello", "bytes", "half", "silent"])
    port = AGENTS_PORT if c.scenario.launcher == "floe_launch" else PORT
    host.run(sys.executable, "-c", STRANGER, c.hosts[0].name, port, kind, c.random.randrange(1 << 30), check=False)
    return Event(f"a stranger on the port ({kind})", False)


@fault(4)
def a_rank_of_another_job(c):
    """Which was given the same port."""
    if c.scenario.launcher != "by_hand":
        return a_stranger(c)
    rank = c.random.randrange(1, len(c.hosts))
    other = c.make_run("train.optimizer.lr=0.5", name=f"stranger{len(c.rows)}")
    other.start_rank(rank)
    code = other.processes[rank].wait(timeout=c.scenario.timeout_s + GONE_S)
    said = other.last_words(rank)
    if code == 0 or not re.search("refused|another job|in use", said):
        c.complain(f"the stranger ended with {code}: {said}")
    return Event(f"rank {rank} of another job", False)


@fault(5)
def clock_jump(c):
    host, seconds = c.random.choice(c.run.different), c.random.choice([-86400, -3600, -30, 30, 3600, 86400])
    c.tamper("clock", host, seconds)
    c.some_steps(3)
    c.tamper("clock", host, None)
    return Event(f"clock of {host.name} {seconds:+d} s and back", False)
