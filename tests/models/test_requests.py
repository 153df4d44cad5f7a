"""`floe generate --requests` and `floe score`: equal to transformers and to one at a time, whatever happens on the way."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from generate_runs import FLOE, flags, floe_generate, left_padded, model_file, new_ids, run_floe
from test_decoders import FAMILIES, build
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from safetensors.torch import load_file, save_file
from test_generate_command import IMAGE_SIZE, captioner, captioner_and_reference, picture, plain_lm  # noqa: F401 (fixtures)

ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1")


def write_requests(path, requests):
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in requests))
    return path


def run(*words, **options):
    return subprocess.run([FLOE, *map(str, words)], capture_output=True, text=True, timeout=120, env=ENVIRONMENT, **options)


def records_of(text):
    records = [json.loads(line) for line in text.splitlines()]
    assert [record["request"] for record in records] == list(range(len(records)))
    return records


def computed(*words, **options):
    """The records on stdout, none of which has an error."""
    done = run(*words, **options)
    assert done.returncode == 0, done.stderr
    records = records_of(done.stdout)
    assert all("error" not in record for record in records), records
    return records


def random_ids(generator, vocab, length):
    return torch.randint(3, vocab, (length,), generator=generator).tolist()


@torch.no_grad()
def log_likelihood(model, prompt, candidate):
    """As lm-eval-harness and OpenFlamingo have it: of the candidate's tokens in one pass over the whole text."""
    logits = model(torch.tensor([prompt + candidate])).logits[0].double().log_softmax(-1)
    return sum(logits[len(prompt) + i - 1, token].item() for i, token in enumerate(candidate))


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_and_texts_equal_transformers(family, tmp_path):
    torch_model = build(family, FAMILIES[family][2][-1], 6, tmp_path / "lm")
    model = model_file(tmp_path / "model.yaml", dict(type="causal_lm", lm=tmp_path / "lm"))
    generator = torch.Generator().manual_seed(6)
    vocab = torch_model.config.vocab_size
    requests = [
        dict(ids=random_ids(generator, vocab, 1 + (7 * i) % 23),
             candidates=[random_ids(generator, vocab, length) for length in ((1, 1), (3, 1, 8), (2,), (12, 5))[i % 4]])
        for i in range(8)
    ]  # fmt: skip
    file = write_requests(tmp_path / "requests.jsonl", requests)
    for request, record in zip(requests, computed("score", model, file, "--batch-tokens", 90), strict=True):
        expected = [log_likelihood(torch_model, request["ids"], candidate) for candidate in request["candidates"]]
        means = [value / len(candidate) for value, candidate in zip(expected, request["candidates"])]
        assert record["log_probs"] == pytest.approx(expected, abs=2e-4)
        assert record["log_probs_per_token"] == pytest.approx(means, abs=2e-4)
        assert record["tokens"] == [len(candidate) for candidate in request["candidates"]]
        assert record["best"] == max(range(len(expected)), key=expected.__getitem__)
        assert record["best_per_token"] == max(range(len(means)), key=means.__getitem__)

    prompts = [request["ids"] for request in requests]
    with torch.no_grad():
        ids, mask = left_padded(prompts, pad=1)
        how = dict(attention_mask=mask, pad_token_id=1, do_sample=False, max_new_tokens=9)
        said = new_ids(torch_model.generate(ids, eos_token_id=None, **how), ids.shape[1], [])
        ends = [said[0][4], said[1][2], said[3][6]]
        for beams in (1, 3):
            theirs = [
                new_ids(
                    torch_model.generate(torch.tensor([prompt]), eos_token_id=ends, num_beams=beams,
                                         **dict(how, attention_mask=torch.ones((1, len(prompt)), dtype=torch.long))),
                    len(prompt), ends,
                )
                for prompt in prompts
            ]  # fmt: skip
            words = ("--eos-id", ",".join(map(str, ends)), "--batch-tokens", 120 * beams, *flags(dict(num_beams=beams, max_new_tokens=9)))
            ours = computed("generate", model, "--requests", file, *words)
            assert [record["ids"] for record in ours] == theirs
            assert all(("scores" in record) == (beams > 1) for record in ours)
            assert len({len(record["ids"][0]) for record in ours}) > 1, "the ends must matter"


def captions(tokens, folder):
    """Requests with 0 to 3 pictures, of several lengths."""
    requests = []
    for i in range(4):
        files = [picture(folder / f"{i}{k}.png", 20 + 7 * i, 40, 10 * i + k).name for k in range(i % 4)]
        shots = "".join(f"<image>Output: shot {'again ' * (i + k)}<|endofchunk|>" for k in range(len(files) - 1))
        prompt = shots + ("<image>Output:" if files else "Once upon a time")
        requests.append(dict(id=f"r{i}", prompt=prompt, images=files, candidates=[" a cat", " two dogs and a bird", " no"]))
    return requests


