"""`--shards` of `floe generate` and `floe score`: every sample of a data set is asked, as a line of a file would be."""

import json
import os
import signal
import subprocess
import tarfile

import pytest
from generate_runs import FLOE
from tars import write_tar
from test_generate_command import captioner, captioner_and_reference, picture, plain_lm  # noqa: F401 (fixtures)
from test_requests import ENVIRONMENT, computed, records_of, run, wait_for_lines, write_requests


def sample(folder, key, size=(30, 22), text=None, **values):
    members = {f"{key}.png": picture(folder / f"{key}.png", *size, len(key)).read_bytes()}
    members[f"{key}.txt"] = (text or f" a {key}").encode()
    if values:
        members[f"{key}.json"] = json.dumps(values).encode()
    return members


@pytest.fixture
def shards(tmp_path):
    """Two shards, one of them packed, and the pictures beside them."""
    (tmp_path / "data").mkdir()
    write_tar(tmp_path / "data" / "0.tar", sample(tmp_path, "a", alt=" cat", n=3) | sample(tmp_path, "bb", (40, 60), " zwei Äpfel", alt=" dog", n=4))
    write_tar(tmp_path / "data" / "1.tar.gz", sample(tmp_path, "ccc", (25, 25), alt=" sun", n=5), "w:gz")
    return tmp_path / "data"


KEYS = ["0.tar/a", "0.tar/bb", "1.tar.gz/ccc"]


@pytest.mark.parametrize("as_list", [False, True])
def test_samples_are_requests(captioner, shards, as_list, tmp_path):
    model, _ = captioner
    named = f"{shards}/0.tar::{shards}/{{1,2}}.tar.gz" if as_list else shards
    if as_list:  # of a list, single shards may be missing
        write_tar(shards / "2.tar.gz", {}, "w:gz")
    texts = computed("generate", model, "--shards", named, "--prompt", "<image>Output:", "--max-new-tokens", 6)
    files = [dict(prompt="<image>Output:", images=[f"{name}.png"]) for name in ("a", "bb", "ccc")]
    theirs = computed("generate", model, "--requests", write_requests(tmp_path / "r.jsonl", files), "--max-new-tokens", 6)
    assert [record.pop("id") for record in texts] == KEYS
    assert texts == theirs and len({str(record["ids"]) for record in texts}) > 1

    scores = computed("score", model, "--shards", named, "--prompt", "<image>{json.n}{{}}:", "--candidate", "{txt}", "--candidate", "{json.alt}!")
    for line, n, txt, alt in zip(files, (3, 4, 5), (" a a", " zwei Äpfel", " a ccc"), (" cat", " dog", " sun"), strict=True):
        line.update(prompt=f"<image>{n}{{}}:", candidates=[txt, alt + "!"])
    theirs = computed("score", model, write_requests(tmp_path / "r.jsonl", files))
    assert [record.pop("id") for record in scores] == KEYS
    assert scores == theirs


def test_what_is_wrong_is_named_and_the_run_goes_on(captioner, tmp_path):
    model, _ = captioner
    good, bad = sample(tmp_path, "good"), sample(tmp_path, "bad")
    bad["bad.png"] = bad["bad.png"][:40]
    members = good | bad | {"blind.txt": b" x"} | {k: v for k, v in sample(tmp_path, "mute").items() if not k.endswith("txt")}
    members |= {"odd\xff.png".encode("latin-1").decode("utf-8", "surrogateescape"): good["good.png"],
                "odd\xff.txt".encode("latin-1").decode("utf-8", "surrogateescape"): b" x"}  # fmt: skip
    write_tar(tmp_path / "0.tar", members)
    cut = write_tar(tmp_path / "1.tar", sample(tmp_path, "first") | sample(tmp_path, "second", (300, 300)))
    cut.write_bytes(cut.read_bytes()[: tarfile.open(cut).getmember("second.png").offset_data + 100])
    done = run("score", model, "--shards", tmp_path / "{0,1,7}.tar", "--prompt", "<image>", "--candidate", "{txt}", "--output", tmp_path / "out.jsonl")
    assert done.returncode == 0, done.stderr
    records = records_of((tmp_path / "out.jsonl").read_text())
    reasons = {record["id"]: record.get("reason") for record in records}
    assert reasons == {"0.tar/good": None, "0.tar/bad": "image", "0.tar/blind": "image", "0.tar/mute": "field",
                       "0.tar/odd\\xff": None, "1.tar/first": None}, records  # fmt: skip
    errors = {record["id"]: record.get("error", "") for record in records}
    assert "names {txt}, but samples have __key__" in errors["0.tar/mute"] and f"'{tmp_path}/0.tar' sample 'bad': " in errors["0.tar/bad"]
    assert "1.tar" in done.stderr and "what can be read of it is asked" in done.stderr
    assert "6 requests, 3 with an error (field 1, image 2" in done.stderr


