"""What grows with the number of ranks: requests to rank 0's store, files, bytes. The real parts, without collectives."""

import json
import subprocess

import pytest
from running import FLOE

MANY_RANKS = FLOE.parent / "many_ranks"


def parts_of(folder, *worlds, timeout):
    """What many_ranks counts: {(part, ranks): …}; of parts that come again the first."""
    words = [MANY_RANKS, folder, *map(str, worlds)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = {}
    for text in done.stdout.splitlines():
        part = json.loads(text)
        parts.setdefault((part["part"], part["ranks"]), part)
    return parts


def check_requests(parts, ranks):
    """A few messages of every rank, whatever is done and however long it takes."""
    exchange = parts["exchange", ranks]["requests"] / parts["exchange", ranks]["exchanges"]
    assert exchange <= 4 * ranks, "a text and a question of each; rank 0 takes and removes each text"
    assert parts["start", ranks]["requests"] <= 4 * ranks
    assert parts["agree", ranks]["requests"] <= 2 * 4 * ranks, "two comparisons"
    assert parts["save", ranks]["requests"] <= 3 * exchange, "three exchanges"
    assert parts["wait", ranks]["requests"] <= exchange, "nobody asks twice, however long it waits"
    assert parts["resume", ranks]["requests"] <= 5 * exchange


def check_resume(parts, ranks, saved_by):
    """A rank opens the files of its share and a few that all know, and reads no more than that."""
    part = parts["resume", ranks]
    sizes, opened, read = part["sizes"], part["files_opened"], part["bytes_read"]
    assert part["wrong_ranks"] == 0 and part["saved_by"] == saved_by
    # Of the ranks that saved: whose files lie in its equal part of all bytes, which it checks, and whose slices it loads;
    # and one at each end. A checked rank has two files, of which one is read twice. Beside them .metadata, floe.json
    # where it is read, and the states.
    per_rank = (sizes["all files"] - sizes["floe_ranks.json"]) / saved_by
    checked, loaded = -(-sizes["all files"] / ranks // per_rank), -(-saved_by // ranks)
    assert opened["most"] <= 4 * (checked + 2) + 3 * (loaded + 2) + 6, part
    # All bytes are checked once, by all ranks together, and loaded once; an item is checked whole where it begins, and
    # of those that it loads a rank reads where in them the elements lie.
    index = sizes[".metadata"] + 4 * sizes["floe.json"]
    each = sizes["all files"] // ranks
    largest = sizes["all files"] // saved_by
    assert read["most"] <= index + 4 * each + 2 * largest, part
    most_of_states = 2 * largest if ranks == saved_by else sizes["floe_ranks.json"]
    assert part["state_bytes_read"]["most"] <= most_of_states, part


@pytest.mark.parametrize("worlds", [(128, 12), (8, 128)])
def test_a_hundred_ranks(tmp_path, worlds):
    saved_by, *later = worlds
    parts = parts_of(tmp_path, *worlds, timeout=280)
    check_requests(parts, saved_by)
    for ranks in worlds:
        check_resume(parts, ranks, saved_by)
    assert parts["resume", later[0]]["bytes_held"]["most"] > 0


def line(part):
    """One row of the table."""
    words = [f"{part['part']:<9}{part['ranks']:>6}{part['requests']:>10}{part['seconds']:>9.2f}{part['cpu_s']:>9.2f}"]
    for key in ("files_opened", "bytes_read", "state_bytes_read", "bytes_held"):
        words.append(f"{part[key]['most']:>13}" if key in part else " " * 13)
    return "".join(words)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("worlds", [(1024, 96), (8, 1024)])
def test_a_thousand_ranks(tmp_path, capsys, worlds):
    saved_by, *later = worlds
    parts = parts_of(tmp_path, *worlds, timeout=3500)
    with capsys.disabled():
        print(f"\na checkpoint of {saved_by} ranks, on {', '.join(map(str, worlds))}")
        print("part      ranks  requests  seconds    CPU-s   files, most   bytes, most  states, most     held bytes")
        for part in parts.values():
            print(line(part))
        print(json.dumps(parts["resume", saved_by]["sizes"]))
    check_requests(parts, saved_by)
    for ranks in worlds:
        check_resume(parts, ranks, saved_by)
    if saved_by == 1024:
        control = [parts["start", 1024], parts["agree", 1024]]
        assert sum(part["cpu_s"] for part in control) < 60
        exchange = parts["exchange", 1024]
        assert exchange["seconds"] / exchange["exchanges"] < 2
    assert later
