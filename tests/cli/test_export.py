"""`floe export` with torch, transformers, peft and OpenFlamingo's files as references."""

import json
import os
import pathlib
import shutil
import sys
import zlib

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from checkpoints import GOLDENS, copies, load, logits, make_model, save_dcp

CHECKPOINTS = GOLDENS / "checkpoints"


def lines_of(stderr):
    """Without the word about runs that PyTorch wrote for a test: they have no checksums."""
    return [line for line in stderr.splitlines() if "has no floe.json" not in line]


@pytest.fixture
def export(floe):
    def run(*words):
        done = floe("export", *map(str, words))
        assert done.returncode == 0, done.stderr
        assert lines_of(done.stderr) == []
        return done.stdout

    return run


def refused(floe, *words, code=2):
    done = floe("export", *map(str, words))
    assert done.returncode == code and done.stdout == "", (done.returncode, done.stderr)
    assert len(lines_of(done.stderr)) == 1, done.stderr
    return done.stderr


def equal(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]), name


def left_behind(folder):
    return [path.name for path in folder.iterdir() if "tmp" in path.name]


# Any checkpoint, without a model.


def test_raw_is_every_tensor(export, tmp_path):
    out = tmp_path / "all.safetensors"
    export(CHECKPOINTS / "dcp_fsdp2_world2/dcp", out, "--raw")
    equal(load_file(out), load_file(CHECKPOINTS / "dcp_fsdp2_world2/expected_full.safetensors"))


def test_raw_of_a_nested_state(export, tmp_path):
    state = {"a": {"b": [torch.arange(3), {"c": torch.ones(2, 2, dtype=torch.bfloat16)}]}, "n": 3}
    export(save_dcp(state, tmp_path / "ckpt"), tmp_path / "o.safetensors", "--raw")
    equal(load_file(tmp_path / "o.safetensors"), {"a.b.0": torch.arange(3), "a.b.1.c": torch.ones(2, 2).bfloat16()})


def test_lightning_weights(export, tmp_path):
    out = tmp_path / "w.safetensors"
    export(CHECKPOINTS / "lightning_world2/lightning.ckpt", out)
    equal(load_file(out), load_file(CHECKPOINTS / "lightning_world2/expected_full.safetensors"))


def test_prefixes_of_trainers(export, tmp_path):
    x, y = torch.randn(2, 3), torch.randn(4)
    cases = {
        "fsdp": {"model": {"x": x, "model.y": y}, "optimizer": {"m": x}},
        "compiled": {"model": {"_orig_mod.x": x, "_orig_mod.model.y": y}, "optim": {"m": x}},
        "wrapped": {"state_dict": {"_fsdp_wrapped_module.x": x, "model._fsdp_wrapped_module.y": y}, "epoch": 1},
        "ddp": {"model_state_dict": {"module.x": x, "module.model.y": y}},
        "bare": {"x": x, "model.y": y},
    }
    for name, state in cases.items():
        save_dcp(state, tmp_path / name)
        torch.save(state, tmp_path / f"{name}.pt")
        for source in (name, f"{name}.pt"):
            out = tmp_path / f"{source}.safetensors"
            export(tmp_path / source, out)
            equal(load_file(out), {"x": x, "model.y": y})


def test_lightning_module_with_a_network_inside(export, tmp_path):
    x = torch.randn(3)
    state = {"pytorch-lightning_version": "2.6", "state_dict": {"model._orig_mod.x": x, "model.y": x}, "epoch": 0}
    torch.save(state, tmp_path / "last.ckpt")
    export(tmp_path / "last.ckpt", tmp_path / "o.safetensors")
    equal(load_file(tmp_path / "o.safetensors"), {"x": x, "y": x})


def test_more_prefixes_can_be_named(export, floe, tmp_path):
    ckpt = save_dcp({"model": {"net.a": torch.ones(1), "net.b": torch.ones(2)}, "optim": {"x": torch.ones(1)}}, tmp_path / "c")
    export(ckpt, tmp_path / "o.safetensors", "--strip-prefix", "net.")
    assert load_file(tmp_path / "o.safetensors").keys() == {"a", "b"}
    assert "with the name \"\"" in refused(floe, ckpt, tmp_path / "p.safetensors", "--strip-prefix", "net.a", "--strip-prefix", "net.b")


