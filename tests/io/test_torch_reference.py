"""torch is the reference: floe reads what torch.save and torch.jit.save write, and torch.load reads what
floe writes.

Needs FLOE_BIN_DIR, the folder of built programs (torch_tool and safetensors_tool among them).
"""

import argparse
import collections
import datetime
import json
import pathlib
import pickle
import random
import sys
import zipfile

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from torch_tool import DTYPES, as_json, check_list, refusal, run, same, tool, tree, with_floats

GOLDENS = pathlib.Path(__file__).parent.parent / "goldens" / "models"


def random_tensor(rng):
    shape = [rng.randrange(5) for _ in range(rng.randrange(4))]
    dtype = rng.choice(list(DTYPES))
    return torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(rng.randrange(2**31))).to(dtype)


def random_view(rng):
    """Of a larger storage, with any strides that torch makes."""
    base = torch.randn([rng.randrange(1, 7) for _ in range(rng.randrange(1, 4))]).to(
        rng.choice([torch.float64, torch.float32, torch.bfloat16, torch.int8])
    )
    view = base
    for _ in range(rng.randrange(4)):
        how = rng.randrange(5)
        if how == 0 and view.dim() > 1:
            view = view.permute(rng.sample(range(view.dim()), view.dim()))
        elif how == 1 and view.dim() > 0:
            dim = rng.randrange(view.dim())
            first = rng.randrange(view.size(dim) + 1)
            view = view.narrow(dim, first, rng.randrange(view.size(dim) - first + 1))
        elif how == 2 and view.dim() > 0:
            view = view[tuple([slice(None)] * rng.randrange(view.dim()) + [slice(None, None, rng.randrange(1, 4))])]
        elif how == 3:
            view = view.unsqueeze(0).expand(rng.randrange(1, 4), *view.shape)
        elif how == 4 and view.dim() > 0 and view.size(0) > 0:
            view = view[rng.randrange(view.size(0))]
    return view


def random_value(rng, depth, protocol):
    kinds = ["none", "bool", "int", "float", "text", "tensor", "view"]
    if protocol >= 3:
        kinds += ["bytes", "big"]
    if depth > 0:
        kinds += ["list", "tuple", "dict", "ordered"] * 2
    kind = rng.choice(kinds)

    def children():
        return [random_value(rng, depth - 1, protocol) for _ in range(rng.choice([0, 1, 2, 3, 4, 7]))]

    def named(items):
        return [(rng.choice([f"key{i}", f"sch\u00f6n.{i}", i, -i]), item) for i, item in enumerate(items, 1)]

    return {
        "none": lambda: None,
        "bool": lambda: rng.random() < 0.5,
        "int": lambda: rng.choice([0, 1, 255, 256, 65535, 65536, -1, 2**31, -(2**31), 2**63 - 1, -(2**63)]),
        "big": lambda: rng.choice([2**63, -(2**63) - 1, 2**200, -(2**2100)]),
        "float": lambda: rng.choice([0.0, -0.0, 0.1, 1e300, float("inf"), 5e-324]),
        "text": lambda: rng.choice(["", "a", "\u6c34" * 100, 'quote " and \n', "x" * 300]),
        "bytes": lambda: rng.randbytes(rng.choice([0, 3, 300])),
        "tensor": lambda: random_tensor(rng),
        "view": lambda: random_view(rng),
        "list": children,
        "tuple": lambda: tuple(children()),
        "dict": lambda: dict(named(children())),
        "ordered": lambda: collections.OrderedDict(named(children())),
    }[kind]()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_we_read_random_values(protocol, tmp_path):
    rng = random.Random(protocol)
    for number in range(25):
        values = {str(i): random_value(rng, 4, protocol) for i in range(4)}
        torch.save(values, tmp_path / "theirs.pt", pickle_protocol=protocol)
        assert with_floats(tree(tmp_path / "theirs.pt")) == as_json(values), f"value {number}"


