"""transformers, tokenizers and sentencepiece are the references: floe's ids and texts are theirs.

Needs FLOE_BIN_DIR, the folder of built programs (tokenizer_tool among them).
"""

import json
import os
import random
import shutil
import sys
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, GPT2TokenizerFast, LlamaTokenizer, PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).parent))
import families
from families import Floe, hard_texts, same

GOLDENS = Path(os.environ["FLOE_SOURCE_DIR"]) / "tests/goldens/data/tokenizers"


@pytest.fixture(scope="session", params=families.FAMILIES, ids=lambda make: make.__name__)
def family(request, tmp_path_factory):
    folder = request.param(tmp_path_factory.mktemp(request.param.__name__))
    return folder, AutoTokenizer.from_pretrained(folder)


def compare(floe, theirs, texts, special=True):
    ids = [theirs(t, add_special_tokens=special)["input_ids"] for t in texts]
    same(texts, floe.encode(texts, special), ids)
    for skip in (False, True):
        same(texts, floe.decode(ids, skip), [theirs.decode(row, skip_special_tokens=skip) for row in ids])


def test_hard_texts(family):
    folder, theirs = family
    tokens = list(theirs.get_added_vocab())[:20]
    compare(Floe(folder), theirs, hard_texts(3000, 1, tokens))


def test_without_special_tokens(family):
    folder, theirs = family
    compare(Floe(folder), theirs, hard_texts(300, 2), special=False)


def test_size_and_roles(family):
    folder, theirs = family
    assert Floe(folder).info() == {
        "size": len(theirs), "bos": theirs.bos_token_id, "eos": theirs.eos_token_id, "pad": theirs.pad_token_id,
    }


def test_decodes_any_ids(family):
    folder, theirs = family
    maker = random.Random(3)
    rows = [[maker.randrange(len(theirs) + 3) for _ in range(maker.randrange(1, 30))] for _ in range(500)]
    for skip in (False, True):
        same(rows, Floe(folder).decode(rows, skip), [theirs.decode(row, skip_special_tokens=skip) for row in rows])


def test_added_special_tokens(family):
    folder, theirs = family
    more = ["<image>", "<|endofchunk|>", "photo"]
    theirs = AutoTokenizer.from_pretrained(folder)
    theirs.add_special_tokens({"additional_special_tokens": more})
    texts = hard_texts(300, 4, more)
    ids = [theirs(t)["input_ids"] for t in texts]
    same(texts, Floe(folder).encode(texts, added=more), ids)
    same(texts, Floe(folder).decode(ids, True, added=more), [theirs.decode(row, skip_special_tokens=True) for row in ids])
    assert Floe(folder).ask([{"id_of": "<image>"}, {"id_of": "photo"}], added=more) == theirs.convert_tokens_to_ids(
        ["<image>", "photo"]
    )


@pytest.mark.parametrize("name", ["neox", "opt", "llama", "family"])
def test_flamingo_tokens(name, request, tmp_path):
    if name == "family":
        folder = families.gpt2(tmp_path)
    else:
        folder = GOLDENS / name
    theirs = AutoTokenizer.from_pretrained(folder)
    theirs.add_special_tokens({"additional_special_tokens": ["<|endofchunk|>", "<image>"]})
    if theirs.pad_token is None:
        theirs.add_special_tokens({"pad_token": "<PAD>"})
    tokens = Floe(folder, "--flamingo").ask([])[0]
    assert tokens == {
        "image": theirs.convert_tokens_to_ids("<image>"), "endofchunk": theirs.convert_tokens_to_ids("<|endofchunk|>"),
        "pad": theirs.pad_token_id, "eos": theirs.eos_token_id, "size": len(theirs),
    }


@pytest.mark.parametrize("name", ["neox", "opt", "llama"])
def test_golden_tokenizers(name):
    theirs = AutoTokenizer.from_pretrained(GOLDENS / name)
    compare(Floe(GOLDENS / name), theirs, hard_texts(2000, 6))