@pytest.mark.parametrize("kind", ["llama", "tied", "opt"])
def test_transformers_loads_a_folder(kind, export, tmp_path):
    model = make_model(kind)
    model.config.save_pretrained(tmp_path / "base")
    ckpt = save_dcp({"model": copies(model), "optimizer": {"m": torch.ones(3)}}, tmp_path / "ckpt")
    said = export(ckpt, tmp_path / "out", "--base", tmp_path / "base", "--max-shard-size", "20KB", "--hub-layout")
    assert len(list((tmp_path / "out").glob("model-*-of-*.safetensors"))) > 2
    assert torch.equal(logits(load(tmp_path / "out")), logits(model))
    assert f"hf upload YOUR_NAME/out {tmp_path / 'out'}" in said
    assert left_behind(tmp_path) == []


def test_dtype(export, tmp_path):
    state = {"w": torch.randn(4, 4), "n": torch.arange(3), "h": torch.randn(2).half()}
    export(save_dcp(state, tmp_path / "c"), tmp_path / "o.safetensors", "--dtype", "bf16")
    expected = {"w": state["w"].bfloat16(), "n": state["n"], "h": state["h"].bfloat16()}
    equal(load_file(tmp_path / "o.safetensors"), expected)


def test_averages(export, floe, tmp_path):
    w, frozen = torch.randn(3), torch.randn(2)
    state = {"model": {"w": w, "frozen": frozen}, "ema": {"w": w + 1}, "optimizer": {"x": w}}
    export(save_dcp(state, tmp_path / "c"), tmp_path / "o.safetensors", "--ema")
    equal(load_file(tmp_path / "o.safetensors"), {"w": w + 1, "frozen": frozen})
    del state["ema"]
    save_dcp(state, tmp_path / "d")
    assert "has no averages" in refused(floe, tmp_path / "d", tmp_path / "p.safetensors", "--ema", code=1)


# A model that is known.


@pytest.fixture
def run_folder(tmp_path):
    """A run as floe leaves it: RUN/config.yaml and RUN/checkpoints/step_N, trained from `lm`."""

    def make(kind, lm, trained, model_lines="", state=None):
        run = tmp_path / f"run_{kind}"
        (run / "checkpoints").mkdir(parents=True)
        (run / "config.yaml").write_text(f"run: {{seed: 3}}\nmodel:\n  type: causal_lm\n  lm: {lm}\n{model_lines}")
        save_dcp({"model": trained, "optimizer": {"m": torch.ones(1)}, **(state or {})}, run / "checkpoints/step_7")
        return run

    return make


@pytest.mark.parametrize("kind", ["llama", "tied", "opt"])
def test_trained_parameters_are_merged_with_the_base(kind, run_folder, export, tmp_path):
    base, tuned = make_model(kind), make_model(kind, seed=1)
    base.save_pretrained(tmp_path / "lm")
    tokenizer = GOLDENS / "data/tokenizers/opt"
    shutil.copytree(tokenizer, tmp_path / "lm", dirs_exist_ok=True)
    names = [name for name in copies(base) if "layers.1." in name]
    run = run_folder(kind, tmp_path / "lm", {name: copies(tuned)[name] for name in names})
    said = export(run, tmp_path / "out", "--hub-layout")
    base.load_state_dict({name: copies(tuned)[name] for name in names}, strict=False)
    assert torch.equal(logits(load(tmp_path / "out")), logits(base))
    out = {path.name for path in (tmp_path / "out").iterdir()}
    own = {"model.safetensors", "config.json", "generation_config.json", "README.md"}
    assert out == own | {path.name for path in tokenizer.iterdir()}
    assert "hf upload" in said
    card = (tmp_path / "out/README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n") and "from_pretrained" in card
    # The same as one file.
    export(run, tmp_path / "one.safetensors")
    equal(load_file(tmp_path / "one.safetensors"), load_file(tmp_path / "out/model.safetensors"))


