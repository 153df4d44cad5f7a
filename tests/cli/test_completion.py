"""floe completion: real shells on a terminal, and every option, command and key in the script."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import patient

SECONDS = 60  # a shell that has not answered by then hangs


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    program = Path(os.environ["FLOE_BIN_DIR"]) / "floe"

    def write(shell):
        path = tmp_path_factory.mktemp("completion") / f"floe.{shell}"
        path.write_text(subprocess.run([program, "completion", shell], capture_output=True, check=True, text=True).stdout)
        return path

    return {shell: write(shell) for shell in ("bash", "zsh")}


class Shell:
    """An interactive shell on a terminal of its own."""

    START = {
        "bash": (["bash", "--noprofile", "--norc", "-i"], "bind 'set bell-style none'; "),
        "zsh": (["zsh", "-f", "-i"], "bindkey -e; unsetopt beep prompt_cr; autoload -Uz compinit; compinit -u -D; "),
    }

    def __init__(self, name, script, folder):
        self.name = name
        words, setup = self.START[name]
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            os.chdir(folder)
            os.environ.update(TERM="dumb", PS1="", HOME=str(folder), COLUMNS="400")
            os.execvp(words[0], words)
        self.seen = ""
        self.send(f"stty cols 400; PS1=; {setup} source '{script}'; echo rea''dy\n")
        self.wait_for("ready\r?\n")

    def send(self, text):
        os.write(self.terminal, text.encode())

    def wait_for(self, pattern):
        until = time.monotonic() + patient(SECONDS)
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < until, f"the shell said only:\n{self.seen}"
            if select.select([self.terminal], [], [], 1)[0]:
                self.seen += os.read(self.terminal, 65536).decode(errors="replace")
        self.seen = self.seen[found.end() :]
        return found

    def complete(self, line):
        """The words of the line after a TAB at its end."""
        self.send(f"{line}\t")
        # The same line as words of another command, which prints them.
        self.send("\x01printf '%s\\034' \x05; printf 'en''d\\n'\n")
        words = self.wait_for("([^\r\n]*)\x1c;?end\r?\n").group(1)
        return words.split("\x1c")

    def close(self):
        os.close(self.terminal)
        os.waitpid(self.process, 0)


@pytest.fixture(params=["bash", "zsh"])
def shell(request, script, tmp_path):
    (tmp_path / "my_config.yaml").touch()
    (tmp_path / "some folder").mkdir()
    (tmp_path / "some folder/weights.pt").touch()
    begun = Shell(request.param, script[request.param], tmp_path)
    yield begun
    begun.close()


def test_words_are_completed(shell):
    for typed, completed in [
        ("floe tra", "floe train"),
        ("floe train --pri", "floe train --print-config"),
        ("floe train my", "floe train my_config.yaml"),
        ("floe export a b --dt", "floe export a b --dtype"),
        ("floe export a b --dtype b", "floe export a b --dtype bf16"),
        ("floe export a b --dtype=b", "floe export a b --dtype=bf16"),
        ("floe generate --early-stopping ne", "floe generate --early-stopping never"),
        ("floe launch --no-p", "floe launch --no-prefix"),
        ("floe launch -n 2 tra", "floe launch -n 2 train"),
        ("floe launch -n 2 -- tra", "floe launch -n 2 -- train"),
        ("floe launch -n 2 --env A=B -- train my_c", "floe launch -n 2 --env A=B -- train my_config.yaml"),
        ("floe launch -n 2 -- train --ref", "floe launch -n 2 -- train --reference"),
        ("floe train strategy.shar", "floe train strategy.sharding="),
        ("floe train strategy.sharding=full", "floe train strategy.sharding=full_shard"),
        ("floe train strategy.mixed_precision.par", "floe train strategy.mixed_precision.param="),
        ("floe train ++train.optim", "floe train ++train.optimizer."),
        ("floe train ++checkpoint.state_dict_type=sha", "floe train ++checkpoint.state_dict_type=sharded"),
        ("floe train strategy=hyb", "floe train strategy=hybrid"),
        ("floe train experiment=adap", "floe train experiment=adapters"),
        ("floe train checkpoint.async=t", "floe train checkpoint.async=true"),
        ("floe train model.lm=my_c", "floe train model.lm=my_config.yaml"),
        ("floe plan strategy.frozen.resi", "floe plan strategy.frozen.residency="),
        ("floe plan wor", "floe plan world="),
        ("floe convert mm", "floe convert mmc4"),
        ("floe help lau", "floe help launch"),
        ("floe completion z", "floe completion zsh"),
    ]:
        assert [word for word in shell.complete(typed) if word] == completed.split(), typed


def test_keys_that_are_removed(shell):
    """To zsh an open ~ is somebody's home, so it stands in quotes."""
    quote = "" if shell.name == "bash" else "'"
    words = [word for word in shell.complete(f"floe train {quote}~train.trainab") if word]
    assert words == ["floe", "train", "~train.trainable"]
    if shell.name == "bash":
        assert shell.complete("floe train ~checkpoint.keep_b")[2] == "~checkpoint.keep_best."


