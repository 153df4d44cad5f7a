"""`floe report` in a real browser, headless; where there is none these tests are left out, unless
FLOE_NEED_BROWSER is set. FLOE_BIN_DIR holds the program."""

import html.parser
import json
import os
import subprocess
from pathlib import Path

import browser
import pytest
from example_run import PHASES, POINTS, write_run
from PIL import Image

FLOE = Path(os.environ["FLOE_BIN_DIR"]) / "floe"


def floe_report(*words):
    return subprocess.run([FLOE, "report", *map(str, words)], capture_output=True, text=True, timeout=60)


def chromium(page, profile, *options):
    program, reason = browser.find()
    if program is None and not os.environ.get("FLOE_NEED_BROWSER"):
        pytest.skip(reason)
    assert program, reason
    words = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    words += [f"--user-data-dir={profile}", "--enable-logging=stderr", "--window-size=1200,1600", *options, page.as_uri()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


class Page(html.parser.HTMLParser):
    """The parts of a rendered page that the tests ask for."""

    def __init__(self, text):
        super().__init__()
        self.text, self.rows, self.figures, self.tags, self.open = "", {}, [], [], []
        self.ids, self.hrefs = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append(tag)
        self.hrefs += [value for name, value in attributes.items() if name in ("href", "src")]
        if identity := attributes.get("id"):
            self.ids.add(identity)
        if tag == "rect" and "strip" in attributes.get("class", ""):
            self.figures[-1]["strips"].append([float(attributes[name]) for name in ("x", "width")])
        if tag in ("meta", "br", "link", "line", "path"):
            if tag == "path" and "curve" in attributes.get("class", ""):
                self.figures[-1]["curves"].append(attributes["d"])
            return
        self.open.append((tag, attributes))
        if tag == "figure":
            self.figures.append({"title": "", "legend": [], "curves": [], "strips": []})
        if tag == "table":
            self.table = self.rows.setdefault(attributes.get("id"), [])
        if tag == "tr":
            self.table.append([])
        if tag in ("td", "th"):
            self.table[-1].append("")
        if tag == "li" and self.figures and self.inside("figure"):
            self.figures[-1]["legend"].append("")

    def inside(self, tag):
        return any(name == tag for name, _ in self.open)

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        if self.inside("script") or self.inside("style"):
            return
        self.text += data
        if self.inside("td") or self.inside("th"):
            self.table[-1][-1] += data
        if self.inside("figcaption"):
            self.figures[-1]["title"] += data
        if self.inside("li") and self.inside("figure"):
            self.figures[-1]["legend"][-1] += data

    def figure(self, title):
        (found,) = [figure for figure in self.figures if figure["title"] == title]
        return found


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = write_run(tmp_path_factory.mktemp("report") / "run")
    done = floe_report(folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{folder / 'report.html'}\n"
    return folder


@pytest.fixture(scope="module")
def page(run, tmp_path_factory):
    return Page(chromium(run / "report.html", tmp_path_factory.mktemp("profile"), "--dump-dom"))


def steps_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines() if line.endswith("}")]


def test_curves(page, run):
    rows = steps_of(run)
    loss = page.figure("Loss per source")
    assert loss["legend"] == [f"loss_laion {rows[-1]['loss_laion']:.4g}", f"loss_mmc4 {rows[-1]['loss_mmc4']:.4g}"]
    assert len(loss["curves"]) == 4  # of each source: every step, and smoothed
    assert all(curve.count("L") == 399 for curve in loss["curves"])
    assert page.figure("Learning rate")["legend"] == ["lr 0.0001"]
    assert page.figure("Gradient norm")["legend"][0].endswith("1 not finite")
    assert page.figure("Memory")["legend"] == [
        f"memory_peak_bytes {rows[-1]['memory_peak_bytes'] / 2**30:.1f} GiB",
        "memory_after_switch_bytes 1.00 GiB",
    ]
    assert page.figure("Time per switch of phases")["legend"] == ["phase_switch_time 3.01"]
    assert page.rows["single"][1:] == [["memory/after_forward_peak_mib", "3", "15k"]]
    assert page.figure("Validation loss")["curves"][0].count("L") == 3
    titles = {figure["title"] for figure in page.figures}
    assert titles >= {
        "Validation perplexity",
        "Tokens per second",
        "Samples per second",
        "Samples per second and rank",
        "Time per step",
        "TFLOP/s",
        "Model FLOP utilisation",
        "Skipped batches",
        "Bad samples",
        "Loss scale",
        "an_own_value",
    }


def test_summary_and_events(page):
    for words in ("400 of 400", "9 min 58 s", "batches skipped", "last loss_laion", "full_shard over 2 ranks", "are tied"):
        assert words in page.text
    assert page.rows["events"][1:] == [["200", "note", "<i>half way</i>"]]


def test_phases(page):
    assert page.rows["phases"][1:] == [[PHASES[0], "2", "200", "1", "300"], [PHASES[1], "2", "200", "101", "400"]]
    # Where each phase trained, in the chart of the loss: four turns, side by side from edge to edge.
    strips = page.figure("Loss per source")["strips"]
    assert len(strips) == 4 and strips[0][0] == 64 and sum(strips[-1]) == pytest.approx(640 - 12, abs=0.2)
    for (x, width), (following, _) in zip(strips, strips[1:]):
        assert x + width == pytest.approx(following, abs=0.2)
    assert [len(figure["strips"]) for figure in page.figures].count(0) == len(page.figures) - 1

    owners = page.rows[None]
    first = owners[: len(owners) // 3]
    assert first == [
        ["owner", "before", "after"],
        ["parameters that train", "1.00 MiB", "2.00 MiB"],
        ["optimizer state of resampler", "2.00 MiB", "-"],
        ["optimizer state of second <phase>", "-", "4.00 MiB"],
        ["the rest: activations, batches, what somebody keeps", "-", "512 B"],
        ["together on the device", "3.00 MiB", "6.00 MiB"],
        ["optimizer state of second <phase>, in host memory", "4.00 MiB", "-"],
        ["optimizer state of resampler, in host memory", "-", "2.00 MiB"],
    ]
    assert "before step 101: resampler → second <phase>, 0.0125 s, 3.00 MiB → 6.00 MiB on the device" in page.text
    assert "4.00 MiB → 2.00 MiB in host memory" in page.text


def test_memory_by_phase(page):
    rows = page.rows["memory"][1:]
    assert [row[1] for row in rows] == POINTS * 3
    assert rows[1] == ["1", "after_forward", "1", "13.0 GiB", "15.0 GiB", "", "14.0 GiB", "logits of the longest sequence"]
    assert page.rows["ranks"][1:] == [[rank, "378 MiB", "352 MiB", "96 B"] for rank in "01"]


def test_time_per_unit(page):
    assert page.rows["times"][1:] == [
        ["lm.layers.0.decoder", "DecoderLayer", "1.000", "10.000", "20.000", "0.000"],
        ["perceiver", "PerceiverResampler", "0.000", "2.000", "4.000", "0.500"],
    ]


def test_units_and_settings(page):
    for words in ("15 units", "GatedCrossAttention", "checkpointed", "63.0 M fp32 trainable", "frozen, resident"):
        assert words in page.text
    settings = dict(page.rows["settings"][1:])
    assert settings["run.name"] == "<b>demo</b> & co"
    assert settings["train.optimizer.lr"] == "1e-4" and settings["train.clip.value"] == "null"
    assert settings["train.optimizer.betas"] == "[0.9, 0.999]"


def test_damage_is_named(page):
    assert "Line 100 of metrics.jsonl is left out: it is not a JSON object." in page.text
    assert "Line 402 of metrics.jsonl is left out: it is torn off" in page.text


def test_nothing_of_the_run_is_markup(page):
    assert "<script>alert(1)</script>" in page.text  # shown as text
    assert "b" not in page.tags[: page.tags.index("h1") + 2]
    assert page.tags.count("script") == 1 + len(page.figures)


def test_page_needs_no_network(page, run):
    text = (run / "report.html").read_text()
    assert "http:" not in text and "https:" not in text and "url(" not in text
    assert page.hrefs == []
    assert "default-src 'none'" in text


def test_values_under_the_pointer(run, tmp_path):
    text = (run / "report.html").read_text()
    move = """<script>
      const svg = document.querySelector('svg.chart'), box = svg.getBoundingClientRect();
      const x = box.left + box.width * (64 + (640 - 64 - 12) * 99 / 399) / 640;
      svg.dispatchEvent(new PointerEvent('pointermove', {clientX: x, clientY: box.top + 20}));
    </script></body>"""
    (tmp_path / "moved.html").write_text(text.replace("</body>", move))
    moved = Page(chromium(tmp_path / "moved.html", tmp_path / "profile", "--dump-dom"))
    rows = steps_of(run)
    assert moved.figures[0]["title"] == "Loss per source \u2013 step 100"
    assert moved.figures[0]["legend"][0] == f"loss_laion {rows[99]['loss_laion']:.6g}"


@pytest.mark.parametrize("scheme, number", [("light", 1), ("dark", 0)])
def test_light_and_dark(run, tmp_path, scheme, number):
    picture = tmp_path / f"{scheme}.png"
    options = [f"--blink-settings=preferredColorScheme={number}", f"--screenshot={picture}"]
    chromium(run / "report.html", tmp_path / "profile", *options)
    image = Image.open(picture).convert("RGB")
    assert image.size == (1200, 1600)
    corner = image.getpixel((2, 2))
    assert min(corner) > 240 if scheme == "light" else max(corner) < 40
    colors = {color for _, color in image.getcolors(1 << 24)}
    curve = {"light": [(0x1F, 0x6F, 0xEB), (0xD9, 0x48, 0x0F)], "dark": [(0x6E, 0xA8, 0xFE), (0xFF, 0x94, 0x56)]}[scheme]
    assert set(curve) <= colors


def test_run_that_has_just_begun(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("run: {name: early}\n")
    done = floe_report(run, "--output", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    page = Page(chromium(tmp_path / "page.html", tmp_path / "profile", "--dump-dom"))
    for words in ("no metrics.jsonl, so there are no curves", "no diagnostics.json", "no logs/rank_R.log"):
        assert words in page.text
    assert page.figures == []


def test_how_a_run_ended_stands_at_the_top(tmp_path):
    """Batches that were skipped in the end have no record: the curves alone look as if all were well."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"step":1,"time":1,"loss_text":2,"skipped":0}\n')
    status = {"state": "failed", "floe": "0", "host": "h", "pid": 1, "started": 1, "updated": 2, "restarts": 0, "ranks": [],
              "step": 1, "total_steps": 9, "exit_code": 1, "reason": "11 steps in a row <were> skipped"}  # fmt: skip
    (run / "status.json").write_text(json.dumps(status))
    assert floe_report(run).returncode == 0
    text = (run / "report.html").read_text()
    assert "failed (exit code 1)" in text and "11 steps in a row &lt;were&gt; skipped" in text
    status = {key: value for key, value in {**status, "state": "training"}.items() if key not in ("exit_code", "reason")}
    (run / "status.json").write_text(json.dumps(status))
    assert floe_report(run).returncode == 0
    assert "training, as of 1970-01-01" in (run / "report.html").read_text()
    (run / "status.json").write_text("{")
    done = floe_report(run)
    assert done.returncode == 0 and "status.json" in (run / "report.html").read_text()


def test_long_run_is_thinned(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    with (run / "metrics.jsonl").open("w") as file:
        for step in range(1, 50_001):
            file.write(f'{{"step":{step},"loss_laion":{1 + 1 / step},"lr":1e-4}}\n')
    assert floe_report(run).returncode == 0
    assert (run / "report.html").stat().st_size < 300_000
    page = Page((run / "report.html").read_text())
    assert 200 < page.figure("Loss per source")["curves"][0].count("L") <= 800
    assert "50000" in page.text


@pytest.mark.parametrize(
    "words, said", [([], "folder of one run"), (["a", "b"], "folder of one run"), (["--out", "x", "a"], "--output")]
)
def test_wrong_command_lines(words, said):
    done = floe_report(*words)
    assert done.returncode == 2 and said in done.stderr


def test_folders_without_a_run(tmp_path):
    done = floe_report(tmp_path / "none")
    assert done.returncode == 2 and "is not the folder of a run" in done.stderr
    done = floe_report(tmp_path)
    assert done.returncode == 2 and "config.yaml or metrics.jsonl" in done.stderr
