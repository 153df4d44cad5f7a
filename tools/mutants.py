#!/usr/bin/env python3
"""Puts small faults into floe, one at a time, and says which of them no test notices.

usage: mutants.py --list | --build | --run | --report [--only GLOB] [--tests GLOB] [--again] [--jobs N]
                  [--work DIR] [--root TREE]

tools/mutants/MODULE.toml lists the faults. All of them are compiled into one build: a copy of HEAD in DIR/tree, in
which every place of a fault is a choice between what stands there and what the fault makes of it,

    (floe_mutant("shard.lost-average") ? (comm::Reduce::sum) : (comm::Reduce::average))

and the environment variable FLOE_MUTANT names the fault that happens. So a fault costs its tests and no compiler.

--list    the faults, with their places; nothing is built
--build   makes or renews the copy and compiles it as ./run test does
--run     tries every fault that has no result yet: its tests one after the other, until one fails (the fault is
          caught) or hangs (caught as well). Before its first use a test must pass without a fault; what its cases
          then take is the measure of a hang, and which places they come by says which of them to try for a fault,
          the quick ones first. Results are kept in DIR/journal.jsonl, so the campaign can be stopped.
--report  what is caught, by module and by which test, and every fault that survived or was not tried
--only    faults whose name matches, such as 'shard.*'; --again: also those that have a result
--tests   tries tests whose name matches alone; what they do not catch has no result
--work    build/mutants unless told otherwise

Returns 1 when something was found: a fault without a place, a test that fails without a fault, or (--report) a fault
that survived or has not been tried.
"""

import argparse
import concurrent.futures
import dataclasses
import fnmatch
import hashlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import threading
import time
import tomllib
from pathlib import Path

HEADER = """\
// Which fault happens: the one that FLOE_MUTANT names. FLOE_MUTANT_TRACE is a file that gets a line for every place that
// a case of a test comes by, with the case: tests/support/main.cc and pytest say in the environment which it is.
#pragma once
#include <fcntl.h>
#include <unistd.h>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
inline void floe_mutant_reached(const char* file, const char* name) {
  static thread_local auto* const seen = new std::set<const char*>();  // no lock, which a fork could take along
  static thread_local const char* before = nullptr;
  const char* const outer = std::getenv("PYTEST_CURRENT_TEST");
  const char* const inner = std::getenv("FLOE_TEST");
  if (inner != before) seen->clear();  // every case of a program
  before = inner;
  if (!seen->insert(name).second) return;
  const std::string line = std::string(name) + "\\t" + (outer ? outer : inner ? inner : "") + "\\n";
  const int trace = open(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (trace < 0) return;
  [[maybe_unused]] const auto written = write(trace, line.data(), line.size());  // a test's disk may be full
  close(trace);
}
inline bool floe_mutant(const char* name) {
  static const char* const chosen = std::getenv("FLOE_MUTANT");
  static const char* const trace = std::getenv("FLOE_MUTANT_TRACE");
  if (trace != nullptr) floe_mutant_reached(trace, name);
  return chosen != nullptr && std::strcmp(chosen, name) == 0;
}
"""
# What the Python tests start, beside the programs of the C++ tests.
PROGRAMS = ("floe", "checkpoint_tool", "loader_tool", "rules_tool")
LEAST_SECONDS, TIMES_AS_LONG = 60, 4  # after which cases of a test hang, by what they take without a fault
FIRST_SECONDS = 5  # of the cases that are tried first; a failure among them saves the time of the others
MOST_SECONDS = 3600  # of a test without a fault


class Wrong(Exception):
    """A sentence for whoever uses this."""


@dataclasses.dataclass(frozen=True)
class Fault:
    name: str  # "shard.lost-average"
    file: str  # "src/floe/shard/group/gradient.cc"
    kind: str  # "expression" or "statement"
    original: str
    mutated: str
    what: str
    tests: tuple  # CTest names, files of pytest and single functions of them (FILE::NAME), in the order of trying
    occurrence: int = 0  # of several places the n-th; 0: there is only one

    @property
    def module(self):
        return self.name.split(".")[0]

    def digest(self):
        """Of what happens, not of who looks for it."""
        return hashlib.sha256(repr((self.file, self.original, self.mutated, self.occurrence)).encode()).hexdigest()[:12]


