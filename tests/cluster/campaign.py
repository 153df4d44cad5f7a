"""A campaign of faults: a small training job on several hosts, to which one thing after the other
happens (faults.py), at random moments by a seed.

    campaign.py --events 300 --seed 7 [--scenario NAME...] [--rows FILE] [--fault NAME...]

A chain is one run: an event that ends it is followed by the same command, which must go on from what
was saved. After every event it is looked at: how long until the last process had ended, that none is
left, that the last line of every rank names the cause, and that every loss that was ever logged is,
bit for bit, that of a run that nobody has disturbed. With --rows the rows are added to a file, and the
table is that of the whole file. The exit status is 0 if nothing was wrong."""

import argparse
import dataclasses
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / folder) for folder in ("cluster", "train", "support")]
import hosts  # noqa: E402
import jobs  # noqa: E402
from faults import FAULTS, STOPPED  # noqa: E402
from slurm import Slurm  # noqa: E402

INSIDE = "FLOE_CAMPAIGN_INSIDE"  # set in the mount namespace of its own
END = 60  # steps before the last one nothing more happens to a chain
CHAIN = 14  # events of a chain, at most
STEP_S = 120  # for a few steps, on a machine that has other things to do
DISK_BYTES = 48 << 20

PHASES = [{"name": "a", "train": ["perceiver.*"], "steps": 3},
          {"name": "b", "train": ["*gated_cross_attn*"], "steps": 4, "optimizer_state": "offload"}]


@dataclasses.dataclass
class Scenario:
    name: str
    places: tuple  # the number of the host of each rank
    launcher: str  # a method of jobs.Run
    words: tuple = ()
    saves: tuple = ("checkpoint.every_steps=6",)
    weight: int = 10
    restarts: bool = False  # the launcher starts ranks again
    timeout_s: int = 20

    def possible(self, names):
        """Of these faults. Ranks that are started again would fail again where the disk is the cause, and
        srun stays for minutes, after all ranks have ended, where SLURM cannot reach a node."""
        left_out = LASTING if self.restarts else {"cut_a_link"} if self.launcher == "srun" else ()
        return [name for name in names if name not in left_out]


LASTING = {"fill_the_disk", "limit_files", "read_only_disk", "cut_a_link", "few_descriptors"}

TWO_BY_TWO = (0, 0, 1, 1)
HYBRID = ("strategy.sharding=hybrid", "strategy.hybrid_shard_size=2")
NOT_BEHIND = ("checkpoint.every_steps=5", "checkpoint.async=false")
SCENARIOS = {each.name: each for each in (
    Scenario("full_shard 2x2", TWO_BY_TWO, "by_hand", weight=25),
    Scenario("hybrid 2x2", TWO_BY_TWO, "by_hand", HYBRID, weight=15),
    Scenario("no_shard 2x2", TWO_BY_TWO, "by_hand", ("strategy.sharding=no_shard",), NOT_BEHIND, weight=15),
    Scenario("phases 2x2", TWO_BY_TWO, "by_hand", (f"phases={json.dumps(PHASES)}", "train.cycle_phases=true"),
             weight=15),
    Scenario("full_shard 4x1", (0, 1, 2, 3), "by_hand", (), NOT_BEHIND, weight=10),
    Scenario("hybrid 4x2", (0, 0, 1, 1, 2, 2, 3, 3), "by_hand", HYBRID, weight=4, timeout_s=40),
    Scenario("floe launch 2x2", TWO_BY_TWO, "floe_launch", weight=10),
    Scenario("floe launch 2x2 restarts", TWO_BY_TWO, "floe_launch", HYBRID, weight=10, restarts=True),
    Scenario("torchrun 2x1", (0, 1), "torchrun", weight=4),
    Scenario("mpirun 2x2", TWO_BY_TWO, "mpirun", weight=4),
    Scenario("srun 2x2", TWO_BY_TWO, "srun", weight=4),
)}


