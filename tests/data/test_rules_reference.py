"""`floe inspect --samples` against a plain Python reference, on random corpora full of oddities.

Needs FLOE_BIN_DIR, the folder of built programs.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import odd_corpora
import reference

FLOE = Path(os.environ["FLOE_BIN_DIR"]) / "floe"
TOKENIZERS = Path(__file__).parent.parent / "goldens" / "data" / "tokenizers"
NAMES = ["neox", "opt", "llama"]


@pytest.fixture(scope="module")
def tokenizers():
    return {name: reference.load_tokenizer(TOKENIZERS / name) for name in NAMES}


def inspect(paths, source, tokenizer, *options):
    done = subprocess.run(
        [FLOE, "inspect", *map(str, paths), "--samples", "--json", "--source", source, "--tokenizer", TOKENIZERS / tokenizer, *options],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def compare(ours, theirs):
    theirs = list(theirs)
    for mine, other in zip(ours, theirs):
        what = f"{other['key']}: {mine['reason']} {mine.get('detail')} / {other['error']}"
        if isinstance(other["key"], str):  # a file `x.__key__` makes bytes of it
            assert mine["key"] == other["key"].encode("utf-8", "replace").decode(), what
        assert mine["status"] == other["status"], what
        assert mine["ids"] == other["ids"], what
        assert mine["images"] == other["images"], what
        assert mine["crop_sha256"] == other["crop_sha256"], what
        if isinstance(other["shard"], str):
            assert mine["shard"] == other["shard"], what
    assert len(ours) == len(theirs)
    return sum(row["status"] == "kept" for row in theirs), len(theirs)


@pytest.mark.parametrize("seed", range(6))
def test_laion(seed, tmp_path, tokenizers):
    name = NAMES[seed % len(NAMES)]
    paths = odd_corpora.laion_corpus(tmp_path, seed)
    kept, total = compare(inspect(paths, "laion", name), reference.rows(paths, reference.Laion(tokenizers[name])))
    assert 0 < kept < total, "a corpus must have both"


def test_laion_max_tokens(tmp_path, tokenizers):
    paths = odd_corpora.laion_corpus(tmp_path, 100, num_shards=1)
    ours = inspect(paths, "laion", "opt", "--max-tokens", "7")
    compare(ours, reference.rows(paths, reference.Laion(tokenizers["opt"], max_tokens=7)))


@pytest.mark.parametrize("seed", range(6))
def test_mmc4(seed, tmp_path, tokenizers):
    name = NAMES[seed % len(NAMES)]
    paths = odd_corpora.mmc4_corpus(tmp_path, 1000 + seed)
    kept, total = compare(inspect(paths, "mmc4", name), reference.rows(paths, reference.Mmc4(tokenizers[name])))
    assert 0 < kept < total, "a corpus must have both"


@pytest.mark.parametrize(
    "threshold, min_images, max_images, max_tokens", [(0.3, 2, 2, 64), (0.15, 0, 1, 40), (0.2, 3, 4, 300), (-1, 1, 8, 16)]
)
def test_mmc4_settings(threshold, min_images, max_images, max_tokens, tmp_path, tokenizers):
    paths = odd_corpora.mmc4_corpus(tmp_path, 2000 + max_tokens)
    options = ["--text-sim-threshold", threshold, "--min-images", min_images, "--max-images", max_images, "--max-tokens", max_tokens]
    ours = inspect(paths, "mmc4", "llama", *map(str, options))
    compare(ours, reference.rows(paths, reference.Mmc4(tokenizers["llama"], threshold, min_images, max_images, max_tokens)))
