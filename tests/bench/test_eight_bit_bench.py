"""bench/eight_bit.py in small."""

import os
import re
import subprocess
import sys
from pathlib import Path

BENCH = Path(os.environ["FLOE_SOURCE_DIR"]) / "bench"
sys.path.insert(0, str(BENCH))
import eight_bit  # noqa: E402

WAYS = [("fp32", "fp32"), ("bf16", "bf16"), ("bf16", "int8"), ("bf16", "fp8"), ("bf16", "fp8 products")]


def test_perplexities_by_every_way(tmp_path):
    page = tmp_path / "page.md"
    done = subprocess.run([os.environ["FLOE_PYTHON"], BENCH / "eight_bit.py", "--steps", "2", "--pretrain", "30", "--out", page],
                          capture_output=True, text=True, timeout=240)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    text = page.read_text()
    rows = re.findall(r"^\| (.*) \| (.*) \| (.*) \| (\S+) \| (\d+\.\d+) \| (\S+)% \|$", text, re.MULTILINE)
    trained = {(job, param, way): losses for job, param, way, *losses in re.findall(
        r"^\| (.*) \| (fp32|bf16) \| (.*) \| (\d+\.\d+) \| (\d+\.\d+) \| \S* \| \S* \|$", text, re.MULTILINE)}  # fmt: skip
    jobs = [f"flamingo {golden}, {source}" for golden in ("neox_x2", "opt_x1") for source in ("laion", "mmc4")]
    for job in (*jobs, "causal_lm with LoRA, text"):
        found = {(param, way): (float(perplexity), float(loss)) for name, param, way, perplexity, loss, _ in rows if name == job}
        assert list(found) == WAYS
        losses = [loss for _, loss in found.values()]
        # A loss alone, as it is printed, may be the same by chance.
        told = {(*found[way], *trained[job.split(",")[0], *way]) for way in WAYS}
        assert len(told) == len(WAYS), f"{job}: two ways compute alike"
        assert all(abs(loss / losses[0] - 1) < 0.02 for loss in losses)
    learnt, first = [float(found) for found in re.search(r"loss (\S+) to (\S+) nats", text).groups()][::-1]
    assert learnt < first - 1
    assert abs(losses[0] - learnt) < 0.5, "what is frozen is what has learnt"

    codes = re.findall(r"^\| (learnt|random), (\w+) \| (\S+) \| (\S+) \| \S+ \| (\S+)% \| (\S+)% \|$", text, re.MULTILINE)
    assert len(codes) == 2 * 7, "q, k, v, o, gate, up, down"
    for *_, fine, wide, fine_lost, wide_lost in codes:  # three bits of mantissa beside two, and less range
        assert 0.002 < float(fine) < 0.06 and 1.3 < float(wide) / float(fine) < 2.5 and float(wide_lost) <= float(fine_lost)


def test_codes_of_gradients_are_told_apart():
    import torch

    fine, wide = torch.float8_e4m3fn, torch.float8_e5m2
    assert eight_bit.code_rows("m", {"q": {fine: (0.03, 0), wide: (0.05, 0)}})[1] == []
    (wrong,) = eight_bit.code_rows("m", {"q": {fine: (0.06, 0.5), wide: (0.05, 0)}})[1]
    assert wrong == "m, q: gradients in e5m2 are nearer (0.0500) than in e4m3 (0.0600)"
    x = torch.tensor([[448.0, 1e-3, 2e-5]])
    assert eight_bit.coded(x, fine, 1).tolist()[0][2] == 0 != eight_bit.coded(x, wide, 1).tolist()[0][2]


def test_a_forward_that_is_off_is_said(tmp_path, monkeypatch):
    def forward(folder, name, config, batches):
        return {"text": 2.03 if config == ("bf16", "fp8 products") else 2.0}

    monkeypatch.setattr(eight_bit, "forward", forward)
    for limit, wrong in ((0.02, []), (0.01, ["job, text: the loss of products in fp8 is +1.50% off (limit 1%)"])):
        rows, found = eight_bit.perplexities("job", lambda *way: way, "batches", limit, tmp_path)
        assert found == wrong and len(rows) == len(WAYS)
