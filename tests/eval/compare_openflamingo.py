"""Scores of `floe eval` beside those of OpenFlamingo's own evaluate.py, of a model that `floe train` has trained.

usage: FLOE_BIN_DIR=... compare_openflamingo.py PACKAGES

PACKAGES is a folder with pycocoevalcap 1.2 and what evaluate.py imports (judges.txt, installed by `pip install --no-deps
--target`); open_flamingo 2.0.1 itself is in tests/requirements-alone.txt. Needs Java. A small Flamingo trains on two ranks,
`floe export --trainable-only` writes its trained part, and open_flamingo loads it. Data sets, draws, prompts, the model and
its generation, post-processing and metrics are then OpenFlamingo's, on the one side, and those of `floe eval RUN` on the
other. The class between evaluate.py and the model is ours, since the wheel does not have it. Prints a table and returns 1
when a score differs by more than its bound.
"""

import argparse
import contextlib
import io
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGES = Path(sys.argv[1]).resolve()
sys.path[:0] = [str(PACKAGES), *(str(HERE.parent / name) for name in ("interop", "train", "models", "support"))]

import open_flamingo  # noqa: E402
import pycocoevalcap.eval  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

sys.path.insert(0, str(Path(open_flamingo.__file__).parent / "eval"))
import evaluate  # noqa: E402
import test_generate_command as models  # noqa: E402
from open_flamingo_models import Flamingo  # noqa: E402
from test_open_flamingo import as_evaluated, load_as_openflamingo_does  # noqa: E402

FLOE = Path(os.environ["FLOE_BIN_DIR"]) / "floe"
TRIALS = [(0, 42, 0), (4, 42, 0), (4, 7, 12), (8, 1234, 15)]  # shots, seed, samples
# OpenFlamingo rounds VQA accuracy to two digits. A small random model writes letters, digits and marks as they come, which
# floe does not always cut into words as Stanford's tokenizer does: its captions are also judged by OpenFlamingo's own metric,
# and there only 1e-9 is allowed.
BOUNDS = dict(flickr30k=0.2, vqav2=5e-3, vizwiz=5e-3, hateful_memes=1e-9)
SAME = 1e-9
WORDS = "a the two man woman dog cat red ball street table sitting on near holding".split()


class NoScore:
    """In place of scorers that OpenFlamingo does not report and that need further files."""

    def __init__(self, *_):
        pass

    def compute_score(self, truth, _):
        return 0.0, [0.0] * len(truth)

    def method(self):
        return "none"


class NoBleu(NoScore):
    def compute_score(self, truth, _):
        return [0.0] * 4, [[0.0] * len(truth)] * 4


def floe(*words):
    done = subprocess.run([FLOE, *map(str, words)], capture_output=True, text=True, env=dict(os.environ, OMP_NUM_THREADS="1"))
    assert done.returncode == 0, done.stderr
    return done.stdout


class EvalModel:
    """OpenFlamingo's interface of a model, around its own model."""

    device = "cpu"

    def __init__(self, flamingo, checkpoint):
        self.model, self.transform, self.tokenizer = flamingo.openflamingo()
        load_as_openflamingo_does(self.model, as_evaluated(checkpoint))

    def pictures(self, images):
        """[1, images, 1, 3, height, width]"""
        return torch.stack([self.transform(image) for image in images])[None, :, None]

    def get_outputs(self, batch_text, batch_images, min_generation_length, max_generation_length, num_beams, length_penalty):
        texts = []
        for text, images in zip(batch_text, batch_images, strict=True):
            ids = self.tokenizer(text, return_tensors="pt")["input_ids"]
            with torch.inference_mode():
                out = self.model.generate(
                    self.pictures(images), ids, attention_mask=torch.ones_like(ids), min_new_tokens=min_generation_length,
                    max_new_tokens=max_generation_length, num_beams=num_beams, length_penalty=length_penalty,
                )  # fmt: skip
            texts += self.tokenizer.batch_decode(out[:, ids.shape[1] :], skip_special_tokens=True)
        return texts

    def get_rank_classifications(self, batch_text, batch_images, all_class_names, use_cache, normalize_length):
        rows = []
        for text, images in zip(batch_text, batch_images, strict=True):
            prompt = self.tokenizer(text)["input_ids"]
            row = []
            for name in all_class_names:
                of_class = self.tokenizer(name, add_special_tokens=False)["input_ids"]
                ids = torch.tensor([prompt + of_class])
                with torch.inference_mode():
                    logits = self.model(self.pictures(images), ids, torch.ones_like(ids)).logits[0].log_softmax(-1)
                found = [logits[len(prompt) + i - 1, token] for i, token in enumerate(of_class)]
                row.append(sum(found) / (len(found) if normalize_length else 1))
            rows.append(torch.stack(row))
        return torch.stack(rows)

    def ended(self, text, answer):
        return text if answer is None else f"{text}{answer}<|endofchunk|>"

    def get_vqa_prompt(self, question, answer=None):
        return self.ended(f"<image>Question:{question} Short answer:", answer)

    def get_caption_prompt(self, caption=None):
        return self.ended("<image>Output:", caption)

    def get_hateful_memes_prompt(self, text, label=None):
        return self.ended(f"<image>is an image with: '{text}' written on it. Is it hateful? Answer:", label)


