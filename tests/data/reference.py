"""The rules of tests/goldens/data/README.md in Python, on the libraries that the reference stands on:
webdataset reads tars and decodes fields, Pillow and open_clip make crops, scipy assigns, transformers
tokenises. What `floe inspect --samples --json` should print, row by row.
"""

import base64
import hashlib
import io
import json
import re

import numpy as np
import open_clip
from PIL import Image
from scipy.optimize import linear_sum_assignment
from transformers import AutoTokenizer
from webdataset.autodecode import Decoder, imagehandler
from webdataset.tariterators import base_plus_ext, tar_file_expander, url_opener, valid_sample

IMAGE, END = "<image>", "<|endofchunk|>"
PICTURES = ("jpg", "png", "jpeg")


def load_tokenizer(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    tokenizer.add_special_tokens({"additional_special_tokens": [END, IMAGE]})
    if tokenizer.pad_token is None:
        tokenizer.add_special_tokens({"pad_token": "<PAD>"})
    tokenizer.padding_side = "right"
    return tokenizer


def read_samples(paths):
    """Files of all shards as one stream; a shard that cannot be read is left."""
    shards = ({"url": str(path)} for path in paths)
    keep_going = lambda error: True
    files = tar_file_expander(url_opener(shards, handler=keep_going), handler=keep_going)
    sample = None
    for file in files:
        key, suffix = base_plus_ext(file["fname"])
        if key is None:
            continue
        suffix = suffix.lower()
        if sample is None or sample["__key__"] != key or suffix in sample:
            if valid_sample(sample):
                yield sample
            sample = {"__key__": key, "__url__": file["__url__"]}
        sample[suffix] = file["data"]
    if valid_sample(sample):
        yield sample


_resize_and_crop = open_clip.image_transform(224, is_train=False).transforms[:2]


def crop_digest(image):
    for step in _resize_and_crop:
        image = step(image)
    return hashlib.sha256(np.asarray(image.convert("RGB")).tobytes()).hexdigest()


def open_rgb(data):
    return Image.open(io.BytesIO(data)).convert("RGB")


class Laion:
    def __init__(self, tokenizer, max_tokens=32):
        self.tokenizer, self.max_tokens = tokenizer, max_tokens
        self.decoder = Decoder([imagehandler("pilrgb")])

    def make(self, sample):
        if "txt" not in sample or not any(name in sample for name in PICTURES):
            raise ValueError("no caption or no image")
        decoded = self.decoder(sample)
        name = next(name for name in PICTURES if name in sample)
        text = f"{IMAGE}{decoded['txt'].strip()}{END}{self.tokenizer.eos_token}"
        ids = self.tokenizer(text, max_length=self.max_tokens, truncation="only_first")["input_ids"]
        return ids, [name], [crop_digest(decoded[name])]


def tidy(text):
    text = text.replace(END, "", 1)
    for old, new in ((" " + END, END), (IMAGE + " ", IMAGE), (" " + IMAGE, IMAGE)):
        text = text.replace(old, new)
    return text


class Mmc4:
    def __init__(self, tokenizer, threshold=0.24, min_images=1, max_images=6, max_tokens=256):
        self.tokenizer = tokenizer
        self.threshold, self.min_images, self.max_images = threshold, min_images, max_images
        self.max_tokens = max_tokens
        self.image_id = tokenizer.convert_tokens_to_ids(IMAGE)

    def make(self, sample):
        document = json.loads(sample["json"])
        chat = "is_gpt" in document
        text, names, images = self.chat(document) if chat else self.page(document)
        crops = [crop_digest(image) for image in images]
        ids = self.tokenizer(
            f"{text}{END}{self.tokenizer.eos_token}", max_length=self.max_tokens, truncation=True
        )["input_ids"]
        marks = ids.count(self.image_id)
        if marks < self.min_images:
            raise ValueError("few images")
        if not chat and marks == 1 and len(ids) == self.max_tokens and ids[-1] == self.image_id:
            raise ValueError("the only image is at the end")
        return ids, names, crops

    def page(self, document):
        sentences, matrix = document["text_list"], document["similarity_matrix"]
        rows, images = [], []
        for row, info in enumerate(document["image_info"]):
            if "image_base64" not in info:
                continue
            data = base64.b64decode(info["image_base64"])
            if len(data) // 1000 <= 10:
                continue
            images.append(open_rgb(data))
            rows.append(row)
        if not rows:
            raise ValueError("no image")
        similarity = np.array(matrix)[rows]
        pairs = [
            (i, j) for i, j in zip(*linear_sum_assignment(-similarity)) if not similarity[i][j] < self.threshold
        ]
        if not pairs:
            raise ValueError("no image above the threshold")
        pairs = pairs[: self.max_images]
        for _, j in pairs:
            sentences[j] = f"{END}{IMAGE}{sentences[j]}"
        return tidy(" ".join(sentences)), [rows[i] for i, _ in pairs], [images[i] for i, _ in pairs]

    def chat(self, document):
        text = re.sub(r"_!_IMAGE\d+_!_", END + IMAGE, document["example"])
        names = [f"_!_IMAGE{number}_!_" for number in range(1, len(document["image_map"]) + 1)]
        images = [open_rgb(base64.b64decode(document["image_map"][name]["base64_image"])) for name in names]
        if not images:
            raise ValueError("no image")
        text = tidy(text)
        marks = [match.start() for match in re.finditer(IMAGE, text)]
        if len(marks) > self.max_images:
            text = text[: marks[self.max_images - 1]]
        return text, names[: self.max_images], images[: self.max_images]


def rows(paths, maker):
    """One row per sample, as floe prints them (without reasons, which are floe's own)."""
    for sample in read_samples(paths):
        row = {"shard": sample["__url__"], "key": sample["__key__"], "error": None}
        try:
            row["ids"], row["images"], row["crop_sha256"] = maker.make(sample)
            row["status"] = "kept"
        except Exception as error:  # whatever it is, the reference logs it and goes on
            row |= {"status": "dropped", "ids": [], "images": [], "crop_sha256": [], "error": repr(error)}
        yield row
