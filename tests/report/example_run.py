"""The folder of a run, as `floe train` leaves it, with everything that a report shows."""

import json
import math
import random

CONFIG = """\
run: {name: "<b>demo</b> & co", dir: runs, seed: 0}
model: {type: flamingo, lm: "models/mpt", vision: models/vit}
train:
  steps: 400
  optimizer: {type: adamw, lr: 1e-4, betas: [0.9, 0.999]}
  clip: {norm: 1.0, value: null}
strategy: {sharding: full_shard, units: [DecoderLayer, GatedCrossAttention]}
"""

POINTS = ["batch_start", "after_forward", "after_backward", "before_optimizer_step", "batch_end"]


PHASES = ["resampler", "second <phase>"]
SWITCHES = [101, 201, 301]  # the first steps of another phase


def phase_of(step):
    return PHASES[(step - 1) // 100 % 2]


def loss(step, start, noise):
    return start * math.exp(-step / 120) + 1.5 + noise.gauss(0, 0.08)


def metrics(steps=400):
    noise = random.Random(0)
    for step in range(1, steps + 1):
        values = {
            "step": step,
            "time": 1_750_000_000 + 1.5 * step,
            "loss_laion": loss(step, 3, noise),
            "loss_mmc4": loss(step, 4, noise),
            "lr": 1e-4 * min(1, step / 100),
            "grad_norm": abs(noise.gauss(1, 0.3)) + 8 / step,
            "data_time": 0.02 + abs(noise.gauss(0, 0.01)),
            "step_time": 1.5 + noise.gauss(0, 0.05),
            "tokens_per_second": 48000 + noise.gauss(0, 800),
            "laion_samples_per_second": 42 + noise.gauss(0, 1),
            "mmc4_samples_per_second": 21 + noise.gauss(0, 1),
            "laion_samples_per_second_per_gpu": 21 + noise.gauss(0, 0.5),
            "mmc4_samples_per_second_per_gpu": 10 + noise.gauss(0, 0.5),
            "tflops": 151 + noise.gauss(0, 3),
            "mfu": 0.48 + noise.gauss(0, 0.01),
            "skipped": step // 150,
            "bad_samples": step // 40,
            "memory_peak_bytes": int(31e9 + 2e9 * math.sin(step / 30)),
            "loss_scale": 65536,
            "an_own_value": step % 7,
        }
        if step % 100 == 0:
            values["val_loss_laion"] = loss(step, 3, noise)
            values["val_perplexity_laion"] = math.exp(values["val_loss_laion"])
        if step <= 3:
            values["memory/after_forward_peak_mib"] = 15000 + step
        values["phase"] = phase_of(step)
        if step == 200:
            values["note"] = "<i>half way</i>"
        if step in SWITCHES:
            values |= {"phase_switch_time": 0.01 * step, "memory_after_switch_bytes": 2**30}
            values["phase_switch"] = switch_before(step)
        if step == 250:
            values |= {"grad_norm": None, "not_finite": {"grad_norm": "Infinity"}}
        yield values


def switch_before(step):
    """The state of the phase that rests goes to host memory."""
    masters, state = 2**20, 2**21
    before, after = phase_of(step - 1), phase_of(step)
    return {
        "from": before,
        "to": after,
        "seconds": 0.0125,
        "memory": {
            "before": {"parameters.trainable": masters, f"optimizer_state.{before}": state, f"host.optimizer_state.{after}": 2 * state},
            "after": {"parameters.trainable": 2 * masters, f"optimizer_state.{after}": 2 * state, "rest": 512, f"host.optimizer_state.{before}": state},
        },
    }


def unit(name, kind, checkpointed, groups):
    return {"name": name, "class": kind, "checkpointed": checkpointed, "groups": groups}


def group(name, trainable, numel, dtype="bf16", resident=False):
    bytes_each = 4 if trainable else 2
    return {
        "name": name,
        "trainable": trainable,
        "resident": resident,
        "numel": numel,
        "shard_bytes": numel * bytes_each // 2,
        "dtype": dtype,
    }


def time(name, kind, gather_wait, forward, backward, reduce_wait):
    return {
        "unit": name,
        "class": kind,
        "gather_wait_s": gather_wait,
        "forward_s": forward,
        "backward_s": backward,
        "reduce_wait_s": reduce_wait,
    }


def diagnostics():
    units = [unit("vision.embed", "Embedding", False, [group("frozen", False, 700_000, resident=True)])]
    units += [unit(f"vision.blocks.{i}", "ViTBlock", False, [group("frozen", False, 12_600_000)]) for i in range(4)]
    units += [unit("perceiver", "PerceiverResampler", False, [group("trainable", True, 63_000_000, "fp32")])]
    for i in range(6):
        units.append(unit(f"lm.layers.{i}.decoder", "DecoderLayer", True, [group("frozen", False, 50_300_000)]))
        if i % 2 == 0:
            groups = [group("trainable", True, 42_000_000, "fp32")]
            units.append(unit(f"lm.layers.{i}.gated_cross_attn", "GatedCrossAttention", True, groups))
    memory = []
    for batch in (1, 2, 3):
        for number, point in enumerate(POINTS):
            for rank in (0, 1):
                current = (8 + 4 * (number % 3) + rank) * 2**30
                hint = "logits of the longest sequence" if point == "after_forward" else ""
                memory.append(
                    {
                        "batch": batch,
                        "point": point,
                        "rank": rank,
                        "current_bytes": current,
                        "peak_bytes": current + (number + 1) * 2**30,
                        "hint": hint,
                    }
                )
    held = {"trainable_bytes": 378 * 2**20, "frozen_bytes": 352 * 2**20, "padding_bytes": 96}
    return {
        "strategy": ["full_shard over 2 ranks", "param bf16, reduce fp32"],
        "units": units,
        "ranks": [{"rank": rank, **held} for rank in (0, 1)],
        "memory": memory,
        "times": [
            time("perceiver", "PerceiverResampler", 0, 0.002, 0.004, 0.0005),
            time("lm.layers.0.decoder", "DecoderLayer", 0.001, 0.01, 0.02, 0),
        ],
        "notes": ["lm_head.weight and embed.weight are tied."],
    }


def write_run(folder):
    (folder / "logs").mkdir(parents=True)
    (folder / "config.yaml").write_text(CONFIG)
    lines = [json.dumps(values) for values in metrics()]
    lines[99:99] = ["this is <i>no</i> JSON"]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 401, "loss_la')
    (folder / "diagnostics.json").write_text(json.dumps(diagnostics()))
    for rank in (0, 1):
        log = "10:00:00 loading\n10:00:01 warning: shard 7 is short\n"
        log += "".join(f"10:00:{i:02} line {i}\n" for i in range(2, 50))
        log += "10:01:00 error: <script>alert(1)</script>\n" if rank else ""
        (folder / "logs" / f"rank_{rank}.log").write_text(log)
    return folder
