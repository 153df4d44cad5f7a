"""What was trained is used by every command in every form: a run, a checkpoint, an exported folder, a YAML.
All forms of one model give the same numbers, and what cannot be used is one sentence."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import torch
import transformers as tf
import yaml
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "train"))
from checkpoints import GOLDENS, load, logits, make_model, save_dcp
from running import golden_config

FLOE = pathlib.Path(os.environ["FLOE_BIN_DIR"]) / "floe"
GOLDEN = GOLDENS / "models/neox_x2"


def run_floe(*words, cwd=None):
    ours = ("FLOE_L", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return subprocess.run(
        [FLOE, *map(str, words)], capture_output=True, text=True, timeout=120, cwd=cwd,
        env=dict(clean, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES=""),
    )  # fmt: skip


def good(*words, **more):
    done = run_floe(*words, **more)
    assert done.returncode == 0, (words, done.stderr)
    return done


def refused(*words, code=2, **more):
    """One sentence, and nothing on stdout."""
    done = run_floe(*words, **more)
    assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
    assert len(done.stderr.splitlines()) == 1 and "unexpected" not in done.stderr, done.stderr
    assert done.stdout == "" and len(done.stderr) < 1000
    return done.stderr


class World:
    """Two small runs, and what was exported of the first."""

    def __init__(self, root):
        self.root = root
        config = golden_config("neox_x2")
        config["train"]["optimizer"]["lr"] = 0.05
        config["checkpoint"] = {"every_steps": 2, "keep": 5}
        config["train"]["steps"] = 4
        config["run"] = {"dir": str(root / "runs"), "name": "a", "seed": 5}
        self.yaml = root / "train.yaml"
        self.yaml.write_text(yaml.safe_dump(config))
        good("train", self.yaml)
        good("train", self.yaml, "run.name=b", "train.optimizer.lr=0.02")
        self.run, self.other = root / "runs/a", root / "runs/b"
        self.newest = self.run / "checkpoints/step_4"
        good("export", self.run, root / "whole")
        good("export", self.run, root / "split", "--max-shard-size", "100KB")
        good("export", self.run, root / "one.safetensors")
        good("export", self.run, root / "part.pt", "--trainable-only")
        good("export", self.run, root / "hub", "--trainable-only", "--hub-layout")
        bare = dict(config["model"])
        bare.pop("weights")
        self.bare = root / "model.yaml"
        self.bare.write_text(yaml.safe_dump(bare))

    def moved(self, tmp_path):
        """A copy of the run whose language model has gone elsewhere."""
        old, new, run = tmp_path / "old_lm", tmp_path / "new_lm", tmp_path / "moved"
        shutil.copytree(GOLDEN / "lm", old)
        good("train", self.yaml, f"model.lm={old}", f"run.dir={tmp_path}", "run.name=moved", "train.steps=2")
        old.rename(new)
        return run, old, new

    def forms(self):
        base = [f"model.lm={GOLDEN / 'lm'}", f"model.vision={GOLDEN / 'vision'}"]
        return {
            "run": [self.run],
            "run with a slash": [f"{self.run}/"],
            "checkpoints": [self.run / "checkpoints"],
            "config.yaml of the run": [self.run / "config.yaml"],
            "last": [self.run / "checkpoints/last"],
            "step_4": [self.newest],
            "exported": [self.root / "whole"],
            "exported in shards": [self.root / "split"],
            "trained part, exported": [self.root / "hub", *base],
            "block with a run": [self.bare, f"weights={self.run}"],
            "block with a checkpoint": [self.bare, f"model.weights={self.newest}"],
            "block with an exported folder": [self.bare, f"++weights={self.root / 'whole'}"],
            "block with an exported file": [self.bare, f"weights={self.root / 'one.safetensors'}"],
            "block with a trained part": [self.bare, f"weights={self.root / 'part.pt'}"],
            "training YAML with a run": [self.yaml, f"model.weights={self.run}"],
        }


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("world"))


FORMS = [
    "run", "run with a slash", "checkpoints", "config.yaml of the run", "last", "step_4", "exported",
    "exported in shards", "trained part, exported", "block with a run", "block with a checkpoint",
    "block with an exported folder", "block with an exported file", "block with a trained part",
    "training YAML with a run",
]  # fmt: skip
PROMPTS = ["--ids", "119,96,25,3", "--ids", "119,111,116,37,118,119,94,12"]
GENERATE = [*PROMPTS, "--images", GOLDEN / "generate_images.safetensors", "--num-beams", "2", "--json"]


def forward(out, *words):
    model, *changes = words
    done = good("forward", model, GOLDEN / "forward.safetensors", out, *changes)
    return load_file(out), done.stderr


@pytest.fixture(scope="module")
def expected(world, tmp_path_factory):
    """The trained model's numbers, by the file that OpenFlamingo would load."""
    model = [GOLDEN / "model.yaml", f"weights={world.root / 'part.pt'}"]
    out = tmp_path_factory.mktemp("expected") / "out.safetensors"
    untrained, _ = forward(out, GOLDEN / "model.yaml")
    trained, _ = forward(out, *model)
    assert (trained["logits"] - untrained["logits"]).abs().max() > 0.1
    return json.loads(good("generate", *model, *GENERATE).stdout), trained


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_are_one_model(form, world, expected, tmp_path):
    words = world.forms()[form]
    done = good("generate", *words, *GENERATE)
    assert json.loads(done.stdout) == expected[0]
    outputs, said = forward(tmp_path / "out.safetensors", *words)
    assert torch.equal(outputs["logits"], expected[1]["logits"])
    named = "step_4" in done.stderr and "step_4" in said
    assert named == (form in FORMS[:4] or form.endswith("with a run")), (done.stderr, said)