def test_what_cannot_be_completed_stays(shell):
    for typed in ["floe nosuchcommand x", "floe train train.steps=12", "floe train no.such.key=x", "floe version x"]:
        assert [word for word in shell.complete(typed) if word] == typed.split()


def test_names_with_spaces_stay_one_word(shell):
    words = [word for word in shell.complete("floe inspect some") if word]
    assert words[:2] == ["floe", "inspect"] and words[2].rstrip("/") == "some folder"


@pytest.fixture(params=["bash", "zsh"])
def table(request, script):
    def look_up(*words):
        # Without the last lines, which register the function with an interactive shell.
        text = re.sub(r"(?m)^(complete -o|if \[\[ \$funcstack).*$", "", script[request.param].read_text())
        done = subprocess.run(
            [request.param, *(["--norc"] if request.param == "bash" else ["-f"]), "-c", f'{text}\n_floe_table "$@"', "x", *words],
            capture_output=True,
            text=True,
        )
        assert done.stderr == ""
        return [line.split("|") for line in done.stdout.splitlines()]

    return look_up


@pytest.fixture(scope="module")
def pages():
    """The list of commands, and the help page of each."""
    program = Path(os.environ["FLOE_BIN_DIR"]) / "floe"

    def page(*words):
        return subprocess.run([program, *words, "--help"], capture_output=True, check=True, text=True).stdout

    listed = dict(re.findall(r"^  (\w+) +(\S.*)$", page(), re.MULTILINE))
    return listed, {command: page(command) for command in listed}


def test_every_command_and_option_of_the_help_pages_is_there(table, pages):
    listed, page_of = pages
    assert {row[0]: row[1] for row in table("commands")} == listed
    for command, page in page_of.items():
        in_help = re.findall(r"^  (--?[a-z][-\w]*)(?: (\S+))?  ", page, re.MULTILINE)
        options = {row[0]: row[1] for row in table("options", command)}
        assert options.pop("--help") == "none"
        assert set(options) == {name for name, _ in in_help}, command
        for name, value in in_help:
            assert (options[name] == "none") == (value == ""), (command, name)
            if "|" in value and value.islower():
                assert options[name] == "=" + value.replace("|", ","), (command, name)


@pytest.mark.parametrize("table", ["bash"], indirect=True)
def test_every_option_is_taken_by_its_command(table, floe):
    for command, *_ in table("commands"):
        if command in ("help", "version"):
            continue
        words = []
        for name, kind, *_ in table("options", command):
            if name not in ("--help", "--exec"):
                words += [name] if kind == "none" else [name, "0"]
        done = floe(command, *words, "--no-such-option")
        assert done.returncode == 2
        assert "there is no option '--no-such-option'" in done.stderr, (command, words)


def test_keys_are_those_of_the_configuration(table, pages):
    page = pages[1]["train"]
    documented = set(re.findall(r"^  ([a-z][\w.]*)(?::|  \()", page[page.index("\nKeys:\n") :], re.MULTILINE))
    offered = {key for key, *_ in table("keys", "train")}
    assert offered - {"strategy", "experiment"} == {key for key in documented if ".NAME" not in key}
    assert {"train.steps", "model.lm", "strategy.frozen.residency"} <= offered
    assert table("keys", "train") == table("keys", "generate")
    assert dict(table("keys", "plan"))["world"] == "any"


def test_the_bash_script_is_clean(script):
    program = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([program, "--shell=bash", script["bash"]], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("words", [[], ["fish"], ["bash", "zsh"]])
def test_another_shell_is_one_sentence(floe, words):
    done = floe("completion", *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"floe: completion: say for which shell: floe completion bash, or zsh; got '{' '.join(words)}'\n"
