"""OpenFlamingo's data pipeline as its authors built it: webdataset, PIL, open_clip's transform, a fast
tokenizer, and a DataLoader with worker processes. The rules are those of tests/goldens/data/README.md.

usage: data_twin.py CONFIG.json   (as bench_data; prints one JSON line: samples, images, wall_s, cpu_s)
"""

import base64
import io
import json
import os
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torchvision
import webdataset as wds
from PIL import Image
from scipy.optimize import linear_sum_assignment
from transformers import AutoTokenizer

SHUFFLE, SHUFFLE_INITIAL = 5000, 1000
MAX_IMAGES, MIN_IMAGES, MAX_TOKENS, THRESHOLD = 6, 1, 256, 0.24
SMALLEST_KB = 10


class Laion:
    def __init__(self, tokenizer, transform):
        self.tokenizer, self.transform = tokenizer, transform

    def images(self, pictures):
        batch = torch.stack([self.transform(picture) for picture in pictures])
        return torchvision.transforms.RandomHorizontalFlip(p=0.5)(batch)

    def texts(self, captions):
        self.tokenizer.padding_side = "right"
        marked = [f"<image>{text.strip()}<|endofchunk|>{self.tokenizer.eos_token}" for text in captions]
        coded = self.tokenizer(marked, max_length=32, padding="longest", truncation="only_first", return_tensors="pt")
        return coded["input_ids"], coded["attention_mask"]

    def stages(self, batch_size):
        def has_both(sample):
            return "txt" in sample and any(suffix in sample for suffix in ("png", "jpg", "jpeg"))

        skip = wds.warn_and_continue
        return [
            wds.select(has_both),
            wds.decode("pilrgb", handler=skip),
            wds.to_tuple("jpg;png;jpeg", "txt", handler=skip),
            wds.batched(batch_size, partial=False),
            wds.map_tuple(self.images, self.texts, handler=skip),
        ]

    @staticmethod
    def count(batch):
        return len(batch[0]), len(batch[0])


class Mmc4:
    def __init__(self, tokenizer, transform):
        self.tokenizer, self.transform = tokenizer, transform
        self.image_id = tokenizer.convert_tokens_to_ids("<image>")

    def document(self, sample):
        info = json.loads(sample[0])
        sentences, similarities = list(info["text_list"]), info["similarity_matrix"]
        pictures, rows = [], []
        for index, each in enumerate(info["image_info"]):
            if "image_base64" not in each:
                continue
            raw = base64.b64decode(each["image_base64"])
            if len(raw) // 1000 <= SMALLEST_KB:
                continue
            pictures.append(Image.open(io.BytesIO(raw)).convert("RGB"))
            rows.append(index)
        if not pictures:
            raise ValueError("no picture")
        matrix = np.array([similarities[row] for row in rows])
        chosen, places = [], []
        for picture, sentence in zip(*linear_sum_assignment(-matrix)):
            if matrix[picture, sentence] >= THRESHOLD:
                chosen.append(pictures[picture])
                places.append(sentence)
        if not chosen:
            raise ValueError("no picture is similar enough")
        tensors = torch.stack([self.transform(picture) for picture in chosen])
        tensors = torchvision.transforms.RandomHorizontalFlip(p=0.5)(tensors)[:MAX_IMAGES]
        kept = len(tensors)
        if kept < MAX_IMAGES:
            tensors = torch.cat([tensors, torch.zeros(MAX_IMAGES - kept, *tensors.shape[1:])])
        for sentence in places[:MAX_IMAGES]:
            sentences[sentence] = f"<|endofchunk|><image>{sentences[sentence]}"
        text = " ".join(sentences).replace("<|endofchunk|>", "", 1)
        for before, after in ((" <|endofchunk|>", "<|endofchunk|>"), ("<image> ", "<image>"), (" <image>", "<image>")):
            text = text.replace(before, after)
        text = f"{text}<|endofchunk|>{self.tokenizer.eos_token}"
        self.tokenizer.padding_side = "right"
        coded = self.tokenizer(text, max_length=MAX_TOKENS, truncation=True, padding="max_length",
                               return_tensors="pt")
        found = int(torch.count_nonzero(coded["input_ids"] == self.image_id))
        if found < MIN_IMAGES or (found == 1 and random.random() <= 0.5):
            raise ValueError("too few pictures")
        return tensors, (coded["input_ids"], coded["attention_mask"]), kept

    @staticmethod
    def collate(samples):
        images, texts, kept = zip(*samples)
        ids = torch.stack([text[0] for text in texts])
        masks = torch.stack([text[1] for text in texts])
        return torch.stack(images), (ids, masks), sum(kept)

    def stages(self, batch_size):
        skip = wds.ignore_and_continue
        return [
            wds.to_tuple("json", handler=skip),
            wds.map(self.document, handler=skip),
            wds.batched(batch_size, partial=False, collation_fn=self.collate),
        ]

    @staticmethod
    def count(batch):
        return len(batch[0]), int(batch[2])


def cpu_seconds():
    """Of this process and its living children, all threads."""
    ticks, parent = 0, os.getpid()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(stat.parent.name) == parent or int(fields[1]) == parent:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def main():
    asked = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    from open_clip.transform import image_transform

    tokenizer = AutoTokenizer.from_pretrained(asked["tokenizer"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|endofchunk|>", "<image>"]})
    if tokenizer.pad_token is None:
        tokenizer.add_special_tokens({"pad_token": "<PAD>"})
    rules = {"laion": Laion, "mmc4": Mmc4}[asked["source"]](tokenizer, image_transform(224, is_train=False))
    pipeline = wds.DataPipeline(
        wds.SimpleShardList(asked["shards"]),
        wds.split_by_worker,
        wds.tarfile_to_samples(handler=wds.warn_and_continue),
        wds.shuffle(SHUFFLE, initial=SHUFFLE_INITIAL),
        *rules.stages(asked["batch_size"]),
    ).with_epoch(1_000_000)
    loader = iter(wds.WebLoader(pipeline, batch_size=None, shuffle=False, num_workers=asked["threads"],
                                persistent_workers=True))
    samples = images = 0
    while samples < asked["warmup"]:
        samples += rules.count(next(loader))[0]
    samples, wall, cpu = 0, time.perf_counter(), cpu_seconds()
    while samples < asked["samples"]:
        new = rules.count(next(loader))
        samples, images = samples + new[0], images + new[1]
    print(json.dumps({"samples": samples, "images": images, "wall_s": time.perf_counter() - wall,
                      "cpu_s": cpu_seconds() - cpu}))
    sys.stdout.flush()
    os._exit(0)  # the workers are in the middle of an epoch


if __name__ == "__main__":
    main()
