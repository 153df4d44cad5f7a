"""A checkpoint holds everything that cannot be read again from the frozen base: what trains, what trained
before, and new parts that began from random numbers."""

import shutil
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

import saved
from running import FLOE, GOLDENS, environment, steps_of

RESAMPLER = 'train.trainable=["perceiver.*"]'
PART_OF_BASE = 'train.trainable=["perceiver.*","*gated_cross_attn*","*.layers.0.*.mlp.*"]'
OF_BASE = "lang_encoder.gpt_neox.layers.0.decoder_layer.mlp.dense_4h_to_h.weight"
OF_BASE_THERE = "gpt_neox.layers.0.mlp.dense_4h_to_h.weight"
GATE = "lang_encoder.gpt_neox.layers.1.gated_cross_attn_layer.attn_gate"


@pytest.fixture
def config(golden):
    config = golden("neox_x2", ranks=3)
    config["train"].update(schedule={"type": "constant", "warmup_steps": 0})
    config["train"]["optimizer"]["lr"] = 0.01
    config["checkpoint"] = {"keep": 1}
    return config


def export(path, out, *options):
    done = subprocess.run([FLOE, "export", path, out, *options], capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    return load_file(out)


def losses(run, first):
    return [(n, s["loss_laion"], s["loss_mmc4"], s["grad_norm"]) for n, s in sorted(steps_of(run.folder).items())
            if n >= first]


def copy_run(run, name):
    shutil.copytree(run.folder, run.folder.with_name(name), symlinks=True)


def is_new(name):
    return name.startswith("perceiver.") or ".gated_cross_attn_layer." in name


@pytest.mark.parametrize("ranks, words", [
    (1, []),
    (2, ["strategy.mixed_precision.param=bf16"]),
    (2, ["strategy.sharding=no_shard", "checkpoint.state_dict_type=trainable"]),
    (3, ["strategy.sharding=hybrid", "strategy.hybrid_shard_size=1", "checkpoint.state_dict_type=full"]),
], ids=["1", "2 bf16", "2 no_shard, OpenFlamingo's file", "3 hybrid, one file"])
def test_what_trained_and_is_frozen_now_stays(train, config, tmp_path, ranks, words):
    first = train(config, *words, "train.steps=3", ranks=ranks, name="parts")
    copy_run(first, "whole")
    whole = train(config, *words, "train.steps=7", RESAMPLER, ranks=ranks, name="whole")
    train(config, *words, "train.steps=5", RESAMPLER, ranks=ranks, name="parts")
    parts = train(config, *words, "train.steps=7", RESAMPLER, ranks=ranks, name="parts")
    assert losses(parts, 4) == losses(whole, 4)

    exported = export(parts.folder, tmp_path / "all.safetensors")
    assert exported.keys() == export(whole.folder, tmp_path / "whole.safetensors").keys()
    trained = export(parts.folder, tmp_path / "trained.safetensors", "--trainable-only")
    gate = trained[GATE]
    init = load_file(GOLDENS / "neox_x2" / "flamingo_init.safetensors")[GATE]
    assert abs(gate - init).item() > 1e-3, "the gate has trained"
    assert {name for name in exported if is_new(name)} <= set(trained)
    assert torch.equal(exported[GATE], gate)
    raw = export(parts.folder, tmp_path / "raw.safetensors", "--raw")
    assert any(name.endswith(GATE) for name in raw)
    # As the beginning of another run, in every form.
    for place in (parts.folder / "checkpoints" / "last", tmp_path / "trained.safetensors"):
        name = f"again_{place.suffix[1:] or 'checkpoint'}"
        again = train(config, f"model.weights={place}", "train.steps=1", RESAMPLER, name=name)
        kept = export(again.folder, tmp_path / f"{name}.safetensors", "--trainable-only")
        assert torch.equal(kept[GATE], gate)


def test_also_on_other_ranks_several_times_and_from_another_run(train, config):
    first = train(config, "train.steps=2", ranks=2, name="a")
    gates = {name: value for name, value in saved.read(first.folder / "checkpoints/step_2").items()
             if ".gated_cross_attn_layer." in name}
    place = first.folder
    for turn, ranks in enumerate((1, 3, 2)):
        run = train(config, f"run.resume={place}", f"train.steps={3 + turn}", RESAMPLER, ranks=ranks, name=f"b{turn}")
        place = run.folder
        found = saved.read(place / f"checkpoints/step_{3 + turn}")
        assert gates.keys() <= found.keys()
        assert all(torch.equal(found[name], value) for name, value in gates.items())


def test_a_fresh_run_that_trains_only_the_resampler(train, config, tmp_path):
    del config["model"]["weights"]
    config["checkpoint"]["keep"] = None
    run = train(config, "train.steps=2", RESAMPLER, ranks=2)
    assert "checkpoints also hold what is frozen but not in the files of model.lm and model.vision" in run.stderr
    directory = run.folder / "checkpoints/step_2"
    found = saved.read(directory)
    everything = export(run.folder, tmp_path / "all.safetensors")
    assert all(name in found for name in everything if is_new(name) and ".old_" not in name
               and not name.startswith("lang_encoder.gated_"))
    assert torch.equal(everything[GATE], found[GATE])
    assert not any(".attention." in name and "gated" not in name for name in found), "the base is named, not held"
    weight = GATE.replace("attn_gate", "attn.to_q.weight")
    # Another seed would draw other numbers.
    again = train(config, "train.steps=3", "run.seed=5", RESAMPLER, ranks=1)
    assert torch.equal(saved.read(again.folder / "checkpoints/step_3")[weight], found[weight])
    config["model"]["weights"] = str(directory)
    used = train(config, "train.steps=1", RESAMPLER, name="used")
    assert torch.equal(saved.read(used.folder / "checkpoints/step_1")[weight], found[weight])


def test_from_full_to_trainable(train, config, tmp_path):
    """A full checkpoint says which of its parameters are in the base: only the others are held later."""
    config["checkpoint"]["keep"] = None
    first = train(config, "train.steps=2", "checkpoint.content=full", name="a")
    copy_run(first, "b")
    full = saved.names_of(first.folder / "checkpoints/step_2")
    run = train(config, "train.steps=3", RESAMPLER, name="a")
    held = saved.names_of(run.folder / "checkpoints/step_3")
    assert GATE in held and held < full and not any(name.startswith("vision_encoder.") for name in held)
    # Its weights are not in the files of another base: then all of them are held.
    lm = tmp_path / "lm"
    shutil.copytree(GOLDENS / "neox_x2/lm", lm)
    others = {name: value * 1.5 for name, value in load_file(lm / "model.safetensors").items()}
    save_file(others, lm / "model.safetensors", metadata={"format": "pt"})
    other = train(config, "train.steps=3", f"model.lm={lm}", RESAMPLER, name="b")
    assert "does not say which of its parameters" in other.stderr
    found = saved.read(other.folder / "checkpoints/step_3")
    assert found.keys() == full
    name = "lang_encoder.gpt_neox.layers.0.decoder_layer.attention.dense.weight"
    assert torch.equal(found[name], saved.read(first.folder / "checkpoints/step_2")[name])


def test_an_older_checkpoint_that_does_not_say_what_it_holds(train, config):
    first = train(config, "train.steps=2", PART_OF_BASE)
    directory = first.folder / "checkpoints/step_2"
    before = saved.names_of(directory)

    def forget(manifest):
        del manifest["kept"], manifest["trained"]

    saved.change_manifest(directory, forget)
    run = train(config, "train.steps=3", RESAMPLER)
    assert "does not say which of its parameters" in run.stderr
    assert saved.names_of(run.folder / "checkpoints/step_3") == before


def test_a_part_of_the_base_that_trained_stays(train, config, tmp_path):
    first = train(config, "train.steps=2", PART_OF_BASE)
    trained = saved.read(first.folder / "checkpoints/step_2")[OF_BASE]
    assert not torch.equal(trained, load_file(GOLDENS / "neox_x2/lm/model.safetensors")[OF_BASE_THERE])
    for step in (3, 4):
        run = train(config, f"train.steps={step}", RESAMPLER, ranks=step - 2)
        assert torch.equal(saved.read(run.folder / f"checkpoints/step_{step}")[OF_BASE], trained)
    assert torch.equal(export(run.folder, tmp_path / "all.safetensors")[OF_BASE], trained)
    assert OF_BASE in export(run.folder, tmp_path / "trained.safetensors", "--trainable-only")


def test_embeddings_of_a_language_model_are_those_of_its_files(train, job, tmp_path):
    """They are no part of what a checkpoint holds, so nothing rounds them: not in an export, and not for a run that goes on
    in another precision."""
    config, model, _ = job(steps=4, trainable=["*norm*"])
    config["checkpoint"] = {"every_steps": 2, "keep": None}
    low = train(config, "strategy.mixed_precision.param=bf16", name="low")
    middle = low.folder / "checkpoints/step_2"
    assert saved.names_of(middle) == {name for name, _ in model.named_parameters() if "norm" in name}
    whole = train(config, f"run.resume={middle}", name="whole")
    for run in (low, whole):
        out = export(run.folder, tmp_path / f"{run.folder.name}.safetensors")
        assert torch.equal(out["model.embed_tokens.weight"], model.get_input_embeddings().weight)


def test_an_emergency_set_says_what_was_written(train, config):
    """Put together by a start that would write something else."""
    first = train(config, "train.steps=2", "train.optimizer.lr=1e30", "train.max_skipped=0",
                  "train.steps=30", "checkpoint.every_steps=1000", expect=1)
    directory = first.folder / "checkpoints/on_exception"
    assert directory.is_dir(), first.stderr
    about = saved.manifest(directory)
    assert about["content"] == "trainable" and GATE in about["kept"] and GATE in about["trained"]
    assert len(about["bases"]) == 2


def test_parts_that_were_frozen_may_train_later(train, config):
    """Weights of the base are read from it, and the optimizer begins anew for them alone."""
    train(config, "train.steps=3", RESAMPLER, "train.ema.decay=0.9")
    run = train(config, "train.steps=5", "train.ema.decay=0.9", PART_OF_BASE)
    assert "the optimizer starts anew for" in run.stderr
    directory = run.folder / "checkpoints/step_5"
    steps = {name: value.item() for name, value in saved.read(directory, "optimizer.state").items()
             if name.endswith(".step")}
    assert steps["perceiver.latents.step"] == 5 and steps[GATE + ".step"] == 2 == steps[OF_BASE + ".step"]
    averages = saved.read(directory, "ema")
    weights = saved.read(directory)
    assert 0 < (averages[GATE] - weights[GATE]).abs().item() < 0.1


def test_eight_bits_cannot_hold_what_was_trained(train, config):
    train(config, "train.steps=2")
    for key, words in (("dtype", ["strategy.frozen.dtype=int8"]),
                       ("compute", ["strategy.frozen.compute=fp8", "strategy.mixed_precision.param=bf16"])):
        run = train(config, "train.steps=3", RESAMPLER, *words, expect=2)
        assert f"is frozen and stored in 8 bits (strategy.frozen.{key})" in run.stderr
        assert f"leave strategy.frozen.{key} out" in run.stderr and "gated_cross_attn_layer" in run.stderr


@pytest.mark.parametrize("patterns", ['["vision_encoder.*.0.*","perceiver.*"]', '["*"]'])
def test_an_image_tower_does_not_train(train, config, patterns):
    """It runs without gradients, so that it would only decay away."""
    refused = train(config, f"train.trainable={patterns}", expect=2)
    assert "but the image tower is never trained" in refused.stderr and "vision_encoder." in refused.stderr


def test_a_model_that_began_from_random_numbers(train, config, tmp_path):
    lm = tmp_path / "lm"
    lm.mkdir()
    shutil.copy(GOLDENS / "neox_x2/lm/config.json", lm)
    config["model"].update(lm=str(lm), random_init=True)
    del config["model"]["weights"]
    whole = train(config, "train.steps=4", name="whole", ranks=2)
    train(config, "train.steps=2", name="parts", ranks=2)
    parts = train(config, "train.steps=4", "run.seed=0", name="parts", ranks=2)
    assert losses(parts, 1) == losses(whole, 1)
    held = saved.names_of(parts.folder / "checkpoints/step_4")
    assert "lang_encoder.gpt_neox.layers.0.decoder_layer.attention.dense.weight" in held
    assert not any(name.startswith("vision_encoder.") for name in held)
    assert [base["path"] for base in saved.manifest(parts.folder / "checkpoints/step_4")["bases"]] == [
        config["model"]["vision"]]
    first = export(parts.folder, tmp_path / "a.safetensors")
    second = export(whole.folder, tmp_path / "b.safetensors")
    assert all(torch.equal(first[name], second[name]) for name in second)


# ---------------------------------------------------------------------------------------- skip_init


def test_nothing_is_trained_beside_weights_that_were_never_read(train, config):
    fresh = train(config, "model.skip_init=true", "train.steps=1", expect=2)
    assert "model.skip_init leaves every parameter without a value" in fresh.stderr
    assert not list((fresh.folder / "checkpoints").glob("step_*"))
    never = train(config, "model.skip_init=true", "run.resume=never", "train.steps=1", expect=2, name="never")
    assert "run.resume is never" in never.stderr
    trained = train(config, "train.steps=1", name="a")
    more = train(config, "model.skip_init=true", "train.steps=2", expect=2, name="a")
    assert "holds only" in more.stderr and "content: full" in more.stderr
    assert trained.folder == more.folder and not (more.folder / "checkpoints/step_2").exists()


def test_a_full_checkpoint_fills_what_was_not_initialised(train, config):
    words = ["checkpoint.content=full"]
    whole = train(config, *words, "train.steps=4", name="whole")
    train(config, *words, "train.steps=2", name="parts")
    parts = train(config, *words, "model.skip_init=true", "train.steps=4", name="parts")
    assert losses(parts, 1) == losses(whole, 1)
