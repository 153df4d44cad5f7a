"""Wrong configurations and command lines: each is said in a sentence that names the place and what to
do, with exit code 2, before anything is written."""

import subprocess

import pytest
import yaml

from running import FLOE, environment

BASE = {
    "model": {"type": "flamingo", "lm": "lm", "vision": "vision"},
    "data": {"laion": {"shards": "a.tar"}, "mmc4": {"shards": "b.tar"}},
    "train": {"steps": 10},
}

TWO_PHASES = "phases=[{{name: a, train: [x], {}}}, {{name: b, train: [y], {}}}]"
HELD_OUT = "train.validation={every_steps: 2, shards: {laion: x.tar}}"

TEXT_ALONE = ["~data.laion", "~data.mmc4", "data.text.files=x.jsonl"]

WORDS = [
    # --- keys
    (["trian.steps=5"], "unknown key 'trian'; did you mean 'train'?"),
    (["train.stpes=5"], "unknown key 'train.stpes'; did you mean 'steps'?"),
    (["train.optimizer.learning_rate=1"], "unknown key 'train.optimizer.learning_rate'"),
    (["model.crossattn.heads=2"], "unknown key 'model.crossattn'; did you mean 'cross_attn'?"),
    (["checkpoint.evry_steps=1"], "did you mean 'every_steps'?"),
    (["log.wandb.projekt=x"], "unknown key 'log.wandb.projekt'; did you mean 'project'?"),
    (["~train.stpes"], "unknown key 'train.stpes'; did you mean 'steps'?"),
    (["++precison.autocast=bf16"], "unknown key 'precison'; did you mean 'precision'?"),
    # --- types
    (["train.steps=ten"], "train.steps must be an integer, not 'ten'"),
    (["train.steps=1.5"], "train.steps must be an integer"),
    (["train.packed=maybe"], "train.packed must be true or false, not 'maybe'"),
    (["train.optimizer.lr=fast"], "train.optimizer.lr must be a number, not 'fast'"),
    (["train.optimizer.betas=[0.9]"], "train.optimizer.betas must be a list of 2 numbers, not of 1"),
    (["strategy.units=DecoderLayer"], "strategy.units must be a list of strings"),
    (["train=5"], "train must be a block with the keys"),
    (["run.seed=-1"], "run.seed must be an integer"),
    (["phases={name: a}"], "phases must be a list of blocks"),
    # --- values
    (["train.steps=0"], "train.steps is 0, but must be at least 1"),
    (["train.optimizer.lr=-1"], "must be at least 0"),
    (["train.optimizer.betas=[0.9, 1.0]"], "must be two numbers from 0 up to, but not including, 1"),
    (["train.ema.decay=1"], "train.ema.decay is 1, but must be less than 1"),
    (["train.clip.norm=0"], "train.clip.norm is 0, but must be more than 0"),
    (["train.optimizer.type=lamb"], "train.optimizer.type must be one of adamw, sgd, lion"),
    (["train.schedule.type=cosin"], "did you mean 'cosine'?"),
    (["train.loss_mean=globl"], "did you mean 'global'?"),
    (["strategy.sharding=fulshard"], "did you mean 'full_shard'?"),
    (["strategy.mixed_precision.param=bf17"], "strategy.mixed_precision.param"),
    (["precision.autocast=fp64"], "precision.autocast is fp64, but must be one of bf16, fp16"),
    (["checkpoint.state_dict_type=sharderd"], "did you mean 'sharded'?"),
    (["checkpoint.keep=0"], "checkpoint.keep is 0"),
    (["log.wandb.mode=ofline"], "log.wandb.mode must be one of disabled, offline, online"),
    (["data.threads=0"], "data.threads is 0, but must be at least 1"),
    (["data.rules=strict"], "data.rules must be one of openflamingo, corrected"),
    (["run.name=a/b"], "run.name is a/b, but must be a plain name without '/'"),
    (["dist.backend=gllo"], "did you mean 'gloo'?"),
    (["dist.timeout_s=0"], "dist.timeout_s is 0"),
    # --- contradictions
    (["train.epochs=2"], "train.steps and train.epochs are both set; keep one"),
    (["~train.steps"], "train says neither steps nor epochs"),
    (["~data.laion", "~data.mmc4"], "nor is any other source"),
    (["data.batches=x.safetensors"], "but data.batches is set"),
    (["data.text.files=x.jsonl"], "has plain text, which a flamingo is not trained on"),
    (["model={type: causal_lm, lm: lm}"], "has image-text sources, which a causal_lm cannot read"),
    (["model={type: causal_lm, lm: lm, freeze_lm_embeddings: true}", *TEXT_ALONE],
     "model has freeze_lm_embeddings, which has no effect with type: causal_lm; remove it, or set type: flamingo"),
    (["model={type: auto, lm: lm, perceiver: {depth: 2}}", *TEXT_ALONE], "model has perceiver, which has no effect with type: auto"),
    (["model={type: causal_lm, lm: lm, media_token_id: 5}", *TEXT_ALONE], "model has media_token_id, which has no effect"),
    (["precision.loss_scale=1024"], "has a loss_scale, which only fp16 needs"),
    (["train.optimizer.momentum=0.9"], "has no effect with adamw"),
    (["train.optimizer={type: sgd, betas: [0.8, 0.999]}"], "train.optimizer.betas has no effect with sgd"),
    (["train.optimizer={type: sgd, eps: 1e-6}"], "train.optimizer.eps has no effect with sgd"),
    (["train.optimizer={type: lion, eps: 1e-6}"], "eps has no effect with lion; remove it, or set type: adamw beside it"),
    (["train.validation.every_steps=5"], "is set, but nothing is held out"),
    (["train.validation.shards=x.tar"], "would never be looked at"),
    (["train.validation={every_steps: 5, shards: x.tar}"], "without a source, but the run has 2 sources"),
    (["train.validation={every_steps: 5, shards: {layon: x.tar}}"], "did you mean 'laion'?"),
    (["strategy.frozen.residency=auto"], "which needs a budget"),
    (["strategy.frozen.memory_budget=1GiB"], "memory_budget"),
    (["strategy.frozen.dtype=int4"], "strategy.frozen.dtype must be a dtype such as fp32, bf16 or fp16, not 'int4'"),
    (["strategy.frozen.dtype=int32"], "strategy.frozen.dtype is int32, but must be one of fp32, bf16, fp16, int8, fp8"),
    (["strategy.frozen.dtype=int8", "checkpoint.content=full"], "has content: full, but strategy.frozen.dtype rounds"),
    (["strategy.frozen.compute=int8"], "strategy.frozen.compute is int8, but must be one of fp8"),
    (["strategy.frozen={compute: fp8, dtype: int8}"], "is fp8, but dtype is int8; what is multiplied in 8 bits is stored so"),
    (["strategy.frozen.compute=fp8", "strategy.mixed_precision.param=fp32"], "whose products give bf16, but mixed_precision.param is fp32"),
    (["strategy.frozen.compute=fp8", "checkpoint.content=full"], "has content: full, but strategy.frozen.compute rounds"),
    (["strategy.cuda_graphs=true", "dist.backend=gloo"], "collectives of dist.backend: gloo cannot be recorded"),
    (["strategy={cuda_graphs: true, cpu_offload: true}"], "has cuda_graphs beside cpu_offload"),
    (["strategy={cuda_graphs: true, activation_checkpointing: [DecoderLayer]}", "model.dropout=config"], "turn one of the three off"),
    # --- phases
    (["phases=[{train: [x]}]"], "phases[0].name is missing"),
    (["phases=[{name: a.b, train: [x]}]"], "phases[0].name is a.b, but must consist of letters, digits, '_' and '-'"),
    (["phases=[{name: a, train: [x], lr: 0}]"], "phases[0].lr is 0, but must be more than 0"),
    (["phases=[{name: a, train: [x], weight_decay: -1}]"], "phases[0].weight_decay is -1, but must be at least 0"),
    (["phases=[{name: a, train: [x], steps: 0}]"], "phases[0].steps is 0, but must be at least 1"),
    (["phases=[{name: a, train: [x], until: {patience: 0}}]"], "phases[0].until.patience is 0"),
    (["phases=[{name: a, train: [x], optimizer_state: ofload}]"], "did you mean 'offload'?"),
    (["phases=[{name: a, train: [x], schedule: {type: cosin}}]"], "did you mean 'cosine'?"),
    (["phases=[{name: a, train: [x]}]", "train.trainable=[y]"], "phases and train.trainable both say what trains"),
    ([TWO_PHASES.format("steps: 5", "steps: 5").replace("b,", "a,")], "phases has two entries called 'a'"),
    ([TWO_PHASES.format("lr: 1", "steps: 5")], "phases has no end for 'a', so that no other would have a turn"),
    ([TWO_PHASES.format("steps: 5", "lr: 1"), "train.cycle_phases=true"], "phases has no end for 'b'"),
    ([TWO_PHASES.format("steps: 5", "lr: 1"), "~train.steps"], "and the phases do not all have steps"),
    ([TWO_PHASES.format("steps: 5", "steps: 5"), "~train.steps", "train.cycle_phases=true"], "a cycle without an end"),
    ([TWO_PHASES.format("steps: 5", "steps: 4")], "train has 10 steps, but the phases end after 9"),
    (["train.cycle_phases=true"], "train has cycle_phases, but there are no phases"),
    (["train.cycle_phases=true", "phases=[{name: a, train: [x]}]"], "but there is one phase"),
    ([TWO_PHASES.format("until: {}", "steps: 5")], "lets 'a' train until val_loss stops falling, but there is no validation"),
    ([TWO_PHASES.format("until: {metric: val_los}", "steps: 5"), HELD_OUT], "did you mean 'val_loss' or"),
    ([TWO_PHASES.format("until: {metric: val_loss_text}", "steps: 5"), HELD_OUT], "which validation does not measure"),
    ([TWO_PHASES.format("until: {}, schedule: {type: linear}", "steps: 5"), HELD_OUT], "unknown which one that is"),
    # --- rates and early ends
    (["train.schedule={type: linear, min_lr: 1e-3}"], "train has schedule.min_lr 0.001, more than optimizer.lr, which is 0.0001"),
    (["train.schedule.min_lr=1e-6"], "has no effect with a constant schedule"),
    (["train.schedule={type: cosine, decay_steps: 5}"],
     "train.schedule.decay_steps has no effect with a cosine schedule; remove it, or set type: wsd beside it"),
    (["train.schedule={type: wsd, decay_steps: 0}"], "train.schedule.decay_steps is 0, but must be at least 1"),
    ([TWO_PHASES.format("until: {}, schedule: {type: wsd}", "steps: 5"), HELD_OUT], "unknown which one that is"),
    (["phases=[{name: a, train: [x], lr: 1e-5}]", "train.schedule={type: cosine, min_lr: 5e-5}"],
     "phases lets 'a' end at train.schedule.min_lr 5e-05, more than its lr, which is 1e-05"),
    (["phases=[{name: a, train: [x], steps: 5, schedule: {type: cosine, min_lr: 1}}]"],
     "phases lets 'a' end at its min_lr 1, more than train.optimizer.lr, which is 0.0001"),
    (["train.optimizer.lr_patterns={\"perceiver.*\": -1}"], "must be at least 0"),
    (["train.optimizer.lr_patterns=[1]"], "train.optimizer.lr_patterns must be"),
    (["train.stop={patience: 3}"], "train lets the run go on until val_loss stops falling, but there is no validation"),
    (["train.stop={metric: val_los}", HELD_OUT], "did you mean 'val_loss' or"),
    (["train.stop={metric: val_loss_text}", HELD_OUT], "which validation does not measure"),
    (["train.stop={patience: 0}"], "train.stop.patience is 0"),
    (["checkpoint.every_epochs=1"], "has every_epochs, but train.epochs is not set"),
    (["data.mmc4.min_images=9"], "more than max_images"),
    # --- composition and references
    (["strategy=hybird"], "there is no strategy 'hybird'"),
    (["experiment=[openflamingo_3b, nowhere]"], "there is no experiment 'nowhere'"),
    (["run.name=${run.nmae}"], "refers to run.nmae"),
    (["model.lm=${env:FLOE_NOT_SET_ANYWHERE}"], "FLOE_NOT_SET_ANYWHERE"),
    (["run.dir=${run.dir}"], "refers to itself in a circle"),
    (["train.steps=[1"], "is a ']' or '}' missing?"),
    # --- the command line
    (["--pint-config"], "there is no option '--pint-config'; did you mean '--print-config'?"),
    (["nowhere.yaml"], "nowhere.yaml"),
    # --- what only shows on the machine, or when the model is built
    (["strategy.cuda_graphs=true"], "strategy.cuda_graphs needs a GPU, but this run computes on the device cpu"),
    ([], "model.lm: there is no 'lm', not in the working directory ("),
    (["model.lm=/"], "model.vision: there is no 'vision'"),
]


