"""Every command of README and docs/ runs, and says what the page says that it says. FLOE_BIN_DIR holds the programs.

A code block names its language. Blocks `sh` and `console` are commands: they run in the order of the page, in a
scratch folder with small models and shards (scene.py), after the substitutions of substitutes.py; those that
cannot run here are listed there too, with the reason, and their words are looked at instead. What a block
`console` shows below a command is compared with what comes, numbers aside."""

import ast
import json
import re
import shutil

import pytest
import words
import yaml
from pages import ROOT, blocks, code_spans, commands, pages
from scene import BIN, run
from substitutes import LEFT, SUBSTITUTES

LANGUAGES = {"sh", "console", "text", "yaml", "json", "cpp", "c++", "cmake", "python"}
# How a line begins that somebody would type.
TYPED = re.compile(r"^\s*(\$ |floe [a-z]|\./run\b|pip3? |torchrun |srun |cmake |python3? -|sudo |apt(-get)? |tar -?[a-z]+ |mkdir |cp )")
# Pages whose blocks `text` are parts of what their commands say.
SHOWN = {"docs/reading-the-log.md"}
ALL = {page: [command for block in blocks(page) if block.language in ("sh", "console") for command in commands(block)]
       for page in pages()}  # fmt: skip
left = {entry.command: entry.why for entry in LEFT}


def bare(command):
    """A command without a comment behind it."""
    return re.sub(r"\s+#\s.*$", "", command.text)


def substituted(command, folder=""):
    """What runs in the place of a command, and the substitutions that were made."""
    text, made = bare(command), []
    for entry in SUBSTITUTES:
        if entry.text in text and entry.page in ("", command.block.page):
            text = text.replace(entry.text, entry.instead.replace("{folder}", str(folder)).replace("{bin}", str(BIN)))
            made.append(entry)
    return text, made


# A line of output without what differs from run to run: numbers with their units, times, padding.
NUMBER = re.compile(r"(?<![A-Za-z_])[-+]?\d[\d.,:]*(?:e[-+]?\d+)?(?: ?(?:[kKMGT]i?B|B|[kMG]|%|ms|s|min|h)\b)*")


UNIT = re.compile(r"(?:lang_encoder|vision_encoder)\.[\w.]+|\bperceiver\b|\(root\)")
CLASS = re.compile(r"\b(?:DecoderLayer|GatedCrossAttention|PerceiverResampler|ViTBlock|Flamingo)\b")


def shape(line):
    if "memory:" in line or "times:" in line or "largest:" in line:  # which unit it is depends on the machine
        line = CLASS.sub("CLASS", UNIT.sub("UNIT", line))
        line = re.sub(r"(?:(?:parameters|optimizer|activations|gradients|gathered|others|logits) \d+%(?:, )?)+", "PARTS", line)
    line = re.sub(r"\bstep_\d+", "step_N", line)
    line = re.sub(r"( time: ).*?: .*", r"\1PARTS", line)  # parts that took no time are left out
    return re.sub(r"(?:N )+left", "N left", re.sub(r"[\s─-]+", " ", NUMBER.sub("N", line))).strip()


def spaced(line):
    return " ".join(line.split())


