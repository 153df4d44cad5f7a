"""What a step does, beside the same written by hand in PyTorch: transformers' model, torch's own optimizer, clipping,
averages, loss scale and autocast, peft's adapters. Ranks have different batches, with different numbers of labels."""

import math
import subprocess

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from phase_loop import EPS, language_model, write_batches
from running import FLOE, environment

STEPS = 8
LR, DECAY = 2e-3, 0.1  # as floe has them
# Of weights after eight steps at a rate of 2e-3; they have moved by more than MOVED.
BOUND, MOVED = 1e-6, 2e-3


def labels(rank, step):
    """2 to 10 of 11 tokens: whoever weighs ranks or micro-batches wrongly is far off."""
    return 2 + (3 * rank + 5 * step) % 9


def token_losses(logits, wanted):
    """Their sum and how many there are."""
    logits, wanted = logits[:, :-1].float(), wanted[:, 1:]
    total = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum", ignore_index=-100)
    return total, int((wanted != -100).sum())


class Twin:
    """One process that goes through the ranks in order and averages their gradients."""

    def __init__(self, model, accumulate=1, whole_mean=False, clip=lambda parameters: None):
        self.model, self.accumulate, self.whole_mean, self.clip = model, accumulate, whole_mean, clip
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=LR, eps=EPS, weight_decay=DECAY)
        self.losses, self.norms, self.after = [], [], []

    def mean(self, batches):
        """What is minimised: over ranks and micro-batches, or over all their tokens."""
        sums = [token_losses(self.model(input_ids=ids).logits, wanted) for ids, wanted in batches]
        if self.whole_mean:
            return sum(total for total, _ in sums) / sum(count for _, count in sums)
        return sum(total / count for total, count in sums) / len(sums)

    def step(self, batches):
        self.optimizer.zero_grad()
        loss = self.mean(batches)
        loss.backward()
        gradients = [parameter.grad for parameter in self.parameters]
        norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients])).item()
        if not math.isfinite(norm):
            return
        self.norms.append(norm)
        self.losses.append(loss.item())
        self.clip(self.parameters)
        self.optimizer.step()
        for note in self.after:
            note()

    def run(self, batches, steps=STEPS):
        for step in range(0, steps * self.accumulate, self.accumulate):
            self.step([of_rank[step + i] for of_rank in batches for i in range(self.accumulate)])
        return self


def assert_same_weights(found, expected, before, bound=BOUND):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name].float() - value.float()).abs().max().item() <= bound, name
    moved = max((value - before[name]).abs().max().item() for name, value in expected.items())
    assert moved > MOVED


def copies(model):
    return {name: value.detach().clone() for name, value in model.named_parameters()}


NORM, VALUE = 0.3, 5e-3


def by_norm(parameters):
    torch.nn.utils.clip_grad_norm_(parameters, NORM)


def by_value(parameters):
    torch.nn.utils.clip_grad_value_(parameters, VALUE)


@pytest.mark.parametrize(
    "ranks, clip, by_hand",
    [
        (1, {"norm": NORM}, by_norm),
        (3, {"norm": NORM}, by_norm),
        (2, {"norm": None, "value": VALUE}, by_value),
        (2, {"norm": None}, lambda parameters: None),
    ],
    ids=["norm", "norm of three", "value", "none"],
)
def test_clipping(job, train, tmp_path, ranks, clip, by_hand):
    config, model, batches = job(ranks, labels=labels, clip=clip)
    run = train(config, ranks=ranks)
    before, plain = copies(model), Twin(model).run(batches)
    unclipped = copies(model)
    model.load_state_dict(before, strict=False)
    twin = Twin(model, clip=by_hand).run(batches)
    assert run.values("loss_text") == pytest.approx(twin.losses, rel=2e-6)
    assert run.values("grad_norm") == pytest.approx(twin.norms, rel=1e-5)  # before it is clipped
    assert_same_weights(run.trained(tmp_path), copies(model), before)
    if clip != {"norm": None}:  # it was far above the bound
        assert min(plain.norms) > 2 * NORM
        assert max((unclipped[n] - v).abs().max().item() for n, v in copies(model).items()) > 100 * BOUND


