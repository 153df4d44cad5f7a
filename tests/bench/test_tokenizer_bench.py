"""bench/tokenizer.py with small vocabularies: it runs, and floe's ids are the package's (else it fails)."""

import json
import os
import subprocess
from pathlib import Path

ROOT = Path(os.environ["FLOE_SOURCE_DIR"])


def test_every_family_gives_the_same_ids(tmp_path):
    out = tmp_path / "tokenizer"
    command = [os.environ["FLOE_PYTHON"], ROOT / "bench/tokenizer.py", "--quick", "--rounds", "1", "--seconds", "0.1", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.with_suffix(".json").read_text())
    assert {(row["family"], row["texts"]) for row in rows} == {
        (family, texts) for family in ("gpt2", "neox", "llama", "llama3") for texts in ("captions", "documents")
    }
    assert all(row["count"] > 100 for row in rows)