@pytest.mark.parametrize("more", [[], ["--sharded"]])
def test_a_killed_run_goes_on_two_ranks(captioner, more, tmp_path):
    model, _ = captioner
    image = picture(tmp_path / "p.png", 30, 30, 5).read_bytes()
    for shard in range(3):
        write_tar(tmp_path / f"{shard}.tar", {f"{shard}{i:02}.{end}": data for i in range(30)
                                              for end, data in (("png", image), ("txt", f" {i}".encode()))})  # fmt: skip
    words = ["launch", "-n", 2, "--", "generate", model, "--shards", tmp_path / "{0..2}.tar", "--prompt", "<image>{txt}:",
             "--max-new-tokens", 12, "--eos-id", "none", "--batch-tokens", 600, *more]  # fmt: skip
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    done = run(*words, "--output", whole)
    assert done.returncode == 0, done.stderr
    assert [record["id"] for record in records_of(whole.read_text())] == [f"{s}.tar/{s}{i:02}" for s in range(3) for i in range(30)]
    process = subprocess.Popen([FLOE, *map(str, words), "--output", out], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, env=ENVIRONMENT, start_new_session=True)  # fmt: skip
    wait_for_lines(process, tmp_path / "out.jsonl.parts", 5)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    done = run(*words, "--output", out)
    assert done.returncode == 0 and "by an earlier start" in done.stderr, done.stderr
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(
    "words, says",
    [
        (["generate", "MODEL", "--shards", "SHARDS"], "--shards needs one --prompt"),
        (["generate", "MODEL", "--shards", "SHARDS", "--prompt", "<image>{nope}"], "names {nope}, but samples have __key__, json.alt, json.n, txt"),
        (["generate", "MODEL", "--shards", "SHARDS", "--prompt", "a", "--requests", "x"], "either --requests or --shards"),
        (["generate", "MODEL", "--shards", "SHARDS", "--prompt", "a", "--image", "x"], "--image has no use with --shards"),
        (["generate", "MODEL", "--shards", ".", "--prompt", "a"], "has no tar shards"),
        (["generate", "MODEL", "--shards", "none-{0..3}.tar", "--prompt", "a"], "none-"),
        (["score", "MODEL", "--shards", "SHARDS", "--prompt", "a"], "--shards needs --candidate"),
        (["score", "MODEL", "FILE", "--candidate", "a"], "--candidate has no use without --shards"),
        (["score", "MODEL", "FILE", "--shards", "SHARDS", "--prompt", "a", "--candidate", "b"], "got 2 paths"),
    ],
)
def test_refuses_with_a_sentence(words, says, captioner, shards, tmp_path):
    (tmp_path / "empty").mkdir()
    words = [{"MODEL": captioner[0], "SHARDS": shards, "FILE": "f.jsonl"}.get(word, word) for word in words]
    (tmp_path / "empty" / "f.jsonl").write_text('{"ids": [3], "candidates": [[4]]}\n')
    done = run(*words, cwd=tmp_path / "empty")
    assert done.returncode == 2 and says in done.stderr, done.stderr
    assert done.stdout == ""
