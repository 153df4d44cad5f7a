"""The real tensorboard package is the reference: its reader and its server (with the compiled data server)
give the numbers, the settings and the configuration back."""

import json
import time
import urllib.parse
import urllib.request

import numpy as np
import pytest
from logged_runs import CONFIG, START, log, log_and_die, make_run, record, tool, values_of
from tensorboard import program
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.plugins.hparams import plugin_data_pb2


def read(run):
    reader = event_accumulator.EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    reader.Reload()
    return reader


def check_scalars(reader, steps):
    for name in values_of(10):
        events = reader.Scalars(name)
        wanted = [step for step in steps if name in values_of(step)]
        assert [event.step for event in events] == wanted
        assert [event.value for event in events] == [np.float32(values_of(step)[name]) for step in wanted]
        assert [event.wall_time for event in events] == [record(step)[1] for step in wanted]


def plain(value):
    return getattr(value, value.WhichOneof("kind"))


def test_scalars_settings_and_configuration(tmp_path):
    run = make_run(tmp_path / "run")
    log(run, 0, 40)
    reader = read(run)
    check_scalars(reader, range(1, 41))
    assert reader.file_version == 2.0

    (config,) = reader.Tensors("config")
    assert json.loads(config.tensor_proto.string_val[0]) == CONFIG

    metadata = reader.SummaryMetadata("_hparams_/session_start_info")
    assert metadata.plugin_data.plugin_name == "hparams"
    start = plugin_data_pb2.HParamsPluginData.FromString(metadata.plugin_data.content).session_start_info
    assert {name: plain(value) for name, value in start.hparams.items()} == {
        "run.name": "demo",
        "run.seed": 7,
        "train.optimizer.lr": 1e-4,
        "train.optimizer.betas": "[0.9,0.999]",
        "train.packed": True,
        "train.epochs": "null",
        "model.type": "flamingo",
        "model.lm": "models/\u6c34 & <ice>",
    }
    assert start.start_time_secs == START
    metadata = reader.SummaryMetadata("_hparams_/session_end_info")
    end = plugin_data_pb2.HParamsPluginData.FromString(metadata.plugin_data.content).session_end_info
    assert end.status == 1  # success


def test_resume_purges_what_runs_again(tmp_path):
    run = make_run(tmp_path / "run")
    log_and_die(run, 0, 25)
    check_scalars(read(run), range(1, 26))
    log(run, 20, 30)
    log(run, 30, 34)
    assert len(list((run / "tensorboard").iterdir())) == 3
    check_scalars(read(run), range(1, 35))
    log(run, 0, 5)  # the run begins anew in the same folder
    check_scalars(read(run), range(1, 6))


def test_torn_file_is_read_up_to_the_damage(tmp_path):
    run = make_run(tmp_path / "run")
    log(run, 0, 10)
    (path,) = (run / "tensorboard").iterdir()
    path.write_bytes(path.read_bytes()[:-250])
    steps = [event.step for event in read(run).Scalars("lr")]
    assert steps == list(range(1, len(steps) + 1)) and 8 <= len(steps) < 10


def test_odd_numbers_and_texts(tmp_path):
    run = make_run(tmp_path / "run")
    done = tool("log", run, 0, 0, [record(1, {"a": "NaN", "b": "-Infinity", "phase": "warm-up"})])
    assert done.returncode == 0, done.stderr
    reader = read(run)
    assert np.isnan(reader.Scalars("a")[0].value)
    assert reader.Scalars("b")[0].value == -np.inf
    assert reader.Tensors("phase")[0].tensor_proto.string_val == [b"warm-up"]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    run = make_run(tmp_path_factory.mktemp("served") / "run")
    log_and_die(run, 0, 15)
    log(run, 12, 20)
    board = program.TensorBoard()
    board.configure(argv=["", "--logdir", str(run), "--port", "0", "--load_fast", "true"])
    url = board.launch()

    def get(path, body=None, **query):
        query = f"?{urllib.parse.urlencode(query)}" if query else ""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{url}data/plugin/{path}{query}", data, {"Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as answer:
            return json.load(answer)

    return get


def wait_for(get, path, wanted):
    """The server reads files in the background."""
    for _ in range(600):
        if wanted(answer := get(path)):
            return answer
        time.sleep(0.1)
    raise AssertionError(f"{path}: {answer}")


def test_server_shows_the_curves(served):
    wait_for(served, "scalars/tags", lambda tags: "val_loss_laion" in tags.get("tensorboard", {}))
    rows = served("scalars/scalars", run="tensorboard", tag="loss_mmc4")
    assert [(step, value) for _, step, value in rows] == [
        (step, pytest.approx(values_of(step)["loss_mmc4"], rel=1e-6)) for step in range(1, 21)
    ]


def test_server_shows_the_settings(served):
    wait_for(served, "scalars/tags", lambda tags: "val_loss_laion" in tags.get("tensorboard", {}))
    experiment = served("hparams/experiment", body={"experimentName": "", "includeMetrics": True})
    assert {"train.optimizer.lr", "train.packed", "model.type"} <= {info["name"] for info in experiment["hparamInfos"]}
    wanted = [{"hparam": info["name"]} for info in experiment["hparamInfos"]]
    columns = wanted + [{"metric": {"group": "", "tag": "loss_laion"}}]
    statuses = ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"]
    body = {"experimentName": "", "startIndex": 0, "sliceSize": 10, "colParams": columns, "allowedStatuses": statuses}
    (group,) = served("hparams/session_groups", body=body)["sessionGroups"]
    assert group["hparams"]["train.optimizer.lr"] == 1e-4
    assert group["hparams"]["model.type"] == "flamingo"
    assert group["sessions"][0]["status"] == "STATUS_SUCCESS"


def test_server_shows_the_configuration(served):
    wait_for(served, "text/tags", lambda tags: "config" in tags.get("tensorboard", {}))
    texts = served("text/text", run="tensorboard", tag="config")
    assert "&lt;ice&gt;" in texts[0]["text"] and "<ice>" not in texts[0]["text"]