@pytest.mark.parametrize("form", FORMS)
def test_export_of_all_forms(form, world, tmp_path):
    out = tmp_path / "out.safetensors"
    model, *changes = world.forms()[form]
    good("export", model, out, *changes)
    theirs, ours = load_file(world.root / "one.safetensors"), load_file(out)
    assert theirs.keys() == ours.keys()
    for name, tensor in theirs.items():
        assert torch.equal(tensor, ours[name]), name


@pytest.mark.parametrize("form", FORMS)
def test_diff_of_all_forms(form, world):
    model, *changes = world.forms()[form]
    same = json.loads(good("diff", model, world.root / "whole", "--json", *changes).stdout)
    assert same["equal"] and same["num_equal"] > 100
    if changes:
        return
    done = run_floe("diff", world.other, model, "--json")
    found = json.loads(done.stdout)["differences"]
    assert done.returncode == 1 and {row["kind"] for row in found} == {"values"}, found[:3]
    assert "runs/b/checkpoints/step_4" in done.stderr


def test_diff_of_runs_is_of_their_weights(world):
    assert json.loads(good("diff", world.run, world.run, "--json").stdout)["equal"]
    names = {row["name"] for row in json.loads(run_floe("diff", world.run, world.other, "--json").stdout)["differences"]}
    assert names and all(name.startswith(("perceiver.", "lang_encoder.")) for name in names)
    # Checkpoints are compared with all they have.
    everything = run_floe("diff", world.newest, world.other / "checkpoints/step_4", "--json")
    assert any("optim" in row["name"] for row in json.loads(everything.stdout)["differences"])


@pytest.mark.parametrize("form", FORMS)
def test_plan_and_inspect_of_all_forms(form, world):
    model, *changes = world.forms()[form]
    plan = json.loads(good("plan", model, "world=4", "--json", *changes).stdout)
    assert plan["model"]["type"] == "flamingo" and plan["world_size"] == 4
    reference = json.loads(good("plan", world.yaml, "world=4", "--json").stdout)
    assert plan["model"] == reference["model"]
    if form in ("run", "config.yaml of the run", "step_4"):
        assert plan == reference
    if not changes:
        found = json.loads(good("inspect", model, "--json").stdout)
        assert any(name.endswith("perceiver.latents") for name in found["tensors"])


