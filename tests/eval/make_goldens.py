"""Writes tests/eval/goldens: what the Python packages say that `floe eval` is judged by.

usage: make_goldens.py PACKAGES

PACKAGES is a folder with the wheels of open_flamingo 2.0.1 and pycocoevalcap 1.2, unpacked (pip download --no-deps).
Needs numpy, torch, scipy and, for Stanford's tokenizer, Java.
"""

import contextlib
import importlib.util
import io
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import scipy.stats
import torch

HERE = Path(__file__).parent
WORDS = """a A the The man man's men's woman dog dogs dogs' cat's it's isn't don't can't two 2 3 12 1,000 3.5 5:30 10am 20th
90's '90s 1990s 50% $5 $5.99 #1 well-known t-shirt wi-fi x-ray up-to-date black-and-white red/white and/or w/ U.S. u.s. p.m.
St. st. Mr. Dr. etc. vs. Mt. Ave. standing, sitting; riding: holding. table! what? "stop" "a (white) [grey] 'quoted' 'STOP'
'em 'n' o'clock y'all ma'am rock'n'roll cannot gonna wanna it’s “go” café naïve - -- — ... … & AT&T B&W @ user@mail.com
www.x.com TV 4x4 747 7-eleven 6ft 5'10" 1/2 24/7 12-inch two-story Output: Question: man. woman.A dog.The end.. hi!! ok?!
he'd we'll they're I'm I've would've shouldn't 100's #tag under_score a- -b * + = ~ % children's ladies' boy's. girl's, street.
3-year-old 5-6 .5 5. 5, 3, 1st. ice-cream. "hello, (two (one) dogs) cats). R2-D2 F-16 's 'll <image> <unk>""".split()
COMMON = "a the two man woman dog cat table street red is sitting standing on in of with and near ball's".split()
REMOVED = ["''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-", ".", "?", "!", ",", ":", "-", "--", "...", ";"]


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def tokenized(packages, captions):
    """As pycocoevalcap's PTBTokenizer has them, several captions at once."""
    jar = packages / "pycocoevalcap" / "tokenizer" / "stanford-corenlp-3.4.1.jar"
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(captions))
        file.flush()
        words = ["java", "-cp", jar, "edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase", file.name]
        lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split("\n")
    return [" ".join(w for w in line.rstrip().split(" ") if w not in REMOVED) for line in lines[: len(captions)]]


def ptb(packages):
    rng = random.Random(7)
    captions = [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(300)] + ["", "A man on a horse.", 'The "end"']
    return [dict(caption=c, words=w.split()) for c, w in zip(captions, tokenized(packages, captions))]


def cider(packages):
    sys.path.insert(0, str(packages))
    from pycocoevalcap.cider.cider import Cider

    rng = random.Random(8)
    cases = []
    for images in (1, 2, 25):
        sentence = lambda: " ".join(rng.choices(COMMON, k=rng.randint(1, 9))).capitalize() + rng.choice([".", "", "!", " ."])  # noqa: E731
        case = [dict(caption=sentence(), references=[sentence() for _ in range(rng.randint(1, 5))]) for _ in range(images)]
        case[0]["caption"] = case[0]["references"][0]
        if images > 2:
            case[1]["caption"] = ""
            case[2]["caption"] = "xyzzy"
        flat = tokenized(packages, [text for one in case for text in [one["caption"], *one["references"]]])
        results, truth = {}, {}
        for number, one in enumerate(case):
            results[number] = [flat.pop(0)]
            truth[number] = [flat.pop(0) for _ in one["references"]]
        mean, each = Cider().compute_score(truth, results)
        cases.append(dict(images=case, mean=float(mean), each=[float(x) for x in each]))
    return cases


