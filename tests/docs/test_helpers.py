"""What the tests of the pages stand on: what is a command, what is the same output, what is a wrong word."""

import textwrap

import pages
import pytest
import words
from test_commands import missing_line, shape, spaced


def block(language, text):
    return pages.Block("page.md", 1, language, textwrap.dedent(text).strip("\n").split("\n"))


def test_commands_of_a_script():
    found = pages.commands(block("sh", """
        # a comment

        floe train my.yaml   # one rank
        floe plan my.yaml \\
          world=2
        cat > file <<END
        # not a comment
        END
        for i in 1 2; do
          echo $i
        done
        """))  # fmt: skip
    assert [command.line for command in found] == [4, 5, 7, 10]
    assert found[1].text == "floe plan my.yaml \\\n  world=2"
    assert found[2].text.splitlines()[1:] == ["# not a comment", "END"]


def test_commands_of_a_console_have_their_output():
    found = pages.commands(block("console", """
        $ floe version
        floe 0.1.0
        $ floe plan \\
            my.yaml
        one
        two
        """))  # fmt: skip
    assert [(command.text, command.output) for command in found] == [
        ("floe version", ["floe 0.1.0"]), ("floe plan \\\n    my.yaml", ["one", "two"])]  # fmt: skip


def test_a_command_without_an_end_is_told():
    with pytest.raises(AssertionError, match="not complete"):
        pages.commands(block("sh", "for i in 1 2; do"))


@pytest.mark.parametrize("shown, missing", [
    (["step 7/9  loss 3.25  18.9 MiB", "done: 9 steps"], "done: 9 steps"),  # not in the next line
    (["step 7/9  loss 3.25  18.9 MiB", "…", "done: 9 steps"], None),
    (["done: 9 steps", "…", "step 7/9  loss 3.25  18.9 MiB"], "step 7/9  loss 3.25  18.9 MiB"),  # in another order
    (["step 7/9 …"], None),
    (["step 7/9  lost 3.25  18.9 MiB"], "step 7/9  lost 3.25  18.9 MiB"),
])  # fmt: skip
def test_what_a_page_shows(shown, missing):
    said = "begin\nstep 1/60  loss 7.5  2 KiB\nsaved\ndone: 60 steps\n"
    assert missing_line(shown, said) == missing


def test_numbers_count_where_they_must():
    assert missing_line(["a 1.5 GiB"], "a  1.5 GiB", spaced) is None
    assert missing_line(["a 1.5 GiB"], "a  1.6 GiB", spaced) is not None
    assert shape("a 1.5 GiB") == shape("a  23 MiB")


@pytest.mark.parametrize("command, problems", [
    ("floe launch -n 8 -- train my.yaml strategy=full_shard train.steps=3", []),
    ("FLOE_MODELS=/models floe train experiment=[a,b] ++precision.autocast=bf16 ~train.clip", []),
    ("floe plan my.yaml world=2 | grep together", []),
    ("floe export RUN OUT --trainable-only", []),
    ("floe trian my.yaml", ["floe has no command trian"]),
    ("floe export runs/a out --trainable", ["'floe export --help' has no --trainable"]),
    ("floe launch -n 2 -- train my.yaml train.step=3", ["floe train has no key train.step"]),
    ("floe launch --ranks 2 -- train my.yaml", ["'floe launch --help' has no --ranks"]),
    ("./run floe plan my.yaml --jsn", ["'floe plan --help' has no --jsn"]),
    ("./run biuld", ["'./run help' has no biuld"]),
    ("./run bench nothing", ["there is no bench/nothing.py"]),
])  # fmt: skip
def test_wrong_words(command, problems):
    assert words.wrong_words(command) == problems


def test_anchors_are_those_of_a_code_host():
    taken = {}
    assert [pages.slug(text, taken) for text in ("What a path means", "`data.shuffle`", "C++, really?", "The end", "The end")] == [
        "what-a-path-means", "datashuffle", "c-really", "the-end", "the-end-1"]  # fmt: skip
