"""`floe train` on the GPU from end to end, beside the same program on the CPU: the golden Flamingo runs on
one rank and on two that share the GPU, over Gloo and NCCL, fp32 and bf16, phases, diagnostics, a kill and
its resume, what is exported, and text from it.

    gpu_train.py --device cuda|cpu        FLOE_BIN_DIR: where floe is

Needs Python with numpy, safetensors and PyYAML; cpu is for trying the script itself.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "support")]
from gpu_script import Cases, expect, parse_arguments  # noqa: E402
from running import FLOE, GOLDENS, command, environment, golden_config, rank_process, steps_of, wait_for_steps  # noqa: E402
from patience import patient

NAMES = ("loss_laion", "loss_mmc4", "grad_norm")
PHASES = [
    {"name": "resampler", "train": ["perceiver.*"], "steps": 2, "optimizer_state": "offload"},
    {"name": "gates", "train": ["*gated_cross_attn*"], "steps": 2, "optimizer_state": "offload"},
]
# fp32 differs by the order of sums; bf16 by the rounding of every product.
FP32, BF16 = 1e-4, 5e-2


def configuration(world2=False):
    config = golden_config("neox_x2", world2)
    config["log"] |= {"tensorboard": True, "diagnostics": {"batches": 3, "trace_steps": 3}}
    return config | {"checkpoint": {"every_steps": 2}, "dist": {"timeout_s": 60}}


# NCCL lets ranks share a GPU when each says that it is on a machine of its own.
APART = ("--env", "NCCL_SOCKET_IFNAME=lo", "--env", "NCCL_IB_DISABLE=1", "--env", "NCCL_NET_PLUGIN=none", "--exec",
         "sh", "-c", 'LOCAL_RANK=0 NCCL_HOSTID=floe-$RANK exec "$@"', "sh")


def ranks_on_one_gpu(words, ranks):
    return [FLOE, "launch", "-n", str(ranks), *APART, *command(words, 1)]


def write_config(folder, name, config):
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    return path


class Script(Cases):
    over_nccl = False

    def words(self, config, device, ranks, name, more):
        """One rank on the GPU uses NCCL; several share it over Gloo, or as if they were on two machines."""
        apart = self.over_nccl and device == "cuda" and ranks > 1
        backend = "nccl" if device == "cuda" and (ranks == 1 or apart) else "gloo"
        words = [write_config(self.folder, name, config), f"run.dir={self.folder / 'runs'}", f"run.name={name}",
                 f"dist.device={device}", f"dist.backend={backend}", *more]
        return ranks_on_one_gpu(words, ranks) if apart else command(words, ranks)

    def with_nccl(self, body):
        self.over_nccl = True
        try:
            body()
        finally:
            self.over_nccl = False

    def train(self, config, *more, device=None, ranks=1, name=None):
        name = name or self.new_name()
        done = subprocess.run(self.words(config, device or self.device, ranks, name, more), capture_output=True,
                              text=True, timeout=240, env=environment(), check=False)
        expect(done.returncode == 0, "exit", done.returncode, done.stderr[-3000:])
        return self.folder / "runs" / name

    def compare(self, one, other, bound, names=NAMES):
        ours, theirs = steps_of(one), steps_of(other)
        expect(ours.keys() == theirs.keys(), "steps", sorted(ours), "and", sorted(theirs))
        worst = 0
        for step, line in theirs.items():
            for name in names:
                if name not in line:
                    continue
                error = abs(ours[step][name] - line[name]) / max(abs(line[name]), 1e-3)
                worst = max(worst, error)
                expect(error <= bound, f"step {step}: {name} {ours[step][name]} instead of {line[name]}")
        print(f"        worst difference {worst:.1e}")

    # ---- cases

    def like_the_cpu(self, ranks, dtype, *more, world2=False, config=None):
        config = config or configuration(world2=world2)
        words = (f"strategy.mixed_precision.param={dtype}", *more)
        here = self.train(config, *words, ranks=ranks)
        there = self.train(config, *words, ranks=ranks, device="cpu")
        self.compare(here, there, FP32 if dtype == "fp32" else BF16)
        findings = json.loads((here / "diagnostics.json").read_text())
        expect(len(findings["memory"]) == 15 * ranks, "memory of", len(findings["memory"]), "points")
        expect(findings["times"] and findings["units"], "diagnostics without times or units")
        for rank in range(ranks):
            events = json.loads((here / "trace" / f"rank_{rank}.json").read_text())["traceEvents"]
            expect(any(event.get("cat") == "step" for event in events), "no step in the trace of rank", rank)
        peak = max(line["memory_peak_bytes"] for line in steps_of(here).values() if "memory_peak_bytes" in line)
        expect(peak > 0, "no peak of memory")
        return here

    def phases(self, ranks):
        config = configuration(world2=ranks == 2)
        config["phases"] = PHASES
        config["train"].update(steps=8, cycle_phases=True)
        run = self.like_the_cpu(ranks, "bf16", config=config)
        found = [line["phase"] for _, line in sorted(steps_of(run).items())]
        expect(found == ["resampler"] * 2 + ["gates"] * 2 + ["resampler"] * 2 + ["gates"] * 2, found)

    def killed(self, ranks):
        """Killed without warning, then resumed: the losses of a run that was not."""
        config = configuration(world2=ranks == 2)
        config["train"]["steps"] = 120
        config["checkpoint"] = {"every_steps": 10, "async": True}
        config["log"]["diagnostics"] = None
        unbroken = self.train(config, ranks=ranks)
        name = self.new_name()
        run = self.folder / "runs" / name
        process = subprocess.Popen(self.words(config, self.device, ranks, name, []), env=environment(),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        end = time.time() + patient(120)
        while time.time() < end and process.poll() is None:
            if (run / "checkpoints" / "last").exists():
                break
            time.sleep(0.01)
        expect(process.poll() is None, "the run was over before it could be killed")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        expect(len(steps_of(run)) < 120, "the run was over before it could be killed")
        self.train(config, ranks=ranks, name=name)
        self.compare(run, unbroken, FP32)

    def one_is_killed(self):
        """The other one says so and ends, long before the timeout."""
        config = configuration(world2=True)
        config["train"]["steps"] = 100000
        config["log"]["diagnostics"] = None
        name = self.new_name()
        run = self.folder / "runs" / name
        process = subprocess.Popen(self.words(config, self.device, 2, name, []), env=environment(),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        process.folder = run
        wait_for_steps(process, 3, seconds=120)
        begin = time.time()
        os.kill(rank_process(process.pid, 1), signal.SIGKILL)
        said = process.communicate(timeout=100)[1]
        seconds = time.time() - begin
        expect(seconds < 50, "it took", seconds, "s")
        expect(process.returncode == 128 + signal.SIGKILL, "exit", process.returncode, said[-3000:])
        # NCCL's own error, or the control plane's if that has noticed first.
        expect("error:" in said and ("on rank 0 of 2" in said or "rank 1 has failed" in said), said[-3000:])
        print(f"        over after {seconds:.1f} s")

    def stopped(self):
        """Asked to stop: it saves and goes on later."""
        config = configuration()
        config["train"]["steps"] = 120
        config["log"]["diagnostics"] = None
        config["checkpoint"] = {"every_steps": None}
        unbroken = self.train(config)
        name = self.new_name()
        run = self.folder / "runs" / name
        process = subprocess.Popen(self.words(config, self.device, 1, name, []), env=environment(),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        process.folder = run
        wait_for_steps(process, 3, seconds=120)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
        expect(3 <= len(steps_of(run)) < 120, "steps", len(steps_of(run)))
        self.train(config, name=name)
        self.compare(run, unbroken, FP32)

    def exported(self):
        """The weights that OpenFlamingo's own training ended with, and text from them."""
        run = self.train(configuration())
        out = self.folder / "trained.safetensors"
        done = subprocess.run([FLOE, "export", run / "checkpoints" / "last", out, "--trainable-only"],
                              capture_output=True, text=True, env=environment(), check=False)
        expect(done.returncode == 0, done.stderr)
        golden = load_file(GOLDENS / "neox_x2-train" / "final_trainable.safetensors")
        weights = load_file(out)
        lr = json.loads((GOLDENS / "neox_x2-train" / "train_config.json").read_text())["lr"]
        for name, value in golden.items():
            error = np.abs(weights[name] - value)
            # Where a gradient is nothing but rounding, AdamW turns its noise into steps of up to lr.
            expect(error.max() <= 10 * lr and np.quantile(error, 0.99) <= 1e-4, name, error.max())
        model = golden_config("neox_x2")["model"] | {"weights": str(out)}
        path = self.folder / "trained.yaml"
        path.write_text(json.dumps(model))
        here, there = self.generate(path, self.device), self.generate(path, "cpu")
        expect(here == there, "text", here, "instead of", there)

    def generate(self, model, device):
        golden = json.loads((GOLDENS / "neox_x2" / "generate.json").read_text())
        prompts = [[token for token, real in zip(ids, mask) if real]
                   for ids, mask in zip(golden["prompt_ids"], golden["attention_mask"])]
        words = [word for prompt in prompts for word in ("--ids", ",".join(map(str, prompt)))]
        done = subprocess.run(
            [FLOE, "generate", model, *words, "--images", GOLDENS / "neox_x2" / "generate_images.safetensors",
             "--max-new-tokens", str(golden["max_new_tokens"]), "--json", "--device", device],
            capture_output=True, text=True, env=environment(), check=False)
        expect(done.returncode == 0, done.stderr)
        return json.loads(done.stdout)["ids"]

    def generated(self):
        """What transformers' generate gives for the golden model."""
        golden = json.loads((GOLDENS / "neox_x2" / "generate.json").read_text())
        length = len(golden["prompt_ids"][0])
        expected = [row[length:] for row in golden["runs"]["greedy"]["sequences"]]
        found = self.generate(GOLDENS / "neox_x2" / "model.yaml", self.device)
        expect(found == expected, "text", found, "instead of", expected)

    def forward(self):
        for name in ("neox_x2", "opt_x1"):
            out = self.folder / f"{name}.safetensors"
            done = subprocess.run([FLOE, "forward", GOLDENS / name / "model.yaml", GOLDENS / name / "forward.safetensors",
                                   out, "--device", self.device], capture_output=True, text=True, env=environment(),
                                  check=False)
            expect(done.returncode == 0, done.stderr)
            ours, golden = load_file(out), load_file(GOLDENS / name / "forward.safetensors")
            real = golden["attention_mask"] == 1
            error = np.abs(ours["logits"] - golden["logits"])[real].max() / max(1, np.abs(golden["logits"]).max())
            expect(error <= FP32, name, "logits differ by", error)


