"""Tokenizers of every family that floe reads, trained here, and texts that are hard on them."""

import inspect
import json
import os
import random
import string
import subprocess
import unicodedata
from pathlib import Path

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import LlamaTokenizer, LlamaTokenizerFast, PreTrainedTokenizerFast

TOOL = Path(os.environ["FLOE_BIN_DIR"]) / "tokenizer_tool"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
# GPT-4o's: no matcher of its own, so it goes through PCRE2.
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Floe:
    """The tokenizer in `path` as floe reads it."""

    def __init__(self, path, *flags):
        self.command = [TOOL, str(path), *flags]

    def ask(self, questions, added=()):
        lines = [json.dumps({"add": list(added)})] if added else []
        lines += [json.dumps(q) for q in questions]
        done = subprocess.run(self.command, input="\n".join(lines), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()][1 if added else 0 :]

    def encode(self, texts, special=True, added=()):
        return self.ask([{"encode": t, "special": special} for t in texts], added)

    def decode(self, rows, skip=False, added=()):
        return self.ask([{"decode": ids, "skip": skip} for ids in rows], added)

    def info(self):
        return self.ask([{"info": True}])[0]


def same(texts, ours, theirs):
    """One assertion with the first difference in its message."""
    assert len(ours) == len(theirs) == len(texts)
    for text, a, b in zip(texts, ours, theirs):
        assert a == b, f"on {text!r}"


# ------------------------------------------------------------------------------------------- texts


def training_text():
    """Prose and code that every Python has."""
    text = [inspect.getdoc(module) or "" for module in map(__import__, ["argparse", "json", "re", "random", "string"])]
    for module in (argparse_source(), inspect.getsource(random), inspect.getsource(string)):
        text += module.splitlines()
    maker = random.Random(5)
    words = ["caption", "photo", "Bild", "größer", "été", "naïve", "привет", "мир", "γειά", "שלום", "مرحبا", "你好世界", "日本語の", "한국어", "हिन्दी", "👩‍👩‍👧‍👦", "1999", "3,14", "don't", "WE'LL"]
    text += [" ".join(maker.choices(words, k=12)) for _ in range(400)]
    return text


def argparse_source():
    import argparse

    return inspect.getsource(argparse)


BLOCKS = [(0x20, 0x7F), (0, 0x20), (0x80, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0xE80), (0x1100, 0x1200),
          (0x1E00, 0x2000), (0x2000, 0x2070), (0x2070, 0x2C00), (0x3000, 0x3400), (0x4E00, 0xA000), (0xAC00, 0xD7B0), (0xE000, 0xE010),
          (0xF900, 0xFE10), (0xFE20, 0x10000), (0x10000, 0x12000), (0x1D100, 0x1D800), (0x1F300, 0x1FB00), (0x2F800, 0x2FA20), (0xE0000, 0xE0200)]
MARKS = [c for c in range(0x110000) if unicodedata.combining(chr(c))]
ODD = ["<image>", "<|endofchunk|>", "</s>", "<s>", "<unk>", "<PAD>", "<|endoftext|>", "<ima", "ge>", "< image>", "<|endof", "<0x0A>", "▁", "▁▁", "Ġ",
       "'s", "'S", "'ſ", "'ll", "'LL", "'re", "\u200d", "\ufeff", "\u0130", "ǅ", "ß", "ﬁ", "\u1e9b\u0323", "\u11a8", "가\u11a8", "\u0958", "\ufffd",
       "1234567", "١٢٣", "½", "²", "👨‍👩‍👧", "🇩🇪", "☃️", "\r\n", "\n\n\n", "\t\t", "\x00", "\x1c", "\x85", "\xa0", "\u2028", "\u3000"]