def missing_line(shown, said, shape=shape):
    """The first line that a page shows and that did not come, in this order; None: all came. A line "…" stands for
    any others; a line that ends in it, or has it in its middle, for any rest."""
    at, gap = 0, True
    came = [shape(line) for line in said.splitlines()]
    for line in shown:
        if line.strip() == "…":
            gap = True
            continue
        pattern = ".*".join(re.escape(part) for part in shape(line).split("…"))
        places = [i for i in range(at, len(came) if gap else min(at + 1, len(came))) if re.fullmatch(pattern, came[i])]
        if not places:
            return line
        at, gap = places[0] + 1, False
    return None


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", [page for page in ALL if ALL[page]])
def test_commands(page, base, tmp_path):
    folder = tmp_path / "here"
    shutil.copytree(base, folder, symlinks=True)
    everything = ""
    for command in ALL[page]:
        if bare(command) in left:
            problems = words.wrong_words(bare(command))
            assert not problems, f"{command.place}: {'; '.join(problems)}"
            continue
        text, _ = substituted(command, folder)
        code, said = run(folder, text)
        assert code == 0, f"{command.place}: {text}\nended with exit code {code}:\n{said[-4000:]}"
        # A plan has no clock and no chance in it: its numbers are those of the page.
        line = missing_line(command.output, said, spaced if text.startswith("floe plan") else shape)
        assert line is None, f"{command.place}: {text}\ndid not say\n{line}\nbut\n{said[-8000:]}"
        everything += said
    if page in SHOWN:
        for block in blocks(page):
            line = missing_line(block.lines, everything) if block.language == "text" else None
            assert line is None, f"{block.place}: no command of the page said\n{line}\nbut\n{everything[-12000:]}"


@pytest.mark.parametrize("page", pages())
def test_blocks_say_what_they_are(page):
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{block.place}: a code block in the language '{block.language}'; one of {sorted(LANGUAGES)}"
        if block.language not in ("sh", "console"):
            for number, line in enumerate(block.lines, block.line + 1):
                assert not TYPED.match(line), f"{page}:{number}: a command in a block of {block.language}: {line}"


def test_nothing_is_listed_for_nothing():
    """Every substitution is made somewhere, every command that is left out is on a page and every test that is said to
    run one is there."""
    every = [command for page in ALL.values() for command in page]
    made = {entry for command in every for entry in substituted(command)[1] if bare(command) not in left}
    unused = [entry for entry in SUBSTITUTES if entry not in made] + [entry for entry in LEFT if entry.command not in map(bare, every)]
    assert not unused, unused
    assert len(left) == len(LEFT)
    for why in left.values():
        if why.startswith("by "):
            file, test = why.removeprefix("by ").split("::")
            assert f"def {test}(" in (ROOT / file).read_text(), f"{file} has no {test}"
    assert len(LEFT) * 2 < len(every), "most commands of the pages run"


@pytest.mark.parametrize("page", pages())
def test_words_of_commands_in_prose(page):
    wrong = []
    for line, span in code_spans(page):
        if re.match(r"(floe|\./run) |([A-Z_]+=\S+ )+(floe|\./run)", span):
            wrong += [f"{page}:{line}: `{span}`: {problem}" for problem in words.wrong_words(span)]
    assert not wrong, "\n".join(wrong)


def leaves(value, key=""):
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from leaves(inner, f"{key}.{name}" if key else str(name))
    else:
        yield key


def is_python(text):
    """Statements, or a part of a dictionary."""
    for whole in (text, "{" + text + "}"):
        try:
            ast.parse(whole)
            return True
        except SyntaxError:
            pass
    return False


@pytest.mark.parametrize("page", pages())
def test_blocks_of_other_languages(page):
    """Keys of YAML are keys of a configuration; JSON and Python can be read."""
    for block in blocks(page):
        if block.language == "yaml":
            unknown = [key for key in leaves(yaml.safe_load(block.text)) if not words.is_key(key)]
            assert not unknown, f"{block.place}: no keys of floe train: {unknown}"
        elif block.language == "json":
            for line in block.lines:
                json.loads(line)
        elif block.language == "python":
            assert is_python(block.text), f"{block.place}: no Python"


def test_the_ten_lines_are_those_of_the_example():
    """README's program stands in examples/shard_mlp.cc, in this order, comments aside."""
    shown = [block for block in blocks("README.md") if block.language == "cpp"]
    assert len(shown) == 1

    def code(lines):
        stripped = (re.sub(r"//.*", "", line).strip() for line in lines)
        return [line for line in stripped if line]

    example = iter(code((ROOT / "examples/shard_mlp.cc").read_text().splitlines()))
    for line in code(shown[0].lines):
        assert line in example, f"examples/shard_mlp.cc has no '{line}' in its place"
