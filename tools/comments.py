"""Comments of C++ sources within 100 columns: finds those that are longer, and wraps them anew.

Only `//` comments that stand alone on their lines are wrapped, and of those only paragraphs with a line
that is too long. What its author laid out keeps its lines: empty lines, list items (with their hanging
indentation), anything indented (code, tables, formulas), headings, and a sentence that ends a line early.
"""

import re
import textwrap

WIDTH = 100

ALONE = re.compile(r"^(\s*)//(?: (.*)|)$")
ITEM = re.compile(r"^(?:[-*•] +|\d{1,2}[.)] +|\([a-z0-9]\) +)")
# A comment behind code; a string may hold "//" as well, but not behind these.
BEHIND = re.compile(r"[;{},)]\s+// ")
KEPT = re.compile(r"^(?:clang-format|NOLINT|\||[=~-]{4,}|Note \[[^]]*\]$)")


def too_long(line):
    """Whether a line is longer than it may be because of its comment."""
    if len(line) <= WIDTH:
        return False
    if match := ALONE.match(line):
        return len((match.group(2) or "").split()) > 1  # an address alone cannot be broken
    return bool(BEHIND.search(line))


def ends_early(text, following, indent):
    """Whether an author ended a line here although the next word had room in it."""
    room = WIDTH - 8 - len(indent) - len("// ")
    return text.endswith((".", ":", ";", ")")) and len(text) + 1 + len(following.split(" ", 1)[0]) <= room


def paragraphs(texts, indent):
    """Splits the texts of a block of comment lines into ([text...], hanging indentation or None to keep)."""
    found, current, hang = [], [], ""

    def close():
        nonlocal current
        if current:
            found.append((current, hang))
        current = []

    for text in texts:
        stripped = text.lstrip(" ")
        depth = len(text) - len(stripped)
        if not stripped or KEPT.match(stripped):
            close()
            found.append(([text], None))
        elif item := ITEM.match(stripped):
            close()
            current, hang = [text], " " * (depth + len(item.group(0)))
        elif current and depth == len(hang) and not ends_early(current[-1], stripped, indent):
            current.append(text)
        elif depth:
            close()
            found.append(([text], None))
        else:
            close()
            current, hang = [text], ""
    close()
    return found


def wrap_block(texts, indent):
    lines = []
    for part, hang in paragraphs(texts, indent):
        before = [f"{indent}// {text}".rstrip() for text in part]
        if hang is None or not any(too_long(line) for line in before):
            lines += before
            continue
        first = part[0]
        head = first[: len(first) - len(first.lstrip(" "))]
        words = " ".join(text.strip() for text in part)
        lines += wrap_words(words, f"{indent}// {head}", f"{indent}// {hang}")
    return lines


def wrap_words(words, first, others):
    """Wraps within the width; a little narrower where that leaves no single word on the last line."""
    best = None
    for width in range(WIDTH, WIDTH - 12, -1):
        lines = textwrap.wrap(words, width, initial_indent=first, subsequent_indent=others, break_long_words=False,
                              break_on_hyphens=False)
        best = best or lines
        if len(lines) == len(best) and len(lines[-1][len(others):].split()) > 2:
            return lines
    return best


def wrap(source):
    """The source with every comment that can be wrapped within the width."""
    lines, block, indent, raw = [], [], None, False

    def close():
        nonlocal block
        if block:
            lines.extend(wrap_block(block, indent))
        block = []

    for line in source.split("\n"):
        match = None if raw else ALONE.match(line)
        if match and (not block or match.group(1) == indent):
            indent = match.group(1)
            block.append(match.group(2) or "")
            continue
        close()
        if match:
            indent = match.group(1)
            block.append(match.group(2) or "")
            continue
        lines.append(line)
        if not raw and re.search(r'R"\w*\((?!.*\)\w*")', line):
            raw = True
        elif raw and re.search(r'\)\w*"', line):
            raw = False
    close()
    return "\n".join(lines)


def long_lines(source):
    """The numbers of lines whose comments are too long."""
    return [number for number, line in enumerate(source.split("\n"), 1) if too_long(line)]