def write_manifest(folder, **changes):
    """floe.json as a run of floe leaves it: a line of JSON and its checksum."""
    content = dict(
        format=1, step=7, world_size=1, layout="sharded", content="trainable", emergency=False, model="", bases=[],
        metrics={}, shared={}, ranks=[None], ranges=[], file_bytes={},
    )  # fmt: skip
    line = json.dumps({**content, **changes}) + "\n"
    seal = json.dumps({"crc32": f"{zlib.crc32(line.encode()):08x}"}, separators=(",", ":")) + "\n"
    (folder / "floe.json").write_text(line + seal)


def test_the_checkpoint_itself_tells_the_model(export, floe, tmp_path):
    base = make_model("llama")
    base.save_pretrained(tmp_path / "lm")
    weight = torch.randn(32, 48)
    ckpt = save_dcp({"model": {"model.layers.0.mlp.down_proj.weight": weight}}, tmp_path / "moved_away")
    config = {"model": {"type": "causal_lm", "lm": str(tmp_path / "lm")}, "run": {"seed": 1}, "phases": []}
    write_manifest(ckpt, shared={"config": config})
    export(ckpt, tmp_path / "out")
    base.load_state_dict({"model.layers.0.mlp.down_proj.weight": weight}, strict=False)
    assert torch.equal(logits(load(tmp_path / "out")), logits(base))
    write_manifest(ckpt, shared={"config": config}, bases=[{"path": "lm_of_then", "digest": "0123"}])
    message = refused(floe, ckpt, tmp_path / "other", code=1)
    assert "trained on the frozen weights of 'lm_of_then'" in message


def lora_run(run_folder, tmp_path):
    base = make_model("llama")
    base.save_pretrained(tmp_path / "lm")
    torch.manual_seed(4)
    adapters = {}
    for layer in (0, 1):
        path = f"model.layers.{layer}.self_attn.q_proj"
        adapters[f"{path}.lora_A.weight"] = torch.randn(4, 32)
        adapters[f"{path}.lora_B.weight"] = torch.randn(32, 4)
    lines = '  lora: {targets: ["*.q_proj"], rank: 4, alpha: 8}\n'
    return base, adapters, run_folder("lora", tmp_path / "lm", adapters, lines)


def test_adapters_are_merged(run_folder, export, tmp_path):
    base, adapters, run = lora_run(run_folder, tmp_path)
    export(run, tmp_path / "out")
    with torch.no_grad():
        for layer in (0, 1):
            path = f"model.layers.{layer}.self_attn.q_proj"
            product = adapters[f"{path}.lora_B.weight"] @ adapters[f"{path}.lora_A.weight"]
            base.get_parameter(f"{path}.weight").add_(product, alpha=2.0)
    torch.testing.assert_close(logits(load(tmp_path / "out")), logits(base), rtol=1e-5, atol=1e-5)


def test_peft_loads_adapters_apart(run_folder, export, floe, tmp_path):
    import peft

    base, adapters, run = lora_run(run_folder, tmp_path)
    export(run, tmp_path / "merged")
    export(run, tmp_path / "apart", "--no-merge-lora", "--hub-layout")
    apart = peft.PeftModel.from_pretrained(base, tmp_path / "apart").eval()
    torch.testing.assert_close(logits(apart), logits(load(tmp_path / "merged")), rtol=1e-5, atol=1e-5)
    assert "library_name: peft" in (tmp_path / "apart/README.md").read_text()
    assert "is a file" in refused(floe, run, tmp_path / "a.safetensors", "--no-merge-lora")