def vqa(packages):
    metric = module(packages / "open_flamingo" / "eval" / "vqa_metric.py")
    judge = metric.VQAEval(None, None)
    rng = random.Random(9)
    parts = [*judge.contractions, *judge.manualMap, "a", "an", "the", "The", "dog", "Dogs", "1,000", "3.5", "5.", "...", "U.S.", "top-left",
             "yes, it is", "what?", " ", "\n", "\t", "red/blue", "(two)", "a,b", "semi;colon", "ÄRGER", "x", "-", "- ", "@home", ". . .", "\u00a0"]  # fmt: skip
    answers = parts + ["".join(rng.choices(parts + [" "], k=rng.randint(0, 6))) for _ in range(200)]
    normal = []
    for answer in answers:
        text = answer.replace("\n", " ").replace("\t", " ").strip()
        normal.append(dict(answer=answer, normal=judge.processDigitArticle(judge.processPunctuation(text))))
    few = ["yes", "Yes.", "no", "2", "two", "a dog", "dog", "dogs", "dont", "don't"]
    cases = []
    for number in range(60):
        people = []
        for person in range(rng.choice([1, 3, 10])):
            extra = dict(answer_id=person + 1) if number % 2 else dict(answer_confidence=rng.choice(["yes", "maybe"]))
            people.append(dict(answer=rng.choice(few), **extra))
        cases.append(dict(question_id=number, image_id=number, question_type="", answers=people, said=rng.choice(few + [""])))
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(folder)
        info = dict(info={}, task_type="", data_type="", data_subtype="", license="")
        (folder / "q.json").write_text(json.dumps(dict(info, questions=[dict(c, question="") for c in cases])))
        (folder / "a.json").write_text(json.dumps(dict(annotations=cases)))
        (folder / "r.json").write_text(json.dumps([dict(question_id=c["question_id"], answer=c["said"]) for c in cases]))
        overall = metric.compute_vqa_accuracy(folder / "r.json", folder / "q.json", folder / "a.json")
        truth = metric.VQA(folder / "a.json", folder / "q.json")
        found = metric.VQAEval(truth, truth.loadRes(folder / "r.json", folder / "q.json"), n=10)
        found.evaluate()
    for case in cases:
        case["accuracy"] = found.evalQA[case["question_id"]]
    cut = []
    for text in ["yes Question: x", "a dog, sitting", "Short", "no,maybe", "two Answer", "", " red, Question"]:
        cut.append(dict(text=text, answer=metric.postprocess_vqa_generation(text)))
    return dict(normal=normal, cases=cases, overall=overall, cut=cut)


def draws(packages):
    """With the functions of OpenFlamingo's eval/utils.py, on one rank."""
    utils = module(packages / "open_flamingo" / "eval" / "utils.py")
    cases = []
    for seed, tests, asked, train, query_set, context in [
        (42, 7, 7, 9, 9, 2), (42, 300, 40, 3000, 2048, 4), (0, 20, 20, 60, 50, 32), (5, 100, 10, 100, 30, 8), (4294967295, 12, 5, 40, 22, 6),
        (1, 1, 1, 2, 2, 2), (3, 2000, 1500, 30, 25, 0),
    ]:  # fmt: skip
        np.random.seed(seed)
        chosen = np.random.choice(tests, asked, replace=False)
        sampler = torch.utils.data.distributed.DistributedSampler(chosen, num_replicas=1, rank=0)
        order = [int(chosen[i]) for i in sampler]
        found = utils.get_query_set(range(train), query_set)
        random.seed(seed)
        contexts = utils.sample_batch_demos_from_query_set([int(i) for i in found], context, len(order))
        cases.append(dict(seed=seed, tests=tests, asked=asked, train=train, query_set=query_set, context=context, order=order,
                          contexts=contexts))  # fmt: skip
    return cases


def student(_):
    return [
        dict(share=share, freedom=freedom, value=float(scipy.stats.t.ppf(share, freedom)))
        for share in (0.9, 0.975, 0.995)
        for freedom in (1, 2, 3, 4, 7, 30, 1000)
    ]


def main():
    packages = Path(sys.argv[1]).resolve()
    for make in (ptb, cider, vqa, draws, student):
        text = json.dumps(make(packages), ensure_ascii=False, indent=None, separators=(",", ":"))
        (HERE / "goldens" / f"{make.__name__}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