def test_inspect_of_a_yaml(world):
    facts = json.loads(good("inspect", world.bare, "--json").stdout)
    assert facts["model"] == "flamingo" and facts["family"] == "gpt_neox" and facts["trains"] > 0
    assert any("gated_cross_attn" in name for name in facts["in_no_file"])
    trained = json.loads(good("inspect", world.bare, f"weights={world.run}", "--json").stdout)
    assert trained["weights"].endswith("step_4") and "in_no_file" not in trained
    assert "family            gpt_neox" in good("inspect", world.bare).stdout


def test_untrained_weights_are_told(world):
    said = good("generate", world.bare, *GENERATE).stderr
    assert "random" in said and "gated_cross_attn" in said and "model.weights" in said


def test_a_file_in_openflamingos_layout_is_a_checkpoint(world, expected, tmp_path):
    words = [f"run.dir={tmp_path}", "run.name=files", "checkpoint.state_dict_type=trainable"]
    good("train", world.yaml, *words)
    run = tmp_path / "files"
    for model in (run, run / "checkpoints/checkpoint_4.pt"):
        assert json.loads(good("generate", model, *GENERATE).stdout) == expected[0]


# The newest that is whole.


@pytest.fixture
def damaged(world, tmp_path):
    run = tmp_path / "damaged"
    shutil.copytree(world.run, run, symlinks=True)
    file = next((run / "checkpoints/step_4").glob("*.distcp"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    return run


def test_damage_is_passed_over_and_told(world, damaged, tmp_path):
    older = json.loads(good("generate", world.run / "checkpoints/step_2", *GENERATE).stdout)
    done = good("generate", damaged, *GENERATE)
    assert json.loads(done.stdout) == older
    assert "step_4' is not used" in done.stderr and "checksum" in done.stderr
    assert "using the newest checkpoint" in done.stderr and "step_2'" in done.stderr
    done = good("export", damaged, tmp_path / "out")
    assert "step_2 ->" in done.stdout and "step_4' is not used" in done.stderr
    good("diff", tmp_path / "out", damaged)
    assert "step_2" in good("inspect", damaged, "--verify").stdout
    # An unfinished one is seen without reading every byte.
    (damaged / "checkpoints/step_4/.metadata").unlink()
    text = good("inspect", damaged).stdout
    assert "not used" in text and "step_2:" in text
    for command in ("generate", "forward", "export", "diff"):
        words = {"generate": GENERATE, "forward": ["in", "out"], "export": ["out"], "diff": [world.run]}[command]
        message = refused(command, damaged / "checkpoints/step_4", *words)
        assert "step_4" in message


def test_a_checkpoint_that_is_damaged_itself(damaged):
    message = refused("generate", damaged / "checkpoints/step_4", *GENERATE)
    assert "checksum" in message


# Wrong input.


def wrong(world, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "nothing.txt").write_text("hello")
    shutil.copytree(world.run, tmp_path / "unsaved", ignore=shutil.ignore_patterns("checkpoints"))
    (tmp_path / "misspelt.yaml").write_text(world.bare.read_text().replace("perceiver:", "percever:"))
    (tmp_path / "no_model.yaml").write_text("train: {steps: 3}\n")
    (tmp_path / "both.yaml").write_text(f"type: flamingo\nmodel: {{lm: {GOLDEN / 'lm'}, vision: {GOLDEN / 'vision'}}}\n")
    (tmp_path / "list.yaml").write_text("[1, 2]\n")
    (tmp_path / "broken.yaml").write_text("model: {lm: [\n")
    return {
        "no such path": (tmp_path / "nowhere", ["there is no file or folder", "nowhere"]),
        "an empty folder": (tmp_path / "empty", ["is nothing that floe knows"]),
        "a text": (tmp_path / "nothing.txt", ["is nothing that floe knows"]),
        "a run without checkpoints": (tmp_path / "unsaved", ["has no checkpoint", "unsaved"]),
        "its config.yaml": (tmp_path / "unsaved/config.yaml", ["has no checkpoint", "unsaved"]),
        "a misspelt key": (tmp_path / "misspelt.yaml", ["percever", "did you mean 'perceiver'"]),
        "training without a model": (tmp_path / "no_model.yaml", ["model.lm is missing"]),
        "a block and its keys": (tmp_path / "both.yaml", ["unknown key 'type'"]),
        "a list": (tmp_path / "list.yaml", ["list.yaml"]),
        "broken YAML": (tmp_path / "broken.yaml", ["broken.yaml"]),
        "a shard": (GOLDENS / "data", ["data"]),
    }


@pytest.mark.parametrize("command", ["generate", "forward", "export", "diff", "plan", "inspect"])
def test_wrong_input(command, world, tmp_path):
    rest = {"generate": GENERATE, "forward": ["in", tmp_path / "o"], "export": [tmp_path / "o"], "diff": [world.run]}
    for case, (path, parts) in wrong(world, tmp_path).items():
        if command in ("plan", "inspect") and "unsaved" in str(path):
            continue  # a configuration is enough
        if command == "inspect" and case in ("no such path", "a shard"):
            continue  # may be a pattern of shards
        if command == "plan" and case == "no such path":
            parts = ["nowhere"]
        message = refused(command, path, *rest.get(command, []))
        for part in parts:
            assert part in message, (case, message)
    assert not (tmp_path / "o").exists()


def test_a_run_without_a_checkpoint_can_be_planned(world, tmp_path):
    wrong(world, tmp_path)
    for path in (tmp_path / "unsaved", tmp_path / "unsaved/config.yaml"):
        assert "Each rank holds" in good("plan", path, "world=2").stdout
        good("inspect", path)


def test_changes_that_have_no_effect_are_refused(world, tmp_path):
    assert "train.steps=3" in refused("generate", world.run, "train.steps=3", *GENERATE)
    assert "did you mean" in refused("generate", world.run, "model.vison=x", *GENERATE)
    assert "unknown key 'modle'" in refused("generate", world.run, "modle.lm=x", *GENERATE)
    assert "no effect" in refused("diff", world.run, world.other, "model.lm=x")
    assert "no effect" in refused("inspect", world.run, "model.lm=x")
    assert "no effect" in refused("export", world.run, tmp_path / "o.safetensors", "--raw", "model.lm=x")
    assert "--ema" in refused("export", world.root / "whole", tmp_path / "o", "--ema")
    assert "--model" in refused("export", world.bare, tmp_path / "o", "--model", world.bare)


def test_a_device_that_is_not_there(world):
    assert "there is no GPU" in refused("generate", world.run, *GENERATE, "--device", "cuda")


def test_weights_that_do_not_say_of_which_model_they_are(world, tmp_path):
    message = refused("generate", world.root / "part.pt", *GENERATE)
    assert "does not say of which model" in message and "model.weights=" in message
    assert "does not say of which model" in refused("plan", world.root / "one.safetensors")
    message = refused("generate", world.root / "hub", *GENERATE)
    assert "is the trained part of a Flamingo" in message and "model.lm=PATH and model.vision=PATH" in message


def test_a_base_that_has_moved(world, tmp_path):
    run, old, new = world.moved(tmp_path)
    for model in (run, run / "checkpoints/step_2"):
        message = refused("generate", model, *GENERATE)
        assert f"model.lm: there is no file or folder '{old}'" in message and "model.lm=PATH" in message
        good("generate", model, f"model.lm={new}", *GENERATE)
    assert "model.lm=PATH" in refused("export", run, tmp_path / "out")
    good("export", run, tmp_path / "out", f"model.lm={new}")
    assert str(old) in refused("plan", run)
    good("plan", run, f"model.lm={new}")
    # Another language model in its place is seen.
    shutil.copytree(new, old)
    weights = load_file(old / "model.safetensors")
    weights["gpt_neox.final_layer_norm.bias"] += 1
    save_file(weights, old / "model.safetensors", metadata={"format": "pt"})
    message = refused("generate", run, *GENERATE, code=1)
    assert "was trained on the frozen weights" in message and "model.lm=PATH" in message


def test_names_of_folders_may_look_like_changes(world, expected, tmp_path):
    run = tmp_path / "lr=0.05"
    shutil.copytree(world.run, run, symlinks=True)
    assert json.loads(good("generate", run.name, *GENERATE, cwd=tmp_path).stdout) == expected[0]


# Training from another run.


def test_training_begins_from_another_run(world, tmp_path):
    """`model.weights: RUN` is its newest checkpoint: the first loss is that of its exported weights."""
    losses = []
    for number, weights in enumerate([world.run, world.newest, world.root / "whole", world.root / "hub", world.root / "part.pt"]):
        words = [f"model.weights={weights}", "train.steps=1", f"run.dir={tmp_path}", f"run.name=n{number}"]
        done = good("train", world.yaml, *words)
        step = json.loads((tmp_path / f"n{number}/metrics.jsonl").read_text().splitlines()[0])
        losses.append((step["loss_laion"], step["loss_mmc4"]))
        if number == 0:
            assert "model.weights: the newest checkpoint of" in done.stderr
            assert yaml.safe_load((tmp_path / "n0/config.yaml").read_text())["model"]["weights"] == str(world.newest)
    assert len(set(losses)) == 1
    begin = json.loads((world.run / "metrics.jsonl").read_text().splitlines()[0])
    assert abs(losses[0][0] - begin["loss_laion"]) > 0.01


def test_inputs_that_are_not_there_are_bad_usage(tmp_path):
    done = run_floe("forward", GOLDEN / "model.yaml", tmp_path / "none.safetensors", tmp_path / "out.safetensors")
    assert done.returncode == 2 and "none.safetensors" in done.stderr, done.stderr


def test_damaged_weights_are_not_trained_on(world, damaged, tmp_path):
    where = [f"run.dir={tmp_path}", "run.name=x", "train.steps=1"]
    done = run_floe("train", world.yaml, f"model.weights={damaged}", *where)
    assert done.returncode == 1 and "model.weights" in done.stderr and "checksum" in done.stderr
    (damaged / "checkpoints/step_4/.metadata").unlink()
    done = good("train", world.yaml, f"model.weights={damaged}", *where)
    assert "step_4' is not used" in done.stderr and "is '" in done.stderr
    shutil.rmtree(damaged / "checkpoints")
    (damaged / "checkpoints").mkdir()
    assert "has no checkpoint" in refused("train", world.yaml, f"model.weights={damaged}", *where)


def test_training_goes_on_from_an_exported_folder(world, tmp_path):
    """The folder stands for language model, image tower and trained part at once."""
    whole = world.root / "whole"
    words = [f"model.lm={whole}", f"model.vision={whole}", f"model.weights={whole}"]
    good("train", world.yaml, *words, "train.steps=1", f"run.dir={tmp_path}", "run.name=a")
    good("train", world.yaml, f"model.weights={whole}", "train.steps=1", f"run.dir={tmp_path}", "run.name=b")
    first = [json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[0]) for name in "ab"]
    assert first[0]["loss_mmc4"] == first[1]["loss_mmc4"]


# What exported folders say.

SIZES = dict(vocab_size=121, hidden_size=48)
LAYERS = dict(num_hidden_layers=2, num_attention_heads=4)
LMS = {
    "opt": lambda: tf.OPTConfig(**SIZES, **LAYERS, ffn_dim=64, max_position_embeddings=64, word_embed_proj_dim=48, dropout=0.0),
    "gpt_neox": lambda: tf.GPTNeoXConfig(**SIZES, **LAYERS, intermediate_size=64, max_position_embeddings=64),
    "llama": lambda: tf.LlamaConfig(**SIZES, **LAYERS, intermediate_size=64, max_position_embeddings=64),
    "mpt": lambda: tf.MptConfig(vocab_size=121, d_model=48, n_heads=4, n_layers=2, max_seq_len=64),
}


@pytest.mark.parametrize("family", LMS)
def test_the_configuration_agrees_with_the_table(family, tmp_path):
    """A tokenizer makes the table longer; what is written says so, and transformers builds it from that."""
    torch.manual_seed(1)
    tf.AutoModelForCausalLM.from_config(LMS[family]()).save_pretrained(tmp_path / "lm")
    tokenizer = GOLDENS / "data/tokenizers/neox"
    model = yaml.safe_load((GOLDEN / "model.yaml").read_text())
    for key in ("weights", "media_token_id", "endofchunk_token_id"):
        model.pop(key)
    model.update(lm=str(tmp_path / "lm"), vision=str(GOLDEN / "vision"), tokenizer=str(tokenizer))
    (tmp_path / "model.yaml").write_text(yaml.safe_dump(model))
    good("export", tmp_path / "model.yaml", tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    inner = tf.AutoConfig.for_model(config["lang_encoder"].pop("model_type"), **config["lang_encoder"])
    lm = tf.AutoModelForCausalLM.from_config(inner).eval()
    state = {}
    for name, tensor in load_file(tmp_path / "out/model.safetensors").items():
        if name.startswith("lang_encoder.") and "gated_cross_attn" not in name:
            state[name.removeprefix("lang_encoder.").replace(".decoder_layer", "")] = tensor
    table = lm.get_input_embeddings().weight
    assert len(table) == inner.vocab_size > 121
    missing, surplus = lm.load_state_dict(state, strict=False)
    assert surplus == [] and all("lm_head" in name or "embed_out" in name for name in missing), (missing, surplus)
    lm.tie_weights()
    # The folder's language model alone, loaded by transformers and computed by floe.
    good("export", tmp_path / "out", tmp_path / "lm_only", "model.type=causal_lm", "~model.vision", "~model.weights")
    alone = tf.AutoModelForCausalLM.from_pretrained(tmp_path / "lm_only").eval()
    ids = torch.arange(1, 13).view(1, 12)
    with torch.no_grad():
        assert torch.equal(alone(ids).logits, lm(ids).logits)
    save_file({"lang_x": ids}, tmp_path / "in.safetensors")
    good("forward", tmp_path / "lm_only", tmp_path / "in.safetensors", tmp_path / "o.safetensors")
    ours = load_file(tmp_path / "o.safetensors")["logits"]
    torch.testing.assert_close(ours, alone(ids).logits.detach(), rtol=1e-4, atol=1e-4)
    # Text goes through the tokenizer that lies in the folder.
    assert good("generate", tmp_path / "out", "--prompt", "A photo of", "--max-new-tokens", "2").returncode == 0


def test_exported_language_models_and_adapters_are_used(tmp_path):
    base = make_model("llama")
    base.save_pretrained(tmp_path / "lm")
    path = "model.layers.0.self_attn.q_proj"
    adapters = {f"{path}.lora_A.weight": torch.randn(4, 32), f"{path}.lora_B.weight": torch.randn(32, 4)}
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    lora = f'{{targets: ["{path}"], rank: 4, alpha: 8}}'
    (run / "config.yaml").write_text(f"model: {{type: causal_lm, lm: {tmp_path / 'lm'}, lora: {lora}}}\n")
    save_dcp({"model": adapters, "optimizer": {"m": torch.ones(1)}}, run / "checkpoints/step_7")
    good("export", run, tmp_path / "merged")
    good("export", run, tmp_path / "apart", "--no-merge-lora")
    found = [
        json.loads(good("generate", model, "--ids", "5,6,7", "--json", "--num-beams", "2").stdout)
        for model in (run, run / "checkpoints/step_7", tmp_path / "merged", tmp_path / "apart")
    ]
    assert len({str(one["ids"]) for one in found}) == 1
    for one in found:
        assert one["scores"][0] == pytest.approx(found[0]["scores"][0], abs=1e-5)
    plain = json.loads(good("generate", tmp_path / "lm", "--ids", "5,6,7", "--json", "--num-beams", "2").stdout)
    assert plain["scores"] != found[0]["scores"]
    assert not torch.equal(logits(load(tmp_path / "merged")), logits(base))


# Messages.


def test_adapters_without_targets(world):
    message = refused("train", world.yaml, "model.lora={}")
    assert "model.lora.targets is missing" in message and "trainable" not in message


def test_weights_that_do_not_fit_are_one_short_sentence(world):
    message = refused("generate", world.run, "model.cross_attn_every_n_layers=1", *GENERATE, code=1)
    assert "set model.cross_attn_every_n_layers to 2 instead of 1" in message
    assert "layers.{0,2}.gated_cross_attn_layer" in message and "22 are missing" in message
    message = refused("generate", world.run, "model.perceiver.depth=4", *GENERATE, code=1)
    assert "set model.perceiver.depth to 2 instead of 4" in message
    assert "perceiver.layers.{2,3}." in message