def test_they_read_ours(tmp_path):
    rng = random.Random(7)
    for number in range(60):
        values = {str(i): random_value(rng, 4, 2) for i in range(4)}
        torch.save(values, tmp_path / "theirs.pt")
        tool("copy", tmp_path / "theirs.pt", tmp_path / "ours.pt")
        ours = torch.load(tmp_path / "ours.pt", weights_only=True)
        assert same(ours, values), f"value {number}"
        assert with_floats(tree(tmp_path / "ours.pt")) == as_json(values), f"value {number}"


def test_our_archive_is_sound(tmp_path):
    """Checksums, alignment, the ways of torch.load, and pieces that come interleaved."""
    values = {f"t{i}": torch.randn(30_000 + i).to(dtype) for i, dtype in enumerate(DTYPES)}
    torch.save(values, tmp_path / "theirs.pt")
    tool("copy", tmp_path / "theirs.pt", tmp_path / "ours.pt")
    with zipfile.ZipFile(tmp_path / "ours.pt") as archive, open(tmp_path / "ours.pt", "rb") as file:
        assert archive.testzip() is None
        for entry in archive.infolist():
            assert entry.compress_type == zipfile.ZIP_STORED
            file.seek(entry.header_offset + 26)
            name, extra = int.from_bytes(file.read(2), "little"), int.from_bytes(file.read(2), "little")
            assert (entry.header_offset + 30 + name + extra) % 64 == 0
    for options in [{}, {"mmap": True}, {"weights_only": False}, {"map_location": "cpu"}]:
        assert same(torch.load(tmp_path / "ours.pt", **{"weights_only": True} | options), values)


def test_tied_tensors_stay_tied(tmp_path):
    weight = torch.randn(4, 3)
    values = {"embed": weight, "head": weight, "list": [weight]}
    torch.save(values, tmp_path / "theirs.pt")
    tool("copy", tmp_path / "theirs.pt", tmp_path / "ours.pt")
    ours = torch.load(tmp_path / "ours.pt", weights_only=True)
    assert same(ours, values)
    assert ours["embed"] is ours["head"] and ours["embed"] is ours["list"][0]
    check_list(tmp_path / "theirs.pt", {"embed": weight, "head": weight, "list.0": weight})


def test_state_dict_of_a_module(tmp_path):
    """An OrderedDict with an attribute (_metadata), parameters and views of one storage."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    base = torch.randn(10, 6)
    state = module.state_dict()
    values = {
        "state": state,
        "parameter": torch.nn.Parameter(base.t()),
        "views": [base[2:4], base[:, 1], base.t()[1:]],
    }
    torch.save(values, tmp_path / "theirs.pt")
    tensors = {f"state.{name}": tensor for name, tensor in state.items()}
    tensors["parameter"] = base.t()
    tensors |= {f"views.{i}": view for i, view in enumerate(values["views"])}
    check_list(tmp_path / "theirs.pt", tensors)


def test_checkpoint_of_openflamingo(tmp_path):
    path = GOLDENS / "neox_x2-train" / "checkpoint_0.pt"
    theirs = torch.load(path, weights_only=True)
    tensors = {f"model_state_dict.{name}": tensor for name, tensor in theirs["model_state_dict"].items()}
    for number, state in theirs["optimizer_state_dict"]["state"].items():
        tensors |= {f"optimizer_state_dict.state.{number}.{key}": tensor for key, tensor in state.items()}
    assert "model_state_dict.module.perceiver.latents" in tensors
    check_list(path, tensors)
    tool("copy", path, tmp_path / "ours.pt")
    assert same(torch.load(tmp_path / "ours.pt", weights_only=True), theirs)


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln_1 = torch.nn.LayerNorm(width)
        self.attn = torch.nn.MultiheadAttention(width, 2)
        self.mlp = torch.nn.Sequential(
            collections.OrderedDict(c_fc=torch.nn.Linear(width, 4 * width), c_proj=torch.nn.Linear(4 * width, width))
        )

    def forward(self, x):
        y = self.ln_1(x)
        return x + self.mlp(self.attn(y, y, y, need_weights=False)[0])


class Clip(torch.nn.Module):
    """The shape of OpenAI's CLIP: an image tower, a text tower, parameters of its own."""

    def __init__(self, width=8):
        super().__init__()
        self.visual = torch.nn.Module()
        self.conv1 = torch.nn.Conv2d(3, width, 4, 4, bias=False)
        self.class_embedding = torch.nn.Parameter(torch.randn(width))
        self.positional_embedding = torch.nn.Parameter(torch.randn(5, width))
        self.transformer = torch.nn.Sequential(Block(width), Block(width))
        self.token_embedding = torch.nn.Embedding(11, width)
        self.proj = torch.nn.Parameter(torch.randn(width, 6).t())  # not row-major
        self.tied = self.token_embedding.weight
        self.register_buffer("mask", torch.full((5, 5), float("-inf")).triu_(1))
        self.register_buffer("input_resolution", torch.tensor(8))

    def forward(self, image):
        x = self.conv1(image).flatten(2).permute(0, 2, 1)
        x = torch.cat([self.class_embedding.expand(x.shape[0], 1, -1), x], 1) + self.positional_embedding
        return self.transformer(x)[:, 0] @ self.proj.t()


