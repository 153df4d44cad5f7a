"""Whether the words of a command are there, without running it: commands and options of floe and ./run, keys of the
configuration. Words in capitals and ellipses stand for something else."""

import functools
import re
import shlex
import subprocess

from pages import ROOT
from scene import BIN, FLOE, environment

# Options that every command has.
ALWAYS = {"--help", "-h"}
# Words before '=' that are no key of a configuration, by command: layers, and what a plan is of.
LAYERS = {"strategy", "experiment"}


def floe(*words):
    done = subprocess.run([FLOE, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def commands():
    return set(re.findall(r"^  (\w+) ", floe("--help"), re.MULTILINE))


@functools.cache
def options(command):
    """Those that the page of a command has in front of a line, and in its usage."""
    return set(re.findall(r"(?<![\w-])(--?[a-z][\w-]*)", floe(command, "--help"))) | ALWAYS


@functools.cache
def keys():
    """All keys of `floe train`: names of blocks, and those that have a value."""
    blocks, values, block = set(), set(), ""
    for line in floe("train", "--reference").splitlines():
        if heading := re.match(r"#+ `([^`]+)`", line):
            block = heading.group(1) + "."
            blocks.add(heading.group(1))
        elif key := re.match(r"\| `([^`]+)` \|", line):
            values.add(block + key.group(1))
    assert "train" in blocks and "train.steps" in values and "strategy.mixed_precision.param" in values
    return blocks, values


def is_key(key):
    """Also inside of a value whose names are the user's own, such as sources or patterns of parameters."""
    blocks, values = keys()
    return key in blocks | values or key.rpartition(".")[0] in values


def stands_for_something(word):
    return "…" in word or "..." in word or bool(re.search(r"\b[A-Z][A-Z_]+\b", word))


def split_calls(text):
    """The words of every simple command of a line, without redirections, variables in front and comments."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    call = []
    for word in lexer:
        if set(word) <= set("|&;"):
            yield call
            call = []
        else:
            call.append(word)
    yield call


def wrong_words(text):
    """What is wrong with the words of a command line, one sentence each."""
    problems = []
    for words in split_calls(text.replace("\\\n", " ")):
        while words and re.match(r"\w+=", words[0]):
            words = words[1:]
        for i, word in enumerate(words):
            if word == "./run" and i == 0:
                problems += wrong_run(words[1:])
                break
            if word == "hf" and i == 0:
                problems += wrong_hf(words[1:])
                break
            if word == "floe" or word.endswith("/floe"):
                problems += wrong_floe(words[i + 1 :])
                break
    return problems


def wrong_hf(words):
    """Of Hugging Face's downloader, which is here but has no network."""
    helped = subprocess.run(["hf", words[0], "--help"], capture_output=True, text=True, env=environment(ROOT), timeout=60)
    if helped.returncode:
        return [f"hf has no {words[0]}"]
    return [f"'hf {words[0]} --help' has no {word}" for word in words[1:] if word.startswith("--") and word not in helped.stdout]


def wrong_run(words):
    helped = (ROOT / "run").read_text().split("<<'END'", 1)[1].split("\nEND", 1)[0]
    if not words or stands_for_something(words[0]):
        return []
    name, rest = words[0], [word for word in words[1:] if not stands_for_something(word)]
    if not re.search(rf"^  \./run {re.escape(name)}\b", helped, re.MULTILINE):
        return [f"'./run help' has no {name}"]
    if name == "floe":
        return wrong_floe(words[1:])
    if name == "build":
        return [f"there is no program {word}" for word in rest if not is_target(word)]
    if name == "bench":
        return [f"there is no bench/{word}.py" for word in rest if not word.startswith("-") and not (ROOT / f"bench/{word}.py").exists()]
    if name == "test" and rest and rest[0] in ("long", "gpu", "fuzz", "machines"):
        return [] if f"./run test {rest[0]}" in helped else [f"'./run help' has no test {rest[0]}"]
    if name == "test":
        return [f"no test is called {word}" for word in rest if not is_test(word)]
    return []


def is_target(name):
    if name == "all" or (BIN / name).exists() or (ROOT / f"examples/{name}.cc").exists():
        return True
    lists = [ROOT / "CMakeLists.txt", *(ROOT / "src").rglob("CMakeLists.txt"), *(ROOT / "cmake").rglob("*.cmake")]
    return any(re.search(rf"\b{name}\b", path.read_text()) for path in lists)


def is_test(name):
    texts = [path for path in (ROOT / "tests").rglob("*") if path.suffix in (".py", ".txt", ".cc")]
    return any(name in path.relative_to(ROOT).as_posix() for path in texts) or any(name in path.read_text() for path in texts)


def wrong_floe(words):
    if not words or stands_for_something(words[0]):
        return []
    command = words[0].removeprefix("help") or "help"
    if command in ("--help", "-h", "--version"):
        return []
    if command not in commands():
        return [f"floe has no command {command}"]
    problems, rest = [], words[1:]
    if command in ("launch", "migrate"):
        end = next((i for i, word in enumerate(rest) if word in ("--", "--exec")), len(rest))
        inner, rest = rest[end:], rest[:end]
        if command == "launch" and inner and inner[0] == "--":
            problems += wrong_floe(inner[1:])
    for word in rest:
        name, _, _ = word.partition("=")
        if name.startswith("-") and name != "-":
            if name not in options(command) and not stands_for_something(name):
                problems.append(f"'floe {command} --help' has no {name}")
        elif "=" in word and command in ("train", "plan") and not stands_for_something(name):
            key = name.removeprefix("++")
            if key not in LAYERS and not (command == "plan" and key == "world") and not is_key(key):
                problems.append(f"floe {command} has no key {key}")
        elif word.startswith("~") and not is_key(word[1:]):
            problems.append(f"floe {command} has no key {word[1:]}")
    return problems