class Chain:
    """One run of a scenario and all that happens to it. `rows` has a dictionary for each event."""

    def __init__(self, scenario, steps, job, folder, seed, report):
        self.scenario, self.steps, self.job, self.folder = scenario, steps, job, folder
        self.random = random.Random(seed)
        self.seed, self.report = seed, report
        self.rows, self.waiting = [], []  # waiting: events after which it has not gone on yet
        self.run, self.daemons = None, set()
        self.runs = folder / "runs"
        self.runs.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "campaign", self.runs], check=True)
        self.cluster = hosts.Cluster(max(scenario.places) + 1, folder / "cluster")
        self.places = self.cluster.hosts
        self.slurm = Slurm(self.cluster) if scenario.launcher == "srun" else None
        if self.slurm:
            self.daemons = self.slurm.daemons
        self.reference = job.undisturbed(len(scenario.places), *scenario.words, f"train.steps={self.steps}")

    def close(self):
        self.cluster.close()
        subprocess.run(["umount", "--lazy", self.runs], check=True)
        shutil.rmtree(self.folder)

    # ---- the run

    @property
    def hosts(self):
        """Of each rank."""
        return [self.cluster[place] for place in self.scenario.places]

    def make_run(self, *words, name="run"):
        given = (*self.scenario.words, *self.scenario.saves, f"train.steps={self.steps}",
                 f"dist.timeout_s={self.scenario.timeout_s}", "run.stop_grace_s=20", *words)
        run = jobs.Run(self.cluster, self.job, self.folder, *given, name=name, places=self.scenario.places)
        run.more = {"LD_PRELOAD": str(self.job.folder / "tamper.so"), "FLOE_TAMPER": str(self.folder)}
        return run

    def start(self, words_of=None):
        self.run = self.make_run()
        self.before = max(self.losses(), default=0)
        self.began = time.time()
        self.lines_before = self.num_lines()
        run, launcher = self.run, self.scenario.launcher
        if launcher == "by_hand":
            run.by_hand(words_of)
        elif launcher == "floe_launch":
            for host in run.different:
                self.start_launcher(host)
        elif launcher == "srun":
            run.srun(self.slurm, "--kill-on-bad-exit=0")
        else:
            getattr(run, launcher)()

    def start_launcher(self, host):
        """Of floe, also for a host whose launcher is gone."""
        number = "100" if self.scenario.restarts else "0"
        self.run.floe_launch("2", "--max-restarts", number, "--host-wait", "60", on=host)

    def is_running(self):
        return self.run is not None and any(each.poll() is None for each in self.run.processes.values())

    def losses(self):
        """{step: what was trained there}, the newest of each."""
        return jobs.losses_of(self.runs / "run")

    def num_lines(self):
        path = self.runs / "run" / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def new_steps(self):
        return self.num_lines() - self.lines_before

    def some_steps(self, count):
        """Until there are so many more, or it has ended."""
        end, wanted = time.monotonic() + STEP_S, self.num_lines() + count
        while self.is_running() and self.num_lines() < wanted and time.monotonic() < end:
            time.sleep(0.005)
        return self.num_lines() >= wanted

    def wait_for_a_checkpoint(self):
        self.run.wait_until(self.run.has_saved, STEP_S, "a checkpoint")

    def has_met(self):
        """Whether all ranks have found each other in this start: then each has a log."""
        return all(self.log_of(rank) for rank in range(len(self.hosts)))

    def log_of(self, rank):
        """What it has written since this start."""
        path = self.run.folder / "logs" / f"rank_{rank}.log"
        return self.run.log(rank) if path.exists() and path.stat().st_mtime >= self.began else []

    # ---- for faults

    def signal(self, rank, number):
        os.kill(self.run.pid(rank), number)

    def ranks_there(self):
        """Those whose process can be found: a launcher may not have started them yet."""
        found = []
        for rank in range(len(self.hosts)):
            try:
                self.run.pid(rank)
                found.append(rank)
            except AssertionError:
                pass
        return found

    def tamper(self, kind, host, number):
        path = self.folder / f"{kind}.{host.name}"
        if number is None:
            path.unlink()
        else:
            path.with_suffix(".new").write_text(str(number))
            path.with_suffix(".new").rename(path)

    def start_limit(self):
        return STEP_S

    def stop_limit(self):
        return 20 + jobs.GONE_S

    def met_or_timeout(self):
        """Who has not come yet is waited for as long as the run says."""
        return jobs.GONE_S if self.has_met() else self.scenario.timeout_s + jobs.GONE_S

    def complain(self, what):
        self.complaints.append(what)

    # ---- one event

    def happen(self, name):
        """An event of this name; False if it cannot happen now."""
        _, when, function = FAULTS[name]
        if when != "running" and self.is_running():
            self.happen("terminate_all")
        if when == "running":
            if not self.is_running():
                self.start()
            moment = self.wait_for_a_moment(early=name in EARLY)
            if not self.is_running():
                if not self.is_done():
                    self.went_on(False, f"it ended before anything happened\n{self.run.story()}")
                return False
        else:
            moment = "at the start" if when == "start" else "between two starts"
        self.complaints = []
        saved = self.newest_saved()
        steps = self.num_lines()
        try:
            event = function(self)
        except (AssertionError, ProcessLookupError) as error:
            # A process that is to be disturbed is not there (any more): nothing has happened.
            if self.is_done() or self.is_running() and when == "running":
                return False
            raise error
        if event is None:
            return False
        if when == "between":
            self.row(event, moment, None)
            for row in self.waiting:  # what was saved before has not gone on, and need not
                row["saved"] = 0
            self.start()
            if self.some_steps(1):
                self.rows[-1]["went on"] = "yes"
                self.went_on(True)
            else:
                self.complain(f"it did not go on\n{self.run.story()}")
            self.finish_row()
            return True
        began = time.monotonic()
        self.row(event, moment, None)
        self.saved = saved
        over = event.ends
        if over is None:  # it may go on: through two saves
            over = not self.some_steps(15)
            event.limit += STEP_S
        if over:
            self.check_the_end(event, began)
        else:
            self.check_going_on(event, steps)
        self.finish_row()
        return True

    def wait_for_a_moment(self, early):
        """In the beginning, or some steps later."""
        if early and self.new_steps() == 0 and self.random.random() < 0.25:
            pause = self.random.uniform(0, 4)
            end = time.monotonic() + pause
            while time.monotonic() < end and self.new_steps() == 0 and self.is_running():
                time.sleep(0.01)
            return "starting" if self.new_steps() == 0 else "training"
        self.some_steps(self.random.randint(1, 15) if self.new_steps() else self.random.randint(1, 25))
        if self.new_steps():
            self.went_on(True)
        time.sleep(self.random.uniform(0, 0.1))
        return "training"

    def newest_saved(self):
        names = self.run.checkpoints() if self.run else []
        return max((int(name[5:]) for name in names if re.fullmatch(r"step_\d+", name)), default=0)

    def check_going_on(self, event, steps):
        limit = STEP_S + self.scenario.timeout_s
        end = time.monotonic() + limit
        while self.is_running() and self.num_lines() < steps + 3 and time.monotonic() < end:
            time.sleep(0.02)
        event.undo()
        if self.is_done():
            self.rows[-1]["went on"] = "yes"
        elif not self.is_running():
            self.complain(f"it ended\n{self.run.story()}")
            self.clean_up()
        elif self.num_lines() < steps + 3:
            self.complain(f"no steps for {limit} s\n{self.run.story()}")
            self.clean_up()
        else:
            self.rows[-1]["went on"] = "yes"

    def check_the_end(self, event, began):
        """How long until the last process had ended; that none is left, and who says why."""
        processes = self.run.processes
        spared = {event.stopped}

        def running():
            return [name for name, each in processes.items() if name not in spared and each.poll() is None]

        while running() and time.monotonic() < began + event.limit:
            time.sleep(0.02)
        if event.stopped is not None:
            # It has its connections still; once it goes on it must end by itself.
            try:
                self.signal(event.stopped, signal.SIGCONT)
            except (AssertionError, ProcessLookupError):
                pass
            spared.clear()
            while running() and time.monotonic() < began + event.limit + jobs.GONE_S:
                time.sleep(0.02)
        row = self.rows[-1]
        row["seconds"] = round(time.monotonic() - began, 1)
        if running():
            self.complain(f"{running()} did not end within {event.limit:.0f} s\n{self.run.story()}")
        left = self.left()
        end = time.monotonic() + 5  # what a launcher has killed needs a moment to be gone
        while left and not running() and time.monotonic() < end:
            time.sleep(0.1)
            left = self.left()
        if left:
            self.complain(f"left: {left}")
        self.clean_up()
        event.undo()
        if event.code is not None and not self.is_done():
            codes = {name: each.returncode for name, each in processes.items() if name not in event.spared}
            if set(codes.values()) - self.allowed(event.code, row["moment"]):
                self.complain(f"exit codes {codes}, not {event.code}\n{self.run.story()}")
        if event.code == STOPPED and self.new_steps() and self.newest_saved() < max(self.losses()):
            self.complain(f"stopped at step {max(self.losses())}, saved is {self.newest_saved()}\n{self.run.story()}")
        self.check_last_lines(event, row)
        self.waiting.append(row)
        self.run_ended_at = max(self.losses(), default=0)

    def allowed(self, code, moment):
        """Launchers that are not floe's have codes of their own; a process may end by the signal before
        it is floe."""
        if self.scenario.launcher not in ("by_hand", "floe_launch"):
            return {code, 0, 1, 143, -15, 15}
        return {code, -signal.SIGTERM} if moment == "starting" and code == STOPPED else {code}

    def left(self):
        """What still runs on the hosts and should not."""
        return {key: line for key, line in self.cluster.processes().items() if key[1] not in self.daemons}

    def clean_up(self):
        for host in self.places:
            host.kill_all_but(self.daemons)
        for process in self.run.processes.values():
            process.wait()

    def check_last_lines(self, event, row):
        lines = {}
        for rank in range(len(self.hosts)):
            log = self.log_of(rank)
            if log:
                lines[rank] = jobs.sentence(log[-1])
            elif rank in self.run.processes:
                lines[rank] = self.run.last_words(rank)
        row["last lines"] = {str(rank): line for rank, line in lines.items()}
        if not event.cause or self.is_done():
            return
        wanted = event.cause if callable(event.cause) else lambda rank: event.cause
        said = {rank: self.says(rank, lines) for rank in range(len(self.hosts)) if rank not in event.spared}
        named = {rank: bool(re.search(wanted(rank), text)) for rank, text in said.items()}
        # Launchers end ranks before they can say what they know, and say it themselves.
        good = all(named.values()) if self.scenario.launcher == "by_hand" or not named else any(named.values())
        if not good:
            missing = [rank for rank, is_named in named.items() if not is_named]
            self.complain(f"not named by {missing}: {wanted(missing[0])}\n{self.run.story()}")

    def says(self, rank, lines):
        if self.scenario.launcher == "by_hand":
            return lines.get(rank, "") + "\n" + self.run.last_words(rank)
        ends = ["\n".join(each.said().splitlines()[-60:]) for each in self.run.processes.values()]
        return "\n".join([lines.get(rank, ""), *ends])

    def is_done(self):
        return max(self.losses(), default=0) >= self.steps

    def went_on(self, well, why=""):
        """The same command has made steps after the events before it."""
        for row in self.waiting:
            row["went on"] = "yes" if well else "NO"
            if not well:
                row["wrong"] += [why]
            first = self.first_new_step()
            if well and first is not None and first <= row["saved"]:
                row["wrong"] += [f"saved was step {row['saved']}, but it went on with step {first}"]
        self.waiting = []

    def first_new_step(self):
        path = self.runs / "run" / "metrics.jsonl"
        lines = path.read_text().splitlines()[self.lines_before:] if path.exists() else []
        return json.loads(lines[0])["step"] if lines and lines[0].endswith("}") else None

    def row(self, event, moment, seconds):
        row = {"scenario": self.scenario.name, "event": event.what, "moment": moment, "seconds": seconds,
               "step": max(self.losses(), default=0), "went on": "", "equal": "", "last lines": {}, "wrong": [],
               "saved": 0, "seed": self.seed, "ends": bool(event.ends)}
        self.rows.append(row)

    def finish_row(self):
        row = self.rows[-1]
        row["saved"] = self.newest_saved()
        row["equal"] = "yes" if self.losses_are_right() else "NO"
        row["wrong"] += self.complaints
        self.report(row)

    def losses_are_right(self):
        """Every line that was ever written, also those of steps that were made again."""
        path = self.runs / "run" / "metrics.jsonl"
        if not path.exists():
            return True
        for line in path.read_text().splitlines():
            if not line.endswith("}"):
                continue
            values = json.loads(line)
            if (values["loss_laion"], values["grad_norm"]) != self.reference[values["step"]]:
                self.complain(f"step {values['step']}: {values['loss_laion']} {values['grad_norm']}, undisturbed "
                              f"{self.reference[values['step']]}")
                return False
        return True

    def finish(self):
        """After the last event the same command must go on once more."""
        if not self.waiting:
            return
        if not self.is_running() and not self.is_done():
            self.start()
            if not self.some_steps(2) and not self.is_done():
                self.went_on(False, f"it did not go on\n{self.run.story()}")
        self.went_on(True)


