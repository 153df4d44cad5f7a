"""Corpora of small shards, random and full of oddities, from a seed."""

import base64
import gzip
import io
import json
import tarfile

import numpy as np
from PIL import Image, ImageFile

WORDS = "the ice floe drifts north while seals sleep and gulls watch water wind snow light stone".split()
SPACES = ["", " ", "\n", "\t ", "\u00a0", "\u3000", "\u2028", "\x1f", "\u200b", "\ufeff", "\x85", "\u1680"]
MARKS = ["<image>", "<|endofchunk|>", "<image> ", " <|endofchunk|>", "</s>", "<s>", "<|endoftext|>", "<pad>", "<PAD>"]


class Chooser:
    """A random generator with the verbs that the corpora need."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def one(self, options):
        return options[int(self.rng.integers(len(options)))]

    def chance(self, probability):
        return bool(self.rng.random() < probability)

    def number(self, low, high):
        return int(self.rng.integers(low, high + 1))

    def sentence(self, most=14):
        words = [self.one(WORDS) for _ in range(self.number(0, most))]
        if self.chance(0.12):
            words.insert(self.number(0, len(words)), self.one(MARKS))
        if self.chance(0.15):
            words.append(self.one(["\u6c34\u6c37", "\u0645\u0631\u062d\u0628\u0627", "\U0001f9ca\U0001f427", "caf\u00e9", "e\u0301", "don't", "1234", "a  b   c"]))
        return self.one(SPACES) + " ".join(words) + self.one(SPACES)

    def pixels(self, width, height, mode):
        noise = self.rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        image = Image.fromarray(noise)
        if self.chance(0.5):
            image = image.resize((max(1, width // 8), max(1, height // 8))).resize((width, height))
        return image.convert(mode) if mode != "RGB" else image

    def picture(self, large=False):
        if large:
            width, height = self.number(150, 330), self.number(150, 330)
        else:
            width, height = self.one([(1, 1), (1, 40), (90, 3), (224, 224), (225, 224), (300, 200), (64, 300), (37, 51)])
        kind = self.one(["jpeg", "jpeg", "jpeg", "png", "webp", "gif"])
        out = io.BytesIO()
        if kind == "jpeg":
            image = self.pixels(width, height, self.one(["RGB", "RGB", "L", "CMYK"]))
            block, ImageFile.MAXBLOCK = ImageFile.MAXBLOCK, 1 << 22  # progressive noise needs it
            image.save(out, "JPEG", quality=self.number(60, 96), progressive=self.chance(0.3), subsampling=self.number(0, 2))
            ImageFile.MAXBLOCK = block
        elif kind == "png":
            self.pixels(width, height, self.one(["RGB", "RGBA", "L", "LA", "P", "1"])).save(out, "PNG")
        elif kind == "webp":
            self.pixels(width, height, self.one(["RGB", "RGBA"])).save(out, "WEBP", quality=80, lossless=self.chance(0.3))
        else:
            self.pixels(width, height, "P").save(out, "GIF")
        return out.getvalue()

    def bad_picture(self, large=False):
        good = self.picture(large)
        return self.one([b"", b"<html>404</html>", good[: len(good) * 6 // 10], bytes(self.rng.integers(0, 256, 12000, dtype=np.uint8))])


def write_shard(path, files, chooser):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=chooser.one([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])) as tar:
        for name, content in files:
            info = tarfile.TarInfo(name)
            if content is None:
                info.type = chooser.one([tarfile.DIRTYPE, tarfile.SYMTYPE])
                info.linkname = "elsewhere"
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    raw = data.getvalue()
    if chooser.chance(0.15):
        raw = gzip.compress(raw)
    elif chooser.chance(0.2):
        raw = raw[: chooser.number(0, len(raw))]
    path.write_bytes(raw)


JSONS = [
    b'{"a": 1}', b"[1, 2]", b"null", b"NaN", b'{"a": -Infinity}', b'\xef\xbb\xbf{"bom": 1}', '{"u": "\u00e9"}'.encode("utf-16"),
    '{"u": 1}'.encode("utf-32-le"), b'{"s": "\\ud800"}', b'{"d": 1, "d": 2}', b"1e999", b"1" * 4000, b'"\x7f"', b'"\xed\xa0\x80"',
]
BAD_JSONS = [b"", b"{", b"{'a': 1}", b"[1,]", b'"\n"', b'{"a": "\xe9"}', b"01", b"1" * 4301, b"nul", b"[" * 3000, b"\x00{", b'"\\x"', b"{} {}"]
INTS = [b"1", b" 12\n", b"-3", b"+4", b"1_000", b"007"]
BAD_INTS = [b"", b"1.0", b"x", b"1__0", b"0x1", b"1_", "\u0661".encode()]
TEXTS = [b"", b"  ", b"\xef\xbb\xbfbom", "caf\u00e9".encode()]
BAD_TEXTS = ["caf\u00e9".encode("latin-1"), b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80", b"cut \xe2\x82"]


def laion_sample(chooser, key):
    """Files of one sample, mostly good."""
    c = chooser
    caption = c.one(TEXTS) if c.chance(0.1) else c.sentence(30).encode()
    files = [(c.one(["jpg", "jpg", "png", "jpeg", "JPG"]), c.picture()), (c.one(["txt", "txt", "txt", "TXT"]), caption)]
    if c.chance(0.5):
        files.append((c.one(["json", "json", "jsn", "x.json"]), c.one(JSONS)))
    oddities = [
        lambda: files.append(("cls", c.one(INTS))),
        lambda: files.append((c.one(["cls", "id", "index", "inx", "cls2"]), c.one(BAD_INTS))),
        lambda: files.append(("json", c.one(BAD_JSONS))),
        lambda: files.append((c.one(["text", "transcript", "a.txt"]), c.one(TEXTS + BAD_TEXTS))),
        lambda: files.append((c.one(["png", "jpeg", "seg.jpg", "webp", "tiff"]), c.picture())),
        lambda: files.append((c.one(["png", "jpeg", "seg.jpg"]), c.bad_picture())),
        lambda: files.append((c.one(["json.gz", "txt.gz", "gz", "cls.gz"]), gzip.compress(c.one([b"1", b"x", b"{"])))),
        lambda: files.append(("json.gz", c.one([b"", b"no gzip", gzip.compress(b"1")[:-3], gzip.compress(b"1") + b"\0\0"]))),
        lambda: files.append((c.one(["sha256", "md", "html", "", "__x"]), b"\xff")),
        lambda: files.append((c.one(["__key__", "__url__", "__bad__"]), c.one([b"", b"k"]))),
        lambda: files.pop(0),
        lambda: files.pop(1),
        lambda: files.append(files[c.number(0, len(files) - 1)]),
        lambda: files.insert(0, files.pop()),
        lambda: files.__setitem__(0, (files[0][0], c.bad_picture())),
        lambda: files.__setitem__(1, ("txt", c.one(BAD_TEXTS))),
    ]
    if c.chance(0.6):
        c.one(oddities)()
    return [(f"{key}.{suffix}", content) for suffix, content in files]


def laion_corpus(folder, seed, num_shards=4, num_samples=14):
    """Shards of image-text pairs; returns their paths, one of which does not exist."""
    c = Chooser(seed)
    paths, carried = [], []
    for number in range(num_shards):
        files = carried
        carried = []
        for i in range(num_samples):
            prefix = c.one(["", "", "", "./", "dir.v1/", "a/b/", "__m__/", "x__/"])
            key = c.one([f"{number}{i:03}", f"{number}{i:03}", "same", f"K{i}", f"n-{i} b", "\u00fc"])
            files += laion_sample(c, prefix + key)
            if c.chance(0.1):
                files.append((c.one(["README", "__meta__", ".hidden", "d/.h.jpg", "dir", "__", "a.b/c"]), c.one([b"x", None])))
        if c.chance(0.7):  # the last files go to the next shard
            cut = len(files) - c.number(0, 3)
            files, carried = files[:cut], files[cut:]
        path = folder / f"{number:06}.tar"
        write_shard(path, files, c)
        paths.append(path)
    paths.insert(c.number(0, len(paths)), folder / "missing.tar")
    return paths


def encoded(data, c):
    text = base64.b64encode(data).decode()
    if c.chance(0.2):
        width = c.one([76, 61, 64])
        text = "\n".join(text[i : i + width] for i in range(0, len(text), width))
    return text


BAD_BASE64 = ["Q", "QQ=", "QUJDR", "caf\u00e9", None, 5, ["QUJD"], {}, True]
ODD_VALUES = [None, True, 3, -0.5, 1e300, "text", [], {}, ["x"], {"k": [1, None]}, 1e16, 0.1, 123456789012345678901234567890]


def page_document(c):
    sentences = [c.sentence() for _ in range(c.number(1, 9))]
    infos, num_images = [], c.number(0, 8)
    for i in range(num_images):
        info = {"image_name": f"{i}.jpg", "matched_text_index": c.number(-3, 99)}
        if c.chance(0.9):
            info["image_base64"] = encoded(c.picture(large=c.chance(0.85)), c)
        infos.append(info)
    values = c.rng.uniform(0.1, 0.45, (num_images, len(sentences)))
    if c.chance(0.2):
        values = np.round(values, 1)  # ties
    document = {"text_list": sentences, "similarity_matrix": values.tolist(), "image_info": infos, "url": "u"}
    matrix = document["similarity_matrix"]

    def set_entry(value):
        if matrix and matrix[0]:
            matrix[c.number(0, len(matrix) - 1)][c.number(0, len(sentences) - 1)] = value

    def set_info(value):
        if infos:
            infos[c.number(0, len(infos) - 1)] = value

    def set_base64(value):
        if infos:
            infos[c.number(0, len(infos) - 1)]["image_base64"] = value

    oddities = [
        lambda: set_entry(c.one([float("nan"), float("inf"), -float("inf"), None, 1, 0, True, "0.5", [0.5], {}, 10**30, 0.24])),
        lambda: document.update(similarity_matrix=[[c.one([True, False]) for _ in row] for row in matrix]),
        lambda: document.update(similarity_matrix=[[c.number(0, 2) for _ in row] for row in matrix]),
        lambda: [row.append(0.9) for row in matrix],
        lambda: matrix[-1].pop() if matrix else None,
        lambda: matrix.pop() if matrix else None,
        lambda: matrix.append([0.1] * len(sentences)),
        lambda: document.update(similarity_matrix=c.one([None, 1, "x", {}, [], [[]], [0.5, 0.6], [[[0.5]]]])),
        lambda: document.pop(c.one(["text_list", "similarity_matrix", "image_info", "url"])),
        lambda: document.update(text_list=c.one([None, "one two", {}, 4, []])),
        lambda: sentences.__setitem__(c.number(0, len(sentences) - 1), c.one(ODD_VALUES)),
        lambda: document.update(image_info=c.one([None, "x", {}, {"image_base64": "x"}, 5, []])),
        lambda: set_info(c.one([None, 3, "x", "image_base64", [], ["image_base64"], {}, {"image_base64": None}])),
        lambda: set_base64(c.one(BAD_BASE64)),
        lambda: set_base64(encoded(c.bad_picture(large=True), c)),
        lambda: set_base64(encoded(c.picture(large=True), c) + c.one(["=", "==", "====", "!!", "QQ==", "Q"])),
        lambda: sentences.append("\ud800"),
        lambda: document.update(is_gpt=c.one([None, False])),
    ]
    if c.chance(0.55):
        c.one(oddities)()
    return document


def chat_document(c):
    count = c.number(0, 8)
    document = {
        "is_gpt": c.one([True, False, None, 1]),
        "image_map": {
            f"_!_IMAGE{i}_!_": {"base64_image": encoded(c.picture(large=c.chance(0.3)), c), "caption": "c"} for i in range(1, count + 1)
        },
    }
    text = c.sentence()
    for _ in range(c.number(0, 9)):
        number = c.one([1, 2, 3, 4, 5, 6, 7, 8, "01", "\u0663"])
        text += c.one(["", " ", "  "]) + f"_!_IMAGE{number}_!_" + c.one(["", " "]) + c.sentence()
    document["example"] = text
    images = document["image_map"]
    oddities = [
        lambda: images.pop(c.one(list(images))) if images else None,
        lambda: document.update(example=c.one([None, 5, ["x"], "", "_!_IMAGE_!_ _!_IMAGE1_!", "_!_IMAGE1_!_IMAGE2_!_"])),
        lambda: document.update(image_map=c.one([None, [], {}, "x", ["y"], 3])),
        lambda: images.update({"_!_IMAGE1_!_": c.one([None, "x", {}, {"base64_image": c.one(BAD_BASE64)}])}),
        lambda: images.update({"other": {"base64_image": "QUJD"}}),
        lambda: images.update({"_!_IMAGE2_!_": {"base64_image": encoded(c.bad_picture(), c)}}),
        lambda: document.pop(c.one(["example", "image_map"])),
        lambda: document.update(example=text + "\ud83d"),
    ]
    if c.chance(0.45):
        c.one(oddities)()
    return document


def document_bytes(c, document):
    text = json.dumps(document, ensure_ascii=c.chance(0.6))
    if c.chance(0.05):
        text = text.replace('"url"', '"text_list": ["late"], "url"')
    data = text.encode("utf-8", "surrogatepass")
    if c.chance(0.08):
        data = c.one([b"\xef\xbb\xbf" + data, data[:-1], data + b"x", data + b"\n", text.encode("utf-16", "surrogatepass"), b"", b"[]", b'"is_gpt"', b"5"])
    return data


def mmc4_corpus(folder, seed, num_shards=3, num_documents=16):
    c = Chooser(seed)
    paths = []
    for number in range(num_shards):
        files = []
        for i in range(num_documents):
            document = chat_document(c) if c.chance(0.25) else page_document(c)
            files.append((f"{number:02}{i:03}.{c.one(['json'] * 12 + ['JSON', 'jsn', 'a.json'])}", document_bytes(c, document)))
            if c.chance(0.05):
                files.append((f"{number:02}{i:03}.txt", b"beside"))
        path = folder / f"{number:09}.tar"
        write_shard(path, files, c)
        paths.append(path)
    return paths