# ---- the list ----


def read_list(path):
    """The faults of a module. `tests` of the file are for all of them, behind a fault's own."""
    table = tomllib.loads(path.read_text())
    usual, folder, faults = table.pop("tests"), table.pop("folder"), []
    for name, entry in table.items():
        kinds = [kind for kind in ("expression", "statement") if kind in entry]
        unknown = set(entry) - {"file", "expression", "statement", "becomes", "what", "tests", "occurrence"}
        if len(kinds) != 1 or unknown:
            raise Wrong(f"{path.name}: [{name}] needs 'expression' or 'statement' and knows no {sorted(unknown) or 'both'}")
        faults.append(Fault(f"{path.stem}.{name}", f"{folder}/{entry['file']}", kinds[0], entry[kinds[0]], entry["becomes"],
                            entry["what"], tuple(dict.fromkeys([*entry.get("tests", []), *usual])), entry.get("occurrence", 0)))
    return faults


def read_lists(root):
    return [fault for path in sorted((root / "tools" / "mutants").glob("*.toml")) for fault in read_list(path)]


def place_of(fault, text):
    """Where the fault's original begins in a file; raises Wrong when that is not known."""
    places = [match.start() for match in re.finditer(re.escape(fault.original), text)]
    if not fault.occurrence and len(places) != 1:
        raise Wrong(f"{fault.name}: {fault.file} has its original {len(places)} times, not once")
    if fault.occurrence > len(places):
        raise Wrong(f"{fault.name}: {fault.file} has its original only {len(places)} times")
    return places[max(0, fault.occurrence - 1)]


def replaced(text, faults):
    """The text with a choice at every place; the declaration is on its first line, so that lines stay as they are."""
    places = sorted((place_of(fault, text), fault) for fault in faults)
    for (first, a), (second, b) in zip(places, places[1:]):
        if second < first + len(a.original):
            raise Wrong(f"{a.name} and {b.name} are at the same place of {a.file}")
    for place, fault in reversed(places):
        if fault.kind == "expression":
            choice = f'(floe_mutant("{fault.name}") ? ({fault.mutated}) : ({fault.original}))'
        else:
            choice = f'{{ if (floe_mutant("{fault.name}")) {{ {fault.mutated} }} else {{ {fault.original} }} }}'
        text = text[:place] + choice + text[place + len(fault.original):]
    return text


def by_file(faults):
    files = {}
    for fault in faults:
        files.setdefault(fault.file, []).append(fault)
    return files


def known_tests(root):
    """CTest names of tests/*/CMakeLists.txt with the programs that hold them."""
    programs = {}
    for path in sorted((root / "tests").glob("*/CMakeLists.txt")):
        for name, words in re.findall(r"^floe_test\((\w+)([^)]*)", path.read_text(), re.MULTILINE):
            programs[name] = path.parent.name + ("_torch_tests" if "TORCH" in words.split() else "_tests")
    return programs


def problems(faults, root):
    """Sentences about faults that have no place, share a name or name a test that is not there."""
    found = []
    names = [fault.name for fault in faults]
    found += [f"there are two faults called {name}" for name in sorted(set(names)) if names.count(name) > 1]
    for file, here in by_file(faults).items():
        if not (root / file).exists():
            found.append(f"{here[0].name}: there is no {file}")
            continue
        text = (root / file).read_text()
        for fault in here:
            try:
                place_of(fault, text)
            except Wrong as problem:
                found.append(str(problem))
        if not found:
            try:
                replaced(text, here)
            except Wrong as problem:
                found.append(str(problem))
    programs = known_tests(root)
    for fault in faults:
        for test in fault.tests:
            file, _, function = test.partition("::")
            there = test in programs or (file.endswith(".py") and (root / file).exists() and
                                         f"def {function}" in (root / file).read_text())
            if not there:
                found.append(f"{fault.name}: there is no test {test}")
    return found


