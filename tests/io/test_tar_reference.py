"""webdataset and Python's tarfile are the references of tar shards: the same members, in order, out of
good, odd and damaged archives.

Needs FLOE_BIN_DIR, the folder of built programs (tar_tool among them).
"""

import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import random
import subprocess
import tarfile
from pathlib import Path

import pytest
from webdataset.tariterators import tar_file_iterator

TOOL = Path(os.environ["FLOE_BIN_DIR"]) / "tar_tool"


def tool(*words, **more):
    done = subprocess.run([TOOL, *map(str, words)], capture_output=True, text=True, timeout=250, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ours(places):
    """For each place the members as (name, SHA-256), and the error or None."""
    results, members = [], []
    for line in tool("list", *places).splitlines():
        row = json.loads(line)
        if "end" in row:
            results.append((members, row["end"]))
            members = []
        else:
            members.append((bytes.fromhex(row["name"]), row["sha256"]))
    return results


def theirs(data):
    """What webdataset gives of an archive before it ends or raises, and the exception or None."""
    members, errors = [], []
    try:
        for sample in tar_file_iterator(io.BytesIO(data), skip_meta=None, handler=lambda error: errors.append(error)):
            name = sample["fname"].encode("utf-8", "surrogateescape")
            members.append((name, hashlib.sha256(sample["data"]).hexdigest()))
    except Exception as error:
        errors.append(error)
    return members, errors[0] if errors else None


def samples(members):
    """Without names like __meta__: webdataset leaves them out, floe does so when it groups members."""
    is_meta = lambda name: name.startswith(b"__") and name.endswith(b"__") and b"/" not in name
    return [(name, digest) for name, digest in members if not is_meta(name)]


def check(archives, tmp_path):
    """The same members; an error wherever webdataset has one (floe may notice more)."""
    for number, data in enumerate(archives.values()):
        (tmp_path / f"{number}.tar").write_bytes(data)
    results = ours(tmp_path / f"{number}.tar" for number in range(len(archives)))
    for (name, data), (members, error) in zip(archives.items(), results, strict=True):
        expected, raised = theirs(data)
        assert samples(members) == expected, name
        assert not raised or error, f"{name}: {raised!r}"
    return results


def member(name, data=b"", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def archive(members, format=tarfile.PAX_FORMAT, **more):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format, **more) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


SOME = [member("a.jpg", b"x" * 700), member("a.txt", b"caption"), member("b.jpg"), member("b.txt", b"y" * 512)]
LONG = "folder/" * 30 + "name.txt"


def with_header(data, offset=0, **fields):
    """Replaces fields (offset, length) of a header and mends the checksum."""
    block = bytearray(data[offset : offset + 512])
    places = {"name": (0, 100), "mode": (100, 8), "size": (124, 12), "mtime": (136, 12), "type": (156, 1), "uid": (108, 8)}
    places |= {"devmajor": (329, 8), "prefix": (345, 155)}
    for field, value in fields.items():
        begin, length = places[field]
        block[begin : begin + length] = value.ljust(length, b"\0")[:length]
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return data[:offset] + bytes(block) + data[offset + 512 :]


def pax_header(records, kind=b"x"):
    info = tarfile.TarInfo("././@PaxHeader")
    info.type = kind
    info.size = len(records)
    return archive([(info, records)])[: 512 + -(-len(records) // 512) * 512]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_formats(format, tmp_path):
    names = ["plain.txt", "./dot.txt", "dir/in.txt", "__meta__", "no_extension", "ü.txt", "a b\n.txt", "x" * 100, "/abs.txt"]
    long = [LONG, "y" * 101 + ".txt", "p" * 120 + "/" + "q" * 90 + ".txt", "wässer/" * 20 + "水.txt"]
    fits_ustar = [long[2]]
    members = [member(name, name.encode()) for name in names + (fits_ustar if format == tarfile.USTAR_FORMAT else long)]
    archives = {"names": archive(members, format), "empty": archive([], format)}
    kinds = {tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE}
    others = [member(f"{kind!r}.txt", type=kind, linkname="a.jpg") for kind in sorted(kinds)]
    archives["other kinds"] = archive([*SOME, *others, *SOME], format)
    archives["contiguous"] = archive([member("c.txt", b"data", type=tarfile.CONTTYPE), *SOME], format)
    archives["float times"] = archive([member("t.txt", b"data", mtime=1.5), *SOME], format)
    if format != tarfile.USTAR_FORMAT:
        archives["negative time"] = archive([member("t.txt", b"data", mtime=-5), *SOME], format)
        archives["long link"] = archive([member("l.txt", type=tarfile.SYMTYPE, linkname=LONG), *SOME], format)
        archives["long folder"] = archive([member(LONG + "/", type=tarfile.DIRTYPE), *SOME], format)
    for members, error in check(archives, tmp_path):
        assert error is None


def test_odd_headers(tmp_path):
    plain = archive(SOME, tarfile.USTAR_FORMAT)
    zeros = bytes(512)
    archives = {
        "unknown kind": with_header(plain, type=b"Q"),
        "old regular": with_header(plain, type=b"\0"),
        "old folder": with_header(plain, type=b"\0", name=b"folder/", size=b"0"),
        "folder with size": with_header(plain, type=b"5"),
        "link with size": with_header(plain, type=b"1"),
        "binary size": with_header(plain, size=b"\x80" + bytes(9) + (700).to_bytes(2, "big")),
        "spaces around size": with_header(plain, size=b"  1274  "),
        "no size": with_header(plain, size=b""),
        "bad size": with_header(plain, size=b"12x4"),
        "decimal size": with_header(plain, size=b"999"),
        "bad mode": with_header(plain, mode=b"zz"),
        "bad uid": with_header(plain, uid=b"9"),
        "bad device": with_header(plain, devmajor=b"x"),
        "no numbers": with_header(plain, mode=b"", uid=b"", mtime=b""),
        "prefix": with_header(plain, prefix=b"pre/fix"),
        "name of 100": with_header(plain, name=b"n" * 100),
        "name of bytes": with_header(plain, name=b"\xff\xfe\x80.txt"),
        "no name": with_header(plain, name=b""),
        "zeros in the middle": plain[:1536] + zeros + plain[1536:],
        "two zero blocks in the middle": plain[:1536] + zeros * 2 + plain[1536:],
        "two archives": plain + plain,
        "two archives without end": plain[: 512 + 1024 + 1024 + 512 + 1024] + plain,
        "no end": plain[: 512 + 1024 + 1024 + 512 + 1024],
        "one zero block": plain[: 512 + 1024 + 1024 + 512 + 1024] + zeros,
        "junk first": b"junk" * 128 + plain,
        "junk in the middle": plain[:1536] + b"junk" * 128 + plain[1536:],
        "junk at the end": plain[: 512 + 1024 + 1024 + 512 + 1024] + b"junk" * 128,
        "text": b"<html>" * 200,
        "nothing": b"",
        "short": b"abc",
        "zeros": bytes(10240),
        "name twice": archive([member("a.txt", b"1"), member("a.txt", b"2")]),
    }
    signed = bytearray(with_header(plain, name=b"\xff\xff\xff.txt"))
    signed[148:156] = b" " * 8
    signed[148:156] = b"%06o\0 " % sum(byte - 256 if byte > 127 else byte for byte in signed[:512])
    archives["signed checksum"] = bytes(signed)
    check(archives, tmp_path)


def test_pax(tmp_path):
    plain = archive(SOME, tarfile.USTAR_FORMAT)
    longer = pax_header(b"12 size=3\n")
    assert len(longer) == 1024
    record = lambda key, value: b"%d %s=%s\n" % (len(key) + len(value) + 5, key, value)
    archives = {
        "path": pax_header(record(b"path", b"other.txt")) + plain,
        "path with slash": pax_header(record(b"path", b"other/")) + plain,
        "size": pax_header(b"12 size=512\n") + plain,
        "bad size": pax_header(b"12 size=abc\n") + plain,
        "path of bytes": pax_header(record(b"path", b"\xff\xfe.txt")) + plain,
        "binary": pax_header(b"21 hdrcharset=BINARY\n" + record(b"path", b"\xff\xfe.txt")) + plain,
        "global path": pax_header(record(b"path", b"all.txt"), b"g") + plain,
        "global, own": pax_header(record(b"path", b"all.txt"), b"g") + pax_header(record(b"path", b"one.txt")) + plain,
        "comment": pax_header(b"18 comment=hello\n") + plain,
        "solaris": pax_header(record(b"path", b"other.txt"), b"X") + plain,
        "two": pax_header(record(b"path", b"first.txt")) + pax_header(record(b"path", b"second.txt")) + plain,
        "length 0": pax_header(b"0 path=x\n") + plain,
        "no record": pax_header(b"junk") + plain,
        "wrong length": pax_header(b"99 path=abc\n") + plain,
        "short length": pax_header(b"8 path=abcdef\n") + plain,
        "zeros behind": pax_header(record(b"path", b"other.txt")) + bytes(1024) + plain,
        "end behind": pax_header(record(b"path", b"other.txt")),
        "junk behind": pax_header(record(b"path", b"other.txt")) + b"junk" * 128,
        "twice in one": pax_header(record(b"path", b"one.txt") + record(b"path", b"two.txt")) + plain,
    }
    gnu = archive([member("y" * 120 + ".txt", b"data"), *SOME], tarfile.GNU_FORMAT)
    archives["gnu in pax"] = pax_header(record(b"path", b"pax.txt")) + gnu
    archives["pax in gnu"] = gnu[:1024] + pax_header(record(b"path", b"pax.txt")) + gnu[1024:]
    archives["gnu name twice"] = gnu[:1024] + gnu
    archives["gnu end behind"] = gnu[:1024]
    archives["gnu zeros behind"] = gnu[:1024] + bytes(1024)
    check(archives, tmp_path)


def test_cut_off(tmp_path):
    places = random.Random(1).sample(range(10240), 120)
    for name, data in {
        "pax": archive([member(LONG, b"z" * 1000), *SOME]),
        "gnu": archive([member(LONG, b"z" * 1000), *SOME], tarfile.GNU_FORMAT),
    }.items():
        check({f"{name}, first {place}": data[:place] for place in sorted(places)}, tmp_path)


def test_bits_flipped(tmp_path):
    chance = random.Random(2)
    data = archive([member(LONG, b"z" * 1000), *SOME])
    archives = {}
    for number in range(300):
        damaged = bytearray(data)
        place = chance.randrange(6000)
        damaged[place] ^= 1 << chance.randrange(8)
        archives[f"{number}: byte {place} is {damaged[place]}"] = bytes(damaged)
    check(archives, tmp_path)


def test_compressed(tmp_path):
    data = archive([member(f"{number}.txt", os.urandom(3000)) for number in range(60)])
    archives = {"gzip": gzip.compress(data), "bzip2": bz2.compress(data), "xz": lzma.compress(data)}
    archives["gzip with name"] = subprocess.run(["gzip", "-c"], input=data, capture_output=True, check=True).stdout
    for members, error in check(archives, tmp_path):
        assert error is None and len(members) == 60


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("count", [3, 60])
def test_a_command_that_fails_behind_compressed_data_is_told(compress, count, tmp_path):
    """All that it has written is given before that, also where decompression ends without asking for more."""
    data = archive([member(f"{number}.txt", os.urandom(3000)) for number in range(count)])
    (tmp_path / "whole.tar").write_bytes(compress(data))
    ((members, error),) = ours([f"pipe:cat {tmp_path}/whole.tar; exit 3"])
    assert members == theirs(data)[0]
    assert "failed with exit status 3" in error


def test_gzip_cut_off(tmp_path):
    """Every member before the damage is given, to the last byte that can be decompressed."""
    data = gzip.compress(archive([member(f"{number}.txt", os.urandom(900)) for number in range(100)]))
    cuts = {f"first {place}": data[:place] for place in range(20, len(data), len(data) // 40)}
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 0xFF
    check(cuts, tmp_path)
    (tmp_path / "flipped.tar").write_bytes(flipped)
    ((members, error),) = ours([tmp_path / "flipped.tar"])
    assert error and members == theirs(bytes(flipped))[0][: len(members)] and len(members) > 30


def test_gzip_of_several_parts(tmp_path):
    """As pigz and bgzip write it. Python's stream reader stops behind the first part; floe goes on."""
    data = archive(SOME)
    (tmp_path / "parts.tar").write_bytes(gzip.compress(data[:1000]) + gzip.compress(data[1000:]))
    assert ours([tmp_path / "parts.tar"]) == [(theirs(data)[0], None)]


def test_sparse_files_are_refused(tmp_path):
    """No shard of samples has them; the message says so instead of giving other bytes."""
    with open(tmp_path / "holes", "wb") as file:
        file.truncate(1 << 20)
        file.write(b"end")
    for format in ("gnu", "pax"):
        path = tmp_path / f"{format}.tar"
        subprocess.run(["tar", "--sparse", f"--format={format}", "-C", tmp_path, "-cf", path, "holes"], check=True)
        ((members, error),) = ours([path])
        assert members == [] and "sparse" in error


def test_edge_shards_of_the_corpus():
    corpus = Path(os.environ["FLOE_SOURCE_DIR"]) / "tests/goldens/data/corpus"
    paths = sorted(corpus.glob("*/*.tar"))
    assert len(paths) > 10
    for path, (members, error) in zip(paths, ours(paths), strict=True):
        expected, raised = theirs(path.read_bytes())
        assert samples(members) == expected and bool(raised) <= bool(error), path


def test_they_read_ours(tmp_path):
    names = ["a.json", "x" * 100, "y" * 101, "ü水.json", LONG]
    lines = ""
    for number, name in enumerate(names):
        (tmp_path / str(number)).write_bytes(os.urandom(number * 700))
        lines += f"{name.encode().hex()} {tmp_path / str(number)}\n"
    tool("write", tmp_path / "ours.tar", input=lines)
    fields = dict(mode=0o444, uname="bigdata", gname="bigdata")
    expected = archive([member(name, (tmp_path / str(number)).read_bytes(), **fields) for number, name in enumerate(names)])
    assert (tmp_path / "ours.tar").read_bytes() == expected