def test_flamingo_in_openflamingos_names(export, tmp_path):
    golden = GOLDENS / "models/neox_x2"
    checkpoint = GOLDENS / "models/neox_x2-train/checkpoint_0.pt"
    theirs = torch.load(checkpoint, weights_only=True)["model_state_dict"]
    theirs = {name.removeprefix("module."): tensor.contiguous() for name, tensor in theirs.items()}
    model = ["--model", golden / "model.yaml"]
    export(checkpoint, tmp_path / "part.safetensors", "--trainable-only", *model)
    equal(load_file(tmp_path / "part.safetensors"), theirs)
    export(checkpoint, tmp_path / "hub", "--trainable-only", "--hub-layout", *model)
    equal(torch.load(tmp_path / "hub/checkpoint.pt", weights_only=True), theirs)
    assert json.loads((tmp_path / "hub/config.json").read_text())["perceiver"]["num_latents"] == 5

    export(checkpoint, tmp_path / "whole", "--max-shard-size", "100KB", *model)
    index = json.loads((tmp_path / "whole/model.safetensors.index.json").read_text())["weight_map"]
    whole = {}
    for file in set(index.values()):
        whole.update(load_file(tmp_path / "whole" / file))
    assert whole.keys() == index.keys()
    for name, tensor in theirs.items():
        assert torch.equal(whole[name], tensor), name
    lm = load_file(golden / "lm/model.safetensors")
    name = "gpt_neox.layers.0.attention.dense.weight"
    assert torch.equal(whole["lang_encoder." + name.replace("layers.0.", "layers.0.decoder_layer.")], lm[name])


def test_trained_rows_stand_in_the_table(export, tmp_path):
    """floe's own checkpoints have the rows that train apart from the table."""
    golden = GOLDENS / "models/neox_x2"
    start = load_file(golden / "flamingo_init.safetensors")
    table = "lang_encoder.gpt_neox.embed_in.weight"
    rows = torch.randn(2, start[table].shape[1])
    trained = {name: tensor for name, tensor in start.items() if "perceiver" in name or "gated_cross_attn" in name}
    trained["lang_encoder.gpt_neox.embed_in.rows"] = rows
    ckpt = save_dcp({"model": trained, "optimizer": {"m": rows}}, tmp_path / "ckpt")
    export(ckpt, tmp_path / "o.safetensors", "--trainable-only", "--model", golden / "model.yaml")
    out = load_file(tmp_path / "o.safetensors")[table]
    changed = [row for row in range(len(out)) if not torch.equal(out[row], start[table][row])]
    assert changed == [118, 119]
    assert sorted(map(tuple, out[changed].tolist())) == sorted(map(tuple, rows.tolist()))


def test_a_checkpoint_is_weights_of_a_configuration(floe, tmp_path):
    """`model.weights` names the folder of a checkpoint."""
    golden = GOLDENS / "models/neox_x2"
    weights = load_file(golden / "flamingo_init.safetensors")
    save_dcp({"model": weights, "optimizer": {"m": torch.ones(2)}}, tmp_path / "ckpt")
    text = (golden / "model.yaml").read_text().replace("lm: lm", f"lm: {golden / 'lm'}")
    text = text.replace("vision: vision", f"vision: {golden / 'vision'}")
    (tmp_path / "model.yaml").write_text(text.replace("flamingo_init.safetensors", "ckpt"))
    outputs = []
    for model in (golden / "model.yaml", tmp_path / "model.yaml"):
        done = floe("forward", model, golden / "forward.safetensors", tmp_path / "out.safetensors")
        assert done.returncode == 0, done.stderr
        outputs.append(load_file(tmp_path / "out.safetensors"))
    equal(*outputs)


# What cannot be.


def test_existing_output_is_kept(export, floe, tmp_path):
    ckpt = save_dcp({"w": torch.ones(2)}, tmp_path / "c")
    for out in (tmp_path / "folder", tmp_path / "file.safetensors"):
        export(ckpt, out)
        assert "is there already" in refused(floe, ckpt, out)
        export(ckpt, out, "--force")
    (tmp_path / "folder/old").write_text("x")
    export(ckpt, tmp_path / "folder", "--force")
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["model.safetensors"]
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("raw", [["--raw"], []], ids=["raw", "weights"])
@pytest.mark.parametrize("how", [lambda state, path: torch.save(state, path), save_dcp], ids=["file", "directory"])
def test_what_cannot_be_read_is_told(floe, how, raw, tmp_path):
    a, b = tmp_path / "a.pt", tmp_path / "b.pt"
    for path in (a, b):
        how({"w": torch.ones(2), "odd": torch.ones(2, dtype=torch.complex64)}, path)
    done = floe("export", str(a), str(tmp_path / "out.safetensors"), *raw)
    assert done.returncode == 0 and list(load_file(tmp_path / "out.safetensors")) == ["w"]
    assert 'not exported as a whole: 1 tensor cannot be read, such as "odd", which ' in done.stderr
    done = floe("diff", str(a), str(b))
    assert done.returncode == 0 and done.stderr.count('not compared as a whole: 1 tensor cannot be read') == 2


