"""Figures of the pages are those of the results they name."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULT = re.compile(r"(?:bench|tests)/results/[\w.-]+\.(?:md|txt|json|svg)")
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def tables(text):
    """Every table as [(heading above it, [cells of a row, ...])], without its rule."""
    found, heading, rows = [], "", []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if not all(set(cell) <= set("-: ") and cell for cell in cells):
                rows.append(cells)
            continue
        if rows:
            found.append((heading, rows))
            rows = []
        if line.strip():
            heading = line.strip()
    return found


def table_below(page, part):
    """Of the page, below a paragraph with this text: {row: {column: cell}}."""
    matching = [rows for heading, rows in tables((ROOT / page).read_text()) if part in heading]
    assert len(matching) == 1, f"{page} has {len(matching)} tables below '{part}'"
    first, *rows = matching[0]
    return {row[0]: dict(zip(first, row)) for row in rows}


def section_of(result, name):
    text = (ROOT / result).read_text()
    begin = text.index(f"\n## {name}:")
    end = text.find("\n## ", begin + 1)
    (_, (first, *rows)), = tables(text[begin: end if end > 0 else len(text)])
    return {row[0]: dict(zip(first, row)) for row in rows}


def same(shown, measured, place=0):
    """`shown` is the measured number, rounded to as many digits as it has."""
    number = NUMBER.findall(measured)[place]
    digits = len(shown.split(".")[1]) if "." in shown else 0
    return abs(float(shown) - float(number)) <= 0.5000001 * 10**-digits


def test_the_judges_of_claims_are_there():
    """tests/README.md names files and functions."""
    named = re.findall(r"`(\w+/\w+\.py)(?:::(\w+))?`", (ROOT / "tests" / "README.md").read_text())
    assert len(named) > 20
    for file, function in named:
        path = ROOT / file if file.startswith("tools/") else ROOT / "tests" / file
        assert path.is_file() and (not function or f"def {function}(" in path.read_text()), f"there is no {file} {function}"


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_results_that_pages_name_are_there(page):
    for path in RESULT.findall(page.read_text()):
        assert (ROOT / path).is_file(), f"{page.name} names {path}"


def test_the_table_of_systems():
    rows = {
        "floe": "floe", "FSDP2": "FSDP2", "FSDP2, frozen and trainable wrapped apart by hand": "FSDP2, best wrapping",
        "FSDP1, `use_orig_params`": "FSDP1", "floe, `shard_grad_op`": "floe, shard_grad_op",
        "FSDP2, `reshard_after_forward=False`": "FSDP2, reshard_after_forward=False",
        "floe, frozen parameters resident": "floe, frozen resident", "FSDP2, frozen parameters ignored": "FSDP2, frozen ignored",
        "floe, `no_shard`": "floe, no_shard", "DDP": "DDP",
    }
    columns = {
        "step s": ("step s (rounds)", 0), "CPU s a step": ("CPU s", 0), "peak MiB": ("peak MiB", 0),
        "gathered MiB": ("gathers n / MiB", 1), "reduced MiB": ("reductions n / MiB", 1),
        "between steps MiB": ("between steps", 0),
    }
    shown = table_below("README.md", "./run bench engine")
    measured = section_of("bench/results/2026-11-19-engine.md", "adapters")
    assert shown.keys() == rows.keys() and measured.keys() == set(rows.values())  # none is left out
    for row, theirs in rows.items():
        assert shown[row].keys() - {""} == columns.keys()
        for column, (name, place) in columns.items():
            assert same(shown[row][column], measured[theirs][name], place), f"{row}: {column}"


def test_the_table_of_the_gpu():
    found = tables((ROOT / "bench/results/2026-11-18-h200-beside-torch.md").read_text())
    (measured,) = [rows for _, (first, *rows) in found if first[:3] == ["model", "floe", "the fastest of torch"]]
    shown = table_below("README.md", "as rank 0 of 8")
    assert len(shown) == len(measured)
    for (row, cells), (model, *systems) in zip(shown.items(), measured, strict=True):
        assert row.split(",")[0] == model and ("recomputed" in row) == ("checkpointed" in systems[0])
        for column, system in zip(("floe", "FSDP2"), systems):
            assert column in system and system.endswith(f": {cells[column]}"), f"{row}: {column}"


def cells_of(result, *keys):
    """Rows of the first table of a result that has these columns first: {their cells: all of the row}."""
    found = tables((ROOT / result).read_text())
    (first, *rows) = next(rows for _, rows in found if rows[0][: len(keys)] == list(keys))
    return {tuple(row[: len(keys)]): dict(zip(first, row)) for row in rows}


def test_the_table_of_frozen_layers_in_8_bits():
    measured = cells_of("bench/results/2026-11-18-h200.md", "model", "system")
    shown = table_below("README.md", "multiplied in 8 bits")
    assert list(shown) == ["of3b", "of4b", "of9b"]
    for model, cells in shown.items():
        for column, system in {"bf16": "floe W=8", "frozen layers in FP8": "floe W=8 fp8 products"}.items():
            row = measured[model, system]
            ms, gib = NUMBER.findall(cells[column])
            assert same(ms, row["step ms"]) and same(gib, row["peak GiB"]), f"{model}: {column}"


def test_the_table_of_adapters():
    measured = cells_of("bench/results/2026-11-18-h200-lora.md", "model", "tokens", "system")
    shown = table_below("README.md", "Adapters of rank 8")
    assert list(shown) == ["llama3-8b", "qwen2.5-7b"]
    systems = {"floe": "floe", "floe, frozen layers in FP8": "floe fp8 products", "transformers, compiled": "transformers compiled"}
    for model, cells in shown.items():
        assert cells.keys() - {"model"} == systems.keys()
        for column, system in systems.items():
            row = measured[model, "2 × 4096", system]
            assert cells[column] == f"{row['tokens/s']} tokens/s, {row['peak GiB']} GiB", f"{model}: {column}"


def test_the_table_of_data():
    rows = {
        "floe": "floe, 1 thread", "libjpeg-turbo, decoding alone": "libjpeg-turbo, decoding alone",
        "OpenFlamingo's pipeline (webdataset, Pillow, torchvision, tokenizers)": "OpenFlamingo's pipeline, 1 worker",
    }
    shown = table_below("README.md", "./run bench data")
    assert shown.keys() == rows.keys()
    for column, section in {"512×512": "laion-512", "1024×768": "laion-1024", "MMC4 documents": "mmc4"}.items():
        measured = section_of("bench/results/2026-11-15-data.md", section)
        for row, theirs in rows.items():
            assert same(shown[row][column], measured[theirs]["pictures per CPU-second (rounds)"]), f"{row}: {column}"


def test_a_wrong_figure_is_found():
    assert same("0.60", "0.596 (0.550–0.646)") and same("63", "11 / 62.6", 1) and same("350", "350 (348–351)")
    assert not same("0.61", "0.596 (0.550–0.646)") and not same("64", "11 / 62.6", 1) and not same("351", "350 (348–351)")