def sentence(rng):
    # Not with "a." at the end, which Stanford's tokenizer cuts as the next caption of the file begins.
    return " ".join(rng.choices(WORDS, k=rng.randint(4, 9))).capitalize() + " " + rng.choice(["dog", "cat"]) + rng.choice([".", "", "!"])


def write_json(path, value):
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text(json.dumps(value))


def picture(path, seed):
    Path(path).parent.mkdir(exist_ok=True)
    return models.picture(Path(path), 30 + seed % 9, 40, seed)


def write_captions(rng):
    images = []
    for i in range(34):
        picture(f"flickr/{1000 + i}.jpg", i)
        sentences = [dict(raw=" " + sentence(rng)) for _ in range(5)]
        images.append(dict(filename=f"{1000 + i}.jpg", split="train" if i < 14 else "test", sentences=sentences))
    write_json("karpathy.json", dict(images=images))
    return {image["filename"].split(".")[0]: [s["raw"] for s in image["sentences"]] for image in images[14:]}


def write_references(captions):
    entries = [dict(image_id=image, caption=text) for image, texts in captions.items() for text in texts]
    entries = [dict(entry, id=number) for number, entry in enumerate(entries)]
    write_json("references.json", dict(images=[dict(id=image) for image in captions], annotations=entries, info={}, type="captions"))


def write_questions(rng, name, folder, count, seed):
    info = dict(info={}, task_type="", data_type="", data_subtype="", license="")
    questions, annotations = [], []
    for i in range(count):
        image = i if name == "vqav2" else f"{i}.jpg"
        picture(f"{folder}/COCO_{folder}_{i:012d}.jpg" if name == "vqav2" else f"{folder}/{i}.jpg", seed + i)
        questions.append(dict(question=f"What is {rng.choice(WORDS)} {i}?", image_id=image, question_id=5000 + i))
        people = [dict(answer=rng.choice(WORDS), answer_confidence=rng.choice(["yes", "no"])) for _ in range(10)]
        if name == "vqav2":
            people = [dict(person, answer_id=number) for number, person in enumerate(people)]
        annotations.append(dict(question_id=5000 + i, image_id=image, question_type="what", answer_type="other", answers=people))
    write_json(f"{folder}_q.json", dict(info, questions=questions))
    write_json(f"{folder}_a.json", dict(info, annotations=annotations))


def write_memes(rng, split, count):
    with open(f"{split}.jsonl", "w") as file:
        for i in range(count):
            picture(f"memes/{split}{i}.png", 400 + i)
            file.write(json.dumps(dict(id=i, img=f"img/{split}{i}.png", label=rng.randint(0, 1), text=sentence(rng))) + "\n")


FOLDERS = dict(vqav2=("train2014", "val2014"), vizwiz=("vz_train", "vz_test"))


def questions_of(name):
    parts = zip(("train", "test"), FOLDERS[name])
    return [(part, key, value) for part, folder in parts
            for key, value in (("images", folder), ("questions", f"{folder}_q.json"), ("annotations", f"{folder}_a.json"))]  # fmt: skip


FILES = dict(
    flickr30k=["data.test.images=flickr", "data.test.annotations=karpathy.json", "data.references=references.json"],
    hateful_memes=["data.test.images=memes", "data.train.annotations=train.jsonl", "data.test.annotations=dev.jsonl"],
    **{name: [f"data.{part}.{key}={value}" for part, key, value in questions_of(name)] for name in FOLDERS},
)


