"""Small parts of the rules against Python itself: braceexpand, base64, json, scipy, random, torch.

Needs FLOE_BIN_DIR, the folder of built programs (rules_tool among them).
"""

import base64
import json
import os
import random
import re
import subprocess
from pathlib import Path

import numpy as np
import torch
from braceexpand import braceexpand
from scipy.optimize import linear_sum_assignment
from webdataset.tariterators import base_plus_ext

TOOL = Path(os.environ["FLOE_BIN_DIR"]) / "rules_tool"


def ask(questions):
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    done = subprocess.run([TOOL], input=lines, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(questions)
    return answers


def packed(data):
    return base64.b64encode(data).decode()


def unpacked(answer):
    return None if answer is None else base64.b64decode(answer)


def or_none(function, *args):
    try:
        return function(*args)
    except (ValueError, TypeError, RecursionError):
        return None


def check(what, inputs, expected):
    """Every input is bytes, every expected answer bytes or None."""
    answers = ask([{"what": what, "bytes": packed(data)} for data in inputs])
    for data, answer, right in zip(inputs, answers, expected):
        assert unpacked(answer) == right, data[:200]
    refused = sum(right is None for right in expected)
    assert 0 < refused < len(expected), "inputs must be of both kinds"


def test_braces():
    rng = random.Random(1)
    pieces = ["{", "}", "{", "}", ",", "..", "1", "03", "-2", "a", "Z", "x", "\\", "{1..3}", "{a,b}", "{00..12..5}", "/s-"]
    patterns = ["".join(rng.choice(pieces) for _ in range(rng.randint(1, 9))) for _ in range(6000)]
    answers = ask([{"what": "braces", "text": pattern} for pattern in patterns])
    refused = 0
    for pattern, answer in zip(patterns, answers):
        expected = or_none(lambda: list(braceexpand(pattern)))
        assert answer == expected, pattern
        refused += expected is None
    assert 0 < refused < len(patterns)


def test_base64():
    rng = random.Random(2)
    inputs = []
    for _ in range(4000):
        text = bytearray(base64.b64encode(rng.randbytes(rng.choice([0, 1, 2, 3, 20, 100, 300]))))
        for _ in range(rng.choice([0, 0, 1, 2, 5])):
            place = rng.randint(0, len(text))
            if rng.random() < 0.5:
                text[place:place] = bytes([rng.choice(b"=\n -_Aa+/\x00=\xc3")])
            else:
                del text[place : place + 1]
        inputs.append(bytes(text))
    # As text, which is how documents hold it: what is not ASCII is refused.
    check("base64", inputs, [or_none(lambda: base64.b64decode(data.decode("latin-1"))) for data in inputs])


DOCUMENTS = [
    {"text_list": ["a", "\u00e9\u6c34", "\U0001f9ca", "tab\t\"q\" 'p'", "\x7f\u200b\u2028"], "n": [1, -0.0, 1e300, 5e-324, 0.1, 123456789012]},
    [[], {}, None, True, False, "", float("nan"), float("inf"), -float("inf")],
    {"\u00e9": {"deep": [[[[{"k": "v"}]]]]}, "": 0, "big": 10**40, "e": [1e15, 1e16, 1.5e-5, 0.0001, 123456.789]},
]


def test_json():
    rng = random.Random(3)
    inputs = []
    for _ in range(6000):
        text = json.dumps(rng.choice(DOCUMENTS), ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1]))
        data = bytearray(text.encode(rng.choice(["utf-8"] * 6 + ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])))
        for _ in range(rng.choice([0, 1, 1, 2])):
            place = rng.randint(0, len(data))
            piece = rng.choice([b"", b"\\", b'"', b"\\ud800", b"\\udc00", b"\xed\xa0\x80", b"\x00", b",", b"e5", b"-", b"NaN", b" ", b"0", b"\\u00e9", b"\xff"])
            data[place : place + rng.choice([0, 0, 1])] = piece
        inputs.append(bytes(data))
    inputs += [b"1" * n for n in (4299, 4300, 4301)] + [b"1e400", b"-1e400", b"1e-400", b"0e999", b"1E5", b"1.0e+5", b"-0", b"[-0.0]"]

    def shown(data):
        return str(json.loads(data)).encode("utf-8", "surrogatepass")

    check("json", inputs, [or_none(shown, data) for data in inputs])


def test_assignment_with_and_without_ties():
    rng = np.random.default_rng(4)
    questions, expected = [], []
    for _ in range(3000):
        rows, columns = rng.integers(1, 12, 2)
        values = rng.uniform(-1, 1, (rows, columns))
        if rng.random() < 0.6:
            values = np.round(values, int(rng.integers(0, 2)))
        questions.append({"what": "assign", "rows": int(rows), "columns": int(columns), "values": values.flatten().tolist()})
        expected.append([list(map(int, pair)) for pair in zip(*linear_sum_assignment(-values))])
    assert ask(questions) == expected


def test_strip():
    spaces = [chr(c) for c in range(0x3100) if chr(c).isspace()] + ["\u200b", "\ufeff", "\u180e", "x", "\u00e9"]
    rng = random.Random(5)
    texts = ["".join(rng.choice(spaces) for _ in range(rng.randint(0, 8))) for _ in range(3000)]
    answers = ask([{"what": "strip", "bytes": packed(text.encode())} for text in texts])
    for text, answer in zip(texts, answers):
        assert unpacked(answer).decode() == text.strip(), repr(text)


def test_int():
    rng = random.Random(6)
    inputs = [bytes(rng.choice(b"0123 _+-\n\x0b\x0c\xa0ax.") for _ in range(rng.randint(0, 5))) for _ in range(3000)]
    answers = ask([{"what": "int", "bytes": packed(data)} for data in inputs])
    for data, answer in zip(inputs, answers):
        assert answer == (None if or_none(int, data) is None else True), data


def test_member_names():
    rng = random.Random(7)
    names = ["".join(rng.choice(["a", "B", ".", "/", "__", "_", "jpg", "TXT", "é"]) for _ in range(rng.randint(1, 7))) for _ in range(5000)]
    answers = ask([{"what": "member", "bytes": packed(name.encode())} for name in names])
    for name, answer in zip(names, answers):
        key, suffix = base_plus_ext(name)
        metadata = ("/" not in name and name.startswith("__") and name.endswith("__")) or re.match(r"__[^/]*__($|/)", name)
        expected = None if key is None or metadata else [key.encode(), suffix.lower().encode()]
        assert (answer and list(map(unpacked, answer))) == expected, name


def test_generators():
    for seed, below in [(0, 1), (1, 2), (42, 1000), (2**32 - 1, 2**31), (2**32, 3**20), (2**63 + 5, 2**63 - 25), (12345678901234567, 7)]:
        (draws,) = ask([{"what": "draw", "seed": seed, "below": below}])
        python = random.Random(seed)
        generator = torch.Generator().manual_seed(seed if seed < 2**63 else seed - 2**64)
        for i in range(700):
            assert draws["random"][i] == python.random()
            assert draws["below"][i] == python.choice(range(below))
            assert np.float32(draws["rand"][i]) == np.float32(torch.rand(1, generator=generator).item())
            assert draws["int64"][i] == torch.empty((), dtype=torch.int64).random_(generator=generator).item()
        order = list(range(100))
        python.shuffle(order)
        assert draws["shuffle"] == order
