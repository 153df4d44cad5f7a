"""`floe train` on the GPU in every precision and with everything that changes how a step is computed but not what: fp16
with a scaled loss, bf16, autocast, frozen matrices in 8 bits, products in fp8, recorded steps, offload, on one rank and on
two that share the GPU and have different data. Each is judged by plain torch (llama_twin.py) or, for the golden
Flamingo, by the same run on the CPU; each must show that what was asked for was on, and each is gone on with from its
middle.

    gpu_modes.py --device cuda|cpu [--only WORD]        FLOE_BIN_DIR: where floe is

Needs Python with torch, safetensors and PyYAML. cpu runs what a CPU can, for trying the script itself.
"""

import json
import math
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "support")]
import llama_twin  # noqa: E402
from gpu_script import Cases, expect, parse_arguments  # noqa: E402
from gpu_train import ranks_on_one_gpu, write_config  # noqa: E402
from running import FLOE, command, environment, golden_config, steps_of  # noqa: E402

STEPS, MIDDLE = 16, 4
SCALE = 1024  # which fits from the first step
# Which does not: halved until it does, eight times. That is so from 1.44 to 2.06 times 2^24: rounding does not decide over it.
LARGE = 1.75 * 2.0**24
# fp32 differs by the order of sums: of losses and norms relative, of weights that 16 steps moved by more than MOVED.
LOSS, NORM, WEIGHT, MOVED = 1e-5, 1e-4, 2e-5, 5e-3
# The same run once more, or recorded: kernels that sum with atomics round differently each time.
SAME = 1e-5
FLAMINGO = 1e-4
# What cuBLAS keeps for each stream on a Hopper; more than the whole model.
WORKSPACE = 2**25
# Other precisions are at most so many times as far from fp32 as torch is in the same one.
TIMES = 4


@dataclass
class Mode:
    """A way to train the small LLaMA, and the same for the twin."""

    name: str
    words: list
    ranks: int = 1
    twin: dict = field(default_factory=dict)
    shows: tuple = ()  # names of methods that look whether it was on
    device: str | None = None  # None: the one that is tried

    @property
    def graphs(self):
        return "strategy.cuda_graphs=true" in self.words

    @property
    def exact(self):
        """fp32 arithmetic, on whatever weights."""
        return not (self.twin.keys() - {"storage"})


BF16, FP16 = "strategy.mixed_precision.param=bf16", "strategy.mixed_precision.param=fp16"
SCALED, TOO_LARGE = f"precision.loss_scale={SCALE}", f"precision.loss_scale={LARGE:.0f}"
INT8, FP8, PRODUCTS = "strategy.frozen.dtype=int8", "strategy.frozen.dtype=fp8", "strategy.frozen.compute=fp8"
GRAPHS, OFFLOAD = "strategy.cuda_graphs=true", "strategy.cpu_offload=true"
LOW = {"bf16": {"dtype": torch.bfloat16}, "fp16": {"dtype": torch.float16, "scale": SCALE},
       "large": {"dtype": torch.float16, "scale": LARGE}, "products": {"dtype": torch.bfloat16, "products": True},
       "autocast": {"autocast": torch.bfloat16}, "half autocast": {"autocast": torch.float16, "scale": SCALE}}

