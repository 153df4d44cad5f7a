#!/usr/bin/env python3
"""Writes src/floe/token/unicode/char_class_table.inc: what PyPI's `tokenizers` thinks of every code point.

usage: FLOE_PYTHON tools/char_classes.py > src/floe/token/unicode/char_class_table.inc

The package mixes Unicode versions: its regular expressions (Oniguruma), its `\\w` (Rust's regex), its
digits (Rust's standard library) and its normal forms each have their own. Asking it is the only way to
know, and the result does not depend on the Unicode version of the libraries floe is built with.
"""

import sys

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CATEGORIES = (
    "Cc Cf Cn Co Ll Lm Lo Lt Lu Mc Me Mn Nd Nl No Pc Pd Pe Pf Pi Po Ps Sc Sk Sm So Zl Zp Zs".split()
)
FORMS = {name: getattr(normalizers, name)() for name in ("NFC", "NFD", "NFKC", "NFKD")}


def pieces(pre_tokenizer, code_points=CODE_POINTS):
    text = "".join(map(chr, code_points))
    return {ord(c) for piece, _ in pre_tokenizer.pre_tokenize_str(text) for c in piece}


def matched(pattern):
    return pieces(pre_tokenizers.Split(Regex(pattern), "removed", invert=True))


def word_characters():
    """Rust's \\w: an added token that must be a single word is not found before one of these."""
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    from tokenizers import AddedToken

    tokenizer.add_tokens([AddedToken("\u2603", single_word=True, normalized=False)])
    return {c for c in CODE_POINTS if c != 0x2603 and not tokenizer.encode("\u2603" + chr(c)).ids[:1] == [1]}


def numeric():
    """Rust's char::is_numeric."""
    return {ord(p) for p, _ in pre_tokenizers.Digits(individual_digits=True).pre_tokenize_str(
        "".join("a" + chr(c) + "a" for c in CODE_POINTS)) if len(p) == 1 and p != "a"}


def combining():
    """Code points that move in front of, or behind, a neighbour: those with a combining class."""
    moved = set()
    for c in CODE_POINTS:
        for text in ("\u0334" + chr(c), chr(c) + "\u0334", "\u0345" + chr(c), chr(c) + "\u0345"):
            text = "a" + text
            once = "".join(map(FORMS["NFD"].normalize_str, text))
            if FORMS["NFD"].normalize_str(text) != once:
                moved.add(c)
    return moved


def second_in_a_composition():
    """Code points that may disappear into the one before them."""
    found = set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    for c in CODE_POINTS:
        parts = FORMS["NFD"].normalize_str(chr(c))
        if len(parts) > 1 and FORMS["NFC"].normalize_str(parts) == chr(c):
            found |= set(map(ord, parts[1:]))
    return found


def lower_cases():
    low = normalizers.Lowercase()
    return {c: low.normalize_str(chr(c)) for c in CODE_POINTS if low.normalize_str(chr(c)) != chr(c)}


def main():
    category = {}
    for name in CATEGORIES:
        for c in matched(r"\p{%s}" % name):
            category[c] = name
    flags = {"kSpace": matched(r"\s"), "kWord": word_characters(), "kNumeric": numeric()}
    moves, joins = combining(), second_in_a_composition()
    for name, form in FORMS.items():
        changed = {c for c in CODE_POINTS if form.normalize_str(chr(c)) != chr(c)}
        flags["k" + name] = changed | moves | (joins if name.endswith("C") else set())

    print("// Written by tools/char_classes.py; do not edit.")
    print("// {first code point, general category, flags}, up to the next row's first.")
    rows, last = [], None
    for c in range(0x110000):
        now = (category.get(c, "Cs"), "|".join(f for f, s in flags.items() if c in s) or "0")
        if now != last:
            rows.append("{0x%x,k%s,%s}," % (c, now[0], now[1]))
            last = now
    print("constexpr ClassRow kClassRows[] = {")
    line = ""
    for row in rows:
        if len(line) + len(row) > 110:
            print(line)
            line = ""
        line += row
    print(line + "\n};")

    print("// {upper case, lower case, how many follow, step}: what lower case has no row here stays.")
    print("constexpr LowerRow kLowerRows[] = {")
    single = {c: ord(s) for c, s in lower_cases().items() if len(s) == 1}
    others = {hex(c): s for c, s in lower_cases().items() if len(s) > 1}
    assert list(others) == ["0x130"], others
    runs = []
    for c in sorted(single):
        for run in reversed(runs[-2:]):
            first, low, count, step = run
            if low - first == single[c] - c and (count == 1 and c - first <= 2 or c == first + count * step):
                run[3] = c - first if count == 1 else step
                run[2] += 1
                break
        else:
            runs.append([c, single[c], 1, 1])
    line = ""
    for first, low, count, step in runs:
        row = "{0x%x,0x%x,%d,%d}," % (first, low, count, step)
        if len(line) + len(row) > 110:
            print(line)
            line = ""
        line += row
    print(line + "\n};")
    print(len(rows), "rows,", len(runs), "lower case rows", file=sys.stderr)


if __name__ == "__main__":
    main()