def run_train(tmp_path, words, config=BASE):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    return subprocess.run(
        [FLOE, "train", "config.yaml", *words], capture_output=True, text=True, timeout=60, cwd=tmp_path,
        env=environment(),
    )


@pytest.mark.parametrize("words, part", WORDS, ids=lambda value: value[0] if isinstance(value, list) and value else None)
def test_wrong_words_are_said_in_a_sentence(tmp_path, words, part):
    done = run_train(tmp_path, words)
    assert done.returncode == 2, done.stderr
    assert part in done.stderr
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) <= 3


def test_a_folder_without_a_tokenizer_is_a_wrong_setting(train, golden, tmp_path):
    """Not a failure, after which a launcher would start the job again."""
    (tmp_path / "empty").mkdir()
    run = train(golden("neox_x2"), f"model.tokenizer={tmp_path / 'empty'}", expect=2)
    assert "model.tokenizer: " in run.stderr and "name the folder or file of a tokenizer" in run.stderr


def says_all_of(tmp_path, text, *parts):
    """One run of this file names every one of its problems."""
    (tmp_path / "wrong.yaml").write_text(text)
    done = subprocess.run(
        [FLOE, "train", "wrong.yaml"], capture_output=True, text=True, cwd=tmp_path, env=environment()
    )
    assert done.returncode == 2
    for part in parts:
        assert part in done.stderr, done.stderr