@pytest.mark.parametrize(
    "mean, ranks, accumulate, strategy",
    [("rank", 2, 3, "full_shard"), ("rank", 2, 2, "no_shard"), ("global", 2, 1, "full_shard"),
     ("global", 3, 2, "shard_grad_op"), ("global", 2, 2, "no_shard")],
)
def test_means_over_ranks_and_micro_batches(job, train, tmp_path, mean, ranks, accumulate, strategy):
    steps = 4
    config, model, batches = job(
        ranks, steps * accumulate, labels=labels, clip={"norm": None}, gradient_accumulation=accumulate,
        **({"loss_mean": "global"} if mean == "global" else {}),
    )
    config["train"]["steps"] = steps
    run = train(config, f"strategy={strategy}", ranks=ranks)
    before = copies(model)
    other = Twin(model, accumulate, whole_mean=mean != "global").run(batches, steps)
    wrong = copies(model)
    model.load_state_dict(before, strict=False)
    twin = Twin(model, accumulate, whole_mean=mean == "global").run(batches, steps)
    assert run.values("grad_norm") == pytest.approx(twin.norms, rel=1e-5)
    assert_same_weights(run.trained(tmp_path), copies(model), before)
    # The other mean is something else.
    assert other.norms != pytest.approx(twin.norms, rel=1e-2)
    assert max((wrong[n] - v).abs().max().item() for n, v in copies(model).items()) > 100 * BOUND


@pytest.mark.parametrize("ranks", [2])
def test_averages(job, train, tmp_path, ranks):
    decay = 0.7
    config, model, batches = job(ranks, labels=labels, clip={"norm": None}, ema={"decay": decay})
    run = train(config, ranks=ranks)
    before = copies(model)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    average.n_averaged.fill_(1)  # the weights that the run begins with count
    twin = Twin(model)
    twin.after.append(lambda: average.update_parameters(model))
    twin.run(batches)
    assert_same_weights(run.trained(tmp_path), copies(model), before)
    assert_same_weights(run.trained(tmp_path, "--ema"), copies(average.module), before)


@pytest.mark.parametrize("ranks", [1, 3])
def test_validation(job, train, tmp_path, ranks):
    """The mean over all held-out tokens of all ranks, with the weights of that step."""
    config, model, batches = job(ranks, labels=labels)
    held_out = write_batches(tmp_path / "held{rank}.safetensors", 3, ranks, seed=11, labels=lambda r, s: 2 + 4 * r + s)
    config["train"]["validation"] = {"every_steps": 3, "batches": str(tmp_path / "held{rank}.safetensors")}
    run = train(config, ranks=ranks)
    expected = {}

    def validate():
        if len(twin.losses) in (3, 6, STEPS):
            with torch.no_grad():
                sums = [token_losses(model(input_ids=ids).logits, wanted) for of_rank in held_out for ids, wanted in of_rank]
            expected[len(twin.losses)] = (sum(total for total, _ in sums) / sum(count for _, count in sums)).item()

    twin = Twin(model, clip=lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 1.0))
    twin.after.append(validate)
    twin.run(batches)
    found = {step["step"]: step for step in run.steps() if "val_loss_text" in step}
    assert found.keys() == expected.keys() == {3, 6, STEPS}
    for step, loss in expected.items():
        assert found[step]["val_loss_text"] == pytest.approx(loss, rel=5e-6)
        assert found[step]["val_perplexity_text"] == pytest.approx(math.exp(loss), rel=5e-5)
    assert len({round(loss, 4) for loss in expected.values()}) == 3  # it was measured with other weights each time


# ------------------------------------------------------------------------------------------- precision


