"""The command line of `floe train`: layers, strategies, experiments, what is printed."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from running import FLOE, environment

SOURCE = Path(os.environ["FLOE_SOURCE_DIR"])


def floe(*words, **more):
    return subprocess.run([FLOE, *words], capture_output=True, text=True, timeout=60, env=environment(), **more)


def test_the_reference_page_is_that_of_the_schema():
    done = floe("train", "--reference")
    assert done.returncode == 0
    assert done.stdout == (SOURCE / "docs" / "configuration.md").read_text(), (
        "docs/configuration.md is out of date: floe train --reference > docs/configuration.md"
    )


def test_help_names_every_block_and_default():
    text = floe("train", "--help").stdout
    for key in ("run.resume", "train.optimizer.lr", "strategy.frozen.residency", "checkpoint.every_steps",
                "log.diagnostics.batches", "precision.autocast", "data.laion.shards", "phases[].name"):
        assert key in text
    assert "~key" in text and "Ctrl-C once" in text


def test_the_command_line_of_the_fsdp_guide(train, golden, tmp_path):
    """Lists of experiments, a strategy chosen at launch, an added precision and removed callbacks."""
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "my_experiment.yaml").write_text(yaml.safe_dump({"train": {"steps": 2}, "strategy": {"prefetch": 2}}))
    (folder / "fsdp_args.yaml").write_text(yaml.safe_dump({
        "strategy": {"units": ["DecoderLayer"], "activation_checkpointing": ["DecoderLayer"],
                     "mixed_precision": {"param": "bf16", "reduce": "fp32", "buffer": "fp32"}},
    }))
    config = golden("neox_x2", world2=True)
    del config["log"]["diagnostics"]
    run = train(
        config, "experiment=[my_experiment,fsdp_args]", "strategy=shard_grad_op", "++precision.autocast=bf16",
        "~checkpoint.on_exception", "~log.wandb", ranks=2,
    )
    assert run.values("step") == [1, 2]
    for line in (
        "sharding is shard_grad_op",
        "units are DecoderLayer (strategy.units",
        "parameters are gathered and computed with in bf16 (strategy.mixed_precision.param",
        "forwards run under autocast in bf16",
        "strategy.mixed_precision wins",
    ):
        assert line in run.stderr, run.stderr
    resolved = yaml.safe_load((run.folder / "config.yaml").read_text())
    assert resolved["strategy"]["prefetch"] == 2
    assert resolved["checkpoint"]["on_exception"] is False and resolved["log"]["wandb"] is None
    assert not (run.folder / "wandb").exists()


def test_print_config_says_where_each_value_comes_from(golden, write):
    path = write(golden("neox_x2"))
    done = floe("train", path, "strategy=hybrid", "train.optimizer.lr=1e-3", "~train.clip.norm", "--print-config")
    assert done.returncode == 0, done.stderr
    for pattern in (
        r"sharding: hybrid +# .*strategy/hybrid\.yaml:",
        r"lr: 1e-3 +# command line 'train.optimizer.lr=1e-3'",
        r"norm: null +# command line '~train.clip.norm'",
        r"every_steps: 1000 +# default",
    ):
        assert re.search(pattern, done.stdout), done.stdout
    # What is printed is a configuration, and gives the same one.
    again = write(yaml.safe_load(done.stdout), "again.yaml")
    assert yaml.safe_load(floe("train", again, "--print-config").stdout) == yaml.safe_load(done.stdout)


def test_values_may_come_from_the_environment_and_refer_to_others(golden, write):
    config = golden("neox_x2")
    config["run"] = {"name": "${env:USER_OF_TEST}-${train.steps}"}
    done = subprocess.run(
        [FLOE, "train", write(config), "--print-config"], capture_output=True, text=True,
        env=environment(USER_OF_TEST="ada"),
    )
    assert "name: ada-5" in done.stdout


def test_a_run_leaves_all_its_files(train, golden):
    config = golden("neox_x2", world2=True)
    config["log"] = {"every_steps": 1, "wandb": {"mode": "offline"}}
    run = train(config, ranks=2)
    for name in ("config.yaml", "metrics.jsonl", "diagnostics.json", "logs/rank_0.log", "logs/rank_1.log",
                 "tensorboard", "wandb", "checkpoints/step_5", "checkpoints/last"):
        assert (run.folder / name).exists(), name
    step = run.steps()[-1]
    for name in ("lr", "grad_norm", "loss_laion", "loss_mmc4", "data_time", "step_time", "laion_samples_per_second",
                 "laion_samples_per_second_per_gpu", "mmc4_samples_per_second", "tokens_per_second", "skipped",
                 "bad_samples", "tflops", "memory_peak_bytes"):
        assert name in step, name
    assert step["laion_samples_per_second_per_gpu"] * 2 == step["laion_samples_per_second"]


def test_what_is_logged_goes_into_no_file_of_the_run(golden, write, tmp_path):
    """With closed streams the first files that are opened would have their numbers."""
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    done = subprocess.run([*closed, FLOE, "train", write(golden("neox_x2")), "train.steps=2"], env=environment(), timeout=60)
    assert done.returncode == 0
    said = b"training: 2 of 2 steps"
    assert said in (tmp_path / "runs/run/logs/rank_0.log").read_bytes()
    others = [path for path in (tmp_path / "runs/run").rglob("*") if path.is_file() and path.parent.name != "logs"]
    assert len(others) > 3 and not [path for path in others if said in path.read_bytes()]


def test_the_ready_experiments_are_right(tmp_path):
    for path in sorted((SOURCE / "configs" / "experiment").glob("*.yaml")):
        if path.stem in ("adapters", "last_layers"):  # for floe plan of a model by its sizes
            continue
        layers = ["data.text.files=a.jsonl"] if path.stem in ("causal_lm_7b", "lora") else [
            "data.laion.shards=a.tar", "data.mmc4.shards=b.tar"]
        names = "causal_lm_7b,lora" if path.stem == "lora" else path.stem
        if path.stem in ("recompute", "recompute_less", "alternate", "staged_unfreezing"):
            names = f"openflamingo_3b,{path.stem}"
        done = subprocess.run(
            [FLOE, "train", f"experiment=[{names}]", "train.steps=5", *layers, "--print-config"],
            capture_output=True, text=True, env=environment(FLOE_MODELS=str(tmp_path)), cwd=tmp_path,
        )
        assert done.returncode == 0, f"{path.stem}: {done.stderr}"


def test_doctor_finds_two_ranks_that_can_talk():
    done = floe("doctor")
    assert "two ranks: met over loopback" in done.stdout, done.stdout
    for what in ("versions: floe", "LibTorch", "processors", "devices", "backends: gloo", "network", "open files",
                 "shared memory", "memory of ranks", "launcher", "configurations"):
        assert what in done.stdout
    assert done.returncode == (1 if "\nproblem" in done.stdout else 0)
    broken = subprocess.run(
        [FLOE, "doctor", "--no-ranks"], capture_output=True, text=True, env=environment(RANK="x", WORLD_SIZE="2")
    )
    assert broken.returncode == 1 and "problem  launcher" in broken.stdout


@pytest.mark.parametrize("value, line", [
    ("0", "note     memory of ranks: FLOE_SAME_HOST_MEMORY is 0: on the CPU, those of this host use sockets\n"),
    ("no", "problem  memory of ranks: FLOE_SAME_HOST_MEMORY is 'no', not 0 or 1\n"),
])
def test_doctor_says_how_ranks_of_a_host_reach_each_other(value, line):
    done = subprocess.run([FLOE, "doctor"], capture_output=True, text=True, env=environment(FLOE_SAME_HOST_MEMORY=value))
    assert line in done.stdout, done.stdout
    assert ("two ranks: met over loopback" in done.stdout) == (value == "0"), done.stdout