def survives(tokenizer, text):
    """The package panics on some texts: where added tokens overlap the white space they strip, and where
    normalisation changes the length of what they match."""
    try:
        tokenizer(text)
        return True
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return False


@pytest.mark.parametrize("seed", range(40))
def test_random_tokenizers(seed, tmp_path):
    folder = families.random_parts(tmp_path, seed)
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    texts = hard_texts(400, seed, ["<image>", "photo", "[Day]", "É", "x y", " </s> "])
    texts = [text for text in texts if survives(theirs, text)]
    assert len(texts) >= 20
    compare(Floe(folder), theirs, texts)


# --------------------------------------------------------------------------------- all of Unicode


def revealing(**parts):
    """Every pair of bytes is a token, so that any difference in where words end shows in the ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(a, b) for a in alphabet for b in alphabet]
    random.Random(7).shuffle(pairs)
    vocab = {c: i for i, c in enumerate(alphabet)}
    vocab |= {a + b: len(alphabet) + i for i, (a, b) in enumerate(pairs)}
    tokenizer = Tokenizer(models.BPE(vocab, pairs))
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def bytes_after(*steps):
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


EVERYWHERE = {
    "gpt2": {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=False)},
    "llama3": {"pre_tokenizer": bytes_after(pre_tokenizers.Split(Regex(families.LLAMA3), "isolated"))},
    "qwen2": {"pre_tokenizer": bytes_after(pre_tokenizers.Split(Regex(families.QWEN2), "isolated"))},
    "gpt4o": {"pre_tokenizer": bytes_after(pre_tokenizers.Split(Regex(families.GPT4O), "isolated"))},
    "regex": {"pre_tokenizer": bytes_after(pre_tokenizers.Split(Regex(r"\w+|\d|\P{P}\s"), "merged_with_next"))},
    "digits": {"pre_tokenizer": bytes_after(pre_tokenizers.Digits(individual_digits=True))},
    "whitespace": {"pre_tokenizer": bytes_after(pre_tokenizers.Whitespace())},
    "nfc": {"normalizer": normalizers.NFC(), "pre_tokenizer": bytes_after()},
    "nfd": {"normalizer": normalizers.NFD(), "pre_tokenizer": bytes_after()},
    "nfkc": {"normalizer": normalizers.NFKC(), "pre_tokenizer": bytes_after()},
    "nfkd": {"normalizer": normalizers.NFKD(), "pre_tokenizer": bytes_after()},
    "lowercase": {"normalizer": normalizers.Lowercase(), "pre_tokenizer": bytes_after()},
}


def code_points(everything):
    """Texts by their first code point, 256 of them each, in as many surroundings as their plane deserves."""
    for start in range(0, 0x110000, 256):
        plane, place = start >> 16, start & 0xFFFF
        block = [chr(c) for c in range(start, start + 256) if not 0xD800 <= c < 0xE000]
        if plane in (0, 1, 14) or (everything and plane < 4):
            yield start, "".join(f"a{c}b1{c}2 {c} '{c}\u0301" for c in block)
        elif plane < 4 or everything or place in (0, 0xFF00):  # ideographs; then no characters, or private ones
            yield start, "".join(f"a{c} " for c in block)


# The long run has all of them, with everything.
EVERY_TIME = ("gpt2", "gpt4o", "nfkc")


@pytest.mark.parametrize("name, everything", [
    *((name, False) for name in EVERY_TIME),
    *(pytest.param(name, True, marks=pytest.mark.long) for name in EVERYWHERE),
])
def test_every_code_point(name, everything, tmp_path):
    tokenizer = revealing(**EVERYWHERE[name])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    starts, texts = zip(*code_points(everything))
    theirs = [tokenizer.encode(text).ids for text in texts]
    ours = Floe(tmp_path / "tokenizer.json").encode(texts)
    for start, a, b in zip(starts, ours, theirs):
        assert a == b, f"U+{start:04X} and the 255 behind it"


# ------------------------------------------------------------------------------- other kinds of files


@pytest.mark.parametrize("add_bos", [False, True])
def test_vocab_and_merges(add_bos, tmp_path):
    """The older folders: vocab.json and merges.txt, and the special tokens around them."""
    source = families.opt(tmp_path / "source")
    folder = tmp_path / "old"
    folder.mkdir()
    Tokenizer.from_file(str(source / "tokenizer.json")).model.save(str(folder))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", "add_bos_token": add_bos}))
    special = {role: {"content": "</s>", "lstrip": False, "rstrip": False, "single_word": False, "normalized": True}
               for role in ("bos_token", "eos_token", "unk_token")}
    (folder / "special_tokens_map.json").write_text(json.dumps({**special, "pad_token": "<pad>"}))
    (folder / "added_tokens.json").write_text(json.dumps({"<image>": 1500, "photo": 1501}))
    theirs = GPT2TokenizerFast.from_pretrained(folder)
    assert theirs("x")["input_ids"][0] == theirs.bos_token_id or not add_bos
    compare(Floe(folder), theirs, hard_texts(800, 8))
    assert Floe(folder).info()["size"] == len(theirs)


@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize("rules", ["identity", "nmt_nfkc"])
def test_sentencepiece(legacy, rules, tmp_path):
    folder = families.llama_model(tmp_path, legacy=legacy, normalization_rule_name=rules, remove_extra_whitespaces=rules != "identity")
    theirs = LlamaTokenizer.from_pretrained(folder)
    texts = [t for t in hard_texts(1500, 9) if t]
    compare(Floe(folder), theirs, texts)
    more = ["<image>", "<|endofchunk|>"]
    theirs.add_special_tokens({"additional_special_tokens": more})
    ids = [theirs(t)["input_ids"] for t in texts]
    same(texts, Floe(folder).encode(texts, added=more), ids)
    for skip in (False, True):
        same(texts, Floe(folder).decode(ids, skip, added=more), [theirs.decode(row, skip_special_tokens=skip) for row in ids])


def test_sentencepiece_added_tokens(tmp_path):
    """Flags of added tokens, ids with a gap, no byte fallback."""
    folder = families.llama_model(tmp_path, byte_fallback=False)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    for number, (content, more) in enumerate({"[L]": {"lstrip": True}, "[R]": {"rstrip": True}, "[W]": {"single_word": True}}.items()):
        config["added_tokens_decoder"][str(1500 + number)] = {"content": content, **flags, **more}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = LlamaTokenizer.from_pretrained(folder)
    compare(Floe(folder), theirs, [t for t in hard_texts(1000, 10, ["[L]", "[R]", "[W]", " [W] ", " [L] ", "[R] [R]"]) if t])
    assert Floe(folder).info()["size"] == len(theirs)


def test_golden_sentencepiece(tmp_path):
    for name in ("tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(GOLDENS / "llama" / name, tmp_path)
    theirs = LlamaTokenizer.from_pretrained(tmp_path)
    compare(Floe(tmp_path), theirs, [t for t in hard_texts(1000, 11) if t])


def test_a_file_in_a_folder_names_the_form():
    texts = hard_texts(200, 12)
    both = [Floe(GOLDENS / "llama" / name).encode(texts) for name in ("tokenizer.json", "tokenizer.model")]
    assert both[0] == Floe(GOLDENS / "llama").encode(texts)
    assert len(both[1]) == len(texts)


def test_very_long_words():
    """A megabyte without a space is one word to the model."""
    texts = ["ab" * 500_000, "é" * 200_000, " " * 300_000, "\n" * 100_000 + "x", "1" * 300_000, "<image>" * 20_000]
    for name in ("neox", "opt", "llama"):
        theirs = Tokenizer.from_file(str(GOLDENS / name / "tokenizer.json"))
        same(texts, Floe(GOLDENS / name).encode(texts), [theirs.encode(t).ids for t in texts])
