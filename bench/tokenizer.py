#!/usr/bin/env python3
"""floe's tokenizers next to PyPI's `tokenizers` (and `sentencepiece`): the same texts, one thread each.

usage: ./run bench tokenizer [--quick] [--rounds N] [--seconds S] [--families gpt2,neox,llama,llama3] [--out PATH]

Vocabularies of real size are trained on text that every Debian has (once; they are kept in
build/bench-tokenizer). Times are CPU seconds of a process of its own, in interleaved rounds; the median
counts. Ids must be equal. The result is printed and, with --out, written to PATH.md and PATH.json.
"""

import argparse
import datetime
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(os.environ.get("FLOE_BIN_DIR", ROOT / "build/release/bin"))
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WAYS = {"encode": "encode, one by one", "batch": "encode_batch", "batch_fast": "encode_batch_fast"}


# ------------------------------------------------------------------------------------------- texts


def paragraphs(limit_bytes):
    """Prose: documentation in Python's sources and in /usr/share/doc and licences."""
    found, total = [], 0
    places = [Path(sysconfig.get_path("stdlib")), Path("/usr/share/doc"), Path("/usr/share/perl"), Path("/usr/share/common-licenses")]
    places += [Path(sysconfig.get_path("purelib"))]
    for place in places:
        for path in sorted(place.rglob("*")):
            if path.suffix not in (".py", ".txt", ".md", ".rst", ".pod", "") or not path.is_file() or path.stat().st_size > 2_000_000:
                continue
            text = path.read_bytes()[:200_000].decode("utf-8", "ignore")
            for block in re.split(r"\n\s*\n", text):
                if len(block) > 40:
                    found.append(block)
                    total += len(block)
            if total > limit_bytes:
                return found
    return found


def make_texts(folder, quick):
    """Captions of about ten words and documents of about 1.5 KB, from paragraphs kept out of training."""
    blocks = paragraphs(3_000_000 if quick else 40_000_000)
    maker = random.Random(1)
    maker.shuffle(blocks)
    held, rest = blocks[: len(blocks) // 10], blocks[len(blocks) // 10 :]
    words = " ".join(" ".join(b.split()) for b in held).split()
    captions = ["<image>" + " ".join(words[i : i + maker.randrange(5, 16)]) + "<|endofchunk|>" for i in range(0, min(len(words), 40_000), 10)]
    prose, documents = iter(held), []
    while len(documents) < 1000:
        document = ""
        while len(document) < 1500:
            block = next(prose, None)
            if block is None:
                break
            document += " " + " ".join(block.split())
        if len(document) < 1500:
            break
        documents.append("<image>" + document[:1500] + "<|endofchunk|>")
    for name, texts in {"captions": captions, "documents": documents}.items():
        (folder / f"{name}.json").write_text(json.dumps(texts))
    return rest


def make_tokenizers(folder, families, quick):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    wanted = [f for f in families if not (folder / f / "tokenizer.json").exists()]
    if not wanted and (folder / "documents.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    rest = make_texts(folder, quick)
    size = 4000 if quick else 50_000
    special = ["<|endoftext|>", "<|endofchunk|>", "<image>"]

    def byte_level(split=None, normalizer=None):
        tokenizer = Tokenizer(models.BPE())
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        step = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
        tokenizer.pre_tokenizer = step if split is None else pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"), step])
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=step.alphabet(), show_progress=False)
        tokenizer.train_from_iterator(rest, trainer)
        return tokenizer

    def neox():
        tokenizer = byte_level(normalizer=normalizers.NFC())
        tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)])
        return tokenizer

    def llama():
        """As transformers writes LLaMA's: the whole text is one word."""
        import sentencepiece
        from transformers import LlamaTokenizerFast

        text = folder / "llama.txt"
        text.write_text("\n".join(" ".join(b.split())[:4000] for b in rest[: 5000 if quick else 60_000]))
        sentencepiece.SentencePieceTrainer.train(
            input=str(text), model_prefix=str(folder / "llama"), vocab_size=3000 if quick else 32_000, model_type="bpe", byte_fallback=True,
            normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True, minloglevel=2,
        )
        text.unlink()
        fast = LlamaTokenizerFast(str(folder / "llama.model"), legacy=True, from_slow=True)
        fast.add_special_tokens({"additional_special_tokens": special[1:]})
        return fast.backend_tokenizer

    makers = {"gpt2": byte_level, "neox": neox, "llama": llama, "llama3": lambda: byte_level(LLAMA3)}
    for family in families:
        (folder / family).mkdir(exist_ok=True)
        makers[family]().save(str(folder / family / "tokenizer.json"))


