"""tools/mutants.py: its list fits the sources, and its choices are those that it says.

`./run test long mutants` tries all faults, which takes hours."""

import dataclasses
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from patience import wait_until

ROOT = Path(os.environ.get("FLOE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "tools"))
import mutants  # noqa: E402

SOURCE = """\
int sum(const int* values, int count) {
  int sum = 0;
  for (int i = 0; i < count; ++i) sum += values[i];
  if (sum < 0)
    sum = 0;
  else
    sum += 1;
  return sum;
}
"""


def fault(name, kind, original, mutated, occurrence=0, tests=("first", "second")):
    return mutants.Fault(f"some.{name}", "sum.cc", kind, original, mutated, "Something.", tests, occurrence)


# ---- the list ----


def test_every_fault_has_its_place_and_its_tests():
    faults = mutants.read_lists(ROOT)
    assert mutants.problems(faults, ROOT) == []
    assert all(each.original != each.mutated and each.what.endswith(".") for each in faults)


def test_every_module_has_its_share():
    wanted = {"shard": 35, "optim": 20, "train": 25, "checkpoint": 30, "data": 25, "comm": 15}
    counts = Counter(each.module for each in mutants.read_lists(ROOT))
    assert counts.keys() == wanted.keys()
    assert all(counts[module] >= least for module, least in wanted.items()), counts


@pytest.mark.parametrize("change, words", [
    ({"original": "values[j]"}, "has its original 0 times, not once"),
    ({"original": "sum"}, "has its original 7 times, not once"),
    ({"original": "sum", "occurrence": 9}, "has its original only 7 times"),
    ({"file": "product.cc"}, "there is no product.cc"),
    ({"tests": ("nothing",)}, "there is no test nothing"),
    ({"tests": ("tests/nothing.py",)}, "there is no test tests/nothing.py"),
    ({"tests": ("tests/some/test_it.py", "tests/some/test_it.py::test_it", "tests/some/test_it.py::test_other")},
     "there is no test tests/some/test_it.py::test_other"),
])
def test_a_fault_without_a_place_or_a_test_is_told(tmp_path, change, words):
    (tmp_path / "sum.cc").write_text(SOURCE)
    (tmp_path / "tests/some").mkdir(parents=True)
    (tmp_path / "tests/some/CMakeLists.txt").write_text("floe_test(first TORCH USES x)\nfloe_test(second USES x)\n")
    (tmp_path / "tests/some/test_it.py").write_text("def test_it():\n    pass\n")
    good = fault("off", "expression", "i < count", "i + 1 < count")
    assert mutants.problems([good], tmp_path) == []
    (found,) = mutants.problems([dataclasses.replace(good, **change)], tmp_path)
    assert words in found
    assert mutants.problems([good, good], tmp_path)[0] == "there are two faults called some.off"
    assert mutants.known_tests(tmp_path) == {"first": "some_torch_tests", "second": "some_tests"}


# ---- the choices ----


def test_faults_at_the_same_place_are_refused():
    with pytest.raises(mutants.Wrong, match="are at the same place"):
        mutants.replaced(SOURCE, [fault("a", "expression", "i < count", "true"), fault("b", "expression", "< count", "")])


def test_only_the_fault_that_is_named_happens_and_places_are_traced(tmp_path):
    faults = [fault("short", "expression", "i < count", "i + 1 < count"),
              fault("lost", "statement", "sum += values[i];", ""),
              fault("one", "statement", "sum = 0;", "sum = 7;", occurrence=2)]
    (tmp_path / "floe_mutant.h").write_text(mutants.HEADER)
    (tmp_path / "main.cc").write_text(
        '#include "floe_mutant.h"\n#include <cstdio>\n' + mutants.replaced(SOURCE, faults) +
        'int main() { const int up[] = {1, 2, 4}, down[] = {-1, -2}; std::printf("%d %d\\n", sum(up, 3), sum(down, 2)); }\n')
    subprocess.run(["g++", "-std=c++20", "-Wall", "-Werror", tmp_path / "main.cc", "-o", tmp_path / "main"], check=True)

    def says(**more):
        environment = {name: value for name, value in os.environ.items() if name not in ("FLOE_MUTANT", "PYTEST_CURRENT_TEST")}
        return subprocess.run([tmp_path / "main"], capture_output=True, text=True, env={**environment, **more}).stdout

    assert says() == "8 0\n"
    assert says(FLOE_MUTANT="some.other") == "8 0\n"
    assert says(FLOE_MUTANT="some.short") == "4 0\n"
    assert says(FLOE_MUTANT="some.lost") == "1 1\n"
    assert says(FLOE_MUTANT="some.one") == "8 7\n"
    trace = tmp_path / "trace"
    says(FLOE_MUTANT_TRACE=str(trace), FLOE_TEST="Some.Test")
    assert sorted(trace.read_text().splitlines()) == [f"some.{name}\tSome.Test" for name in ("lost", "one", "short")]


def test_the_copy_is_of_the_commit_and_keeps_what_is_as_it_was(tmp_path):
    root, tree = tmp_path / "root", tmp_path / "tree"
    root.mkdir()

    def git(*words):
        subprocess.run(["git", "-C", root, "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True, capture_output=True)

    git("init")
    (root / "sum.cc").write_text(SOURCE)
    (root / "other.cc").write_text("int other;\n")
    git("add", ".")
    git("commit", "-m", "first")
    (root / "other.cc").write_text("int changed;\n")  # not committed
    mutants.copy_tree(root, tree, [fault("short", "expression", "i < count", "i + 1 < count")])
    first, *rest = (tree / "sum.cc").read_text().splitlines()
    assert first.startswith('#include "floe_mutant.h"')
    assert '(floe_mutant("some.short") ? (i + 1 < count) : (i < count))' in rest[2]
    assert (tree / "other.cc").read_text() == "int other;\n"
    os.utime(tree / "other.cc", (1, 1))
    mutants.copy_tree(root, tree, [fault("lost", "statement", "sum += values[i];", "")])
    assert (tree / "other.cc").stat().st_mtime == 1
    assert "some.short" not in (tree / "sum.cc").read_text() and "some.lost" in (tree / "sum.cc").read_text()


# ---- the campaign ----


class FakeTests:
    """Results by test and fault; everything else passes. A test has two cases of 2 s and one of 20 s, which come by all
    faults but `unseen`."""

    logs = "logs"
    how = "Some.Test"

    def __init__(self, results, unseen=()):
        self.results, self.unseen, self.asked = results, unseen, []

    def control(self, test):
        self.asked.append((test, None))
        cases = {f"{test}.long": 20.0, f"{test}.a": 2.0, f"{test}.b": 2.0}
        reached = {f"some.{name}": list(cases) for name in "abc" if name not in self.unseen}
        return self.results.get((test, None), "passed"), 24.0, "Some.Test", cases, reached

    def run(self, test, fault, limit, cases):
        self.asked.append((test, fault, limit, [case.split(".")[1] for case in cases]))
        fails = self.results.get((test, fault), "passed")
        return ("passed" if fails == "failed late" and len(cases) > 1 else fails.split()[0]), 10.0, self.how


def campaign(tmp_path, results, unseen=(), **more):
    tests, said = FakeTests(results, unseen), []
    return mutants.Campaign(tests, mutants.Journal(tmp_path / "journal.jsonl"), "abc-1", said.append, **more), tests


QUICK = mutants.LEAST_SECONDS + mutants.TIMES_AS_LONG * 4, ["a", "b"]
REST = mutants.LEAST_SECONDS + mutants.TIMES_AS_LONG * 20, ["long"]


def test_a_fault_is_tried_until_a_test_fails_and_never_again(tmp_path):
    faults = [fault(name, "expression", name, "") for name in "abc"]
    run, tests = campaign(tmp_path, {("first", "some.a"): "failed late", ("second", "some.b"): "hung"})
    run.run(faults, jobs=1)
    assert tests.asked == [("first", None), ("first", "some.a", *QUICK), ("first", "some.a", *REST),
                           ("first", "some.b", *QUICK), ("first", "some.b", *REST),
                           ("second", None), ("second", "some.b", *QUICK),
                           ("first", "some.c", *QUICK), ("first", "some.c", *REST),
                           ("second", "some.c", *QUICK), ("second", "some.c", *REST)]
    journal = mutants.Journal(tmp_path / "journal.jsonl")  # of the next start
    results = [journal.result(each) for each in faults]
    assert [(each["result"], each["test"], each["how"]) for each in results] == [
        ("caught", "first", "Some.Test"), ("caught", "second", "by hanging"), ("survived", "", "")]
    said = []
    assert not mutants.report(faults, journal, said.append)
    text = "\n".join(said)
    assert "some               3       3       2          1   66.7 %" in text
    assert "survived: some.c (6 cases come by it and pass)\n  Something." in text and "of abc" in text
    assert "  some.a: first, Some.Test\n  some.b: second, by hanging" in text
    assert mutants.report(faults[:2], journal, said.append)
    # Another fault of the same name has no result yet.
    other = fault("a", "expression", "a", "b")
    assert journal.result(other) is None
    assert not mutants.report([other], journal, said.append) and "\nno result: some.a" in said


def test_tests_that_do_not_come_by_are_left_out(tmp_path):
    run, tests = campaign(tmp_path, {}, unseen="a")
    (only,) = faults = [fault("a", "expression", "a", "")]
    run.run(faults, jobs=1)
    assert tests.asked == [("first", None), ("second", None)]
    said = []
    assert run.journal.result(only)["result"] == "survived" and not mutants.report(faults, run.journal, said.append)
    assert "survived: some.a (no test comes by it)" in "\n".join(said)


def test_what_a_test_has_missed_it_is_not_asked_again(tmp_path):
    (only,) = faults = [fault("a", "expression", "a", "")]
    campaign(tmp_path, {}, only="first")[0].run(faults, jobs=1)
    run, tests = campaign(tmp_path, {})
    run.run(faults, jobs=1)
    assert {each[0] for each in tests.asked} == {"second"}
    assert (run.journal.result(only)["result"], run.journal.result(only)["passed"]) == ("survived", 6)
    run, tests = campaign(tmp_path, {}, again=True)
    run.run(faults, jobs=1)
    assert {each[0] for each in tests.asked} == {"first", "second"}


def test_the_cases_of_a_test_and_what_they_come_by(tmp_path):
    text = ("[       OK ] Some/Test.Case/0 (1500 ms)\n[  FAILED  ] Some.Other (3 ms)\n"
            "0.50s setup    tests/some/test_it.py::test_it[a b]\n2.25s call     tests/some/test_it.py::test_it[a b]\n"
            "1.00s teardown tests/some/test_it.py::test_it[a b]\n0.00s call     tests/some/test_it.py::test_other\n")
    cases = mutants.cases_in(mutants.Tests.TOOK, text)
    assert cases == {"Some/Test.Case/0": 1.5, "tests/some/test_it.py::test_it[a b]": 2.75, "tests/some/test_it.py::test_other": 0}
    trace = tmp_path / "trace"
    trace.write_text("some.a\ttests/some/test_it.py::test_it[a b] (call)\nsome.a\ttests/some/test_it.py::test_it[a b] (call)\n"
                     "some.b\ttests/some/test_it.py::test_it[a b] (setup)\nsome.c\tSome/Test.Case/0\nsome.d\tSome.Other\n")
    assert mutants.read_trace(trace, cases) == {
        "some.a": ["tests/some/test_it.py::test_it[a b]"], "some.b": sorted(cases), "some.c": ["Some/Test.Case/0"], "some.d": []}
    assert mutants.read_trace(tmp_path / "none", cases) == {}


def test_what_failed_is_named():
    text = ("[  FAILED  ] Some/Test.Case/0, where GetParam() = 3 (7 ms)\n[  FAILED  ] Some.Test (1 ms)\n"
            "FAILED ../../tests/test_it.py::test_it[a b] - AssertionError: 1 - 2\nERROR tests/test_it.py::test_other\n")
    assert [test or case for test, case in mutants.Tests.FAILED.findall(text)] == [
        "Some/Test.Case/0", "Some.Test", "tests/test_it.py::test_it[a b]", "tests/test_it.py::test_other"]


def test_quick_cases_come_first():
    assert mutants.in_turns({"long": 300, "a": 2, "b": 2, "c": 2, "d": 20}) == [["a", "b"], ["c", "d"], ["long"]]
    assert mutants.in_turns({"long": 300}) == [["long"]] and mutants.in_turns({}) == []
    # What has caught the fault before comes alone.
    assert mutants.in_turns({"long": 300, "a": 2, "b": 2}, first="long") == [["long"], ["a", "b"]]
    assert mutants.in_turns({"a": 2, "b": 2}, first="gone") == [["a", "b"]]


def test_what_has_caught_a_fault_before_is_asked_first(tmp_path):
    faults = [fault("a", "expression", "a", "")]
    run, _ = campaign(tmp_path, {("second", "some.a"): "failed"})
    run.tests.how = "second.long"
    run.run(faults, jobs=1)
    run, tests = campaign(tmp_path, {("second", "some.a"): "failed"}, again=True)
    run.run(faults, jobs=1)
    assert tests.asked == [("second", "some.a", *REST)]


def test_some_tests_can_catch_a_fault_but_not_let_it_survive(tmp_path):
    faults = [fault(name, "expression", name, "") for name in "ab"]
    run, tests = campaign(tmp_path, {("second", "some.a"): "failed"}, only="sec*")
    run.run(faults, jobs=1)
    assert {test for test, *_ in tests.asked} == {"second"}
    assert run.journal.result(faults[0])["result"] == "caught"
    assert run.journal.result(faults[1]) is None


def test_what_a_test_started_ends_with_it(tmp_path):
    tests = mutants.Tests.__new__(mutants.Tests)
    tests.tree = tests.build = tests.logs = tmp_path
    tests.cases = {}
    pid = tmp_path / "pid"
    tests.commands = {
        "hangs": (["bash", "-c", f"setsid sleep 1000 & echo $! > {pid}; wait"], {}),
        "fails": (["bash", "-c", "echo '[  FAILED  ] Some.Test (1 ms)'; exit 1"], {}),
        "passes": (["bash", "-c", '[[ $FLOE_MUTANT == some.a && $GTEST_FAIL_FAST == 1 && $MORE == 2 ]]'], {"MORE": "2"}),
        "control": (["bash", "-c", '[[ -z ${FLOE_MUTANT+set} && $# == 0 ]] || exit 1\n'
                     'echo "[       OK ] Some.Test (2000 ms)"; printf "some.a\\tSome.Test\\n" > $FLOE_MUTANT_TRACE'], {})}
    status, seconds, _ = tests.run("hangs", "some.a", 2)
    assert status == "hung" and seconds >= 2
    wait_until(lambda: not Path(f"/proc/{pid.read_text().strip()}").exists(), 20)
    assert tests.run("fails", "some.a", 60)[::2] == ("failed", "Some.Test")
    assert tests.run("passes", "some.a", 60)[0] == "passed"
    status, _, _, cases, reached = tests.control("control")
    assert (status, cases, reached) == ("passed", {"Some.Test": 2.0}, {"some.a": ["Some.Test"]})
    assert tests.command("control", ["A.B", "C.D"])[0] == ["bash", "--gtest_filter=A.B:C.D"]
    assert [path.name for path in sorted(tmp_path.glob("*.log"))] == ["some.a--fails.log", "some.a--hangs.log"]


def test_a_test_that_fails_by_itself_ends_the_campaign(tmp_path):
    run, tests = campaign(tmp_path, {("first", None): "failed"})
    with pytest.raises(mutants.Wrong, match="first does not pass without a fault"):
        run.run([fault("a", "expression", "a", "b")], jobs=1)
    assert len(tests.asked) == 1


def test_the_command_line_says_what_is_wrong(capsys):
    assert mutants.main(["--list", "--only", "nothing.*"]) == 2
    assert capsys.readouterr().err == "mutants.py: no fault matches 'nothing.*'; --list names them\n"
    for words in ([], ["--run", "--jobs", "0"]):
        with pytest.raises(SystemExit) as ended:
            mutants.main(words)
        assert ended.value.code == 2


@pytest.mark.long
@pytest.mark.timeout(48 * 3600)
def test_faults_are_caught(capsys):
    """All of them, or those that FLOE_MUTANTS matches; what build/mutants/journal.jsonl knows is not tried again."""
    words = ["--only", os.environ.get("FLOE_MUTANTS", "*"), "--root", str(ROOT)]
    with capsys.disabled():
        mutants.main(["--build", "--run", *words])
        mutants.main(["--report", *words])
    journal = mutants.Journal(ROOT / "build" / "mutants" / "journal.jsonl")
    results = [journal.result(each) for each in mutants.read_lists(ROOT)]
    tried = [each for each in results if each]
    assert sum(each["result"] == "caught" for each in tried) >= 0.95 * len(tried)
