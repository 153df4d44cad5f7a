#!/usr/bin/env python3
"""Makes the pictures of docs/pictures.md from real runs: the demo's data, two ranks of this machine, a browser.

usage: pictures.py [--runs FOLDER] [OUT]

OUT is the folder for the PNG files (docs/pictures). With --runs the runs are made in FOLDER and kept; those that
are there already are used. FLOE_BIN_DIR is the folder of floe and demo_data (build/release/bin). Takes a few
minutes, and needs Chromium and Pillow.
"""

import argparse
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageChops

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/report"))
import browser  # noqa: E402

BIN = Path(os.environ.get("FLOE_BIN_DIR", ROOT / "build/release/bin")).resolve()
MOST_BYTES = 200_000
BORDER = 16
COLOURS = {"wait": "#ef9a9a", "forward": "#80cbc4", "backward": "#90caf9", "recompute": "#ce93d8", "gather": "#ffcc80", "prefetch": "#ffe0b2",
           "reduce": "#a5d6a7", "reduction": "#a5d6a7", "other": "#cfd8dc"}  # fmt: skip


def floe(folder, *words):
    words = [str(word) for word in words]
    done = subprocess.run([BIN / "floe", *words], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})  # fmt: skip
    if done.returncode:
        sys.exit(f"pictures.py: floe {' '.join(words)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def make_runs(folder):
    """The demo without its interruption, with diagnostics and a trace, and once more with two phases. The
    configurations lie in the folder too, so that pages name them as a user would."""
    if not (folder / "configs").exists():
        shutil.copytree(ROOT / "configs", folder / "configs")
    if not (folder / "runs/demo-data").exists():
        subprocess.run([BIN / "demo_data", ROOT / "examples/demo", folder / "runs/demo-data"], check=True, stdout=subprocess.DEVNULL)
    configs = Path("configs")
    if not (folder / "runs/demo-data/captioner").exists():
        floe(folder, "launch", "-n", 2, "--", "train", configs / "demo_lm.yaml")
        floe(folder, "export", "runs/demo-lm/checkpoints/last", "runs/demo-data/captioner")
    every = ["train.validation.every_steps=50", "++log.diagnostics={batches: 3}"]
    if not (folder / "runs/flamingo").exists():
        floe(folder, "launch", "-n", 2, "--", "train", configs / "demo.yaml", "run.name=flamingo", *every,
             "++log.diagnostics.trace_steps=4")  # fmt: skip
    if not (folder / "runs/phases").exists():
        floe(folder, "launch", "-n", 2, "--", "train", configs / "demo.yaml", "run.name=phases", *every,
             "train.cycle_phases=true",
             "phases=[{name: resampler, train: ['perceiver.*'], steps: 50, optimizer_state: offload}, "
             "{name: gates, train: ['*gated_cross_attn*'], steps: 50, optimizer_state: offload}]")  # fmt: skip


def photograph(page, out, width, height=6000):
    """A page of HTML as a small PNG, without the empty space around it."""
    program, reason = browser.find()
    if program is None:
        sys.exit(f"pictures.py: {reason}")
    with tempfile.TemporaryDirectory() as folder:
        source, picture = Path(folder) / "page.html", Path(folder) / "page.png"
        source.write_text(page, encoding="utf-8")
        words = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                 f"--user-data-dir={folder}/profile", f"--window-size={width},{height}", f"--screenshot={picture}"]  # fmt: skip
        done = subprocess.run([*words, source.as_uri()], capture_output=True, text=True, timeout=120)
        if done.returncode or not picture.exists():
            sys.exit(f"pictures.py: {program} failed: {done.stderr[-1000:]}")
        image = Image.open(picture).convert("RGB")
    ground = Image.new("RGB", image.size, image.getpixel((0, 0)))
    left, top, right, bottom = ImageChops.difference(image, ground).getbbox()
    image = image.crop((max(0, left - BORDER), max(0, top - BORDER), min(image.width, right + BORDER), min(image.height, bottom + BORDER)))
    image.quantize(64, dither=Image.Dither.NONE).save(out, optimize=True)
    size = out.stat().st_size
    print(f"{out.name}: {image.width} x {image.height}, {size / 1000:.0f} kB")
    if size > MOST_BYTES:
        sys.exit(f"pictures.py: {out} is larger than {MOST_BYTES / 1000:.0f} kB")


def sections_of(report, *titles):
    """The page of a report with some of its sections alone; "": what stands above them."""
    parts = re.split(r"(?=<section)", report)
    found = [part.split("</section>")[0] + "</section>" for part in parts[1:]]
    head, rest = parts[0], "</main></body></html>"
    chosen = [part for title in titles if title for part in found if f"<h2>{title}</h2>" in part]
    if len(chosen) != sum(map(bool, titles)):
        sys.exit(f"pictures.py: the report has no sections {titles}, but {re.findall('<h2>(.*?)</h2>', report)}")
    if "" not in titles:
        head = re.sub(r"<body>.*", "<body><main>", head, flags=re.DOTALL)
    return head + "".join(chosen) + rest


