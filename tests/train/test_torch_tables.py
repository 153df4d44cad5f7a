"""torch.distributed.checkpoint finds the trained rows of an embedding in the table that it knows."""

import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

import saved
from running import FLOE, GOLDENS, environment, steps_of

MODELS = {  # table, head, the ids whose rows train
    "opt_x1": ("lang_encoder.model.decoder.embed_tokens.weight", "lang_encoder.lm_head.weight", [116, 115]),
    "neox_x2": ("lang_encoder.gpt_neox.embed_in.weight", "lang_encoder.embed_out.weight", [119, 118]),
}


def config_of(golden, name):
    config = golden(name, ranks=4)
    config["train"].update(schedule={"type": "constant", "warmup_steps": 0})
    config["train"]["optimizer"]["lr"] = 0.01
    return config


def exported(path, out):
    done = subprocess.run([FLOE, "export", path, out], capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    return load_file(out)


CASES = [
    ("neox_x2", 1, []), ("opt_x1", 1, ["checkpoint.content=full"]),
    ("neox_x2", 2, ["strategy.mixed_precision.param=bf16"]), ("opt_x1", 2, ["strategy.sharding=no_shard"]),
    ("neox_x2", 3, ["checkpoint.content=full", "checkpoint.async=false"]),
    ("opt_x1", 3, ["strategy.mixed_precision.param=bf16"]),
    ("neox_x2", 2, ["strategy.sharding=no_shard", "strategy.mixed_precision.param=bf16"]),
    ("opt_x1", 4, ["strategy.sharding=hybrid", "strategy.hybrid_shard_size=2"]),
    ("opt_x1", 2, ["strategy.frozen.residency=resident", 'train.trainable=["*gated*"]']),
]


@pytest.mark.parametrize("name, ranks, words", CASES)
def test_the_table_has_the_trained_rows(train, golden, tmp_path, name, ranks, words):
    table, head, ids = MODELS[name]
    config = config_of(golden, name)
    run = train(config, *words, "train.steps=2", "checkpoint.keep=null", "checkpoint.every_steps=1", ranks=ranks)
    for step in (1, 2):
        directory = run.folder / f"checkpoints/step_{step}"
        found = saved.read(directory)
        rows = found[table.replace(".weight", ".rows")]
        whole = exported(directory, tmp_path / f"{step}.safetensors")[table]
        assert torch.equal(found[table], whole.to(found[table].dtype))
        assert {tuple(row.tolist()) for row in found[table][ids]} == {
            tuple(row.tolist()) for row in rows.to(found[table].dtype)}
        if name == "opt_x1":
            assert torch.equal(found[head], found[table]), "a tied head has them too"
        init = load_file(GOLDENS / name / "flamingo_init.safetensors")[table]
        others = torch.tensor([row for row in range(len(init)) if row not in ids])
        assert torch.equal(found[table][others], init[others].to(found[table].dtype))
        moved = (found[table][ids].float() - init[ids]).abs().max().item()
        assert (moved < 5e-3) == any("gated" in word for word in words)


@pytest.mark.parametrize("name, ranks, words", [
    ("opt_x1", 2, []), ("neox_x2", 3, ["strategy.mixed_precision.param=bf16"]),
    ("neox_x2", 2, ["strategy.sharding=no_shard"]),
])
def test_so_has_the_average_of_the_table(train, golden, tmp_path, name, ranks, words):
    table, head, ids = MODELS[name]
    rows = table.replace(".weight", ".rows")
    words = [*words, "train.ema.decay=0.5", "train.steps=3"]
    run = train(config_of(golden, name), *words, ranks=ranks)
    weights, averages = (saved.read(run.folder / "checkpoints/step_3", part) for part in ("model", "ema"))
    expected = weights[table].clone()
    for row in ids:  # the row of `rows` that the table has there
        number = next(i for i, found in enumerate(weights[rows]) if torch.equal(found.to(expected.dtype), expected[row]))
        expected[row] = averages[rows][number].to(expected.dtype)
    assert torch.equal(averages[table], expected)
    assert (averages[table] != weights[table]).any(1).nonzero().flatten().tolist() == sorted(ids)
    if name == "opt_x1":
        assert torch.equal(averages[head], expected)
    # One file has the same.
    single = train(config_of(golden, name), *words, "checkpoint.state_dict_type=full", ranks=ranks, name="single")
    file = torch.load(single.folder / "checkpoints/step_3.pt", weights_only=True)
    assert torch.equal(file["ema"][table], expected) and torch.equal(file["state_dict"][table], weights[table])


def test_a_run_goes_on_from_it_exactly(train, golden):
    config = config_of(golden, "opt_x1")
    whole = train(config, "train.steps=4", name="whole", ranks=2)
    train(config, "train.steps=2", name="parts", ranks=2)
    train(config, "train.steps=4", name="parts", ranks=2)
    keys = ("loss_laion", "loss_mmc4", "grad_norm")
    numbers = {name: [[steps_of(whole.folder.with_name(name))[step][key] for key in keys] for step in (1, 2, 3, 4)]
               for name in ("whole", "parts")}
    assert numbers["parts"] == numbers["whole"]


def test_an_emergency_set_has_them_too(train, golden, tmp_path):
    config = config_of(golden, "neox_x2")
    tensors = load_file(GOLDENS / "neox_x2-train" / "batches.safetensors")
    for rank in (0, 1):
        if rank == 1:
            tensors["step2.laion.labels"] = tensors["step2.laion.labels"][:, :-1].contiguous()
        save_file(tensors, tmp_path / f"part{rank}.safetensors")
    config["data"]["batches"] = str(tmp_path / "part{rank}.safetensors")
    run = train(config, "strategy.sharding=no_shard", ranks=2, expect=1)
    directory = run.folder / "checkpoints/on_exception"
    table, _, ids = MODELS["neox_x2"]
    found = saved.read(directory)
    assert torch.equal(found[table], exported(directory, tmp_path / "all.safetensors")[table])
    assert (found[table] - load_file(GOLDENS / "neox_x2" / "flamingo_init.safetensors")[table])[ids].abs().max() > 5e-3
