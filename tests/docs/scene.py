"""Scratch folders in which the commands of the pages run: small models, shards and runs under the names that the
pages use for the reader's own."""

import io
import os
import random
import shutil
import signal
import subprocess
import tarfile
from pathlib import Path

import yaml
from pages import ROOT
from PIL import Image, ImageDraw
from safetensors.numpy import load_file, save_file

BIN = Path(os.environ["FLOE_BIN_DIR"])
FLOE = BIN / "floe"
GOLDENS = ROOT / "tests/goldens"
SHAPES = {"circle": ImageDraw.ImageDraw.ellipse, "square": ImageDraw.ImageDraw.rectangle}
COLOURS = ["red", "green", "blue", "orange", "purple", "black"]
TINY = {  # parts of a Flamingo that is as small as its towers
    "perceiver": {"depth": 1, "dim_head": 8, "heads": 2, "num_latents": 4, "ff_mult": 1},
    "cross_attn": {"dim_head": 8, "heads": 2, "ff_mult": 1},
}


def environment(folder):
    """As a user's shell: floe is on the path, nothing of an outer launcher is set."""
    ours = ("FLOE_", "OMP_NUM_THREADS", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "SLURM_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    python = Path(os.environ["FLOE_PYTHON"]).parent
    path = f"{folder / '.bin'}:{BIN}:{python}:{clean['PATH']}"
    return dict(clean, PATH=path, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", HOME=str(folder), TERM="dumb")


def default_signals():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)


def run(folder, text, timeout=120):
    """A command as bash runs it: its exit code and all that it says."""
    done = subprocess.run(["bash", "-o", "pipefail", "-c", text], cwd=folder, env=environment(folder), timeout=timeout,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", preexec_fn=default_signals)  # fmt: skip
    return done.returncode, done.stdout


def write_models(folder):
    """A language model with its tokenizer and an image tower, as Hugging Face and open_clip keep them."""
    language = folder / "mpt-1b-redpajama-200b"
    shutil.copytree(GOLDENS / "models/neox_x2/lm", language)
    for file in (GOLDENS / "data/tokenizers/neox").iterdir():
        shutil.copy(file, language)
    shutil.copytree(GOLDENS / "models/neox_x2/vision", folder / "clip-vit-large-patch14")
    for name, same in (("opt-125m", language), ("clip-vit-base-patch32", folder / "clip-vit-large-patch14")):
        shutil.copytree(same, folder / name)


def drawing(name):
    """A picture that its caption describes, the same for the same name."""
    choice = random.Random(name)
    colour, shape = choice.choice(COLOURS), choice.choice(list(SHAPES))
    picture = Image.new("RGB", (64, 48), "white")
    x, y = choice.randrange(8, 30), choice.randrange(4, 20)
    SHAPES[shape](ImageDraw.Draw(picture), (x, y, x + 24, y + 24), fill=colour)
    data = io.BytesIO()
    picture.save(data, "JPEG")
    return data.getvalue(), f"a {colour} {shape}"


def write_photos(folder, count):
    folder.mkdir(parents=True)
    for i in range(count):
        picture, caption = drawing(f"photo{i}")
        (folder / f"{i:04d}.jpg").write_bytes(picture)
        (folder / f"{i:04d}.txt").write_text(caption + "\n")


def write_pairs(path, count):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for i in range(count):
            picture, caption = drawing(f"{path.stem}-{i}")
            for name, data in ((f"{i:04d}.jpg", picture), (f"{i:04d}.txt", caption.encode())):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def copy_shards(source, folder, pattern, count):
    folder.mkdir(parents=True)
    for i, shard in enumerate(sorted((GOLDENS / "data/corpus" / source).glob("*.tar"))[:count]):
        shutil.copy(shard, folder / pattern.format(i))


def small_config():
    return {
        "model": {
            "type": "flamingo", "lm": "models/mpt-1b-redpajama-200b", "vision": "models/clip-vit-large-patch14",
            "cross_attn_every_n_layers": 2, **TINY,
        },
        "data": {"laion": {"shards": "pairs/{0..7}.tar", "batch_size": 2}, "threads": 1},
        "train": {"steps": 3, "optimizer": {"lr": 1e-3}, "schedule": {"warmup_steps": 0}},
        "strategy": {"mixed_precision": {"param": "fp32"}},
        "checkpoint": {"every_steps": 1, "keep": 3},
        "log": {"every_steps": 1, "tensorboard": False},
    }  # fmt: skip


# Programs that are not here, as far as floe meets them.
PROGRAMS = {
    "srun": 'SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_STEP_NUM_TASKS=1 SLURM_LOCALID=0 SLURM_JOB_ID=1 SLURM_STEP_ID=0 exec "$@"\n',
}


def build(folder):
    """Everything that a page takes for granted; what a page says how to make is not there."""
    for name, text in PROGRAMS.items():
        program = folder / ".bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\n" + text)
        program.chmod(0o755)
    write_models(folder / "models")
    for i in range(8):
        write_pairs(folder / f"pairs/{i}.tar", 8)
    copy_shards("laion", folder / "laion", "{:05d}.tar", 4)
    copy_shards("mmc4", folder / "mmc4", "{:04d}.tar", 4)
    shutil.copytree(GOLDENS / "data/corpus/mmc4_raw", folder / "raw")
    shutil.copytree(ROOT / "configs", folder / "configs")
    (folder / "tests").symlink_to(ROOT / "tests")
    # What ./run demo leaves; its language model has not learned anything here.
    demo = folder / "runs/demo-data"
    demo.parent.mkdir()
    subprocess.run([BIN / "demo_data", ROOT / "examples/demo", demo], check=True, stdout=subprocess.DEVNULL)
    shutil.copytree(demo / "lm", demo / "captioner")
    (folder / "cat.jpg").write_bytes(drawing("cat")[0])
    (folder / "my.yaml").write_text(yaml.safe_dump(small_config(), sort_keys=False))
    for name in ("my_experiment", "fsdp_args"):
        (folder / f"configs/experiment/{name}.yaml").write_text((folder / "my.yaml").read_text())
    # A run that has been, and what was exported from it.
    model = {**small_config()["model"], "weights": "flamingo.pt"}
    (folder / "model.yaml").write_text(yaml.safe_dump(model, sort_keys=False))
    images = load_file(GOLDENS / "models/neox_x2/generate_images.safetensors")
    save_file({name: value[:1].copy() for name, value in images.items()}, folder / "images.safetensors")
    for command in ("floe train my.yaml run.name=demo", "floe export runs/demo exported",
                    "floe export runs/demo flamingo.pt --trainable-only"):  # fmt: skip
        code, said = run(folder, command)
        assert code == 0, said
    return folder