def hard_texts(count, seed, tokens=()):
    """Texts of all scripts, with runs, marks, special tokens in odd places, and a few very long words."""
    maker = random.Random(seed)
    odd = ODD + list(tokens) * 3
    plain = "the quick brown fox jumps over It's 2024 caption of a photo".split()

    def part():
        kind = maker.randrange(10)
        if kind < 3:
            return maker.choice(plain)
        if kind < 5:
            return maker.choice(odd)
        if kind == 5:
            return maker.choice(" \n\t\r") * maker.choice([1, 2, 3, 5, 24, 25, 60])
        if kind == 6:
            first, last = maker.choice(BLOCKS)
            return "".join(chr(maker.randrange(first, last)) for _ in range(maker.randrange(1, 9)))
        if kind == 7:
            return maker.choice("aeiouAEO가ก") + "".join(chr(maker.choice(MARKS)) for _ in range(maker.randrange(1, 4)))
        if kind == 8:
            c = maker.randrange(0x110000)
            return "x" if 0xD800 <= c < 0xE000 else chr(c)
        return " "

    texts = ["", " ", "  ", "a", "\x00"]
    while len(texts) < count:
        text = "".join(part() for _ in range(maker.randrange(1, 16)))
        if maker.random() < 0.02:
            text += maker.choice(["ab", "x", "你好", "\u0301", "1", "-"]) * maker.randrange(50, 2000)
        texts.append(text)
    return texts


# -------------------------------------------------------------------------------------- tokenizers


def train(tokenizer, vocab=1500, special=()):
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=list(special), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(training_text(), trainer)
    return tokenizer


def save(tokenizer, folder, **roles):
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles).save_pretrained(folder)
    return folder


def byte_level(folder, normalizer=None, split=None, ignore_merges=False, prefix_space=False, special=("<|endoftext|>",), **roles):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if split is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
        roles["add_prefix_space"] = prefix_space
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(split), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=False)]
        )
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, special=special)
    return tokenizer, folder, roles


def gpt2(folder):
    tokenizer, folder, roles = byte_level(folder)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return save(tokenizer, folder, bos_token="<|endoftext|>", eos_token="<|endoftext|>", **roles)


def gpt2_prefix(folder):
    tokenizer, folder, roles = byte_level(folder, prefix_space=True)
    return save(tokenizer, folder, eos_token="<|endoftext|>", clean_up_tokenization_spaces=True, **roles)


def neox(folder):
    tokenizer, folder, roles = byte_level(folder, normalizer=normalizers.NFC())
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)])
    return save(tokenizer, folder, eos_token="<|endoftext|>", **roles)


