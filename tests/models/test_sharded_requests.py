"""`--sharded`: a model that is sliced over the ranks answers as a whole one does, whatever each rank has to do."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from generate_runs import FLOE, model_file
from test_generate_command import captioner, captioner_and_reference, plain_lm  # noqa: F401 (fixtures)
from test_requests import ENVIRONMENT, captions, many, model_without_numbers, records_of, run, wait_for_lines, write_requests  # noqa: F401 (fixtures)

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
from running import rank_process  # noqa: E402


def asked(ranks, command, file, out, *words):
    model, *rest = words
    place = [model, "--requests", file] if command == "generate" else [model, file]
    done = run("launch", "-n", ranks, "--", command, *place, "--output", out, *rest)
    assert done.returncode == 0, done.stderr
    return records_of(out.read_text())


@pytest.mark.parametrize("command, words", [
    ("generate", ["--max-new-tokens", 7]), ("generate", ["--max-new-tokens", 5, "--num-beams", 3]), ("score", []),
], ids=["greedy", "beams", "score"])  # fmt: skip
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_of_unequal_work(captioner, command, words, ranks, tmp_path):
    """Four requests with 0 to 3 pictures in batches of one: on three ranks one has two of them, the others one."""
    model, tokenizer = captioner
    file = write_requests(tmp_path / "requests.jsonl", captions(tokenizer, tmp_path))
    whole = asked(ranks, command, file, tmp_path / "whole.jsonl", model, "--batch-tokens", 1, *words)
    sliced = asked(ranks, command, file, tmp_path / "sliced.jsonl", model, "--batch-tokens", 1, *words, "--sharded")
    for ours, theirs in zip(sliced, whole, strict=True):
        assert ours.keys() == theirs.keys() and "error" not in ours
        for key in ours:
            same = pytest.approx(theirs[key], abs=1e-5) if key in ("scores", "log_probs", "log_probs_per_token") else theirs[key]
            assert ours[key] == same, key
    assert len({json.dumps(record.get("ids", record.get("log_probs"))) for record in whole}) == 4


def test_fewer_requests_than_ranks(plain_lm, tmp_path):
    model, _ = plain_lm
    file = write_requests(tmp_path / "requests.jsonl", [dict(ids=[5, 6, 7], candidates=[[8], [9, 10]])])
    alone = records_of(run("score", model, file).stdout)
    (record,) = asked(3, "score", file, tmp_path / "out.jsonl", model, "--sharded")
    assert record["log_probs"] == pytest.approx(alone[0]["log_probs"], abs=1e-5)


def test_a_stop_of_one_rank_is_everybodys(many, tmp_path):
    model, file = many
    out = tmp_path / "out.jsonl"
    words = ["launch", "-n", 2, "--", "generate", model, "--requests", file, "--output", out, "--sharded",
             "--max-new-tokens", 15, "--eos-id", "none", "--batch-tokens", 200]  # fmt: skip
    process = subprocess.Popen([FLOE, *map(str, words)], stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    wait_for_lines(process, tmp_path / "out.jsonl.parts", 3)
    os.kill(rank_process(process.pid, 1), signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75 and "the same command goes on" in err, err
    done = run(*words)
    assert done.returncode == 0 and "by an earlier start" in done.stderr, done.stderr
    whole = run("generate", model, "--requests", file, "--max-new-tokens", 15, "--eos-id", "none")
    assert [r.get("ids") for r in records_of(out.read_text())] == [r.get("ids") for r in records_of(whole.stdout)]


def test_a_rank_that_dies_ends_the_others(many, tmp_path):
    model, file = many
    words = ["launch", "-n", 2, "--", "generate", model, "--requests", file, "--output", tmp_path / "out.jsonl", "--sharded",
             "--max-new-tokens", 15, "--eos-id", "none", "--batch-tokens", 200]  # fmt: skip
    process = subprocess.Popen([FLOE, *map(str, words)], stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    wait_for_lines(process, tmp_path / "out.jsonl.parts", 3)
    os.kill(rank_process(process.pid, 1), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode not in (0, 75) and "rank 1" in err, err
    done = run(*words)
    assert done.returncode == 0 and "by an earlier start" in done.stderr, done.stderr


def test_what_is_no_number_is_one_request(tmp_path):
    model = model_without_numbers(tmp_path)
    requests = [dict(ids=ids, candidates=[[5], [6, 7]]) for ids in ([3], [4, 7, 5], [6], [8], [9])]
    records = asked(2, "score", write_requests(tmp_path / "requests.jsonl", requests), tmp_path / "out.jsonl", model, "--sharded")
    assert ["error" in record for record in records] == [False, True, False, False, False]
    assert records[1]["reason"] == "numbers"


def test_a_rank_holds_its_share(tmp_path):
    """The peak of any process: a model of 450 MB, whole on each of two ranks and sliced over them."""
    size = dict(hidden_size=768, num_hidden_layers=16, intermediate_size=3072, vocab_size=2000, num_attention_heads=12)
    (tmp_path / "lm").mkdir()
    (tmp_path / "lm" / "config.json").write_text(json.dumps(dict(
        model_type="gpt_neox", architectures=["GPTNeoXForCausalLM"], max_position_embeddings=64, rotary_pct=0.25, **size)))  # fmt: skip
    model = model_file(tmp_path / "model.yaml", dict(type="causal_lm", lm=tmp_path / "lm", random_init=True))
    file = write_requests(tmp_path / "requests.jsonl", [dict(ids=[3, 4], candidates=[[5]]), dict(ids=[6], candidates=[[5]])])
    script = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"

    def peak_mb(*words):
        words = [FLOE, "launch", "-n", 2, "--", "score", model, file, "--output", tmp_path / f"out{len(words)}.jsonl", *words]
        done = subprocess.run([sys.executable, "-c", script, *map(str, words)], capture_output=True, text=True, env=ENVIRONMENT, timeout=120)
        assert done.returncode == 0, done.stderr
        return int(re.findall(r"\d+", done.stdout)[-1]) / 1024

    whole, sliced = peak_mb(), peak_mb("--sharded")
    assert whole - sliced > 80, (whole, sliced)  # half of it, less four layers for what is gathered and on its way
