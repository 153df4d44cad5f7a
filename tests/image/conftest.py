"""image_tool and jpeg_maker, and Pillow's and open_clip's answer to the same files."""

import hashlib
import io
import json
import os
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

BIN = Path(os.environ["FLOE_BIN_DIR"])


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def tool(*words):
    done = subprocess.run([BIN / "image_tool", *map(str, words)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout


def pillow(data):
    """The picture as OpenFlamingo's pipeline has it, or the exception."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return Image.open(io.BytesIO(data)).convert("RGB")
        except Exception as error:  # whatever it is drops the sample
            return error


@pytest.fixture
def image_tool():
    return tool


@pytest.fixture
def look(tmp_path):
    """What floe makes of files (bytes, or a PIL image handed over raw): one dict for each."""

    def run(files, *options):
        paths = []
        for number, data in enumerate(files):
            raw = isinstance(data, Image.Image)
            path = tmp_path / f"{number}{'.rgb' if raw else ''}"
            if raw:
                data = f"{data.width} {data.height}\n".encode() + data.tobytes()
            path.write_bytes(data)
            paths.append(path)
        (tmp_path / "list").write_text("".join(f"{path}\n" for path in paths))
        rows = [json.loads(line) for line in tool("look", tmp_path / "list", *options).splitlines()]
        assert len(rows) == len(paths)
        return rows

    return run


@pytest.fixture
def make_jpeg(tmp_path):
    """A JPEG that Pillow cannot write, from an array [height, width] or [height, width, channels]."""

    def run(pixels, *options):
        (tmp_path / "in.raw").write_bytes(np.ascontiguousarray(pixels).tobytes())
        height, width = pixels.shape[:2]
        words = [BIN / "jpeg_maker", tmp_path / "in.raw", width, height, tmp_path / "out.jpg", *options]
        subprocess.run([str(word) for word in words], check=True, timeout=60)
        return (tmp_path / "out.jpg").read_bytes()

    return run


@pytest.fixture
def compare(look):
    """Same decision and same bytes as Pillow for every file of {name: bytes}; counts the pictures."""

    def run(files):
        kept = 0
        wrong = []
        for (name, data), row in zip(files.items(), look(files.values())):
            expected = pillow(data)
            if isinstance(expected, Exception):
                if "error" not in row:
                    wrong.append(f"{name}: kept, but Pillow says {expected!r}")
                continue
            kept += 1
            if "error" in row:
                wrong.append(f"{name}: {row['error']}, but Pillow reads it")
            elif (row["width"], row["height"]) != expected.size or row["rgb"] != sha256(expected.tobytes()):
                wrong.append(f"{name}: other pixels")
        assert not wrong, "\n".join(wrong[:40]) + f"\n{len(wrong)} of {len(files)}"
        return kept

    return run