def opt(folder):
    tokenizer, folder, roles = byte_level(folder, special=("<s>", "<pad>", "</s>", "<unk>"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="</s> $A", pair="</s> $A </s> $B", special_tokens=[("</s>", tokenizer.token_to_id("</s>"))]
    )
    return save(tokenizer, folder, bos_token="</s>", eos_token="</s>", pad_token="<pad>", **roles)


def llama3(folder):
    tokenizer, folder, roles = byte_level(folder, split=LLAMA3, ignore_merges=True, special=("<|begin_of_text|>", "<|end_of_text|>"))
    template = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B",
        special_tokens=[("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))],
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return save(tokenizer, folder, bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>", **roles)


def qwen2(folder):
    tokenizer, folder, roles = byte_level(folder, normalizer=normalizers.NFC(), split=QWEN2)
    return save(tokenizer, folder, eos_token="<|endoftext|>", pad_token="<|endoftext|>", **roles)


def gpt4o(folder):
    tokenizer, folder, roles = byte_level(folder, split=GPT4O)
    return save(tokenizer, folder, eos_token="<|endoftext|>", **roles)


def sentencepiece_model(folder, **more):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text").write_text("\n".join(training_text()))
    options = dict(
        input=str(folder / "text"), model_prefix=str(folder / "tokenizer"), vocab_size=1500, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", add_dummy_prefix=True, remove_extra_whitespaces=False, character_coverage=0.995,
        split_digits=True, allow_whitespace_only_pieces=True, minloglevel=2,
    )
    sentencepiece.SentencePieceTrainer.train(**{**options, **more})
    (folder / "text").unlink()
    (folder / "tokenizer.vocab").unlink()
    return folder


def llama_model(folder, legacy=True, **more):
    """Only tokenizer.model: the slow tokenizer is the reference."""
    sentencepiece_model(folder, **more)
    tokenizer = LlamaTokenizer(str(folder / "tokenizer.model"), legacy=legacy)
    tokenizer.save_pretrained(folder)
    return folder


def llama2(folder, legacy=True):
    """tokenizer.json with byte fallback, made of the model by transformers."""
    source = sentencepiece_model(folder / "source")
    LlamaTokenizerFast(str(source / "tokenizer.model"), legacy=legacy, from_slow=True).save_pretrained(folder)
    (folder / "tokenizer.model").unlink(missing_ok=True)
    return folder


def llama2_new(folder):
    return llama2(folder, legacy=False)


def random_parts(folder, seed):
    """A tokenizer put together by chance."""
    maker = random.Random(seed)
    chance = lambda p: maker.random() < p
    tokenizer = Tokenizer(models.BPE(ignore_merges=chance(0.3)))
    forms = [getattr(normalizers, name) for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase")]
    steps = [maker.choice(forms)() for _ in range(maker.randrange(3))]
    if chance(0.3):
        steps.append(normalizers.Strip(left=chance(0.5), right=chance(0.5)))
    if chance(0.3):
        steps.append(normalizers.Replace(maker.choice(["a", "ab", " ", Regex(r"\s{2,}"), Regex(r"[aeiou]\p{M}*")]), maker.choice(["", "▁", "xy"])))
    if chance(0.2):
        steps.append(normalizers.Prepend("▁"))
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    behaviours = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
    patterns = [" ", "ab", Regex(r"\s+"), Regex(r"\w+"), Regex(r"\d"), Regex(r"[^\p{L}\p{N}]+"), Regex(r"\p{Lu}\p{Ll}*|\p{N}{1,2}"), Regex(LLAMA3), Regex(GPT2)]
    cuts = []
    for _ in range(maker.randrange(3)):
        kind = maker.randrange(5)
        if kind < 2:
            cuts.append(pre_tokenizers.Split(maker.choice(patterns), maker.choice(behaviours), invert=chance(0.3)))
        elif kind == 2:
            cuts.append(pre_tokenizers.Digits(individual_digits=chance(0.5)))
        elif kind == 3:
            cuts.append(maker.choice([pre_tokenizers.Whitespace, pre_tokenizers.WhitespaceSplit])())
        elif not cuts:
            cuts.append(pre_tokenizers.Metaspace(prepend_scheme=maker.choice(["always", "first", "never"]), split=chance(0.5)))
    bytes_at = maker.choice(["last", "last", "first", "none"])
    step = pre_tokenizers.ByteLevel(add_prefix_space=chance(0.4), use_regex=chance(0.5))
    if bytes_at == "last":
        cuts.append(step)
    elif bytes_at == "first":
        cuts = [c for c in cuts if not isinstance(c, pre_tokenizers.Metaspace)]
        cuts.insert(0, step)
    if cuts:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    tokenizer.decoder = maker.choice([
        decoders.ByteLevel(), decoders.Metaspace(prepend_scheme=maker.choice(["always", "never"])), decoders.Fuse(),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
        decoders.Sequence([decoders.Replace(Regex(r"\p{Lu}"), "u"), decoders.Fuse()]),
    ])
    special = ["<unk>"] + [f"<0x{b:02X}>" for b in range(256)] if chance(0.5) else ["<unk>"]
    train(tokenizer, vocab=maker.choice([600, 1200]), special=special)
    document = json.loads(tokenizer.to_str())
    if bytes_at == "none" or chance(0.3):
        document["model"].update(unk_token="<unk>" if chance(0.7) else None, fuse_unk=chance(0.5), byte_fallback=len(special) > 1)
        keep = {t: i for t, i in document["model"]["vocab"].items() if len(t) > 1 or maker.random() < 0.9}
        document["model"]["merges"] = [m for m in document["model"]["merges"] if m[0] in keep and m[1] in keep and m[0] + m[1] in keep]
        document["model"]["vocab"] = keep
    if chance(0.3) and not any(" " in part for m in document["model"]["merges"] for part in m):
        document["model"]["merges"] = [" ".join(m) for m in document["model"]["merges"]]
    tokenizer = Tokenizer.from_str(json.dumps(document))
    flags = lambda: {name: chance(0.3) for name in ("single_word", "lstrip", "rstrip")}
    tokenizer.add_tokens([AddedToken(t, normalized=chance(0.5) and t.strip() != "", **flags()) for t in maker.sample(["<image>", "<ima", "photo", "[Day]", "É", "  ", "x y"], 4)])
    tokenizer.add_special_tokens([AddedToken(t, normalized=chance(0.3), special=True, **flags()) for t in ["</s>", "<|endofchunk|>"]])
    return save(tokenizer, folder, eos_token="</s>", add_prefix_space=step.add_prefix_space)


FAMILIES = [gpt2, gpt2_prefix, neox, opt, llama3, qwen2, gpt4o, llama2, llama2_new]
