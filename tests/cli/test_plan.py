"""floe plan: what it prints, and every way to ask wrongly."""

import json
import os
import re
from pathlib import Path

import pytest

CONFIGS = Path(os.environ["FLOE_SOURCE_DIR"]) / "configs"
DEMO = str(CONFIGS / "transformer-demo.yaml")


@pytest.fixture
def plan(floe):
    def run(*args, **more):
        done = floe("plan", *args, **more)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout

    return run


def test_prints_units_and_what_a_rank_holds_and_moves(plan):
    text = plan(DEMO, "world=4")
    for part in ("4 ranks, full_shard", "layers.1 … 7", "Each rank holds", "at most", "Each rank moves", "all-gathers"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 100


def test_every_config_that_comes_with_floe_can_be_planned(plan):
    models = sorted(CONFIGS.glob("transformer-*.yaml"))
    strategies = sorted(path.stem for path in (CONFIGS / "strategy").glob("*.yaml"))
    assert len(models) >= 2 and len(strategies) >= 5
    for model in models:
        for strategy in strategies:
            # What is to be chosen must not be said.
            step = ("--gpu", "h200", "--batch", "2x128", "~strategy.activation_checkpointing") if strategy == "auto" else ()
            assert "Each rank holds" in plan(str(model), "world=8", f"strategy={strategy}", *step)
    for experiment in ("adapters", "last_layers"):
        text = plan(str(CONFIGS / "transformer-7b.yaml"), "world=8", f"experiment={experiment}")
        assert "are frozen" in text


def test_a_training_configuration_is_planned_from_its_files(plan, floe, tmp_path):
    golden = Path(os.environ["FLOE_SOURCE_DIR"]) / "tests" / "goldens" / "models" / "neox_x2"
    model = (golden / "model.yaml").read_text().replace("\n", "\n  ")
    for name in ("lm", "vision", "weights"):
        model = model.replace(f"{name}: ", f"{name}: {golden}/", 1)
    path = tmp_path / "run.yaml"
    path.write_text(f"model:\n  {model}\ntrain: {{steps: 5, ema: {{decay: 0.9}}}}\ndata: {{batches: x}}\nlog: {{jsonl: true}}\n")
    text = plan(str(path), "world=4")
    for part in ("flamingo with 156 k parameters: 41.5 k train", "lang_encoder.gpt_neox.layers.0 … 3.decoder_layer",
                 "optimizer state (adamw and average)", "4 ranks, full_shard, computes in bf16"):
        assert part in text, text
    held = json.loads(plan(str(path), "world=4", "--json"))["holds"]
    without = json.loads(plan(str(path), "world=4", "~train.ema.decay", "--json"))["holds"]
    assert held["optimizer_state_bytes"] * 2 == without["optimizer_state_bytes"] * 3
    done = floe("plan", str(path), "world=4", "dist={init: 'tcp://host:29500', rank: 0, world_size: 6}")
    assert done.returncode == 2
    assert "world is 4, but dist.world_size is 6; remove one of them" in done.stderr


def test_an_average_is_held_whatever_the_model_is(plan):
    held = json.loads(plan(DEMO, "world=4", "train.ema.decay=0.9", "--json"))["holds"]
    without = json.loads(plan(DEMO, "world=4", "--json"))["holds"]
    assert held["optimizer_state_bytes"] * 2 == without["optimizer_state_bytes"] * 3


def test_configs_of_floe_are_found_from_anywhere(plan, tmp_path):
    (tmp_path / "mine.yaml").write_text(Path(DEMO).read_text())
    assert "8 ranks, hybrid" in plan("mine.yaml", "world=8", "strategy=hybrid", cwd=tmp_path)


def test_json_is_the_same_plan(plan):
    one = json.loads(plan(DEMO, "world=4", "--json"))
    assert list(one) == [
        "world_size", "model", "strategy", "passes_per_update", "accumulate", "units", "groups", "padding", "holds", "moves", "unsharded",
    ]  # fmt: skip
    assert one["strategy"] == "full_shard"
    assert [unit["name"] for unit in one["units"]][:3] == ["embed", "positions", "layers.0"]
    assert sum(group["numel"] for group in one["groups"]) == one["model"]["numel"]
    holds = one["holds"]
    between = ("trainable_shard_bytes", "frozen_shard_bytes", "resident_bytes", "optimizer_state_bytes")
    during = ("gradient_shard_bytes", "gathered_pool_bytes", "gradient_buffer_bytes")
    assert holds["between_steps_bytes"] == sum(holds[key] for key in between)
    assert holds["peak_bytes"] == holds["between_steps_bytes"] + sum(holds[key] for key in during)

    resident = json.loads(plan(DEMO, "world=4", "strategy.frozen.residency=resident", "--json"))
    assert resident["holds"]["frozen_shard_bytes"] == 0
    assert resident["moves"]["all_gathered_bytes"] < one["moves"]["all_gathered_bytes"] / 50
    assert resident["moves"]["reduce_scattered_bytes"] == one["moves"]["reduce_scattered_bytes"]


def test_says_when_slices_are_uneven(plan):
    assert "are padded" not in plan(DEMO, "world=1")
    assert "are padded to slices of whole 128 bytes" in plan(DEMO, "world=7")


def test_print_config_shows_values_and_origins(plan):
    text = plan(DEMO, "world=4", "--print-config")
    assert re.search(r"^world: 4 +# command line 'world=4'$", text, re.MULTILINE)
    assert re.search(r"^  sharding: full_shard +# default$", text, re.MULTILINE)
    assert re.search(r"^  dim: 512 +# .*demo\.yaml:\d+:\d+$", text, re.MULTILINE)


def test_a_huge_model_is_planned_at_once(start, tmp_path):
    model = tmp_path / "70b.yaml"
    model.write_text("model: {type: transformer, vocab: 128256, dim: 8192, layers: 80, heads: 64, context: 8192}\n")

    def kilobytes(*args):
        process = start(*args)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        return usage.ru_maxrss

    # Beyond LibTorch itself, whose pages count as far as they were read: nothing of 280 GB.
    assert kilobytes("plan", str(model), "world=1024") - kilobytes("plan", DEMO, "world=2") < 32 * 1024


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["wrld=4"], "command line 'wrld=4': unknown key 'wrld'; did you mean 'world'?"),
        (
            ["strategy.shardign=hybrid"],
            "command line 'strategy.shardign=hybrid': unknown key 'strategy.shardign'; did you mean 'sharding'?",
        ),
        (
            ["strategy.units=[Decoder]"],
            "strategy.units: 'Decoder' matches no module; did you mean 'DecoderLayer'? (classes in this model: "
            "Adapter, Attention, DecoderLayer, Dropout, Embedding, LayerNorm, Linear, List)",
        ),
        (["train.trainable=['layer.*']"], "'layer.*' matches no parameter"),
        (
            ["world=4", "strategy=hybrid"],
            "strategy.hybrid_shard_size 8 does not divide the 4 ranks; choose one that does",
        ),
        (
            ["world=4", "strategy.frozen.sharding=node"],
            "strategy.hybrid_shard_size 8 does not divide the 4 ranks; choose one that does",
        ),
        (["strategy.frozen.sharding=host"], "strategy.frozen.sharding must be one of all, node, not 'host'"),
        (["strategy.accumulate=both"], "strategy.accumulate must be one of reduced, local, not 'both'"),
        (["strategy.frozen.residency=auto"], "strategy.frozen.residency is auto, which needs a budget"),
        (
            ["strategy.frozen={residency: auto, memory_budget: 1KiB}"],
            "of 1.00 KiB is below the 64.4 MiB that the frozen slices alone take on a rank",
        ),
        (["world=0"], "command line 'world=0': world is 0, but must be at least 1"),
        (["model.layers=0"], "model.layers is 0, but must be from 1 to 10000"),
        (["data.threads=4"], "unknown key 'data'"),
        (["strategy=hybird"], "there is no strategy 'hybird'"),
        (["--jsn"], "plan: there is no option '--jsn'; did you mean '--json'?"),
    ],
)
def test_bad_usage_is_one_sentence_and_exit_2(floe, args, sentence):
    done = floe("plan", DEMO, *args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("floe: ") and done.stderr.count("\n") == 1
    assert sentence in done.stderr


def test_a_missing_file_and_no_file_at_all(floe):
    done = floe("plan", "nowhere.yaml")
    assert done.returncode == 2
    assert "nowhere.yaml" in done.stderr and done.stderr.count("\n") == 1
    done = floe("plan")
    assert done.returncode == 2
    assert "model.lm is missing" in done.stderr


def test_phases_have_a_line_each(plan, tmp_path):
    golden = Path(os.environ["FLOE_SOURCE_DIR"]) / "tests" / "goldens" / "models" / "neox_x2"
    model = (golden / "model.yaml").read_text().replace("\n", "\n  ")
    for name in ("lm", "vision", "weights"):
        model = model.replace(f"{name}: ", f"{name}: {golden}/", 1)
    phases = "[{name: resampler, train: ['perceiver.*'], steps: 2, optimizer_state: offload}, " \
             "{name: gates, train: ['*gated_cross_attn*'], steps: 2, optimizer_state: drop}]"
    path = tmp_path / "run.yaml"
    path.write_text(f"model:\n  {model}\ntrain: {{steps: 4}}\nphases: {phases}\ndata: {{batches: x}}\n")
    text = plan(str(path), "world=4")
    for part in ("Each rank holds, in phase", "In host memory, in phase", "A switch of phases moves nothing between ranks."):
        assert part in text, text
    planned = json.loads(plan(str(path), "world=4", "--json"))
    resampler, gates = planned["phases"]
    assert (resampler["name"], resampler["optimizer_state"]) == ("resampler", "offload")
    assert resampler["trainable_numel"] + gates["trainable_numel"] == planned["model"]["trainable_numel"]
    # The moments of the resampler, and its masters: three values of four bytes where two moments take eight.
    assert 2 * gates["holds"]["host_store_bytes"] == 3 * resampler["holds"]["optimizer_state_bytes"]
    assert resampler["holds"]["host_store_bytes"] == 0
    assert resampler["holds"]["resting_state_bytes"] == gates["holds"]["resting_state_bytes"] == 0
    assert planned["holds"]["peak_bytes"] == max(phase["holds"]["peak_bytes"] for phase in planned["phases"])
    assert planned["peak_phase"] in ("resampler", "gates")


STEP = ("--gpu", "h200", "--batch", "8x128")


def test_a_step_on_a_machine_has_memory_and_time(plan):
    text = plan(DEMO, "world=4", *STEP)
    for part in ("Memory of a GPU in a step", "kept for backward", "Kept for backward, by unit", "layers.1 … 7",
                 "Time of an update on h200", "matrix products", "tokens/s"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 100
    report = json.loads(plan(DEMO, "world=4", *STEP, "--json"))
    step = report["step"]
    assert step["memory"]["peak_bytes"] > report["holds"]["between_steps_bytes"] + step["memory"]["kept_bytes"]
    assert step["memory"]["needed_bytes"] > step["memory"]["peak_bytes"]
    parts = ("products", "attention", "passes", "gaps", "exposed", "update")
    assert abs(sum(step["time"][part] for part in parts) / step["time"]["seconds"] - 1) < 0.02
    # Frozen layers below the first adapter are not differentiated: nothing is kept of an embedding.
    assert "embed" not in step["memory"]["kept_by_unit"]
    half = json.loads(plan(DEMO, "world=4", "--gpu", "h200", "--batch", "4x128", "--json"))["step"]
    assert 1.9 < step["memory"]["kept_bytes"] / half["memory"]["kept_bytes"] < 2.1


def test_a_slower_network_costs_time(plan):
    def step(*more):
        return json.loads(plan(DEMO, "--nodes", "8", "--gpus-per-node", "2", *STEP, *more, "--json"))["step"]

    fast, slow = step("--inter", "400Gb/s"), step("--inter", "1Gb/s")
    assert fast["num_nodes"] == slow["num_nodes"] == 8
    assert slow["time"]["exposed"] > 2 * fast["time"]["exposed"]
    assert slow["time"]["products"] == fast["time"]["products"]
    assert slow["inter_bytes"] == fast["inter_bytes"] > 0


def test_the_best_strategy_can_be_taken_as_it_is(plan, tmp_path):
    best = json.loads(plan(DEMO, "world=16", *STEP, "--best", "--json"))["best"]
    assert len(best) == 3 and best[0]["seconds"] <= 1.004 * min(choice["seconds"] for choice in best)
    for choice in best:
        (tmp_path / "best.yaml").write_text(choice["yaml"])
        step = json.loads(plan(DEMO, str(tmp_path / "best.yaml"), "world=16", *STEP, "--json"))["step"]
        assert step["time"]["seconds"] == choice["seconds"]
        assert step["memory"]["needed_bytes"] == choice["needed_bytes"]
    assert "strategy:" in plan(DEMO, "world=16", *STEP, "--best")
    assert "Nothing fits" in plan(DEMO, "world=16", *STEP, "--best", "--memory", "1MiB")


def test_worlds_are_a_table_and_a_page(plan, tmp_path):
    page = tmp_path / "worlds.html"
    text = plan(DEMO, *STEP, "--worlds", "8..64", "--html", str(page))
    assert [line.split()[0] for line in text.splitlines()[2:6]] == ["8", "16", "32", "64"]
    rows = json.loads(plan(DEMO, *STEP, "--worlds", "8,16,32,64", "--json"))["worlds"]
    assert rows[0]["efficiency"] == 1 and rows[0]["inter_bytes"] == 0 < rows[1]["inter_bytes"]
    html = page.read_text()
    assert html.count("<svg") == 7 and "64 ranks" in html
    assert "http:" not in html and "https:" not in html


def test_as_many_batches_fit_as_worlds_says(plan, tmp_path):
    small = tmp_path / "small.yaml"
    small.write_text("{like: h200, memory: 2GiB}\n")
    (row,) = json.loads(plan(DEMO, "--gpu", str(small), "--batch", "8x128", "--worlds", "8", "--json"))["worlds"]

    def fits(times):
        batch = f"{8 * times}x128"
        return json.loads(plan(DEMO, "world=8", "--gpu", str(small), "--batch", batch, "--json"))["step"]["memory"]["fits"]

    times = int(row["batch_factor"])
    assert times > 2 and fits(times) and not fits(times + 2)


def test_a_machine_of_ones_own(plan, floe, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("{like: h200, name: mine, bf16_tflops: 365, memory: 1MiB}\n")
    step = json.loads(plan(DEMO, "world=4", "--gpu", str(mine), "--batch", "8x128", "--json"))["step"]
    assert step["machine"] == "mine" and not step["memory"]["fits"]
    assert "It does not fit" in plan(DEMO, "world=4", "--gpu", str(mine), "--batch", "8x128")
    mine.write_text("{like: h200, bf16_tflop: 365}\n")
    done = floe("plan", DEMO, "--gpu", str(mine), "--batch", "8x128")
    assert done.returncode == 2 and "did you mean 'bf16_tflops'?" in done.stderr


PRODUCTS = ("strategy.frozen.compute=fp8", "strategy.mixed_precision.param=bf16")


@pytest.mark.parametrize("words", [(), ("--best",), ("--worlds", "2,4"), ("strategy=auto",)], ids=" ".join)
def test_products_in_eight_bits_need_a_machine_that_has_them(floe, plan, tmp_path, words):
    def asked(gpu):
        return DEMO, "world=4", *PRODUCTS, "--gpu", gpu, "--batch", "8x128", *words

    none, some = tmp_path / "none.yaml", tmp_path / "some.yaml"
    none.write_text("{like: h200, name: mine, fp8_tflops: 0}\n")
    some.write_text("{like: a100, fp8_tflops: 300}\n")
    for gpu, name in (("a100", "a100"), (str(none), "mine")):
        done = floe("plan", *asked(gpu))
        assert done.returncode == 2
        assert done.stderr.rstrip().endswith(
            f"strategy.frozen.compute is fp8, but '{name}' has no products in 8 bits (its fp8_tflops is 0); leave "
            "strategy.frozen.compute out, or take another machine"
        )
    for gpu in ("h200", "h100", str(some)):
        plan(*asked(gpu))
    plan(DEMO, "world=4", "strategy.frozen.dtype=fp8", "--gpu", "a100", "--batch", "8x128", *words)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--batch", "8x128"], "plan: --batch needs --gpu"),
        (["--best"], "plan: --best needs --gpu"),
        (["--gpu", "h200"], "plan: --gpu needs --batch"),
        (["--gpu", "h2000", "--batch", "8x128"], "--gpu 'h2000' is neither one of h200, h100, a100, cpu nor a file"),
        (["--gpu", "h200", "--batch", "8by128"], "--batch '8by128' is no batch"),
        (["--gpu", "h200", "--batch", "8x128x1"], "--batch has images, but this model takes none"),
        ([*STEP, "--inter", "400"], "--inter '400' is no rate"),
        ([*STEP, "--worlds", "64..8"], "--worlds '64..8' is no range of ranks"),
        ([*STEP, "--worlds", "8..64", "--best"], "--best and --worlds are two questions"),
        ([*STEP, "--memory", "40GiB"], "--memory is the budget of --best"),
        ([*STEP, "--html", "x.html"], "--html is the page of --worlds"),
        ([*STEP, "--best", "--memory", "40 apples"], "40 apples"),
        ([*STEP, "--nodes", "2", "world=4"], "--nodes 2 with 8 GPUs each are 16 ranks, but the configuration says 4"),
        ([*STEP, "strategy.cpu_offload=true"], "strategy.cpu_offload"),
    ],
)
def test_wrong_questions_about_a_step(floe, args, sentence):
    done = floe("plan", DEMO, *args)
    assert done.returncode == 2
    assert sentence in done.stderr and done.stdout == ""
