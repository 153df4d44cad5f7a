"""`strategy: auto`: the strategy is chosen when a run starts, kept when it starts again, and is what the YAML of the choice
would have been."""

import os
import re
import signal
import subprocess

import pytest
import yaml
from running import FLOE, command, environment, steps_of, wait_for_steps
from small_data import pairs_config, write_shards

DECIDED = ("sharding", "hybrid_shard_size", "activation_checkpointing", "activations", "cuda_graphs", "cpu_offload")
FROZEN = ("residency", "sharding", "memory_budget")


@pytest.fixture
def pairs(tmp_path):
    shards = write_shards(tmp_path / "data", 4, 16)
    config = pairs_config(tmp_path / "data" / shards, steps=4)
    config["checkpoint"] = {"every_steps": 1, "async": False}
    return config


def strategy_of(run):
    return yaml.safe_load((run.folder / "config.yaml").read_text())["strategy"]


def explicit(strategy):
    """The keys that the choice decides, as a user would write them."""
    chosen = {key: strategy[key] for key in DECIDED}
    chosen["frozen"] = {key: strategy["frozen"][key] for key in FROZEN}
    return {**chosen, "mixed_precision": strategy["mixed_precision"]}


def losses(run):
    return [step["loss_laion"] for step in steps_of(run.folder).values()]


def test_the_choice_is_written_down_and_trains_as_its_yaml_does(train, pairs):
    run = train(pairs, "strategy=auto", ranks=2)
    said = re.findall(r"strategy\.auto takes (.*?): (.*)", run.stderr)
    assert len(said) == 1, run.stderr
    words, reason = said[0]
    for part in ("ms an update", "needs ", "planned for 2 ranks on cpu", "batch 2x32x1", "candidates"):
        assert part in reason
    strategy = strategy_of(run)
    assert strategy["auto"]["chosen_for"].startswith("2 ranks on cpu, ")
    assert words.startswith(strategy["sharding"])
    text = (run.folder / "config.yaml").read_text()
    assert re.search(r"sharding: \w+ +# strategy\.auto", text)

    same = train({**pairs, "strategy": explicit(strategy)}, ranks=2, name="explicit")
    assert strategy_of(same)["auto"] is None
    assert losses(run) == losses(same) and len(losses(run)) == 4


def test_the_same_question_is_not_asked_again_and_another_is(train, pairs):
    first = train(pairs, "strategy=auto", "train.steps=2", ranks=2)
    chosen = strategy_of(first)
    again = train(pairs, "strategy=auto", "train.steps=3", ranks=2)
    assert "strategy.auto keeps " in again.stderr and "strategy.auto takes" not in again.stderr
    assert strategy_of(again) == chosen

    # The run's own configuration has the choice in it.
    own = subprocess.run(
        command([first.folder / "config.yaml", "train.steps=4"], 2), capture_output=True, text=True, env=environment()
    )
    assert own.returncode == 0, own.stderr
    assert "strategy.auto keeps " in own.stderr
    assert strategy_of(first) == chosen

    other = train(pairs, "strategy=auto", "train.steps=5", ranks=1)
    assert re.search(r"strategy\.auto chooses again: it had chosen for 2 ranks .*, and this is 1 rank ", other.stderr)
    assert "strategy.auto takes one rank" in other.stderr
    assert strategy_of(other)["auto"]["chosen_for"].startswith("1 rank on cpu")
    assert [step for step in steps_of(other.folder)] == [1, 2, 3, 4, 5]


def test_a_choice_of_before_is_taken_even_if_a_search_would_give_another(train, pairs):
    """What stands in config.yaml beside the same question is the choice: nothing is searched."""
    first = train(pairs, "strategy=auto", "train.steps=1", ranks=2)
    path = first.folder / "config.yaml"
    config = yaml.safe_load(path.read_text())
    wanted = "shard_grad_op" if config["strategy"]["sharding"] != "shard_grad_op" else "full_shard"
    config["strategy"]["sharding"] = wanted
    path.write_text(yaml.safe_dump(config))
    again = train(pairs, "strategy=auto", "train.steps=2", ranks=2)
    assert f"strategy.auto keeps {wanted}" in again.stderr
    assert strategy_of(again)["sharding"] == wanted


def test_a_killed_run_goes_on_with_its_choice(start, train, pairs):
    process = start(pairs, "strategy=auto", "train.steps=100000", ranks=2)
    wait_for_steps(process, 3)
    chosen = yaml.safe_load((process.folder / "config.yaml").read_text())["strategy"]
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    done = max(steps_of(process.folder))
    run = train(pairs, "strategy=auto", f"train.steps={done + 3}", ranks=2)
    assert "strategy.auto keeps " in run.stderr
    assert strategy_of(run) == chosen
    assert max(steps_of(run.folder)) == done + 3


