"""`floe inspect`: every golden through the real program, and what else it says and refuses.

Needs FLOE_BIN_DIR, the folder of built programs.
"""

import hashlib
import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

FLOE = Path(os.environ["FLOE_BIN_DIR"]) / "floe"
GOLDENS = Path(__file__).parent.parent / "goldens" / "data"
CORPUS, TOKENIZERS = GOLDENS / "corpus", GOLDENS / "tokenizers"
NAMES = ["neox", "opt", "llama"]


def floe(*words):
    return subprocess.run([FLOE, "inspect", *map(str, words)], capture_output=True, text=True, timeout=300)


def good(*words):
    done = floe(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def samples(shards, source, tokenizer, *options):
    words = [shards, "--samples", "--json", "--source", source, "--tokenizer", TOKENIZERS / tokenizer, *options]
    return [json.loads(line) for line in good(*words).splitlines()]


def golden(name):
    return json.loads((GOLDENS / "golden" / name).read_text())


def place(row):
    return Path(row["shard"]).name, row["key"], row["status"]


@pytest.mark.parametrize("tokenizer", NAMES)
def test_laion_goldens(tokenizer):
    rows, expected = samples(CORPUS / "laion", "laion", tokenizer), golden("laion_samples.json")["samples"]
    assert [place(row) for row in rows] == [place(row) for row in expected]
    for row, right in zip(rows, expected):
        if right["status"] == "kept":
            assert row["ids"] == right["ids"][tokenizer]
            assert row["crop_sha256"] == [right["crop_u8_sha256"]]
            assert row["reason"] is None
        else:
            assert (row["reason"] == "no_caption_or_image") == (right["stage"] == "filter_no_caption_or_no_image")


@pytest.mark.parametrize("tokenizer", NAMES)
def test_mmc4_goldens(tokenizer):
    rows, expected = samples(CORPUS / "mmc4", "mmc4", tokenizer), golden("mmc4_docs.json")["docs"]
    assert len(rows) == len(expected)
    spans = golden("labels.json")["tokenizers"][tokenizer]["mmc4"]
    for row, document in zip(rows, expected):
        right = document["result"][tokenizer]
        assert (row["key"], row["status"]) == (document["key"], right["status"])
        if right["status"] == "kept":
            assert row["ids"] == right["ids"][: right["n_attended"]]
            assert row["images"] == right["images_used"]
            assert row["crop_sha256"] == document["crop_u8_sha256"][: len(row["images"])]
            assert row["key"] not in spans or row["label_spans"] == spans[row["key"]]


def test_edge_shards_are_one_stream():
    pattern = str(CORPUS / "laion_edge" / "{000000..000007}.tar")
    rows, expected = samples(pattern, "laion", "neox"), golden("laion_edge.json")["samples"]
    assert [place(row) for row in rows] == [place(row) for row in expected]
    damage = [line for line in floe(pattern).stderr.splitlines() if "left behind" in line]
    assert len(damage) == 2 and "000003.tar" in damage[0] and "000007.tar" in damage[1]


def test_corrected_rules_end_samples_with_their_shard():
    rows = samples(CORPUS / "laion_edge", "laion", "neox", "--rules", "corrected")
    assert [place(row) for row in rows if row["key"] == "split"] == [
        ("000001.tar", "split", "dropped"),
        ("000002.tar", "split", "dropped"),
    ]


def test_samples_in_words():
    lines = good(CORPUS / "laion" / "000000.tar", "--samples", "--tokenizer", TOKENIZERS / "opt").splitlines()
    assert lines[0] == "kept     000000000  15 tokens, 1 images"
    assert lines[3].startswith("dropped  000000003  bad_image: ")


def test_summary_without_a_tokenizer():
    text = good(CORPUS / "laion")
    assert "5 shards (0 damaged), 223 files, 73 samples" in text
    assert "source   laion" in text and "without a tokenizer" in text
    assert "no_caption_or_image" in text and "kept     59" in text


def test_summary_as_json():
    report = json.loads(good(CORPUS / "mmc4", "--json", "--tokenizer", TOKENIZERS / "neox"))
    kept = sum(document["result"]["neox"]["status"] == "kept" for document in golden("mmc4_docs.json")["docs"])
    assert report["source"] == "mmc4" and report["kept"] == kept == len(report["token_lengths"])
    assert sum(report["dropped"].values()) == 52 - kept
    assert report["fields"] == {"json": 52} and [shard["samples"] for shard in report["shards"]] == [13] * 4


def test_limit():
    assert len(samples(CORPUS / "laion", "laion", "opt", "--limit", "4")) == 4


def test_contact_sheet(tmp_path):
    good(CORPUS / "mmc4", "--tokenizer", TOKENIZERS / "llama", "--html", tmp_path / "s.html", "--png", tmp_path / "s.png", "--limit", "10")
    page = (tmp_path / "s.html").read_text()
    kept = page.count("<article")
    first_ten = golden("mmc4_docs.json")["docs"][:10]
    assert kept == sum(document["result"]["llama"]["status"] == "kept" for document in first_ten)
    assert page.count("data:image/jpeg;base64,") > kept
    assert "&lt;|endofchunk|&gt;" in page and 'class="l' in page and "bad_matrix" in page
    assert not re.search(r"(src|href)=\"?https?:", page), "needs no other file"
    with Image.open(tmp_path / "s.png") as picture:
        assert picture.mode == "RGB" and min(picture.size) > 224
        first = next(row for row in samples(CORPUS / "mmc4", "mmc4", "llama") if row["status"] == "kept")
        crop = np.asarray(picture)[8 + 14 : 8 + 14 + 224, 8 : 8 + 224]
        assert hashlib.sha256(crop.tobytes()).hexdigest() == first["crop_sha256"][0]


def test_tensor_files(tmp_path):
    tensors = {"b.weight": torch.zeros(2, 3, dtype=torch.bfloat16), "a": torch.ones(4)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    torch.save(tensors, tmp_path / "model.pt")
    text = good(tmp_path / "model.safetensors")
    assert "metadata  format = pt" in text and re.search(r"b\.weight +bf16 \[2, 3\] +12 B", text)
    for path in (tmp_path / "model.safetensors", tmp_path / "model.pt"):
        described = json.loads(good(path, "--json"))
        assert described["num_tensors"] == 2 and described["bytes"] == 28
        assert described["tensors"]["b.weight"] == {"dtype": "bf16", "shape": [2, 3], "bytes": 12}


def test_tokenizer_folder():
    text = good(TOKENIZERS / "opt")
    assert "3000" in text and "</s>" in text


@pytest.mark.parametrize(
    "words, says",
    [
        ([], "name something to inspect"),
        (["nowhere/{0..3}.tar"], "there is no folder 'nowhere'"),
        ([CORPUS / "laion", "--samples"], "--samples needs --tokenizer"),
        ([CORPUS / "laion", "--sampels"], "did you mean '--samples'"),
        ([CORPUS / "laion", "--source", "coco"], "laion or mmc4"),
        ([CORPUS / "laion", "--max-images", "0"], "--max-images"),
        ([CORPUS / "laion", "--max-images", "2"], "--max-images has no use with laion"),
        ([CORPUS / "mmc4", "--text-sim-threshold", "nan"], "--text-sim-threshold is 'nan', but must be a finite number"),
        ([TOKENIZERS / "opt", "--samples"], "--samples is for tar shards"),
        ([TOKENIZERS / "opt", CORPUS / "laion"], "cannot be inspected together"),
        ([GOLDENS / "README.md"], "no tar shard"),
        ([CORPUS / "mmc4_raw"], "no tar shards"),
    ],
)
def test_bad_usage(words, says):
    done = floe(*words)
    assert done.returncode == 2 and says in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stdout == ""