MODES = [
    Mode("fp32 on the CPU", [], 2, device="cpu"),
    Mode("fp32", []),
    Mode("fp32, two ranks", [], 2),
    Mode("bf16", [BF16], 1, LOW["bf16"]),
    Mode("bf16, two ranks", [BF16], 2, LOW["bf16"], ("gathers_bf16",)),
    Mode("fp16", [FP16, SCALED], 1, LOW["fp16"], ("scales",)),
    Mode("fp16, two ranks", [FP16, SCALED], 2, LOW["fp16"], ("scales", "gathers_fp16")),
    Mode("fp16, scale too large at first", [FP16, TOO_LARGE], 1, LOW["large"], ("scales",)),
    Mode("fp16, scale too large, two ranks", [FP16, TOO_LARGE], 2, LOW["large"], ("scales",)),
    Mode("autocast bf16", ["++precision.autocast=bf16"], 2, LOW["autocast"], ("gathers_fp32",)),
    Mode("autocast fp16", ["++precision.autocast=fp16", SCALED], 1, LOW["half autocast"], ("scales",)),
    Mode("int8", [INT8], 1, {"storage": "int8"}),
    Mode("int8, two ranks", [INT8], 2, {"storage": "int8"}, ("gathers_int8", "fewer_bytes")),
    Mode("fp8 stored, two ranks", [FP8], 2, {"storage": "fp8"}, ("gathers_fp8", "fewer_bytes")),
    Mode("fp8 products", [BF16, PRODUCTS], 1, LOW["products"], ("multiplies_in_fp8",)),
    Mode("fp8 products, two ranks", [BF16, PRODUCTS], 2, LOW["products"],
         ("multiplies_in_fp8", "gathers_fp8", "fewer_bytes")),
    Mode("offload", [OFFLOAD], 1, {}, ("offloads",)),
    Mode("offload, two ranks", [OFFLOAD], 2, {}, ("offloads",)),
    Mode("offload, int8, two ranks", [OFFLOAD, INT8], 2, {"storage": "int8"}, ("offloads", "gathers_int8")),
    Mode("offload, fp16, scale too large", [OFFLOAD, FP16, TOO_LARGE], 1, LOW["large"], ("offloads", "scales")),
    Mode("graphs", [GRAPHS], 1, {}, ("replays",)),
    Mode("graphs, bf16", [GRAPHS, BF16], 1, LOW["bf16"], ("replays",)),
    Mode("graphs, fp16, scale too large", [GRAPHS, FP16, TOO_LARGE], 1, LOW["large"], ("replays", "scales")),
    Mode("graphs, int8", [GRAPHS, INT8], 1, {"storage": "int8"}, ("replays",)),
    Mode("graphs, fp8 products", [GRAPHS, BF16, PRODUCTS], 1, LOW["products"], ("replays", "multiplies_in_fp8")),
    Mode("graphs, two ranks", [GRAPHS], 2, {}, ("replays",)),
]
EAGER = {"graphs": "fp32", "graphs, bf16": "bf16", "graphs, int8": "int8", "graphs, fp8 products": "fp8 products"}


def differences(ours, theirs):
    expect(len(ours) == len(theirs), len(ours), "numbers instead of", len(theirs))
    return [abs(a - b) / abs(b) for a, b in zip(ours, theirs)]


def worst(ours, theirs):
    return max(differences(ours, theirs))


def typical(ours, theirs):
    """The root of the mean square: of two roundings the largest is chance."""
    return math.sqrt(sum(value**2 for value in differences(ours, theirs)) / len(ours))


def far(ours, theirs):
    """Weights: largest difference."""
    return max((ours[name].float() - value.float()).abs().max().item() for name, value in theirs.items())


def apart(ours, theirs):
    """Weights: root of the sum of squares."""
    return math.sqrt(sum((ours[name].float() - value).square().sum().item() for name, value in theirs.items()))


class Run:
    def __init__(self, folder, said):
        self.folder, self.said, self.steps = folder, said, steps_of(folder)

    def values(self, name, after=0):
        return [line[name] for step, line in sorted(self.steps.items()) if step > after]

    def trained(self):
        out = self.folder / "trained.safetensors"
        done = subprocess.run([FLOE, "export", self.folder / "checkpoints" / "last", out, "--trainable-only"],
                              capture_output=True, text=True, env=environment(), check=False)
        expect(done.returncode == 0, done.stderr)
        return load_file(out)

    def gathered(self):
        """Bytes of the first batch's gathers by type, as the log has them."""
        line = re.search(r"dtypes: in collectives: (.*)", self.said)
        expect(line, "no line about collectives:", self.said[-2000:])
        units = {"B": 1, "KiB": 2**10, "MiB": 2**20}
        return {dtype: float(number) * units[unit] for dtype, number, unit in
                re.findall(r"all-gathers? in (\w+) \(([\d.]+) (\w+)\)", line[1])}