# Faults that may come before the first step; others want a run that trains.
EARLY = {"kill_a_rank", "kill_rank_0", "kill_two_ranks", "kill_a_host", "kill_a_launcher", "terminate_all",
         "terminate_one", "terminate_all_twice", "cut_a_link", "cut_a_link_for_a_moment", "stop_a_rank_for_a_moment",
         "a_stranger"}


def prepare(folder):
    job = jobs.Job(folder)
    source = Path(__file__).with_name("tamper.c")
    if (folder / "tamper.so").exists():
        return job
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", source, "-o", folder / "tamper.so", "-ldl"], check=True)
    return job


# -------------------------------------------------------------------------------------- the table


def cut(text, most):
    return text if len(text) <= most else text[: most - 1] + "…"


def table(rows):
    """A line for each event, and below it the last line of each log, those that are alike once."""
    yield f"{'event':46} {'moment':18} {'scenario':25} {'step':>5} {'end s':>6} {'on?':>4} {'equal?':>6}"
    for row in rows:
        seconds = "" if row["seconds"] is None else f"{row['seconds']:.1f}"
        yield (f"{cut(row['event'], 46):46} {row['moment']:18} {row['scenario']:25} {row['step']:5} {seconds:>6} "
               f"{row['went on']:>4} {row['equal']:>6}")
        if row["ends"]:
            lines = {}
            for rank, line in row["last lines"].items():
                bare = re.sub(r"^\S+ \S+ \S+ \[\d+/\d+\] ", "", line)
                lines.setdefault(cut(bare, 150), []).append(rank)
            for line, ranks in lines.items():
                yield f"    {','.join(ranks)}: {line}"
        for what in row["wrong"]:
            yield "    WRONG: " + what.replace("\n", "\n    | ")