def main():
    arguments = parse_arguments(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        script = Script(arguments.device, Path(folder), arguments.only)
        cases = {
            "forward": script.forward,
            "generate": script.generated,
            "one rank, fp32": lambda: script.like_the_cpu(1, "fp32"),
            "one rank, bf16": lambda: script.like_the_cpu(1, "bf16"),
            "two ranks, fp32": lambda: script.like_the_cpu(2, "fp32", world2=True),
            "two ranks, bf16, checkpointed": lambda: script.like_the_cpu(
                2, "bf16", "strategy.activation_checkpointing=[DecoderLayer]", world2=True),
            "two ranks, offloaded": lambda: script.like_the_cpu(2, "fp32", "strategy.cpu_offload=true", world2=True),
            "one rank, padded, with an average": lambda: script.like_the_cpu(
                1, "fp32", "train.packed=false", "train.ema.decay=0.9"),
            "phases on one rank": lambda: script.phases(1),
            "phases on two ranks": lambda: script.phases(2),
            "killed and resumed": lambda: script.killed(1),
            "killed and resumed on two ranks": lambda: script.killed(2),
            "two ranks over NCCL, fp32": lambda: script.with_nccl(lambda: script.like_the_cpu(2, "fp32", world2=True)),
            "two ranks over NCCL, bf16, checkpointed": lambda: script.with_nccl(lambda: script.like_the_cpu(
                2, "bf16", "strategy.activation_checkpointing=[DecoderLayer]", world2=True)),
            "phases on two ranks over NCCL": lambda: script.with_nccl(lambda: script.phases(2)),
            "killed and resumed on two ranks over NCCL": lambda: script.with_nccl(lambda: script.killed(2)),
            "one of two ranks over NCCL is killed": lambda: script.with_nccl(script.one_is_killed),
            "stopped and resumed": script.stopped,
            "exported, and text from it": script.exported,
        }
        for name, body in cases.items():
            script.case(name, body)
    script.end()


if __name__ == "__main__":
    main()