# ----------------------------------------------------------------------------------------- running


def run_theirs(path, texts_path, seconds, way):
    """In a process of its own: the same loop as bench/tokenizer_floe.cc."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(path)
    texts = json.loads(Path(texts_path).read_text())
    passes, begin = -1, 0.0
    while True:
        if way == "encode":
            rows = [tokenizer.encode(text).ids for text in texts]
        else:
            call = tokenizer.encode_batch if way == "batch" else tokenizer.encode_batch_fast
            rows = [row.ids for start in range(0, len(texts), 64) for row in call(texts[start : start + 64])]
        passes += 1
        if passes == 0:
            begin = time.process_time()
        elif time.process_time() - begin >= seconds:
            break
    spent = time.process_time() - begin
    checksum = 0
    for row in rows:
        for number in row:
            checksum = (checksum * 31 + number) % 1000000007
    print(json.dumps({"passes": passes, "seconds": spent, "ids": sum(map(len, rows)), "checksum": checksum}))


def measure(command):
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, timeout=600)
    if done.returncode != 0:
        raise SystemExit(f"{command[0]} failed: {done.stderr.strip()[-300:]}")
    result = json.loads(done.stdout)
    result["per_pass"] = result["seconds"] / result["passes"]
    return result


def compare(folder, family, kind, arguments):
    tokenizer, texts = folder / family / "tokenizer.json", folder / f"{kind}.json"
    count, size = len(json.loads(texts.read_text())), sum(len(t.encode()) for t in json.loads(texts.read_text()))
    times = {"floe": []} | {way: [] for way in WAYS}
    sums = set()
    for _ in range(arguments.rounds):
        commands = {"floe": [BIN / "bench_tokenizer", tokenizer, texts, arguments.seconds]}
        for way in WAYS:
            commands[way] = [sys.executable, __file__, "--theirs", way, tokenizer, texts, arguments.seconds]
        for name, command in commands.items():
            result = measure(command)
            times[name].append(result["per_pass"])
            sums.add((result["ids"], result["checksum"]))
    if len(sums) != 1:
        raise SystemExit(f"{family}, {kind}: the ids differ: {sums}")
    per_pass = {name: statistics.median(values) for name, values in times.items()}
    best = min(per_pass[way] for way in WAYS)
    return {
        "family": family, "texts": kind, "count": count, "bytes": size,
        "microseconds_per_text": {name: 1e6 * value / count for name, value in per_pass.items()},
        "megabytes_per_second": {name: 1e-6 * size / value for name, value in per_pass.items()},
        "ratio_to_best": best / per_pass["floe"], "ratio_to_encode": per_pass["encode"] / per_pass["floe"],
    }


def table(rows):
    lines = ["| tokenizer | texts | floe, µs per text | MB/s | encode | encode_batch | encode_batch_fast | floe is faster than the best by |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        us = row["microseconds_per_text"]
        theirs = " | ".join(f"{us[way]:.1f}" for way in WAYS)
        lines.append(f"| {row['family']} | {row['texts']} | {us['floe']:.1f} | {row['megabytes_per_second']['floe']:.1f} | {theirs} | {row['ratio_to_best']:.1f} |")
    return "\n".join(lines)


def main():
    if len(sys.argv) > 2 and sys.argv[1] == "--theirs":
        return run_theirs(sys.argv[3], sys.argv[4], float(sys.argv[5]), sys.argv[2])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small vocabularies, to see that it runs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--families", default="gpt2,neox,llama,llama3")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    folder = ROOT / "build" / ("bench-tokenizer-quick" if arguments.quick else "bench-tokenizer")
    families = arguments.families.split(",")
    make_tokenizers(folder, families, arguments.quick)
    rows = [compare(folder, family, kind, arguments) for family in families for kind in ("captions", "documents")]
    from tokenizers import __version__

    title = f"Tokenizers: floe and tokenizers {__version__}, one thread, {platform.machine()}, {datetime.date.today()}"
    text = f"# {title}\n\nMicroseconds of CPU time per text; ids are equal. Lower is better.\n\n{table(rows)}\n"
    print(text)
    if arguments.out:
        arguments.out.with_suffix(".md").write_text(text)
        arguments.out.with_suffix(".json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