def of_floe(model, task, shots, seed, samples, out="out"):
    changes = [word for change in [*FILES[task], "query_set=10"] for word in ("--set", change)]
    text = floe("eval", model, task, *changes, "--shots", shots, "--seeds", seed, "--samples", samples, "--output", out, "--json", "--force")
    return json.loads(text)["results"][0]["trials"][0]["score"]


def of_openflamingo(judge, task, shots, seed, samples):
    keys = dict(images="image_dir_path", questions="questions_json_path", annotations="annotations_json_path")
    args = argparse.Namespace(
        model="open_flamingo", rices=False, rank=0, world_size=1, batch_size=1, num_samples=samples or -1, query_set_size=10,
        flickr_image_dir_path="flickr", flickr_karpathy_json_path="karpathy.json", flickr_annotations_json_path="references.json",
        hateful_memes_image_dir_path="memes", hateful_memes_train_annotations_json_path="train.jsonl",
        hateful_memes_test_annotations_json_path="dev.jsonl",
        **{f"{name}_{part}_{keys[key]}": value for name in FOLDERS for part, key, value in questions_of(name)},
    )  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if task == "flickr30k":
            return evaluate.evaluate_captioning(args, judge, seed=seed, num_shots=shots, dataset_name="flickr")
        run = evaluate.evaluate_classification if task == "hateful_memes" else evaluate.evaluate_vqa
        return run(args, judge, seed=seed, num_shots=shots, dataset_name=task)


def said(task):
    (file,) = Path("first", task).glob("*/shots_4_seed_42.answers.json")
    return json.loads(file.read_text())


def judged_there(shots, seed):
    """floe's captions by OpenFlamingo's metric."""
    (file,) = Path("out", "flickr30k").glob(f"*/shots_{shots}_seed_{seed}.answers.json")
    with contextlib.redirect_stdout(io.StringIO()):
        return evaluate.compute_cider(result_path=str(file), annotations_path="references.json")["CIDEr"] * 100


def agree_in_part(model, captions):
    """The model's own words among references and answers: a random model would score 0."""
    of_floe(model, "flickr30k", 4, 42, 0, "first")
    for number, one in enumerate(said("flickr30k")):
        if number % 2:
            captions[one["image_id"]][1] = one["caption"] + " and a dog."
    write_references(captions)
    for name, (_, folder) in FOLDERS.items():
        of_floe(model, name, 4, 42, 0, "first")
        answers = {one["question_id"]: one["answer"].strip() or "x" for one in said(name)}
        file = json.loads(Path(f"{folder}_a.json").read_text())
        for number, entry in enumerate(file["annotations"]):
            for person in entry["answers"][: number % 5]:
                person["answer"] = answers[entry["question_id"]]
        write_json(f"{folder}_a.json", file)


def main():
    pycocoevalcap.eval.Spice = pycocoevalcap.eval.Meteor = pycocoevalcap.eval.Rouge = NoScore
    pycocoevalcap.eval.Bleu = NoBleu
    transformers.logging.set_verbosity_error()
    os.chdir(tempfile.mkdtemp(prefix="floe-eval-"))
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    flamingo = Flamingo(Path.cwd(), "gpt_neox", every=1, lr=0.05, steps=40, positions=2048)
    model = flamingo.run
    floe("export", model, "part.pt", "--trainable-only")
    judge = EvalModel(flamingo, "part.pt")
    rng = random.Random(3)
    captions = write_captions(rng)
    write_references(captions)
    for seed, (name, folders) in enumerate(FOLDERS.items()):
        for count, folder in zip((12, 20), folders):
            write_questions(rng, name, folder, count, 100 * seed + count)
    for split, count in (("train", 12), ("dev", 25)):
        write_memes(rng, split, count)
    agree_in_part(model, captions)

    print(f"{'task':14} shots  seed samples {'OpenFlamingo':>14} {'floe':>14} difference")
    worst = 0
    for task, bound in BOUNDS.items():
        for shots, seed, samples in TRIALS:
            theirs, ours = of_openflamingo(judge, task, shots, seed, samples), of_floe(model, task, shots, seed, samples)
            worst = max(worst, abs(theirs - ours) / bound)
            if task == "flickr30k":
                worst = max(worst, abs(theirs - judged_there(shots, seed)) / SAME)
            print(f"{task:14} {shots:5} {seed:5} {samples or 'all':>7} {theirs:14.8f} {ours:14.8f} {abs(theirs - ours):10.1e}", flush=True)
    return 0 if worst <= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