# ---- the build ----


def write_if_new(path, content):
    if path.exists() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def copy_tree(root, tree, faults):
    """HEAD with its choices; files that are as they were keep their times, so that little is compiled again."""
    archive = subprocess.run(["git", "-C", root, "archive", "HEAD"], capture_output=True, check=True).stdout
    header = tree / "floe_mutant.h"
    files, sources = by_file(faults), set()
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            if not member.isfile():
                continue
            content = tar.extractfile(member).read()
            if member.name in files:
                text = replaced(content.decode(), files[member.name])
                content = f'#include "{os.path.relpath(header, (tree / member.name).parent)}"  // NOLINT\n{text}'.encode()
            write_if_new(tree / member.name, content)
            (tree / member.name).chmod(member.mode)
            sources.add(member.name)
    write_if_new(header, HEADER.encode())
    for path in [*(tree / "src").rglob("*"), *(tree / "tests").rglob("*")]:
        if path.suffix in (".cc", ".h", ".cu", ".cuh", ".py") and str(path.relative_to(tree)) not in sources:
            path.unlink()
    if not (tree / ".deps").exists() and (root / ".deps").exists():
        (tree / ".deps").symlink_to((root / ".deps").resolve())


def commit_of(root):
    said = subprocess.run(["git", "-C", root, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
    return said.stdout.strip()


def build(root, work, faults, jobs):
    tree, commit = work / "tree", commit_of(root)  # the checkout may move on meanwhile
    copy_tree(root, tree, faults)
    programs = known_tests(root)
    targets = sorted({programs[test] for fault in faults for test in fault.tests if test in programs})
    environment = {**os.environ, "FLOE_CUDA": "0"}
    if jobs:
        environment["FLOE_JOBS"] = str(jobs)
    environment.pop("FLOE_MUTANT", None)
    # As ./run test compiles it, so that ccache knows most of it.
    script = 'source "$1" && WERROR=1 && cmd_build "${@:2}"'
    done = subprocess.run(["bash", "-c", script, "mutants", tree / "run", *PROGRAMS, *targets], env=environment)
    if done.returncode:
        raise Wrong("the copy with the faults could not be built")
    lists = hashlib.sha256(repr(sorted((fault.name, fault.digest()) for fault in faults)).encode()).hexdigest()[:8]
    (work / "built").write_text(f"{commit}-{lists}\n")


# ---- the campaign ----


class Journal:
    """One JSON object per line, added to as results come."""

    def __init__(self, path):
        self.path, self.lock, self.entries = path, threading.Lock(), []
        if path.exists():
            for line in path.read_text().splitlines():
                try:
                    self.entries.append(json.loads(line))
                except ValueError:
                    pass  # the last one, of a campaign that was killed while it wrote

    def add(self, **entry):
        with self.lock:
            self.entries.append(entry)
            with self.path.open("a") as file:
                file.write(json.dumps(entry) + "\n")

    def result(self, fault):
        """The newest of this very fault."""
        with self.lock:
            for entry in reversed(self.entries):
                if entry.get("fault") == fault.name and entry.get("digest") == fault.digest():
                    return entry
        return None

    def missed(self, fault, test, built):
        """How many cases of a test have passed with this fault; None where it was not tried."""
        with self.lock:
            for entry in reversed(self.entries):
                if (entry.get("missed"), entry.get("digest"), entry.get("test"), entry.get("built")) == (
                        fault.name, fault.digest(), test, built):
                    return entry["cases"]
        return None

    def control(self, test, built):
        with self.lock:
            for entry in reversed(self.entries):
                if entry.get("control") == test and entry.get("built") == built:
                    return entry
        return None


def end_all(mark):
    """Ends every process that a test has started, also those with a session of their own: they know it by a mark in
    their environment."""
    needle = f"FLOE_MUTANT_RUN={mark}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            pass  # gone, or another user's


def file_name(test):
    return re.sub(r"[^\w.-]", "_", test)


class Tests:
    """Runs the tests of a build."""

    FAILED = re.compile(r"^(?:\[  FAILED  \] (\S+?),?(?=\s|$)|(?:FAILED|ERROR) (?:\.\./)*(.+?)(?= - |$))", re.MULTILINE)
    TOOK = re.compile(r"^(?:\[       OK \] (\S+) \((\d+) ms\)|([\d.]+)s (?:call|setup) +(.+?))$", re.MULTILINE)

    def __init__(self, tree, logs):
        self.tree, self.logs, self.build = tree, logs, tree / "build" / "release"
        logs.mkdir(parents=True, exist_ok=True)
        said = subprocess.run(["ctest", "--test-dir", self.build, "--show-only=json-v1"], capture_output=True, text=True)
        if said.returncode:
            raise Wrong(f"there is no build in {self.build}; --build makes it")
        self.commands, self.cases = {}, {}
        for test in json.loads(said.stdout)["tests"]:
            values = {each["name"]: each["value"] for each in test.get("properties", [])}
            if "command" in test:
                self.commands[test["name"]] = (test["command"], dict(each.split("=", 1) for each in values.get("ENVIRONMENT", [])))

    def command(self, test, cases):
        """Of these cases, or of all, with its environment; it ends at the first failure."""
        if ".py" not in test:
            command, more = self.commands[test]
            # The name of the file, which would choose its cases, is left out.
            chosen = [command[0], "--gtest_filter=" + ":".join(cases)] if cases else command
            return chosen, {**more, "GTEST_FAIL_FAST": "1"}
        python = self.tree / ".deps" / "venv" / "bin" / "python"
        more = {"CUDA_VISIBLE_DEVICES": "", "FLOE_BIN_DIR": str(self.build / "bin"), "FLOE_SOURCE_DIR": str(self.tree),
                "FLOE_PYTHON": str(python), "PYTHONDONTWRITEBYTECODE": "1"}
        return [str(python), "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-c", str(self.tree / "tests/pytest.ini"),
                "--rootdir", str(self.tree), "-m", "not long", "--durations=0", "--durations-min=0",
                *(str(self.tree / case) for case in cases or [test])], more

    def control(self, test):
        """('passed' | 'failed' | 'hung', what failed, seconds by case, cases by fault)."""
        trace = self.logs / f"trace--{file_name(test)}"
        trace.unlink(missing_ok=True)
        status, seconds, failed = self.run(test, None, None, trace=trace)
        cases = self.cases.pop(test, {})
        return status, seconds, failed, cases, read_trace(trace, cases)

    def run(self, test, fault, limit, cases=(), trace=None):
        """('passed' | 'failed' | 'hung', seconds, what failed)."""
        command, more = self.command(test, cases)
        mark = f"{os.getpid()}-{threading.get_ident()}-{time.monotonic_ns()}"
        environment = {**os.environ, **more, "FLOE_MUTANT_RUN": mark}
        environment.pop("FLOE_MUTANT", None)
        if fault:
            environment["FLOE_MUTANT"] = fault
        if trace:
            environment["FLOE_MUTANT_TRACE"] = str(trace)
        log = self.logs / f"{fault or 'control'}--{file_name(test)}.log"
        began = time.monotonic()
        with log.open("wb") as file:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                       env=environment, cwd=self.build, start_new_session=True)
            try:
                status = "passed" if process.wait(limit or MOST_SECONDS) == 0 else "failed"
            except subprocess.TimeoutExpired:
                status = "hung"
            finally:
                end_all(mark)
                process.wait()
        seconds = round(time.monotonic() - began, 1)
        text = log.read_text(errors="replace")
        failed = [test or case for test, case in self.FAILED.findall(text)] if status == "failed" else []
        if trace:
            self.cases[test] = cases_in(self.TOOK, text)
        if status == "passed":
            log.unlink()
        return status, seconds, failed[0] if failed else ""


def cases_in(pattern, text):
    """Seconds by case, as GoogleTest and pytest tell them."""
    cases = {}
    for name, milliseconds, seconds, node in pattern.findall(text):
        if name:
            cases[name] = float(milliseconds) / 1000
        else:
            cases[node] = round(cases.get(node, 0.0) + float(seconds), 3)
    return cases


def read_trace(trace, cases):
    """Which cases come by the place of a fault. A fixture may be the work of all cases of a file."""
    reached, shared = {}, set()
    for line in trace.read_text().splitlines() if trace.exists() else []:
        fault, _, case = line.partition("\t")
        if case.endswith((" (setup)", " (teardown)")):
            shared.add(fault)
        reached.setdefault(fault, set()).add(re.sub(r" \((setup|call|teardown)\)$", "", case))
    return {fault: sorted((set(cases) if fault in shared else here) & set(cases)) for fault, here in reached.items()}


def in_turns(cases, first=""):
    """That one alone, then those that are quick, then those that take some times as long, then the others."""
    turns, spent, limit = [[first] if first in cases else [], []], 0.0, FIRST_SECONDS
    for case, seconds in sorted(cases.items(), key=lambda each: each[1]):
        if case == first:
            continue
        if turns[-1] and spent + seconds > limit:
            turns, spent, limit = [*turns, []], 0.0, limit * 5
        turns[-1].append(case)
        spent += seconds
    return [turn for turn in turns if turn]


class Campaign:
    def __init__(self, tests, journal, built, say=print, only="*", again=False):
        self.tests, self.journal, self.built, self.say, self.only, self.again = tests, journal, built, say, only, again
        self.locks, self.lock = {}, threading.Lock()

    def control(self, test):
        """What the cases of a test take without a fault, and which places they come by. Its first use finds out."""
        with self.lock:
            own = self.locks.setdefault(test, threading.Lock())
        with own:
            known = self.journal.control(test, self.built)
            if not known:
                status, seconds, failed, cases, reached = self.tests.control(test)
                if status != "passed":
                    raise Wrong(f"{test} does not pass without a fault ({failed or status}); its log is in {self.tests.logs}")
                known = {"control": test, "seconds": seconds, "built": self.built, "cases": cases, "reached": reached}
                self.journal.add(**known)
                self.say(f"control {test}: passed in {seconds} s")
        return known

    def attempt(self, fault):
        spent, passed = 0.0, 0
        tests = [test for test in fault.tests if fnmatch.fnmatch(test, self.only)]
        before = self.journal.result(fault) or {"test": "", "how": ""}
        tests.sort(key=lambda test: test != before["test"])  # what has caught it before is asked first
        for test in tests:
            missed = self.journal.missed(fault, test, self.built)
            if missed is not None and not self.again:
                passed += missed
                continue
            known = self.control(test)
            here = {case: known["cases"][case] for case in known["reached"].get(fault.name, [])}
            for turn in in_turns(here, first=before["how"]):
                limit = LEAST_SECONDS + TIMES_AS_LONG * sum(here[case] for case in turn)
                status, seconds, failed = self.tests.run(test, fault.name, limit, turn)
                spent += seconds
                if status != "passed":
                    return self.end(fault, "caught", spent, test, "by hanging" if status == "hung" else failed, passed)
            passed += len(here)
            self.journal.add(missed=fault.name, digest=fault.digest(), test=test, built=self.built, cases=len(here))
        if len(tests) == len(fault.tests):
            return self.end(fault, "survived", spent, "", "", passed)
        self.say(f"{fault.name}: not caught by {passed} cases of {', '.join(tests) or 'no test'}, {spent:.0f} s")

    def end(self, fault, result, seconds, test, how, passed):
        self.journal.add(fault=fault.name, digest=fault.digest(), result=result, test=test, how=how, passed=passed,
                         seconds=round(seconds, 1), built=self.built)
        self.say(f"{fault.name}: {result}{f' by {test}' if test else ''}{f' ({how})' if how else ''}, {seconds:.0f} s")

    def run(self, faults, jobs):
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            futures = [pool.submit(self.attempt, fault) for fault in faults]
            try:
                for future in concurrent.futures.as_completed(futures):
                    future.result()
            except BaseException:
                for future in futures:
                    future.cancel()
                raise


def report(faults, journal, say=print):
    """The table; returns whether every fault was tried and caught."""
    rows, survivors, untried = [], [], []
    for module in sorted({fault.module for fault in faults}):
        here = [fault for fault in faults if fault.module == module]
        results = [journal.result(fault) for fault in here]
        tried = [entry for entry in results if entry]
        caught = [entry for entry in tried if entry["result"] == "caught"]
        hung = [entry for entry in caught if entry["how"] == "by hanging"]
        rows.append((module, len(here), len(tried), len(caught), len(hung)))
        survivors += [fault for fault, entry in zip(here, results) if entry and entry["result"] == "survived"]
        untried += [fault for fault, entry in zip(here, results) if not entry]
    rows.append(("all", *(sum(row[i] for row in rows) for i in range(1, 5))))
    say(f"{'module':<12} {'faults':>7} {'tried':>7} {'caught':>7} {'by a hang':>10} {'score':>8}")
    for module, number, tried, caught, hung in rows:
        score = f"{100 * caught / tried:.1f} %" if tried else "-"
        say(f"{module:<12} {number:>7} {tried:>7} {caught:>7} {hung:>10} {score:>8}")
    builds = sorted({entry["built"].split("-")[0] for fault in faults if (entry := journal.result(fault))})
    say(f"\nof {', '.join(builds) or 'no build'}")
    for fault in survivors:
        passed = journal.result(fault).get("passed", 0)
        say(f"\nsurvived: {fault.name} ({f'{passed} cases come by it and pass' if passed else 'no test comes by it'})\n"
            f"  {fault.what}\n  {fault.file}: {shlex.quote(' '.join(fault.original.split()))}\n"
            f"  becomes {shlex.quote(' '.join(fault.mutated.split()))}")
    for fault in untried:
        say(f"\nno result: {fault.name}")
    say("\ncaught by:")
    for fault in faults:
        entry = journal.result(fault)
        if entry and entry["result"] == "caught":
            say(f"  {fault.name}: {entry['test']}, {entry['how'].split('::')[-1]}")
    return not survivors and not untried


# ---- the command line ----


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("list", "build", "run", "report", "again"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--only", default="*", metavar="GLOB")
    parser.add_argument("--tests", default="*", metavar="GLOB")
    parser.add_argument("--jobs", type=int, metavar="N")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], metavar="TREE")
    parser.add_argument("--work", type=Path, metavar="DIR")
    given = parser.parse_args(words)
    if not (given.list or given.build or given.run or given.report):
        parser.error("say what to do: --list, --build, --run or --report")
    if given.jobs is not None and given.jobs < 1:
        parser.error(f"--jobs is a number from 1 on, not {given.jobs}")
    given.work = (given.work or given.root / "build" / "mutants").absolute()
    return given