def terminal(command, output):
    style = "body{margin:0;background:#fff}pre{font:13px/1.45 monospace;margin:24px;color:#222}b{color:#00718a}"
    return f"<meta charset='utf-8'><style>{style}</style><pre><b>$ {html.escape(command)}</b>\n{html.escape(output)}</pre>"


def short(name):
    """What a span is called in a narrow bar."""
    for long, instead in ((r".*layers\.(\d+)\.gated_cross_attn_layer.*", r"cross \1"), (r".*layers\.(\d+)\.decoder_layer.*", r"layer \1"),
                          (r".*resblocks\.(\d+).*", r"ViT \1"), (r"(forward|backward) perceiver", "resampler")):  # fmt: skip
        name = re.sub(long, instead, name)
    return name


def spans_of(trace):
    """Everything that has a beginning and an end: (track, begin, end, name, kind), in microseconds."""
    spans, begun = [], {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            spans.append((event["tid"], event["ts"], event["ts"] + event["dur"], event["name"], event["cat"]))
        elif event["ph"] == "b":
            begun[event["id"]] = event
        elif event["ph"] == "e":
            first = begun.pop(event["id"])
            spans.append((first["tid"], first["ts"], event["ts"], first["name"], first["cat"]))
    return sorted(spans, key=lambda span: (span[0], span[1], -span[2]))


def timeline(trace):
    """A batch of a trace as bars over time: the track that computes, and the collectives. It is the quickest one after
    the first, in which the engine learns the order of units."""
    spans = spans_of(trace)
    batches = [span for span in spans if re.fullmatch(r"batch [2-9]", span[3])]
    _, begin, end, batch, _ = min(batches, key=lambda span: span[2] - span[1])
    names = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    width, bar, y, marks = 1140, 20, 16, []
    for track, title in sorted(names.items()):
        marks.append(f"<text y='{y}' class='t'>{html.escape(title)}</text>")
        rows, deepest, y = [], 0, y + 8  # rows: the end of what lies in each
        for _, first, last, name, kind in (span for span in spans if span[0] == track and begin <= span[1] <= span[2] <= end):
            free = [i for i in range(len(rows)) if max(rows[i:]) <= first]
            row = free[0] if free else len(rows)
            rows[row:] = [last]
            x, w, top = (first - begin) / (end - begin) * width, (last - first) / (end - begin) * width, y + row * (bar + 2)
            marks.append(f"<rect x='{x:.1f}' y='{top}' width='{max(w, 0.6):.1f}' height='{bar}' fill='{colour_of(name, kind)}'/>")
            if w > 6.2 * len(short(name)) + 6:
                marks.append(f"<text x='{x + 3:.1f}' y='{top + 14}'>{html.escape(short(name))}</text>")
            deepest = max(row, deepest)
        y += (deepest + 1) * (bar + 2) + 26
    legend, x = "", 0
    for kind in ("forward", "backward", "wait", "gather", "prefetch", "reduce"):
        legend += f"<rect x='{x}' y='{y - 12}' width='12' height='12' fill='{COLOURS[kind]}'/><text x='{x + 18}' y='{y - 2}'>{kind}</text>"
        x += 90
    scale = f"<text x='{x}' y='{y - 2}'>{(end - begin) / 1000:.1f} ms from left to right: {batch}, rank 0</text>"
    style = "body{margin:24px;background:#fff}text{font:11px sans-serif;fill:#222}.t{font-weight:bold}"
    return (f"<meta charset='utf-8'><style>{style}</style><svg xmlns='http://www.w3.org/2000/svg' width='{width + 10}' height='{y + 6}'>"
            f"{''.join(marks)}{legend}{scale}</svg>")  # fmt: skip


def colour_of(name, kind):
    for text in (kind, name):
        for word, colour in COLOURS.items():
            if word in text:
                return colour
    return COLOURS["other"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "docs/pictures")
    parser.add_argument("--runs", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.runs or Path(scratch)
        (folder / "runs").mkdir(parents=True, exist_ok=True)
        make_runs(folder)
        reports = {}
        for name in ("flamingo", "phases"):
            floe(folder, "report", f"runs/{name}", "--output", f"runs/{name}/report.html")
            reports[name] = (folder / f"runs/{name}/report.html").read_text(encoding="utf-8")
        plan = floe(folder, "plan", "configs/transformer-demo.yaml", "world=4")
        trace = json.loads((folder / "runs/flamingo/trace/rank_0.json").read_text())
    photograph(sections_of(reports["flamingo"], "", "Loss", "Validation"), options.out / "report.png", 1200)
    photograph(sections_of(reports["flamingo"], "Memory by phase"), options.out / "memory.png", 1400)
    photograph(sections_of(reports["flamingo"], "Time per unit"), options.out / "times.png", 1200)
    photograph(sections_of(reports["phases"], "Loss", "Phases"), options.out / "phases.png", 1200)
    photograph(terminal("floe plan configs/transformer-demo.yaml world=4", plan), options.out / "plan.png", 1000)
    photograph(timeline(trace), options.out / "trace.png", 1200)


if __name__ == "__main__":
    main()