def test_less_memory_is_another_question_and_too_little_is_refused(train, pairs):
    rich = train(pairs, "strategy=auto", ranks=2)
    needs = re.search(r"needs ([\d.]+) MiB of ", rich.stderr)
    assert needs, rich.stderr
    tight = f"strategy.auto.memory={float(needs.group(1)) - 0.2:.2f}MiB"
    poor = train(pairs, "strategy=auto", tight, ranks=2, name="poor")
    assert "strategy.auto takes" in poor.stderr
    assert explicit(strategy_of(poor)) != explicit(strategy_of(rich))
    assert losses(poor) == pytest.approx(losses(rich), rel=1e-4)
    none = train(pairs, "strategy=auto", "strategy.auto.memory=1MiB", ranks=2, name="none", expect=2)
    assert "strategy.auto finds nothing that fits: of 1.00 MiB for each rank, the least needs about" in none.stderr
    assert not (none.folder / "config.yaml").exists()


def test_in_a_file_it_is_a_word_or_a_block(train, pairs, write):
    def chosen(strategy):
        done = subprocess.run(
            [FLOE, "train", write({**pairs, "strategy": strategy}), "--print-config"],
            capture_output=True, text=True, env=environment(),
        )
        assert done.returncode == 0, done.stderr
        return yaml.safe_load(done.stdout)["strategy"]

    nothing = {"memory": None, "machine": None, "chosen_for": None}
    assert chosen("auto")["auto"] == nothing
    assert chosen({"auto": {"memory": "3GiB"}})["auto"]["memory"] == "3GiB"
    assert chosen("shard_grad_op")["sharding"] == "shard_grad_op"
    run = train({**pairs, "strategy": "auto"}, "strategy.mixed_precision.param=fp32", ranks=2)
    assert "strategy.auto takes" in run.stderr


def test_prepared_batches_and_passes_of_their_own(train, golden):
    config = golden("neox_x2", ranks=2)
    packed = train(config, "strategy=auto", ranks=2)
    apart = train(config, "strategy=auto", "train.packed=false", ranks=2, name="apart")
    for run in (packed, apart):
        assert "strategy.auto takes" in run.stderr
    questions = [strategy_of(run)["auto"]["chosen_for"] for run in (packed, apart)]
    assert questions[0] != questions[1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["strategy.sharding=full_shard"], "strategy.sharding is what strategy.auto chooses; leave it out "
         "(~strategy.sharding), or turn the choice off (~strategy.auto)"),
        (["strategy.frozen.residency=resident"], "strategy.frozen.residency is what strategy.auto chooses"),
        (["experiment=recompute"], "strategy.activation_checkpointing is what strategy.auto chooses"),
        (["strategy.auto.machine=h2000"], "strategy.auto.machine 'h2000' is neither one of h200, h100, a100"),
        (["strategy.auto.machine=a100", "strategy.frozen.compute=fp8", "strategy.mixed_precision.param=bf16"],
         "strategy.frozen.compute is fp8, but 'a100' has no products in 8 bits"),
        (["strategy.auto.memory=0"], "strategy.auto.memory"),
        (["strategy.auto.memori=1GiB"], "unknown key 'strategy.auto.memori'"),
        (["phases=[{name: a, train: ['perceiver.*'], steps: 1}, {name: b, train: ['*gated*'], steps: 1}]"],
         "strategy has auto, which cannot choose for several phases"),
    ],
)
def test_wrong_use(train, pairs, words, sentence):
    run = train(pairs, "strategy=auto", *words, ranks=2, expect=2)
    assert sentence in run.stderr
    assert not (run.folder / "config.yaml").exists()


def test_a_rank_that_was_not_asked(pairs, write, tmp_path):
    """Ranks that mean different runs say so, whichever of them has the word auto."""
    path = write(pairs)
    for ranks in (("strategy=auto", "strategy=full_shard"), ("strategy=full_shard", "strategy=auto")):
        script = f'exec {FLOE} train {path} run.name=mixed $([ "$RANK" = 0 ] && echo {ranks[0]} || echo {ranks[1]})'
        done = subprocess.run(
            [FLOE, "launch", "-n", "2", "--exec", "sh", "-c", script], capture_output=True, text=True, timeout=120,
            env=environment(),
        )
        assert done.returncode == 2, done.stderr
        assert "strategy" in done.stderr and "rank" in done.stderr