class Lowered(Twin):
    """fp32 masters, a copy of the model in another dtype that computes, gradients back in fp32."""

    def __init__(self, model, dtype, scaler=None, **more):
        super().__init__(model, **more)
        self.dtype, self.scaler, self.scales = dtype, scaler, []

    def step(self, batches):
        computing = type(self.model)(self.model.config).to(self.dtype)
        computing.load_state_dict(self.model.state_dict())
        self.optimizer.zero_grad()
        losses, sums = [], None
        for ids, wanted in batches:
            computing.zero_grad()
            total, count = token_losses(computing(input_ids=ids).logits, wanted)
            loss = total / count
            losses.append(loss.item() / len(batches))
            (self.scaler.scale(loss) if self.scaler else loss).backward()  # averaged after that, as by DDP
            gradients = [parameter.grad.float() / len(batches) for parameter in computing.parameters()]
            sums = gradients if sums is None else [a + b for a, b in zip(sums, gradients)]
        for parameter, gradient in zip(self.parameters, sums, strict=True):
            parameter.grad = gradient
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
            self.norms.append(torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in self.parameters])).item())
            self.clip(self.parameters)
            self.scaler.step(self.optimizer)  # nothing, where a gradient is not finite
            finite = all(torch.isfinite(gradient).all() for gradient in sums)
            self.scales.append((self.scaler.get_scale(), finite))
            self.scaler.update()
            if not finite:
                return
        else:
            self.optimizer.step()
        self.losses.append(sum(losses))


class Autocast(Twin):
    def mean(self, batches):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().mean(batches)


@pytest.mark.parametrize("kind", ["bf16", "fp16", "autocast"])
def test_other_precisions_are_as_near_to_fp32_as_torch_is(job, train, kind):
    ranks = 2
    config, model, batches = job(ranks, labels=labels, clip={"norm": None})
    words = ["++precision.autocast=bf16"] if kind == "autocast" else [f"strategy.mixed_precision.param={kind}"]
    if kind == "fp16":
        words.append("precision.loss_scale=1024")  # which fits from the first step
    run = train(config, *words, ranks=ranks)
    before = copies(model)

    def losses(twin):
        model.load_state_dict(before, strict=False)
        return torch.tensor(twin.run(batches).losses)

    exact = losses(Twin(model))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if kind == "fp16" else None
    theirs = losses(Autocast(model) if kind == "autocast"
                    else Lowered(model, torch.float16 if kind == "fp16" else torch.bfloat16, scaler))
    ours = torch.tensor(run.values("loss_text"))
    noise = (theirs - exact).abs().max().item()
    assert (ours - exact).abs().max().item() <= 3 * noise
    # It did compute with fewer bits, and eight steps changed the loss by far more than they blur it.
    assert (ours - exact).abs().max().item() >= noise / 10
    assert (exact[0] - exact[-1]).abs().item() > 10 * noise


def test_the_loss_scale_moves_as_that_of_torch(job, train):
    """Far too large at first: halved until a step fits, the batches of the steps that did not are used up."""
    first = 2.0**24
    config, model, batches = job(1, 24, labels=labels, clip={"norm": None}, max_skipped=20)
    config["train"]["steps"] = 4
    run = train(config, "strategy.mixed_precision.param=fp16", f"precision.loss_scale={first}")
    twin = Lowered(model, torch.float16, torch.amp.GradScaler("cpu", init_scale=first))
    for step in range(24):
        twin.step([batches[0][step]])
        if len(twin.losses) == 4:
            break
    fitting = [scale for scale, finite in twin.scales if finite]
    assert len(twin.scales) > len(fitting) == 4
    assert run.values("loss_scale") == fitting
    assert run.values("skipped")[-1] == len(twin.scales) - 4
    assert run.values("loss_text") == pytest.approx(twin.losses, rel=2e-3)


def by_both(parameters):
    torch.nn.utils.clip_grad_norm_(parameters, NORM)
    torch.nn.utils.clip_grad_value_(parameters, VALUE)