def test_what_is_read_is_never_replaced(floe, tmp_path):
    """--force with a folder or a file that the export needs, or with a whole run."""
    ckpt = save_dcp({"w": torch.ones(2)}, tmp_path / "runs" / "a" / "checkpoints" / "step_1")
    (tmp_path / "runs" / "a" / "metrics.jsonl").write_text("{}\n")
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    base = tmp_path / "base"
    make_model("opt").save_pretrained(base)
    single = tmp_path / "single.pt"
    torch.save({"w": torch.ones(2)}, single)
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for source, out in [(ckpt, ckpt), (ckpt, tmp_path / "runs"), (ckpt, tmp_path / "link"), (single, single)]:
        assert "is read and would be lost" in refused(floe, source, out, "--force")
    for out in (ckpt.parent, ckpt.parent.parent):
        assert "is a run" in refused(floe, ckpt, out, "--force")
        assert "is a run" in refused(floe, single, out, "--force")
    for out in (base, base / "model.safetensors"):
        assert "is read and would be lost" in refused(floe, base, out, "--force")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == kept


def test_usage(floe, tmp_path):
    ckpt = save_dcp({"model": {"w": torch.ones(2)}}, tmp_path / "c")
    out = tmp_path / "o"
    assert "floe export MODEL OUT" in refused(floe, ckpt)
    assert "there is no file or folder" in refused(floe, tmp_path / "none", out)
    assert "exclude each other" in refused(floe, ckpt, out, "--raw", "--ema")
    assert "is for a folder" in refused(floe, ckpt, "o.safetensors", "--max-shard-size", "1GB")
    assert "--dtype is 'int8'" in refused(floe, ckpt, out, "--dtype", "int8")
    assert "name it with --model" in refused(floe, ckpt, out, "--trainable-only")
    assert "--base" in refused(floe, ckpt, out, "--hub-layout")
    assert not out.exists() and left_behind(tmp_path) == []


def test_a_base_of_another_shape_leaves_nothing(floe, run_folder, tmp_path):
    make_model("llama").save_pretrained(tmp_path / "lm")
    run = run_folder("bad", tmp_path / "lm", {"model.layers.0.mlp.up_proj.weight": torch.ones(3, 3)})
    message = refused(floe, run, tmp_path / "out", code=1)
    assert "has no floe.json, so that nothing tells whether its bytes are right" in message
    assert "model.layers.0.mlp.up_proj.weight" in message and "[3, 3]" in message
    assert not (tmp_path / "out").exists() and left_behind(tmp_path) == []


def test_damaged_directories(floe, tmp_path):
    def damage(name):
        folder = tmp_path / name
        shutil.copytree(CHECKPOINTS / "dcp_fsdp2_world2/dcp", folder)
        return folder

    out = tmp_path / "o.safetensors"
    folder = damage("unfinished")
    (folder / ".metadata").unlink()
    assert "unfinished" in refused(floe, folder, out, "--raw", code=1)
    folder = damage("missing")
    (folder / "__0_0.distcp").unlink()
    assert "__0_0.distcp" in refused(floe, folder, out, "--raw", code=1)
    folder = damage("short")
    os.truncate(folder / "__1_0.distcp", 1000)
    assert "cut off" in refused(floe, folder, out, "--raw", code=1)
    folder = damage("garbage")
    data = bytearray((folder / "__1_0.distcp").read_bytes())
    data[-2000:] = b"x" * 2000
    (folder / "__1_0.distcp").write_bytes(data)
    assert "is damaged at" in refused(floe, folder, out, "--raw", code=1)
    assert not out.exists() and left_behind(tmp_path) == []