@pytest.mark.parametrize("beams", [1, 3])
def test_captions_are_those_of_one_at_a_time(captioner, beams, tmp_path):
    model, tokenizer = captioner
    requests = captions(tokenizer, tmp_path)
    file = write_requests(tmp_path / "requests.jsonl", requests)
    options = flags(dict(num_beams=beams, max_new_tokens=7))
    records = computed("generate", model, "--requests", file, *options)
    for request, record in zip(requests, records, strict=True):
        words = [word for name in request["images"] for word in ("--image", tmp_path / name)]
        alone = json.loads(run_floe(model, "--prompt", request["prompt"], *words, "--json", *options).stdout)
        assert record["id"] == request["id"]
        assert record["ids"] == alone["ids"] and record["text"] == alone["text"]
        if beams > 1:
            assert record["scores"] == pytest.approx(alone["scores"], abs=1e-4)


@torch.no_grad()
def test_scores_with_pictures_equal_the_reference(captioner_and_reference, tmp_path):
    model, tokenizer, reference = captioner_and_reference
    requests = [request for request in captions(tokenizer, tmp_path) if request["images"]]
    file = write_requests(tmp_path / "requests.jsonl", requests)
    transform = image_transform_v2(PreprocessCfg(size=IMAGE_SIZE), is_train=False)
    for request, record in zip(requests, computed("score", model, file), strict=True):
        pictures = torch.stack([transform(Image.open(tmp_path / name)) for name in request["images"]])[None, :, None]
        prompt = tokenizer(request["prompt"])["input_ids"]
        for candidate, found in zip(request["candidates"], record["log_probs"], strict=True):
            ids = tokenizer(candidate, add_special_tokens=False)["input_ids"]
            whole = torch.tensor([prompt + ids])
            logits, _ = reference(pictures, whole, torch.ones_like(whole), whole)
            logits = logits[0].double().log_softmax(-1)
            expected = sum(logits[len(prompt) + i - 1, token].item() for i, token in enumerate(ids))
            assert found == pytest.approx(expected, abs=2e-4)


def test_sampling_does_not_depend_on_the_batch(plain_lm, tmp_path):
    model, _ = plain_lm
    prompts = [[5, 6, 7], [8], [9, 10, 11, 12]]
    file = write_requests(tmp_path / "requests.jsonl", [dict(ids=ids) for ids in prompts])
    options = dict(do_sample=True, seed=4, num_return_sequences=2, max_new_tokens=8, eos_id="none")
    together = floe_generate(model, prompts, **options)["ids"]
    for tokens in (1, 10_000):
        records = computed("generate", model, "--requests", file, "--batch-tokens", tokens, *flags(options))
        assert [ids for record in records for ids in record["ids"]] == together