def test_all_problems_are_reported_at_once_with_file_and_line(tmp_path):
    says_all_of(
        tmp_path,
        "train:\n  steps: -3\n  optimizer: {lr: fast}\nstrategy: {sharding: full}\nmodle: {}\n",
        "wrong.yaml:2:10: train.steps is -3, but must be at least 1",
        "wrong.yaml:3:19: train.optimizer.lr must be a number, not 'fast'",
        "wrong.yaml:4:22: strategy.sharding must be one of",
        "unknown key 'modle'; did you mean 'model'?",
    )
    assert not (tmp_path / "runs").exists()


def test_all_problems_of_phases_are_reported_at_once(tmp_path):
    phases = "phases:\n- {name: a, train: [x]}\n- {name: a, train: [y], steps: 3, until: {}}\n"
    says_all_of(
        tmp_path,
        "model: {type: flamingo, lm: lm, vision: v}\ndata: {laion: {shards: a.tar}}\ntrain: {trainable: [z]}\n" + phases,
        "wrong.yaml:3:1: train says neither steps nor epochs, and the phases do not all have steps",
        "wrong.yaml:4:1: phases has two entries called 'a'",
        "wrong.yaml:4:1: phases and train.trainable both say what trains",
        "wrong.yaml:4:1: phases has no end for 'a'",
        "wrong.yaml:4:1: phases lets 'a' train until val_loss stops falling",
    )


def test_a_broken_yaml_names_the_line(tmp_path):
    (tmp_path / "broken.yaml").write_text("train:\n  steps: [1\nmodel: {}\n")
    done = subprocess.run(
        [FLOE, "train", "broken.yaml"], capture_output=True, text=True, cwd=tmp_path, env=environment()
    )
    assert done.returncode == 2 and "broken.yaml:" in done.stderr
