"""checkpoint.keep_best keeps what it says, or says why it cannot."""

import pytest

BEST = "checkpoint.keep_best={{metric: {}, n: 1}}"
VALIDATION = "train.validation={{every_steps: {}, batches: '{}'}}"


@pytest.fixture
def config(golden):
    config = golden("neox_x2")
    config["checkpoint"] = {"every_steps": 1, "keep": 1}
    return config


@pytest.mark.parametrize("words, said", [
    ([BEST.format("validation_loss")], ["which the run does not measure", "loss_laion", "loss_mmc4"]),
    ([BEST.format("los_laion")], ["did you mean 'loss_laion'?", "There are loss_laion"]),
    ([BEST.format("val_loss")], ["but there is no validation; set train.validation", "loss_laion"]),
    ([BEST.format("val_los"), "VALIDATION 2"], ["did you mean 'val_loss'", "val_perplexity_mmc4"]),
    (["checkpoint.keep_best={metric: loss_laion, n: 0}"], ["checkpoint.keep_best.n is 0", "loss_laion"]),
    (["checkpoint.keep_best={metric: loss_laion}"], ["checkpoint.keep_best.n is 0"]),
    ([BEST.format("loss_laion"), "checkpoint.every_steps=null"], ["only the last step is saved"]),
    ([BEST.format("val_loss"), "VALIDATION 3", "checkpoint.every_steps=2", "train.steps=5"],
     ["first meet at step 6", "no save could be ranked"]),
    (["checkpoint.delete_previous_checkpoint=true", "checkpoint.keep=5"],
     ["checkpoint.keep is 5, but delete_previous_checkpoint leaves only the newest"]),
    (["checkpoint.delete_previous_checkpoint=true", "checkpoint.keep=null"], ["checkpoint.keep is null"]),
])
def test_what_cannot_be_kept_is_refused(train, config, words, said):
    words = [VALIDATION.format(word.split()[1], config["data"]["batches"]) if word.startswith("VALIDATION") else word
             for word in words]
    run = train(config, *words, expect=2)
    for part in said:
        assert part in run.stderr
    assert not run.folder.exists()


def test_the_best_of_the_validated_saves_stays(train, config):
    words = [BEST.format("val_loss"), VALIDATION.format(2, config["data"]["batches"]), "train.steps=5"]
    run = train(config, *words)
    assert "ranks saves by val_loss, so only those at steps with a validation: every 2 steps" in run.stderr
    ranked = {step["step"]: step["val_loss"] for step in run.steps() if "val_loss" in step}
    assert set(ranked) == {2, 4, 5}
    best = min(ranked, key=ranked.get)
    kept = {path.name for path in (run.folder / "checkpoints").glob("step_*")}
    assert kept == {f"step_{best}", "step_5"}


def test_saves_that_are_all_ranked_need_no_word(train, config):
    words = [BEST.format("val_loss"), VALIDATION.format(1, config["data"]["batches"]), "train.steps=2"]
    assert "ranks saves" not in train(config, *words).stderr


def test_only_the_newest_stays(train, config):
    config["checkpoint"] = {"every_steps": 1, "delete_previous_checkpoint": True}
    run = train(config, "train.steps=3")
    assert [path.name for path in (run.folder / "checkpoints").glob("step_*")] == ["step_3"]