def test_what_is_wrong_is_named_and_the_run_goes_on(captioner, tmp_path):
    model, _ = captioner
    good = picture(tmp_path / "good.png", 30, 30, 1).name
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture")
    ask = dict(prompt="<image>Is it?", images=[good], candidates=[" yes", " no"])
    wrong = [
        ("{bad json", "json", "requests.jsonl' line 2: not valid JSON"),
        (dict(ask, images=["gone.png"]), "image", "'gone.png': neither beside"),
        (dict(ask, images=["broken.jpg"]), "image", "broken.jpg"),
        (dict(ask, images=[]), "image", "1 <image> but there are 0 images"),
        (dict(ask, candidates=[]), "request", "'candidates'"),
        (dict(ask, image=[good]), "request", "did you mean 'images'"),
        (dict(ask, prompt=7), "request", "'prompt'"),
        (dict(prompt="", candidates=[" a"]), "prompt", "empty"),
        (dict(ids=[3, 99999], candidates=[" a"]), "prompt", "vocabulary"),
        (dict(ids=[3], candidates=[[99999]]), "candidate", "vocabulary"),
        ('{"prompt": "a", "prompt": "b", "candidates": [" a"]}', "json", "twice"),
        ("[1, 2]", "request", "JSON object"),
        (dict(ids=[3], prompt="x", candidates=["a"]), "request", "not both"),
    ]
    file = write_requests(tmp_path / "requests.jsonl", [ask, *(line for line, _, _ in wrong), ask, dict(ask, candidates=[" yes", "", " no"])])
    done = run("score", model, file, "--output", tmp_path / "out.jsonl")
    # Lines that are no requests are a mistake of whoever wrote the file: said at the end, when all else is done.
    assert done.returncode == 2, done.stderr
    *_, summary, last = done.stderr.splitlines()
    assert last.startswith(f"floe: score: '{file}' line 2: not valid JSON: ")
    assert last.endswith(" (and 6 other lines are no request); all other requests are done")
    records = records_of((tmp_path / "out.jsonl").read_text())
    assert "log_probs" in records[0] and "error" not in records[0]
    for line, (record, (_, reason, says)) in enumerate(zip(records[1:-2], wrong, strict=True), start=2):
        assert record["reason"] == reason and says in record["error"], record
        assert record["error"].startswith(f"'{file}' line {line}: "), record
        assert "log_probs" not in record
    assert records[-2]["log_probs"] == records[0]["log_probs"] and "error" not in records[-2]
    # A candidate without tokens has no score; the others have theirs.
    last = records[-1]
    assert last["reason"] == "candidate" and f"line {len(records)}: candidate 1 has no tokens" in last["error"]
    assert last["log_probs"][1] is None and last["tokens"][1] == 0
    assert [last["log_probs"][0], last["log_probs"][2]] == pytest.approx(records[0]["log_probs"], abs=1e-4)
    assert f"{len(records)} requests, {len(wrong) + 1} with an error (candidate 2, image 3, json 2, prompt 2, request 5" in summary
    assert not (tmp_path / "out.jsonl.parts").exists()


def test_prompts_longer_than_the_positions(plain_lm, tmp_path):
    model, _ = plain_lm
    file = write_requests(tmp_path / "requests.jsonl", [dict(ids=[3] * n, candidates=[[4, 5]]) for n in (65, 64, 63, 5)])
    done = run("score", model, file)
    errors = [record.get("error", "") for record in records_of(done.stdout)]
    assert done.returncode == 0 and "only 64 positions" in errors[0] and "let at most 1 follow" in errors[1]
    assert errors[2:] == ["", ""] and "4 requests, 2 with an error (prompt 2;" in done.stderr
    done = run("generate", model, "--requests", file, "--max-new-tokens", "3", "--eos-id", "none")
    assert ["error" in record for record in records_of(done.stdout)] == [True, True, True, False]


def wait_for_lines(process, folder, lines):
    """Until the parts have so many."""
    while sum(part.read_bytes().count(b"\n") for part in folder.glob("rank_*.jsonl")) < lines:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@pytest.fixture
def many(plain_lm, tmp_path):
    model, _ = plain_lm
    generator = torch.Generator().manual_seed(2)
    requests = [dict(ids=random_ids(generator, 50, 1 + i % 9), candidates=[[5], [6, 7, 8]]) for i in range(150)]
    requests[70] = dict(ids=[99999], candidates=[[5]])
    return model, write_requests(tmp_path / "requests.jsonl", requests)


@pytest.mark.parametrize("ranks, more", [(1, []), (2, []), (2, ["--sharded"])])
def test_a_killed_run_goes_on(many, ranks, more, tmp_path):
    model, file = many
    launch = ["launch", "-n", ranks, "--"] if ranks > 1 else []
    words = [*launch, "generate", model, "--requests", file, "--max-new-tokens", 25, "--eos-id", "none", "--num-beams", 2, "--batch-tokens", 300, *more]
    whole, out, parts = tmp_path / "whole.jsonl", tmp_path / "out.jsonl", tmp_path / "out.jsonl.parts"
    assert run(*words, "--output", whole).returncode == 0
    process = subprocess.Popen([FLOE, *map(str, words), "--output", out], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, env=ENVIRONMENT, start_new_session=True)  # fmt: skip
    wait_for_lines(process, parts, 10)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not out.exists()
    with open(parts / "rank_0.jsonl", "a") as part:
        part.write('{"request": 149, "ids"')  # a line that was not written to its end
    done = run(*words, "--output", out)
    assert done.returncode == 0, done.stderr
    assert "by an earlier start" in done.stderr and "150 requests" in done.stderr
    assert out.read_bytes() == whole.read_bytes()
    assert not parts.exists()
    assert run("generate", model, "--requests", file, "--output", out).returncode == 2, "what is there is not replaced"