@pytest.mark.parametrize("how", ["script", "trace"])
def test_torchscript(how, tmp_path):
    clip = Clip().half().eval()
    clip.ln_final = torch.nn.LayerNorm(8)  # OpenAI's files hold fp32 and fp16
    if how == "script":
        module = torch.jit.script(clip)
    else:
        module = torch.jit.trace(clip, torch.randn(1, 3, 8, 8).half())
    torch.jit.save(module, tmp_path / "ViT.pt")
    theirs = torch.jit.load(tmp_path / "ViT.pt").state_dict()
    assert {"conv1.weight", "transformer.1.mlp.c_fc.bias", "proj", "mask", "tied"} <= theirs.keys()
    check_list(tmp_path / "ViT.pt", dict(theirs))


def test_old_formats_are_refused(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert "format of torch before 1.6" in refusal(tmp_path / "old.pt")
    assert "torch.save(torch.load(" in refusal(tmp_path / "old.pt")


@pytest.mark.parametrize(
    "tensor, reason",
    [
        (torch.zeros(2, dtype=torch.complex64), "ComplexFloatStorage"),
        (torch.zeros(2, dtype=torch.uint16), "torch.uint16"),
        (torch.eye(2).to_sparse(), "_rebuild_sparse_tensor"),
        (torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "_rebuild_qtensor"),
        (torch.empty(2, device="meta"), "_rebuild_meta_tensor_no_storage"),
        (torch._neg_view(torch.ones(2)), 'a view with "neg"'),
        (torch._neg_view(torch.ones(2).to(torch.float8_e5m2)), 'a view with "neg"'),
    ],
)
def test_tensors_of_other_kinds_do_no_harm(tensor, reason, tmp_path):
    torch.save({"good": torch.ones(3), "other": tensor}, tmp_path / "x.pt")
    check_list(tmp_path / "x.pt", {"good": torch.ones(3)})
    refused = tool("refused", tmp_path / "x.pt")
    assert refused.startswith("other ") and reason in refused and len(refused.splitlines()) == 1


def test_folders_of_transformers(tmp_path):
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, ffn_dim=32, num_attention_heads=2,
        max_position_embeddings=20, word_embed_proj_dim=16, tie_word_embeddings=False,
    )  # fmt: skip
    model = OPTForCausalLM(config)
    state = dict(model.state_dict())
    for safe in (False, True):
        for size in ("1GB", "5KB"):
            folder = tmp_path / f"{safe}{size}"
            model.save_pretrained(folder, safe_serialization=safe, max_shard_size=size)
            assert (len(list(folder.glob("*.index.json"))) == 1) == (size == "5KB")
            check_list(folder, state)
    folder = tmp_path / "False5KB"
    shards = sorted(folder.glob("pytorch_model-*.bin"))
    whole = shards[1].read_bytes()
    shards[1].write_bytes(whole[: len(whole) // 2])
    assert "cut off" in run("safetensors_tool", "list", folder).stderr
    shards[1].unlink()
    assert "there is no such file" in run("safetensors_tool", "list", folder).stderr


def test_distributed_checkpoints(tmp_path):
    """The reader and the writer of pickles serve .metadata, and items are archives inside of a file."""
    import torch.distributed.checkpoint as dcp

    state = {"model": {"w": torch.randn(3, 4), "b": torch.randn(3).bfloat16()}, "epoch": 3, "name": ("x", 1.5)}
    dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    tool("repickle", tmp_path / "dcp" / ".metadata", tmp_path / "metadata")
    theirs = pickle.loads((tmp_path / "dcp" / ".metadata").read_bytes())
    ours = pickle.loads((tmp_path / "metadata").read_bytes())
    assert ours == theirs and len(theirs.storage_data) == 4
    flat = {"model.w": state["model"]["w"], "model.b": state["model"]["b"], "epoch": 3, "name": ("x", 1.5)}
    for index, place in theirs.storage_data.items():
        item = tool("item", tmp_path / "dcp" / place.relative_path, place.offset, place.length)
        assert with_floats(json.loads(item)) == as_json(flat[index.fqn])
    (tmp_path / "dcp" / ".metadata").write_bytes((tmp_path / "metadata").read_bytes())
    into = {"model": {"w": torch.zeros(3, 4), "b": torch.zeros(3).bfloat16()}, "epoch": 0, "name": None}
    dcp.load(into, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert same(into, state)


def test_pickles_of_many_kinds(tmp_path):
    """What floe reads and writes again means the same to Python."""
    shared = [1, 2]
    values = [
        {"set": {1, 2}, "frozen": frozenset({3}), "bytes": bytes(range(256)), "shared": [shared, shared]},
        collections.deque([1, 2, 3], maxlen=5),
        collections.defaultdict(list, a=[1]),
        torch.Size([2, 3]),
        complex(1, 2),
        slice(1, 2, 3),
        Exception("message"),
        2**5000,
        [torch.float32, torch.per_tensor_affine],
        pathlib.PurePosixPath("/a/b"),
        datetime.datetime(2026, 1, 2),
        argparse.Namespace(a=1, b=[2]),
    ]
    for protocol in range(2, 6):
        for value in values:
            (tmp_path / "in").write_bytes(pickle.dumps(value, protocol))
            tool("repickle", tmp_path / "in", tmp_path / "out")
            again = pickle.loads((tmp_path / "out").read_bytes())
            assert type(again) is type(value) and repr(again) == repr(value)
    assert pickle.loads((tmp_path / "out").read_bytes()).b == [2]


@pytest.mark.long
def test_more_than_65535_tensors(tmp_path):
    values = {f"layers.{i}.weight": torch.full((2,), float(i)) for i in range(66_000)}
    torch.save(values, tmp_path / "theirs.pt")
    tool("copy", tmp_path / "theirs.pt", tmp_path / "ours.pt")
    assert same(torch.load(tmp_path / "ours.pt", weights_only=True), values)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_more_than_4_gib(tmp_path):
    """One storage beyond 32 bits and one behind it: zip64 sizes and offsets, both ways."""
    large = torch.zeros(2**32 + 12345, dtype=torch.uint8)
    large[-1], large[2**31], large[2**32] = 7, 8, 9
    values = {"large": large, "behind": torch.arange(5)}
    torch.save(values, tmp_path / "theirs.pt")
    tool("copy", tmp_path / "theirs.pt", tmp_path / "ours.pt")
    (tmp_path / "theirs.pt").unlink()
    ours = torch.load(tmp_path / "ours.pt", weights_only=True, mmap=True)
    assert torch.equal(ours["large"], large) and torch.equal(ours["behind"], values["behind"])
    with zipfile.ZipFile(tmp_path / "ours.pt") as archive:
        assert archive.testzip() is None