@pytest.mark.parametrize("clip, by_hand, other", [
    ({"norm": NORM}, by_norm, lambda parameters: None),
    ({"norm": NORM, "value": VALUE}, by_both, by_norm),
], ids=["norm", "norm and value"])
def test_clipping_with_a_loss_scale(job, train, tmp_path, clip, by_hand, other):
    """The norm that is told and clipped by, and the limit of a value, are those of gradients without the scale."""
    config, model, batches = job(2, labels=labels, clip=clip)
    run = train(config, "strategy.mixed_precision.param=fp16", "precision.loss_scale=1024", ranks=2)
    before = copies(model)

    def trained(clip):
        model.load_state_dict(before, strict=False)
        twin = Lowered(model, torch.float16, torch.amp.GradScaler("cpu", init_scale=1024.0), clip=clip).run(batches)
        return twin.norms, copies(model)

    (norms, expected), (_, wrong) = trained(by_hand), trained(other)
    assert run.values("grad_norm") == pytest.approx(norms, rel=5e-3)
    found = run.trained(tmp_path)

    def distance(weights):
        return math.sqrt(sum((found[name].float() - value).square().sum().item() for name, value in weights.items()))

    # Rounding to fp16 is far less than what the clipping is about.
    assert distance(expected) < distance(wrong) / 10


# ------------------------------------------------------------------------------------- adapters


@pytest.mark.parametrize("ranks", [1, 2])
def test_adapters_train_as_those_of_peft(job, train, tmp_path, ranks):
    config, _, batches = job(ranks, labels=labels, clip={"norm": None})
    targets = ["q_proj", "v_proj", "down_proj"]
    model = get_peft_model(language_model(tmp_path / "lm"),
                           LoraConfig(r=3, lora_alpha=6, target_modules=targets, task_type="CAUSAL_LM"))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(tmp_path / "begin")
    config["model"]["lora"] = {"targets": targets, "rank": 3, "alpha": 6, "weights": str(tmp_path / "begin")}
    run = train(config, ranks=ranks)
    twin = Twin(model.train()).run(batches)
    assert run.values("loss_text") == pytest.approx(twin.losses, rel=2e-6)
    model.save_pretrained(tmp_path / "theirs")
    done = subprocess.run([FLOE, "export", run.folder / "checkpoints" / "last", tmp_path / "ours", "--no-merge-lora"],
                          capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    ours, theirs, begin = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("ours", "theirs", "begin"))
    assert_same_weights(ours, theirs, begin)
    # And peft reads them.
    again = PeftModel.from_pretrained(language_model(tmp_path / "lm"), tmp_path / "ours")
    ids, _ = batches[0][0]
    assert torch.allclose(again(input_ids=ids).logits, model.eval()(input_ids=ids).logits, atol=1e-4)


# -------------------------------------------------------------------------------- batches that are odd


@pytest.mark.parametrize("ranks, strategy", [(2, "full_shard"), (3, "hybrid"), (3, "full_shard")])
def test_a_rank_without_labels_adds_nothing(job, train, tmp_path, ranks, strategy):
    """Its mean is 0 of 0: it counts as a loss of 0, and no rank waits for it."""
    config, model, batches = job(ranks, labels=lambda rank, step: 0 if rank == ranks - 1 and step % 2 else labels(rank, step),
                                 clip={"norm": None})
    words = ["strategy.sharding=hybrid", "strategy.hybrid_shard_size=3"] if strategy == "hybrid" else [f"strategy={strategy}"]
    run = train(config, *words, ranks=ranks)

    class Some(Twin):
        def mean(self, of_ranks):
            sums = [token_losses(self.model(input_ids=ids).logits, wanted) for ids, wanted in of_ranks]
            return sum(total / max(count, 1) for total, count in sums) / len(sums)

    before = copies(model)
    twin = Some(model).run(batches)
    assert run.values("grad_norm") == pytest.approx(twin.norms, rel=1e-5)
    assert_same_weights(run.trained(tmp_path), copies(model), before)
