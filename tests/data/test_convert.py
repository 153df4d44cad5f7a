"""`floe convert mmc4` against OpenFlamingo's output, and against the same rules in Python."""

import base64
import functools
import hashlib
import io
import json
import os
import random
import signal
import subprocess
import tarfile
import tempfile
import time
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

FLOE = Path(os.environ["FLOE_BIN_DIR"]) / "floe"
GOLDENS = Path(os.environ["FLOE_SOURCE_DIR"]) / "tests/goldens/data"


def words(raw, out, num_zips, **options):
    named = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    return [FLOE, "convert", "mmc4", "--zips", f"{raw}/shard_{{0..{num_zips - 1}}}.zip", "--images", f"{raw}/images",
            "--out", str(out), "--json", *named]  # fmt: skip


def convert(*args, **options):
    done = subprocess.run(words(*args, **options), capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def shards(out):
    """Per shard file the documents as text, in order."""
    found = {}
    for path in sorted(out.glob("*.tar")):
        with tarfile.open(path) as tar:
            found[path.name] = [tar.extractfile(member).read().decode() for member in tar]
    return found


def contents(out):
    return {path.name: path.read_bytes() for path in sorted(out.glob("*.tar"))}


# -------------------------------------------------------------------------------------- OpenFlamingo


@pytest.mark.parametrize("files_per_shard", [1000, 1, 2])
def test_openflamingo_s_output(files_per_shard, tmp_path):
    raw = GOLDENS / "corpus/mmc4_raw"
    golden = json.loads((GOLDENS / "golden/converter.json").read_text())[f"num_files_per_shard={files_per_shard}"]
    counts = convert(raw, tmp_path, 3, files_per_shard=files_per_shard)
    found = shards(tmp_path)
    assert list(found) == [shard["file"] for shard in golden["shards"]]
    for shard in golden["shards"]:
        documents = [json.loads(text) for text in found[shard["file"]]]
        assert len(documents) == shard["n_docs"]
        for document, expected in zip(documents, shard["docs"], strict=True):
            if isinstance(expected, str):
                assert document["url"] == expected
                continue
            pictures = [entry.pop("image_base64", None) for entry in document["image_info"]]
            assert json.dumps(document) == json.dumps(expected["doc_without_images"])
            for text, picture in zip(pictures, expected["images"], strict=True):
                data = base64.b64decode(text, validate=True) if text else None
                assert (data and hashlib.sha256(data).hexdigest()) == (picture and picture["jpeg_sha256"])
    messages = golden["stdout"]
    assert counts["documents"] == 9
    assert counts["pictures left out: not there"] == sum("Did not find" in line for line in messages)
    left_out = sum(count for reason, count in counts.items() if "left out" in reason)
    assert left_out == len(messages)


# ------------------------------------------------------------------------------ the rules, in Python


def reference(raw, number):
    """The documents of zip `number` as json.dumps writes them."""
    with zipfile.ZipFile(raw / f"shard_{number}.zip") as archive, archive.open(archive.namelist()[0]) as lines:
        for line in lines:
            try:
                document = json.loads(line)
                entries = document["image_info"]
                names = [entry["image_name"] for entry in entries]
            except (ValueError, KeyError, TypeError):
                continue  # the reference ends here
            for entry, name in zip(entries, names):
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        picture = Image.open(os.path.join(raw, "images", str(number), name)).convert("RGB")
                    out = io.BytesIO()
                    picture.save(out, format="JPEG")
                    entry["image_base64"] = base64.b64encode(out.getvalue()).decode()
                except Exception:
                    pass
            yield json.dumps(document)


def make_picture(path, width, height, seed):
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 256, (height // 4 + 1, width // 4 + 1, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
    if path.suffix == ".gif":
        picture = picture.quantize(64)
    picture.save(path, **({"method": 0} if path.suffix == ".webp" else {}))


@functools.cache
def picture_file(suffix, width, height, seed):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"x.{suffix}"
        make_picture(path, width, height, seed)
        return path.read_bytes()


def write_zip(path, lines):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("docs.jsonl", b"".join(lines))


def make_raw(raw, num_zips, num_documents, size=(60, 40), pictures=2):
    """A corpus: documents with pictures of several kinds."""
    suffixes = ["jpg", "png", "gif", "webp"]
    for number in range(num_zips):
        (raw / f"images/{number}").mkdir(parents=True)
        lines = []
        for line in range(num_documents):
            entries = []
            for picture in range(pictures):
                name = f"{line}_{picture}.{suffixes[(line + picture) % 4]}"
                (raw / f"images/{number}/{name}").write_bytes(picture_file(name.split(".")[1], *size, seed=line % 2))
                entries.append({"image_name": name, "matched_sim": 0.1 * line})
            document = {"text_list": ["wäßrig", f"{number}/{line}"], "image_info": entries, "n": line}
            lines.append(json.dumps(document).encode() + b"\n")
        write_zip(raw / f"shard_{number}.zip", lines)
    return raw


def test_every_kind_of_json(tmp_path):
    raw = tmp_path / "raw"
    (raw / "images/0/sub").mkdir(parents=True)
    make_picture(raw / "images/0/a.jpg", 50, 40, 0)
    make_picture(raw / "images/0/ü水.png", 50, 40, 1)
    make_picture(raw / "images/0/sub/b.png", 50, 40, 2)
    (raw / "images/0/broken.jpg").write_bytes(b"junk")
    (raw / "images/0/cut.jpg").write_bytes((raw / "images/0/a.jpg").read_bytes()[:-200])
    Image.new("RGB", (66000, 1)).save(raw / "images/0/wide.png")
    entry = '{"image_name": "a.jpg"}'
    chance = random.Random(1)
    floats = [repr(chance.choice([1, -1]) * chance.random() * 10.0 ** chance.randint(-25, 25)) for _ in range(300)]
    values = [
        *["0", "-0", "1", "-17", "123456789012345678901234567890", "0.0", "-0.0", "1.0", "1.5", "100.0", "1e5", "1E+5", "1e-5"],
        *["0.0001", "0.00001", "1e15", "1e16", "123456789012345678.0", "1e22", "1e23", "5e-324", "1.7976931348623157e308"],
        *["1e999", "-1e999", "NaN", "Infinity", "-Infinity", "0.1", "0.30000000000000004", "2.5e-7", "12345.678", *floats],
        *['""', '"plain"', r'"\"\\\/\b\f\n\r\t"', r'"\u00e9\u6c34\ud83d\ude00"', '"é水😀"', r'"\ud800"', r'"\udc00x"', r'"\u007f\u0000"'],
        *['"\x7f"', "true", "false", "null", "[]", "{}", "[1, [2, []], {}]", '{"a": {"b": [null]}}', '{"a": 1, "b": 2, "a": 3}'],
    ]  # fmt: skip
    lines = [f'{{"value": {value}, "image_info": [{entry}]}}' for value in values]
    lines += [
        '{"image_info": []}',
        '{"image_info": [{"image_name": "ü水.png", "z": 1}, {"image_name": "sub/b.png"}]}',
        r'{"image_info": [{"image_name": "\u00fc\u6c34.png"}]}',
        '{"image_info": [{"image_base64": "old", "image_name": "a.jpg", "after": 1}]}',
        '{"image_info": [{"image_base64": "old", "image_name": "not there"}]}',
        '{"image_info": [{"image_name": "broken.jpg"}, {"image_name": "cut.jpg"}, {"image_name": "wide.png"}]}',
        '{"image_info": [{"image_name": 5}, {"image_name": null}]}',
        '{"image_info": [], "image_info": [{"image_name": "a.jpg"}]}',
        '  {"image_info" : [ ] , "x":\t1 }  ',
        '{"image_info": [{"image_name": ""}]}',
    ]
    bad = ["", "{", "not json", "[]", "5", '{"text_list": []}', '{"image_info": 5}', '{"image_info": [5]}',
           '{"image_info": [{}]}', '{"image_info": [{"image_name": "a.jpg"}, {"name": "b"}]}', '{"image_info": null}']  # fmt: skip
    chance.shuffle(lines)
    text = [line.encode("utf-8", "surrogatepass") + b"\n" for line in lines + bad]
    text.append(b'{"image_info": [{"image_name": "a.jpg"}]}')  # no end mark
    write_zip(raw / "shard_0.zip", text)
    counts = convert(raw, tmp_path / "out", 1)
    assert shards(tmp_path / "out") == {"000000000.tar": list(reference(raw, 0))}
    assert counts["documents"] == len(lines) + 1
    assert counts["lines left out: not JSON"] == 2
    assert counts["lines left out: no image_info"] == 5
    assert counts["lines left out: an image without image_name"] == 3
    assert counts["pictures left out: jpeg: truncated"] == 1
    assert counts["pictures left out: cannot be written as JPEG"] == 1
    assert counts["pictures left out: its name is not text"] == 2


def test_names_do_not_lead_out(tmp_path):
    raw = tmp_path / "raw"
    (raw / "images/0").mkdir(parents=True)
    (raw / "images/1").mkdir()
    make_picture(raw / "images/1/secret.png", 20, 20, 0)
    names = [str(raw / "images/1/secret.png"), "../1/secret.png", "x/../../1/secret.png", "nul\0.png", "n" * 5000]
    write_zip(raw / "shard_0.zip", [json.dumps({"image_info": [{"image_name": name}]}).encode() + b"\n" for name in names])
    counts = convert(raw, tmp_path / "out", 1)
    assert "pictures" not in counts and counts["documents"] == 5
    assert counts["pictures left out: its name leads out of the folder"] == 3
    assert "image_base64" not in "".join(shards(tmp_path / "out")["000000000.tar"])


def test_where_shards_end(tmp_path):
    raw = make_raw(tmp_path / "raw", 5, 7)
    documents = [list(reference(raw, number)) for number in range(5)]
    convert(raw, tmp_path / "zips", 5, files_per_shard=2)
    assert list(shards(tmp_path / "zips").values()) == [documents[0] + documents[1], documents[2] + documents[3], documents[4]]
    convert(raw, tmp_path / "even", 5, files_per_shard=5)
    assert list(shards(tmp_path / "even").values()) == [sum(documents, []), []]
    convert(raw, tmp_path / "documents", 5, documents_per_shard=4, files_per_shard=3)
    parts = [sum(documents[:3], []), sum(documents[3:], [])]
    expected = [part[at : at + 4] for part in parts for at in range(0, len(part), 4)]
    assert list(shards(tmp_path / "documents").values()) == expected
    convert(raw, tmp_path / "bytes", 5, bytes_per_shard=20000)
    expected = [[]]
    for document in sum(documents, []):
        if sum(map(len, expected[-1])) >= 20000:
            expected.append([])
        expected[-1].append(document)
    assert len(expected) > 3 and list(shards(tmp_path / "bytes").values()) == expected


def test_threads_do_not_change_the_bytes(tmp_path):
    raw = make_raw(tmp_path / "raw", 2, 20)
    convert(raw, tmp_path / "one", 2, threads=1, documents_per_shard=7)
    convert(raw, tmp_path / "many", 2, threads=7, documents_per_shard=7)
    assert contents(tmp_path / "one") == contents(tmp_path / "many")
    keys = [name for path in sorted((tmp_path / "one").glob("*.tar")) for name in tarfile.open(path).getnames()]
    assert len(set(keys)) == 40 and all(len(key) == 32 + len(".json") for key in keys)


# ------------------------------------------------------------------------------------- interruptions


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A corpus that takes a few seconds, and what a run without interruption makes of it."""
    folder = tmp_path_factory.mktemp("slow")
    raw = make_raw(folder / "raw", 3, 12, size=(800, 600))
    counts = convert(raw, folder / "out", 3, threads=1, documents_per_shard=5)
    return raw, counts, contents(folder / "out")


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_goes_on_after_a_signal(end, slow, tmp_path):
    raw, counts, expected = slow
    interrupted = 0
    for shards_to_wait_for in (1, 3, 3, 5):
        process = subprocess.Popen(words(raw, tmp_path, 3, threads=1, documents_per_shard=5), stderr=subprocess.PIPE,
                                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # fmt: skip
        while process.poll() is None and len(list(tmp_path.glob("*.tar"))) < shards_to_wait_for:
            time.sleep(0.01)
        time.sleep(0.05)
        before = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.tar")}
        process.send_signal(end)
        _, message = process.communicate(timeout=60)
        if process.returncode != 0:
            interrupted += 1
            assert process.returncode in (1, -end)  # the latter before the command was under way
            if process.returncode == 1:
                assert b"goes on from shard" in message and not list(tmp_path.glob("*.tmp-*"))
        kept = {name: (tmp_path / name).read_bytes() for name in before}
        assert all(expected[name] == data for name, data in kept.items())
    assert interrupted >= 2
    assert convert(raw, tmp_path, 3, threads=1, documents_per_shard=5) == counts
    assert contents(tmp_path) == expected
    assert not list(tmp_path.glob("*.tmp-*"))
    # Finished shards were kept, not written again.
    assert all((tmp_path / name).stat().st_mtime_ns == time_ns for name, time_ns in before.items())


def test_done_is_done(tmp_path):
    raw = make_raw(tmp_path / "raw", 2, 3)
    counts = convert(raw, tmp_path / "out", 2, files_per_shard=1)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.tar")}
    assert convert(raw, tmp_path / "out", 2, files_per_shard=1) == counts
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.tar")}


def test_lost_shards_are_made_again(tmp_path):
    raw = make_raw(tmp_path / "raw", 4, 3)
    counts = convert(raw, tmp_path / "out", 4, files_per_shard=1)
    expected = contents(tmp_path / "out")
    (tmp_path / "out/000000001.tar").unlink()
    assert convert(raw, tmp_path / "out", 4, files_per_shard=1) == counts
    assert contents(tmp_path / "out") == expected
    (tmp_path / "out/000000002.tar").write_bytes(b"cut")
    assert convert(raw, tmp_path / "out", 4, files_per_shard=1) == counts
    assert contents(tmp_path / "out") == expected


# -------------------------------------------------------------------------------------------- errors


def refused(*args, **options):
    done = subprocess.run(words(*args, **options), capture_output=True, text=True, timeout=60)
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1, done
    return done.returncode, done.stderr


def test_bad_usage(tmp_path):
    raw = make_raw(tmp_path / "raw", 2, 1)
    out = tmp_path / "out"
    status, message = refused(raw, out, 3)
    assert status == 2 and "1 of 3 zips are not there" in message and "shard_2.zip" in message
    status, message = refused(raw, out, 2, threads=0)
    assert status == 2 and "--threads" in message
    status, message = refused(raw, out, 2, files_per_shard="many")
    assert status == 2 and "--files-per-shard" in message
    status, message = refused(raw, out, 2, bytes_per_shard="0")
    assert status == 2 and "--bytes-per-shard" in message
    assert not out.exists()
    for more in (["mmc4"], ["laion"], [], ["mmc4", "--zips", "x"], ["mmc4", "--imagse", "x"]):
        done = subprocess.run([FLOE, "convert", *more], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


def test_other_folders_are_left_alone(tmp_path):
    raw = make_raw(tmp_path / "raw", 2, 1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/000000000.tar").write_bytes(b"precious")
    status, message = refused(raw, tmp_path / "mine", 2)
    assert status == 2 and "did not write" in message
    assert (tmp_path / "mine/000000000.tar").read_bytes() == b"precious"
    convert(raw, tmp_path / "out", 2)
    before = contents(tmp_path / "out")
    status, message = refused(raw, tmp_path / "out", 2, files_per_shard=1)
    assert status == 2 and "files_per_shard was 1000 and is now 1" in message
    assert contents(tmp_path / "out") == before


def test_damaged_zips(tmp_path):
    raw = make_raw(tmp_path / "raw", 3, 4)
    good = (raw / "shard_1.zip").read_bytes()
    for number, data in enumerate([good[: len(good) // 2], b"junk", b"", good.replace(b"PK\1\2", b"PK\7\7")]):
        (raw / "shard_1.zip").write_bytes(data)
        done = subprocess.run(words(raw, tmp_path / f"out{number}", 3, files_per_shard=1), capture_output=True, text=True)
        assert done.returncode == 1 and "shard_1.zip" in done.stderr.splitlines()[-1], done
        assert list(contents(tmp_path / f"out{number}")) == ["000000000.tar"]
    (raw / "shard_1.zip").write_bytes(good)  # mended: it goes on
    convert(raw, tmp_path / "out0", 3, files_per_shard=1)
    convert(raw, tmp_path / "whole", 3, files_per_shard=1)
    assert contents(tmp_path / "out0") == contents(tmp_path / "whole")


def test_one_conversion_at_a_time(tmp_path):
    raw = make_raw(tmp_path / "raw", 1, 12, size=(1400, 1000))
    first = subprocess.Popen(words(raw, tmp_path / "out", 1, threads=1), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not (tmp_path / "out/convert.jsonl").exists():
        time.sleep(0.01)
    status, message = refused(raw, tmp_path / "out", 1)
    assert status == 2 and "another conversion" in message
    first.communicate(timeout=100)
    assert first.returncode == 0