class Script(Cases):
    def __init__(self, arguments, folder):
        super().__init__(arguments.device, folder, arguments.only)
        self.rows, self.runs, self.bounds = {}, {}, {}
        self.weights = llama_twin.write_model(folder / "lm")
        self.batches = llama_twin.write_batches(folder / "batches{rank}.safetensors", STEPS + 16, 2)
        self.twins = {}

    def twin(self, ranks, device=None, **how):
        key = (ranks, device, str(sorted(how.items(), key=str)))
        if key not in self.twins:
            self.twins[key] = llama_twin.train(self.weights, self.batches[:ranks], STEPS, device or self.device, **how)
        return self.twins[key]

    def configuration(self):
        return {
            "model": {"type": "causal_lm", "lm": str(self.folder / "lm")},
            "data": {"batches": str(self.folder / "batches{rank}.safetensors")},
            "train": {"steps": STEPS, "trainable": llama_twin.PATTERNS, "clip": {"norm": None}, "max_skipped": 20,
                      "optimizer": {"lr": llama_twin.LR, "eps": llama_twin.EPS, "decay": []},
                      "schedule": {"warmup_steps": 0}},
            "strategy": {"mixed_precision": {"param": "fp32"}},
            "checkpoint": {"every_steps": MIDDLE, "keep": None},
            "dist": {"timeout_s": 60},
            "log": {"every_steps": 1, "tensorboard": False, "wandb": None,
                    "diagnostics": {"batches": 3, "trace_steps": 1}},
        }

    def start(self, config, words, ranks, device, name, returns=0):
        graphs = GRAPHS in words
        if graphs:  # steps that are logged measure the noise of gradients, and run
            config = config | {"log": config["log"] | {"every_steps": 1000}}
        backend = "nccl" if device == "cuda" and (ranks == 1 or graphs) else "gloo"
        words = [write_config(self.folder, name, config), f"run.dir={self.folder / 'runs'}", f"run.name={name}",
                 f"dist.device={device}", f"dist.backend={backend}", *words]
        line = ranks_on_one_gpu(words, ranks) if ranks > 1 and backend == "nccl" else command(words, ranks)
        done = subprocess.run(line, capture_output=True, text=True, timeout=240, env=environment(), check=False)
        expect(done.returncode == returns, "exit", done.returncode, done.stderr[-3000:])
        return Run(self.folder / "runs" / name, done.stderr)

    def in_two_parts(self, config, words, ranks, device, name):
        """A run, and how far it is from one that goes on from its middle: losses, norms and scales."""
        whole = self.start(config, words, ranks, device, name)
        again = self.start(config, [*words, f"run.resume={whole.folder / 'checkpoints' / f'step_{MIDDLE}'}"], ranks, device,
                           name + "-again")
        expect(sorted(again.steps) == list(range(MIDDLE + 1, max(whole.steps) + 1)), "resumed with", sorted(again.steps))
        names = [key for key in whole.steps[1] if key.startswith("loss_") or key == "grad_norm"]
        expect(len(names) >= 2, names)
        off = max(worst(again.values(key), whole.values(key, MIDDLE)) for key in names)
        return whole, again, off

    def trained(self, mode, run):
        """What trains; whatever else a checkpoint holds is as it was, in the type that it was stored in."""
        weights = run.trained()
        stored = torch.bfloat16 if BF16 in mode.words else torch.float16 if FP16 in mode.words else torch.float32
        for name in [name for name in weights if not llama_twin.trains(name)]:
            expect(torch.equal(weights.pop(name).to(stored), self.weights[name].to(stored)), name, "has changed")
        expect(weights.keys() == {name for name in self.weights if llama_twin.trains(name)}, "weights", sorted(weights))
        return weights

    # ---- was it on?

    def gathers(self, run, dtype):
        bytes_of = run.gathered()
        expect(bytes_of.get(dtype, 0) > 0, "gathered:", bytes_of)
        return f"{bytes_of[dtype] / 2**10:.0f} KiB gathered in {dtype}"

    def gathers_fp32(self, mode, run):
        return self.gathers(run, "fp32")

    def gathers_bf16(self, mode, run):
        return self.gathers(run, "bf16")

    def gathers_fp16(self, mode, run):
        return self.gathers(run, "fp16")

    def gathers_int8(self, mode, run):
        return self.gathers(run, "int8")

    def gathers_fp8(self, mode, run):
        return self.gathers(run, "fp8")

    def fewer_bytes(self, mode, run):
        """Frozen matrices are gathered in one byte an element and four a row instead of the computation's."""
        values = [value for name, value in self.weights.items() if llama_twin.matrix(name)]
        count, rows = sum(value.numel() for value in values), sum(len(value) for value in values)
        found = run.gathered()["int8" if INT8 in mode.words else "fp8"] / (count + 4 * rows)
        # Forward and backward, each; the last layer is not gathered twice.
        expect(0.95 < found < 2.05, "8-bit gathers are", found, "times the matrices")
        return f"{found:.2f} times the matrices"

    def multiplies_in_fp8(self, mode, run):
        expect(("emulated on the CPU" in run.said) == (self.device == "cpu"), "emulated where it should not be, or not")
        units = json.loads((run.folder / "diagnostics.json").read_text())["units"]
        names = [group["name"] for unit in units for group in unit["groups"]]
        expect(sum(name.endswith(" fp8 products") for name in names) == llama_twin.LAYERS, "groups", names)
        return "products of codes"

    def scales(self, mode, run):
        attempts = self.twin(mode.ranks, **mode.twin).scales
        fitting = [scale for scale, finite in attempts if finite]
        expect(run.values("loss_scale") == fitting, "scales", run.values("loss_scale"), "instead of", fitting)
        expect(run.values("skipped")[-1] == len(attempts) - len(fitting), "skipped", run.values("skipped")[-1])
        expect(mode.twin["scale"] != LARGE or len(attempts) > len(fitting), "the scale fitted at once")
        return f"scale {fitting[-1]:.0f}, {len(attempts) - len(fitting)} skipped"

    def replays(self, mode, run):
        found = re.search(r"cuda graphs: (\d+) passes were replayed, (\d+) recorded and (\d+) run", run.said)
        expect(found, "no sentence about graphs:", run.said[-2000:])
        replayed, recorded, ran = map(int, found.groups())
        # Two shapes: the first time of each is rounded, the next two run, then one is recorded.
        expect(replayed >= STEPS // 2 - 2 and recorded >= 2, found[0])
        return f"{replayed} replayed, {recorded} recorded, {ran} run"

    def offloads(self, mode, run):
        """Between steps neither slices nor optimizer state are on the device."""
        expect(re.search(r"offload", run.said), "nothing about offload in the log")
        if self.device == "cpu":
            return "host memory"
        findings = json.loads((run.folder / "diagnostics.json").read_text())["memory"]
        held = max(entry["current_bytes"] % WORKSPACE for entry in findings if entry["point"] == "batch_start" and entry["batch"] > 1)
        frozen = 2 if FP16 in mode.words else 4

        def bytes_of(name):  # of an element; what trains has two moments
            return 12 if llama_twin.trains(name) else 1 if INT8 in mode.words and llama_twin.matrix(name) else frozen

        slices = sum(value.numel() * bytes_of(name) for name, value in self.weights.items()) / mode.ranks
        expect(held < 0.5 * slices, held, "bytes on the device before a step; not offloaded:", slices)
        return f"{held / 2**10:.0f} KiB on the device before a step, of {slices / 2**10:.0f}"

    # ---- cases

    def judge(self, mode):
        device = mode.device or self.device
        run, again, off = self.in_two_parts(self.configuration(), mode.words, mode.ranks, device, mode.name.replace(" ", "-"))
        self.runs[mode.name] = run
        run.weights = self.trained(mode, run)
        shown = "; ".join(getattr(self, name)(mode, run) for name in mode.shows)
        losses, norms = run.values("loss_text"), run.values("grad_norm")
        expected = self.twin(mode.ranks, "cpu", **({"storage": mode.twin["storage"]} if "storage" in mode.twin else {}))
        if mode.exact:
            numbers = worst(losses, expected.losses), worst(norms, expected.norms), far(run.weights, expected.weights)
            bounds = (LOSS, NORM, WEIGHT)
            plain = self.twin(mode.ranks, "cpu")
            if mode.twin:  # 8 bits show
                expect(worst(plain.losses, expected.losses) > 10 * LOSS, "8 bits change nothing")
            bound_again, bound_end, moved = SAME, WEIGHT, far(expected.weights, {name: self.weights[name] for name in expected.weights})
            expect(moved > MOVED, "weights moved by", moved)
        else:
            # A scale that is halved uses batches up.
            theirs = self.twin(mode.ranks, **mode.twin)
            skipped = [i for i, (_, finite) in enumerate(theirs.scales) if not finite]
            exact = self.without(mode.ranks, skipped) if skipped else expected
            numbers = typical(losses, exact.losses), typical(norms, exact.norms), apart(run.weights, exact.weights)
            noise = (typical(theirs.losses, exact.losses), typical(theirs.norms, exact.norms),
                     apart(theirs.weights, exact.weights))
            bounds = tuple(TIMES * value for value in noise)
            expect(numbers[0] >= noise[0] / 10, "it computed with as many bits as fp32:", numbers[0], "and", noise[0])
            expect(abs(exact.losses[0] - exact.losses[-1]) / exact.losses[0] > 10 * noise[0], "too little was learnt")
            bound_again, bound_end = max(bounds[:2]), bounds[2]
        for what, number, bound in zip(("losses", "norms", "weights"), numbers, bounds):
            expect(number <= bound, what, "differ by", number, "instead of at most", bound)
        expect(off <= bound_again, "gone on with from the middle it differs by", off, "instead of", bound_again)
        end = (far if mode.exact else apart)(self.trained(mode, again), run.weights)
        expect(end <= bound_end, "weights of the run that was gone on with differ by", end)
        self.bounds[mode.name] = bound_again, bound_end
        self.rows[mode.name] = (*(f"{n:.1e} / {b:.1e}" for n, b in zip(numbers, bounds)), f"{off:.1e}", shown)

    def without(self, ranks, skipped):
        """fp32 over the other batches."""
        key = (ranks, *skipped)
        if key not in self.twins:
            left = [[batch for i, batch in enumerate(of_rank) if i not in skipped] for of_rank in self.batches[:ranks]]
            self.twins[key] = llama_twin.train(self.weights, left, STEPS, "cpu")
        return self.twins[key]

    def recorded_as_run(self):
        """Recorded steps beside the same that ran: as near as a repetition. The first batch of a shape is rounded up, so
        that in bf16 it is one of other sums."""
        for name, eager in EAGER.items():
            if name not in self.runs or eager not in self.runs:
                raise AssertionError(f"'{name}' or '{eager}' has not run")
            ours, theirs = self.runs[name], self.runs[eager]
            off = max(worst(ours.values(key), theirs.values(key)) for key in ("loss_text", "grad_norm"))
            exact = next(mode for mode in MODES if mode.name == name).exact
            end = (far if exact else apart)(ours.weights, theirs.weights)
            print(f"        {name}: losses and norms differ by {off:.1e}, weights by {end:.1e}", flush=True)
            bound, bound_end = self.bounds[name]
            expect(off <= bound and end <= bound_end, name, "differs by", off, "and", end, "instead of", bound, bound_end)

    def refused(self):
        with_graphs = "cuda_graphs beside cpu_offload" if self.device == "cuda" else "cannot be recorded"
        for words, said in (([GRAPHS, OFFLOAD], with_graphs),
                            ([BF16, PRODUCTS, "++precision.autocast=bf16"], "which autocast knows nothing of"),
                            ([PRODUCTS], "strategy.frozen.compute"), ([BF16, SCALED], "which only fp16 needs")):
            name = f"refused{len(words)}{len(said)}"
            run = self.start(self.configuration(), words, 1, self.device, name, returns=2)
            expect(said in run.said, run.said)

    def flamingo(self, name, words, exact, bound=None):
        """The golden Flamingo, beside the CPU in the same precision, recorded steps beside those that run. Without a
        bound: TIMES as far as this precision is from the one of the words `exact`, both on the CPU."""
        config = golden_config("neox_x2")
        config["train"]["steps"] = 35 if GRAPHS in words else 10  # five shapes
        config["train"]["optimizer"]["eps"] = llama_twin.EPS
        config["checkpoint"] = {"every_steps": MIDDLE, "keep": None}
        label = "flamingo-" + name.replace(" ", "-")
        here, _, off = self.in_two_parts(config, words, 1, self.device, label)
        plain = [word for word in words if word not in (GRAPHS, OFFLOAD)]
        there = self.start(config, plain, 1, self.device if GRAPHS in words else "cpu", label + "-there")

        def distance(one, other):
            return max(typical(one.values(key), other.values(key)) for key in ("loss_laion", "loss_mmc4", "grad_norm"))

        if bound is None:
            bound = TIMES * distance(there, self.start(config, exact, 1, "cpu", label + "-exact"))
            expect(bound > 0, "as exact as fp32")
        shown = ""
        if GRAPHS in words:
            shown = re.search(r"cuda graphs: (\d+) passes were replayed[^;]*", here.said)
            expect(shown and int(shown[1]) >= 5, here.said[-2000:])
            shown = shown[0]
        if FP16 in words:
            expect(here.values("loss_scale") == there.values("loss_scale"), "scales", here.values("loss_scale"))
            shown = f"scale {here.values('loss_scale')[-1]:.0f}"
        found = distance(here, there)
        expect(found <= bound, "differs by", found, "instead of at most", bound)
        expect(off <= bound, "gone on with from the middle it differs by", off)
        self.rows[f"Flamingo, {name}"] = (f"{found:.1e} / {bound:.1e}", "", "", f"{off:.1e}", shown)


def main():
    arguments = parse_arguments(__doc__)
    cuda, begin = arguments.device == "cuda", time.time()
    torch.set_num_threads(4 if cuda else 2)
    torch.backends.cuda.matmul.allow_tf32 = False
    with tempfile.TemporaryDirectory() as folder:
        script = Script(arguments, Path(folder))
        modes = [mode for mode in MODES if cuda or not mode.graphs]
        cases = {mode.name: partial(script.judge, mode) for mode in modes}
        cases["refused"] = script.refused
        flamingo = {"fp32": ([], [], FLAMINGO), "fp16": ([FP16, SCALED], [], None), "int8": ([INT8], [], FLAMINGO),
                    "fp8 products": ([BF16, PRODUCTS], [BF16], None), "offload": ([OFFLOAD], [], FLAMINGO)}
        if cuda:
            flamingo["graphs"] = ([GRAPHS], [], FLAMINGO)
        for name, (words, reference, bound) in flamingo.items():
            cases[f"Flamingo, {name}"] = partial(script.flamingo, name, words, reference, bound)
        for mode in modes:  # all before the runs, which share the device with others
            if not arguments.only or arguments.only in mode.name:
                script.twin(mode.ranks, "cpu")
                script.twin(mode.ranks, "cpu", **{k: v for k, v in mode.twin.items() if k == "storage"})
                if not mode.exact:
                    script.twin(mode.ranks, **mode.twin)
        print(f"twins after {time.time() - begin:.0f} s", flush=True)
        alone = "graphs, two ranks"  # their collectives take turns on the GPU
        with ThreadPoolExecutor(6 if cuda else 2) as pool:
            list(pool.map(lambda item: script.case(*item), [item for item in cases.items() if item[0] != alone]))
        if cuda:
            script.case(alone, cases[alone])
        if cuda and not arguments.only:
            script.case("recorded steps as steps that run", script.recorded_as_run)
    print("\n| case | losses | norms | weights | gone on with | was on |\n| --- | --- | --- | --- | --- | --- |")
    for name in cases:
        if name in script.rows:
            print(f"| {name} | {' | '.join(script.rows[name])} |")
    print(f"{time.time() - begin:.0f} s in all")
    script.end()


if __name__ == "__main__":
    main()