def main(words=None):
    given = arguments(words)
    faults = read_lists(given.root)
    found = problems(faults, given.root)
    if found:
        raise Wrong("\n".join(found))
    chosen = [fault for fault in faults if fnmatch.fnmatch(fault.name, given.only)]
    if not chosen:
        print(f"mutants.py: no fault matches '{given.only}'; --list names them", file=sys.stderr)
        return 2
    if given.list:
        for fault in chosen:
            print(f"{fault.name}\n  {fault.what}\n  {fault.file}; {', '.join(fault.tests)}")
    given.work.mkdir(parents=True, exist_ok=True)
    if given.build:
        build(given.root, given.work, faults, given.jobs)
    journal = Journal(given.work / "journal.jsonl")
    if given.run:
        if not (given.work / "built").exists():
            raise Wrong(f"there is no build in {given.work}; --build makes it")
        built = (given.work / "built").read_text().strip()
        tests = Tests(given.work / "tree", given.work / "logs")
        campaign = Campaign(tests, journal, built, lambda text: print(text, flush=True), given.tests, given.again)
        campaign.run([fault for fault in chosen if given.again or not journal.result(fault)], given.jobs or 1)
    if given.report and not report(chosen, journal):
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Wrong as problem:
        sys.exit(f"mutants.py: {problem}")