def test_a_stop_and_other_settings(many, tmp_path):
    model, file = many
    out = tmp_path / "out.jsonl"
    words = ["generate", model, "--requests", file, "--output", out, "--max-new-tokens", 40, "--eos-id", "none", "--batch-tokens", 60]
    process = subprocess.Popen([FLOE, *map(str, words)], stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    wait_for_lines(process, tmp_path / "out.jsonl.parts", 3)
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75 and "the same command goes on" in err
    other = run(*words, "--num-beams", 2)
    assert other.returncode == 2 and '--num-beams: "" there, "2" now' in other.stderr, other.stderr
    more = file.read_text()
    file.write_text(more + '{"ids": [4]}\n')
    assert "requests: 150 there, 151 now" in run(*words).stderr
    done = run(*words, "--force")
    assert done.returncode == 0 and "earlier start" not in done.stderr
    assert len(records_of(out.read_text())) == 151


def test_ranks_share_the_work(many, tmp_path):
    model, file = many
    file.write_text(file.read_text() + "broken\n")
    alone = run("score", model, file)
    done = run("launch", "-n", "2", "--", "score", model, file, "--output", tmp_path / "out.jsonl")
    assert done.returncode == alone.returncode == 2, done.stderr
    said = f"floe: score: '{file}' line 151: not valid JSON"
    assert said in done.stderr and said in alone.stderr
    ours, theirs = records_of((tmp_path / "out.jsonl").read_text()), records_of(alone.stdout)
    assert len(ours) == 151
    for a, b in zip(ours, theirs, strict=True):
        assert a.get("best") == b.get("best") and a.get("error") == b.get("error")
        if "log_probs" in a:
            assert a["log_probs"] == pytest.approx(b["log_probs"], abs=1e-4)
    assert done.stderr.count("warning: score: 151 requests, 2 with an error (json 1, prompt 1") in (1, 2)  # again as a last line


def test_a_stop_without_a_file(many):
    """What is done is printed, whatever is missing before it."""
    model, file = many
    words = ["generate", model, "--requests", file, "--max-new-tokens", 40, "--eos-id", "none", "--batch-tokens", 60]
    process = subprocess.Popen([FLOE, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    lines = [process.stdout.readline()]
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=60)
    numbers = [json.loads(line)["request"] for line in lines + rest.splitlines()]
    assert process.returncode == 75 and "what was done is printed" in err, err
    assert numbers == sorted(numbers) and 0 < len(numbers) < 150


def two_models(folder):
    """Two YAML files that differ in the weights they name."""
    for seed, name in ((1, "a"), (2, "b")):
        build("gpt_neox", FAMILIES["gpt_neox"][2][0], seed, folder / name)
        model_file(folder / f"{name}.yaml", dict(type="causal_lm", lm=folder / name))
    return folder / "a.yaml", folder / "b.yaml"


def test_results_of_two_models_do_not_mix(tmp_path):
    first, second = two_models(tmp_path)
    model = tmp_path / "model.yaml"
    model.write_bytes(first.read_bytes())
    file = write_requests(tmp_path / "requests.jsonl", [dict(ids=[3 + i % 9], candidates=[[4]]) for i in range(150)])
    out = tmp_path / "out.jsonl"
    words = ["generate", model, "--requests", file, "--max-new-tokens", 30, "--eos-id", "none", "--batch-tokens", 60, "--output", out]
    process = subprocess.Popen([FLOE, *map(str, words)], stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    wait_for_lines(process, tmp_path / "out.jsonl.parts", 3)
    process.kill()
    process.communicate()
    model.write_bytes(second.read_bytes())  # under the same name
    other = run(*words)
    assert other.returncode == 2 and "results of another run (weights: " in other.stderr, other.stderr
    # Ranks that have different ones are refused as well.
    script = f'm={first}; [ "$RANK" = 1 ] && m={second}; exec {FLOE} score $m {file} --output {tmp_path / "ranks.jsonl"}'
    done = run("launch", "-n", 2, "--exec", "sh", "-c", script)
    assert done.returncode == 2 and "the ranks differ in what they compute" in done.stderr, done.stderr
    assert not (tmp_path / "ranks.jsonl").exists()


def model_without_numbers(folder):
    """A model that gives no numbers behind the token 7."""
    model, _ = two_models(folder)
    weights = folder / "a" / "model.safetensors"
    tensors = load_file(weights)
    tensors["gpt_neox.embed_in.weight"][7] = torch.inf
    save_file(tensors, weights, metadata={"format": "pt"})
    return model


def test_what_is_no_number_is_one_request(tmp_path):
    model = model_without_numbers(tmp_path)
    requests = [dict(ids=ids, candidates=[[5], [6, 7]]) for ids in ([3], [4, 7, 5], [6])]
    done = run("score", model, write_requests(tmp_path / "requests.jsonl", requests))
    records = records_of(done.stdout)
    assert done.returncode == 0 and ["error" in record for record in records] == [False, True, False], done.stderr
    assert records[1]["reason"] == "numbers" and "line 2" in records[1]["error"]


def test_a_start_without_results_is_in_nobodys_way(plain_lm, tmp_path):
    file = write_requests(tmp_path / "requests.jsonl", [dict(ids=[3])])
    words = ["generate", plain_lm[0], "--requests", file, "--output", tmp_path / "out.jsonl", "--max-new-tokens", 2]
    assert run(*words, "--eos-id", "99999").returncode == 2
    done = run(*words, "--eos-id", "none")
    assert done.returncode == 0, done.stderr
    # A folder that is somebody else's stays as it is.
    parts = tmp_path / "other.jsonl.parts"
    parts.mkdir()
    (parts / "rank_notes.jsonl").write_text("mine\n")
    done = run(*words[:5], tmp_path / "other.jsonl", "--max-new-tokens", 2, "--eos-id", "none")
    assert done.returncode == 2 and "has other files, such as 'rank_notes.jsonl'" in done.stderr, done.stderr
    assert (parts / "rank_notes.jsonl").read_text() == "mine\n"


def test_names_may_have_any_bytes(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/mod\xffel"))
    folder.mkdir()
    model = folder / "model.yaml"
    two_models(tmp_path)[0].rename(model)
    file = write_requests(folder / "requests.jsonl", [dict(ids=[3], candidates=[[4]])])
    words = [FLOE, "score", model, file, "--output", folder / "out.jsonl"]
    done = subprocess.run(words, capture_output=True, timeout=120, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert len(records_of((folder / "out.jsonl").read_text())) == 1


REFUSED = [
    (["score", "MODEL", "FILE", "--output", ""], "--output is empty"),
    (["score", "MODEL", "FILE", "--output", "x" * 300], "File name too long"),
    (["score", "MODEL", "FILE", "--output", "DANGLING"], "there is no folder 'nowhere'"),
    (["score", "MODEL"], "got 1 path"),
    (["score", "MODEL", "FILE", "FILE"], "got 3 paths"),
    (["score", "MODEL", "nope.jsonl"], "no file 'nope.jsonl' of requests"),
    (["score", "MODEL", "FILE", "--force"], "without --output"),
    (["score", "MODEL", "FILE", "--output", "FILE"], "the file of requests itself"),
    (["score", "MODEL", "FILE", "--output", "no/such/folder/out.jsonl"], "there is no folder"),
    (["score", "MODEL", "FILE", "--output", "."], "which is no file"),
    (["score", "no-model", "FILE", "--output", "EMPTY"], "'empty.jsonl' is there already"),  # before it is loaded
    (["score", "MODEL", "EMPTY"], "has no requests"),
    (["score", "MODEL", "."], "'.' is a folder"),
    (["score", "MODEL", "FILE", "--batch-tokens", "0"], "--batch-tokens"),
    (["score", "MODEL", "FILE", "--dtype", "int8"], "--dtype"),
    (["generate", "MODEL", "--requests", "nope.jsonl"], "no file 'nope.jsonl' of requests"),
    (["generate", "MODEL", "--requests", "FILE", "--ids", "1"], "--ids has no use with --requests"),
    (["generate", "MODEL", "--requests", "FILE", "--json"], "--json has no use with --requests"),
    (["generate", "MODEL", "--ids", "1", "--output", "x"], "--output has no use without --requests"),
    (["launch", "-n", "2", "--", "score", "MODEL", "FILE"], "name a file with --output"),
    (["score", "MODEL", "FILE", "--sharded"], "start several with 'floe launch -n N -- score ...'"),
    (["generate", "MODEL", "--ids", "1", "--sharded"], "--sharded has no use without --requests"),
]


@pytest.mark.parametrize("words, says", REFUSED, ids=[" ".join(words)[:50] for words, _ in REFUSED])
def test_refuses_with_a_sentence(words, says, plain_lm, tmp_path):
    file = write_requests(tmp_path / "requests.jsonl", [dict(ids=[3], candidates=[[4]])])
    (tmp_path / "empty.jsonl").write_text("\n \n")
    (tmp_path / "dangling").symlink_to("nowhere/out.jsonl")
    words = [{"MODEL": plain_lm[0], "FILE": file, "EMPTY": "empty.jsonl", "DANGLING": "dangling"}.get(word, word) for word in words]
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 2 and says in done.stderr, done.stderr
    assert done.stdout == ""