def summary(rows):
    ended = [row for row in rows if row["seconds"] is not None]
    yield f"{len(rows)} events, {len(ended)} of them ended the run"
    hung = ("SIGSTOP", "link of")
    for name, chosen in (("killed and told ones", [r for r in ended if not r["event"].startswith(hung)]),
                         ("hung ranks and cut links", [r for r in ended if r["event"].startswith(hung)])):
        if chosen:
            times = sorted(row["seconds"] for row in chosen)
            yield (f"seconds until the last process had ended, {name}: median {times[len(times) // 2]:.1f}, "
                   f"most {times[-1]:.1f} ({len(times)})")
    yield f"went on with the same command: {sum(row['went on'] == 'yes' for row in rows)}"
    yield f"losses unlike the undisturbed run's: {sum(row['equal'] != 'yes' for row in rows)}"
    yield f"wrong in some way: {sum(bool(row['wrong']) or row['went on'] != 'yes' for row in rows)}"


# ------------------------------------------------------------------------------------ the campaign


def chosen(random_, names):
    return random_.choices(names, [FAULTS[name][0] for name in names])[0]


def run_campaign(options):
    rows = []

    def report(row):
        wrong = "  WRONG: " + row["wrong"][0] if row["wrong"] else ""
        print(f"{time.strftime('%H:%M:%S')} {row['scenario']:25} {row['event']:46} {row['moment']:18} "
              f"{row['seconds'] if row['seconds'] is not None else '':>6} equal {row['equal']}{wrong}",
              file=sys.stderr, flush=True)

    random_ = random.Random(options.seed)
    names = options.fault or list(FAULTS)
    scenarios = [SCENARIOS[name] for name in options.scenario] if options.scenario else list(SCENARIOS.values())
    job = prepare(options.cache)
    job.load(options.cache / "references.json")
    until = time.monotonic() + options.minutes * 60
    number = 0
    while len(rows) < options.events and time.monotonic() < until and not (options.in_order and rows):
        scenario = random_.choices(scenarios, [each.weight for each in scenarios])[0]
        seed = f"{options.seed}/{number}"
        number += 1
        folder = Path(tempfile.mkdtemp(prefix="campaign-", dir=options.work))
        chain = Chain(scenario, options.steps, job, folder, seed, report)
        job.keep(options.cache / "references.json")
        try:
            order = [] if not options.in_order else list(names)
            while (len(chain.rows) < CHAIN or order) and len(rows) + len(chain.rows) < options.events and \
                    max(chain.losses(), default=0) < options.steps - END and time.monotonic() < until:
                name = order.pop(0) if order else chosen(chain.random, scenario.possible(names))
                chain.happen(name)
                if any(row["wrong"] for row in chain.rows):
                    break
                if options.in_order and not order:
                    break
            chain.finish()
        finally:
            new = chain.rows
            if any(row["wrong"] for row in new) and options.keep_wrong:
                shutil.copytree(folder, options.keep_wrong / folder.name, symlinks=True,
                                ignore=shutil.ignore_patterns("ballast", "cluster"))
            chain.close()
            rows += new
            if options.rows:
                with options.rows.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in new)
    if options.rows:
        rows = [json.loads(line) for line in options.rows.read_text().splitlines()]
    print("\n".join([*table(rows), "", *summary(rows)]))
    return 1 if any(row["wrong"] or row["went on"] != "yes" or row["equal"] != "yes" for row in rows) else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=600, help="no further event begins after these")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1000, help="of a run")
    parser.add_argument("--scenario", nargs="*", choices=list(SCENARIOS))
    parser.add_argument("--fault", nargs="*", choices=list(FAULTS))
    parser.add_argument("--in-order", action="store_true", help="one chain of these faults, in this order")
    parser.add_argument("--rows", type=Path, help="a file for the rows; those that it has count as well")
    parser.add_argument("--keep-wrong", type=Path, help="a folder for the runs of chains that went wrong")
    parser.add_argument("--cache", type=Path, help="a folder for the job and the losses of undisturbed runs")
    parser.add_argument("--work", type=Path, help="a folder for runs")
    options = parser.parse_args()
    if reason := hosts.why_not():
        sys.exit(f"campaign.py: {reason}")
    if INSIDE not in os.environ:
        # File systems that are mounted here are gone with this process.
        os.environ[INSIDE] = "1"
        os.execvp("unshare", [*hosts.new_namespaces("--mount"), sys.executable, *sys.argv])
    with tempfile.TemporaryDirectory() as scratch:
        options.cache = options.cache or Path(scratch) / "cache"
        options.cache.mkdir(parents=True, exist_ok=True)
        sys.exit(run_campaign(options))


if __name__ == "__main__":
    main()
