"""floe migrate: OpenFlamingo's commands and Lightning's files become configurations that floe plan takes. Launchers and
what is refused are in tests/migrate.

The reference for OpenFlamingo is Python's argparse with the flags of its train.py (main branch at 655f693, which
are those of 2.0.0 and 2.0.1), written down in FLAGS: what argparse makes of a command has to arrive in floe's keys.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

SOURCE = Path(os.environ["FLOE_SOURCE_DIR"])
LM = str(SOURCE / "examples/demo/lm")
VISION = str(SOURCE / "examples/demo/vision")
MODELS = ["--lm_path", LM, "--tokenizer_path", LM, "--vision_encoder_path", VISION]

# Name, type (None: a switch) and default, as in train.py.
FLAGS = {
    "--vision_encoder_path": (str, "ViT-L-14"),
    "--vision_encoder_pretrained": (str, "openai"),
    "--lm_path": (str, "facebook/opt-1.3b"),
    "--tokenizer_path": (str, "facebook/opt-30b"),
    "--cross_attn_every_n_layers": (int, 1),
    "--run_name": (str, "openflamingo3B"),
    "--resume_from_checkpoint": (str, None),
    "--delete_previous_checkpoint": (None, False),
    "--batch_size_mmc4": (int, 128),
    "--batch_size_laion": (int, 128),
    "--gradient_accumulation_steps": (int, 1),
    "--seed": (int, 42),
    "--learning_rate": (float, 1e-4),
    "--lr_scheduler": (str, "constant"),
    "--loss_multiplier_mmc4": (float, 1.0),
    "--loss_multiplier_laion": (float, 1.0),
    "--warmup_steps": (int, 5000),
    "--weight_decay": (float, 0.1),
    "--precision": (str, "fp32"),
    "--gradient_checkpointing": (None, False),
    "--num_epochs": (int, 1),
    "--offline": (None, False),
    "--freeze_lm_embeddings": (None, False),
    "--logging_steps": (int, 100),
    "--laion_shards": (str, None),
    "--mmc4_shards": (str, None),
    "--workers": (int, 1),
    "--train_num_samples_mmc4": (int, 10000),
    "--train_num_samples_laion": (int, 10000),
    "--dataset_resampled": (None, False),
    "--mmc4_textsim_threshold": (float, 30),
    "--mmc4_max_num_images": (int, 6),
    "--mmc4_min_num_images": (int, 1),
    "--dist-url": (str, "env://"),
    "--dist-backend": (str, "nccl"),
    "--horovod": (None, False),
    "--no-set-device-rank": (None, False),
    "--fsdp": (None, False),
    "--fsdp_use_orig_params": (None, False),
    "--fsdp_sharding_strategy": (str, "full"),
    "--report_to_wandb": (None, False),
    "--wandb_project": (str, None),
    "--wandb_entity": (str, None),
    "--save_checkpoints_to_wandb": (None, False),
}
ONLY_IN_1X = "--use_media_placement_augmentation"


def parse(words):
    parser = argparse.ArgumentParser()
    for name, (kind, default) in FLAGS.items():
        parser.add_argument(name, **({"action": "store_true"} if kind is None else {"type": kind, "default": default}))
    parser.add_argument(ONLY_IN_1X, action="store_true")
    return parser.parse_args(words)


def expected(args):
    """What each flag means in floe's words, by key."""
    values = {
        "run.name": args.run_name.rstrip("/").split("/")[-1],
        "run.seed": args.seed,
        "model.type": "flamingo",
        "model.dropout": "config",
        "model.cross_attn_every_n_layers": args.cross_attn_every_n_layers,
        "model.freeze_lm_embeddings": args.freeze_lm_embeddings,
        "train.epochs": args.num_epochs,
        "train.steps": None,
        "train.gradient_accumulation": args.gradient_accumulation_steps,
        "train.clip.norm": 1.0,
        "train.optimizer.type": "adamw",
        "train.optimizer.lr": args.learning_rate,
        "train.optimizer.betas": [0.9, 0.999],
        "train.optimizer.eps": 1e-8,
        "train.optimizer.weight_decay": args.weight_decay,
        "train.schedule.type": args.lr_scheduler if args.lr_scheduler in ("linear", "cosine") else "constant",
        "train.schedule.warmup_steps": args.warmup_steps,
        "data.rules": "openflamingo",
        "data.workers": max(1, args.workers),
        "data.resampled": args.dataset_resampled,
        "checkpoint.every_epochs": 1,
        "checkpoint.every_steps": None,
        "checkpoint.delete_previous_checkpoint": args.delete_previous_checkpoint,
        "checkpoint.state_dict_type": "trainable",
        "log.every_steps": args.logging_steps,
        "strategy.sharding": "no_shard",
        "strategy.activation_checkpointing":
            ["DecoderLayer", "GatedCrossAttention", "PerceiverResampler"] if args.gradient_checkpointing else [],
    }
    if not args.delete_previous_checkpoint:
        values["checkpoint.keep"] = None
    if args.laion_shards:
        values |= {"data.laion.shards": args.laion_shards, "data.laion.batch_size": args.batch_size_laion,
                   "data.laion.num_samples": args.train_num_samples_laion,
                   "data.laion.weight": args.loss_multiplier_laion}
    else:
        values["data.laion"] = None
    if args.mmc4_shards:
        values |= {"data.mmc4.shards": args.mmc4_shards, "data.mmc4.batch_size": args.batch_size_mmc4,
                   "data.mmc4.num_samples": args.train_num_samples_mmc4, "data.mmc4.weight": args.loss_multiplier_mmc4,
                   "data.mmc4.max_images": args.mmc4_max_num_images, "data.mmc4.min_images": args.mmc4_min_num_images,
                   "data.mmc4.text_sim_threshold": args.mmc4_textsim_threshold, "data.mmc4.max_tokens": 256}
    if args.fsdp:
        values["strategy.sharding"] = {"full": "full_shard", "hybrid": "hybrid"}[args.fsdp_sharding_strategy]
    # get_mp_policy_dtype and get_autocast of train.py: autocast leaves fp32 weights, FSDP reduces in the narrow type.
    narrow = {"amp_bf16": "bf16", "amp_bfloat16": "bf16"}.get(args.precision, args.precision)
    autocast = args.precision.startswith("amp")
    values["strategy.mixed_precision.param"] = "fp32" if autocast else narrow
    values["strategy.mixed_precision.reduce"] = values["strategy.mixed_precision.buffer"] = narrow if args.fsdp else "fp32"
    values["precision.autocast"] = "bf16" if autocast else None
    masked = not args.fsdp or args.fsdp_use_orig_params
    values["train.optimizer.decay"] = ["*gated_cross_attn*"] if masked else []
    if args.resume_from_checkpoint:
        values["run.resume"] = args.resume_from_checkpoint
    else:
        values["run.resume"] = "auto"
    if args.report_to_wandb:
        values |= {"log.wandb.mode": "offline" if args.offline else "online",
                   "log.wandb.project": args.wandb_project or "uncategorized", "log.wandb.entity": args.wandb_entity,
                   "log.wandb.checkpoints": args.save_checkpoints_to_wandb}
    if args.dist_backend != "nccl":
        values |= {"dist.backend": args.dist_backend, "dist.device": "cuda"}
    return values


def defaults():
    """Of every key, from the reference page, which is the schema's (tests/train holds it to that)."""
    page = (SOURCE / "docs/configuration.md").read_text()
    found = {}
    for block, body in re.findall(r"^## `([^`]+)`\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL):
        for key, default in re.findall(r"^\| `([\w.]+)` \| .*? \| (?:`(.*?)`|required) \| ", body, re.MULTILINE):
            found[f"{block}.{key}"] = yaml.safe_load(default)
    assert found["run.seed"] == 0 and found["data.laion.weight"] == 0.2
    return found


DEFAULTS = defaults()


def at(tree, key):
    """The value of a key in a configuration: its own, else floe's default."""
    for part in key.split("."):
        if not isinstance(tree, dict) or part not in tree:
            return DEFAULTS[key]
        tree = tree[part]
    return tree


def comments(text):
    """All of them as one line."""
    return " ".join(" ".join(re.findall(r"^ *#(.*)$", text, re.MULTILINE)).split())


def number(value):
    """YAML 1.1, which PyYAML reads, takes 1e-4 for a text; 1.2 does not."""
    if isinstance(value, str) and re.fullmatch(r"[-+]?[\d.]+([eE][-+]?\d+)?", value):
        return float(value)
    return value


@pytest.fixture
def shards(tmp_path):
    """--laion_shards and --mmc4_shards whose files are there."""
    for source in ("laion", "mmc4"):
        (tmp_path / source).mkdir()
        for index in range(16):
            (tmp_path / source / f"{index:04}.tar").write_bytes(bytes(10240))
    return {source: f"{tmp_path}/{source}/{{0000..0015}}.tar" for source in ("laion", "mmc4")}


README = """--cross_attn_every_n_layers 1 --dataset_resampled --batch_size_mmc4 32 --batch_size_laion 64
  --train_num_samples_mmc4 125000 --train_num_samples_laion 250000 --loss_multiplier_laion 0.2 --workers=4
  --run_name OpenFlamingo-3B-vitl-mpt1b --num_epochs 480 --warmup_steps  1875 --mmc4_textsim_threshold 0.24
  --laion_shards LAION --mmc4_shards MMC4"""

# Launcher, flags (LAION and MMC4 are filled in), ranks for the plan, the command without the file's name.
COMMANDS = {
    "its README": (
        "torchrun --nnodes=1 --nproc_per_node=4 open_flamingo/train/train.py", README + " --report_to_wandb",
        4, "floe launch -n 4 -- train"),
    "its script": (
        "srun --cpu_bind=v --accel-bind=gn python open_flamingo/open_flamingo/train/train.py",
        README + " --gradient_checkpointing --report_to_wandb",
        8, "srun --cpu_bind=v --accel-bind=gn floe train"),
    "FSDP as its README recommends": (
        "torchrun --nnodes=1 --nproc_per_node=8 train.py",
        README + " --fsdp --fsdp_use_orig_params --precision amp_bf16 --gradient_checkpointing",
        8, "floe launch -n 8 -- train"),
    "FSDP without original parameters": (
        "torchrun --nproc-per-node 2 train.py", README + " --fsdp --precision=amp_bfloat16 --freeze_lm_embeddings",
        2, "floe launch -n 2 -- train"),
    "hybrid over two machines": (
        "torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend c10d --rdzv_endpoint node0:29500 train.py",
        README + " --fsdp --fsdp_use_orig_params --fsdp_sharding_strategy hybrid --precision fp32",
        8, "torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend c10d --rdzv_endpoint node0:29500 --no-python floe train"),
    "hybrid from SLURM": (
        "srun --nodes=2 --ntasks-per-node=2 python -u train.py",
        README + " --fsdp --fsdp_use_orig_params --fsdp_sharding_strategy=hybrid --dist-url tcp://node0:15000",
        4, "MASTER_ADDR=node0 MASTER_PORT=15000 srun --nodes=2 --ntasks-per-node=2 floe train"),
    "one GPU, nothing but defaults": (
        "python train.py", "--laion_shards LAION --mmc4_shards MMC4", 1, "floe train"),
    "resumed, offline, all of W&B": (
        "env CUDA_VISIBLE_DEVICES=0,1 python3 -m torch.distributed.run --nproc_per_node=2 --master_port=29511 train.py",
        README + """ --resume_from_checkpoint TMP/checkpoint_3.pt --delete_previous_checkpoint --offline --report_to_wandb
          --wandb_project flamingo --wandb_entity polar --save_checkpoints_to_wandb --logging_steps 7""",
        2, "CUDA_VISIBLE_DEVICES=0,1 floe launch -n 2 -- train"),
    "schedule and accumulation": (
        "mpirun -np 2 python train.py",
        README + """ --lr_scheduler cosine --gradient_accumulation_steps 4 --learning_rate 3e-5 --weight_decay 0.05 --seed 7
          --loss_multiplier_mmc4 0.5 --mmc4_max_num_images 4 --mmc4_min_num_images 2""",
        2, "mpirun -np 2 floe train"),
    "bf16 on Gloo": (
        "torchrun --standalone --nproc_per_node=1 train.py",
        README + " --precision bf16 --dist-backend gloo --dist-url env:// --lr_scheduler linear --run_name a/b/c",
        1, "floe train"),
    "fp16 under FSDP": (
        "python -m torch.distributed.launch --use_env --nproc_per_node=2 train.py",
        README + " --fsdp --fsdp_use_orig_params --precision fp16 --workers 0",
        2, "floe launch -n 2 -- train"),
    "LAION alone": (
        "python train.py", "--laion_shards LAION --batch_size_laion 8 --train_num_samples_laion 800 --vision_encoder_pretrained x",
        1, "floe train"),
    "1.x by Horovod": (
        "horovodrun -np 2 python train.py",
        README + " --horovod --no-set-device-rank --use_media_placement_augmentation",
        2, "floe launch -n 2 -- train"),
    "abbreviated as argparse allows": (
        "python train.py", "--laion_sh LAION --mmc4_sh=MMC4 --batch_size_l 16 --batch_size_m 16 --num 3 --seed -1", 1, "floe train"),
}


def flags_of(text, shards, tmp_path):
    words = shlex.split(text.replace("TMP", str(tmp_path)))
    words = [word.replace("LAION", shards["laion"]).replace("MMC4", shards["mmc4"]) for word in words]
    given = {word.split("=")[0] for word in words}
    models = [] if "--lm_path" in given else MODELS
    return models + words


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_becomes_a_configuration_that_is_planned(floe, name, shards, tmp_path):
    launcher, text, world, command = COMMANDS[name]
    (tmp_path / "checkpoint_3.pt").touch()
    flags = flags_of(text, shards, tmp_path)
    file = tmp_path / "run.yaml"
    done = floe("migrate", "--output", str(file), "--", *shlex.split(launcher), *flags)
    if name.startswith("abbreviated"):  # a seed may be anything in Python, floe's is a number from 0 on
        assert done.returncode == 2 and "'--seed -1': run.seed must be" in done.stderr, done.stderr
        flags = flags[:-2]
        done = floe("migrate", "--output", str(file), "--", *shlex.split(launcher), *flags)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{command} {file}\n"
    assert f"#   {command} {file}" in file.read_text()

    planned = floe("plan", str(file), f"world={world}", "model.random_init=true")
    assert planned.returncode == 0, planned.stderr
    assert "Each rank holds" in planned.stdout
    config = yaml.safe_load(file.read_text())
    for key, value in expected(parse(flags)).items():
        assert number(at(config, key)) == value, f"{key} of {name}"
    folder, _, _ = parse(flags).run_name.rpartition("/")
    assert at(config, "run.dir") == (folder or "runs")
    assert at(config, "model.lm") == at(config, "model.tokenizer") == LM
    assert at(config, "model.vision") == VISION
    if at(config, "strategy.sharding") == "hybrid":
        assert at(config, "strategy.hybrid_shard_size") == {8: 4, 4: 2}[world]


def test_the_commands_use_every_flag(shards, tmp_path):
    used = set()
    for _, text, _, _ in COMMANDS.values():
        for word in flags_of(text, shards, tmp_path):
            used |= {name for name in [*FLAGS, ONLY_IN_1X] if word.split("=")[0] == name}
    assert used == {*FLAGS, ONLY_IN_1X}
    assert len(COMMANDS) >= 10


def reference(floe):
    done = floe("migrate", "--reference")
    assert done.returncode == 0
    return done.stdout


def test_the_table_has_the_flags_of_train_py_with_their_defaults(floe):
    rows = re.findall(r"^\| `(--[\w-]+)` \| (.*?) \| (.*?) \| (.+) \|$", reference(floe), re.MULTILINE)
    listed = {name: default.strip("`") for name, default, _, _ in rows}
    assert listed.pop(ONLY_IN_1X) == "off"
    assert listed.keys() == FLAGS.keys()
    for name, (kind, default) in FLAGS.items():
        if kind is None:
            assert listed[name] == "off"
        else:
            assert (kind(listed[name]) if listed[name] else None) == default, name


def test_every_key_that_the_tables_name_is_one_of_floe(floe):
    named = set(re.findall(r"`((?:run|dist|model|data|train|strategy|precision|checkpoint|log)\.[\w.]+)`", reference(floe)))
    assert len(named) > 40
    assert named - DEFAULTS.keys() == set()


def test_the_page_has_the_tables(floe):
    page = (SOURCE / "docs/migrating.md").read_text()
    for part in reference(floe).split("\n\n"):
        assert part.strip() in page, "docs/migrating.md is out of date: floe migrate --reference has its tables"


def test_names_of_the_hub_become_folders_with_their_downloads(floe, tmp_path):
    words = shlex.split("torchrun --nproc_per_node=4 train.py --lm_path anas-awadalla/mpt-1b-redpajama-200b "
                        "--tokenizer_path anas-awadalla/mpt-1b-redpajama-200b --laion_shards 'l/{0..9}.tar' "
                        "--mmc4_shards 'm/{0..9}.tar' --mmc4_textsim_threshold 0.24")
    done = floe("migrate", "--", *words, cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == ""
    model = yaml.safe_load(done.stdout)["model"]
    assert model["lm"] == model["tokenizer"] == "models/anas-awadalla/mpt-1b-redpajama-200b"
    assert model["vision"] == "models/openai/clip-vit-large-patch14"
    downloads = re.findall(r"^#   (huggingface-cli .*)$", done.stdout, re.MULTILINE)
    assert downloads == [
        "huggingface-cli download anas-awadalla/mpt-1b-redpajama-200b --local-dir models/anas-awadalla/mpt-1b-redpajama-200b",
        "huggingface-cli download openai/clip-vit-large-patch14 --local-dir models/openai/clip-vit-large-patch14",
    ]
    # A path of one's own is taken as it is, and so is a folder that is there under a hub's name.
    (tmp_path / "anas-awadalla/mpt-1b-redpajama-200b").mkdir(parents=True)
    again = yaml.safe_load(floe("migrate", "--models", "/weights", "--", *words, cwd=tmp_path).stdout)["model"]
    assert again["lm"] == "anas-awadalla/mpt-1b-redpajama-200b"
    assert again["vision"] == "/weights/openai/clip-vit-large-patch14"

    other = floe("migrate", "--", "train.py", "--laion_shards", "x", "--vision_encoder_path", "RN50", "--lm_path", "gpt2")
    assert yaml.safe_load(other.stdout)["model"]["vision"] == "models/RN50-openai"
    assert "the tower RN50 with the weights openai is not known here" in other.stderr
    # Of the tokenizer that train.py takes unless it is told, the weights are not fetched.
    assert "huggingface-cli download facebook/opt-30b --include 'tokenizer*' 'vocab*'" in other.stdout
    assert "is hardly the tokenizer of gpt2" in other.stderr


ODD = ["a b", "it's", 'say "x"', "#1", "x: y", "{a,b}", "100%", "~", "null", "007", "1e-4", "true", "é/ñ", "雪", "a\tb",
       "a\nb", "\\n", "${env:HOME}", "[x", "*y", "&z", "!t", "a: #b", " lead", "trail ", "- x", "-x", "@a", "-1", "=", "%TAG", "|", ">"]  # fmt: skip


@pytest.mark.parametrize("texts", [ODD[i : i + 3] for i in range(0, len(ODD), 3)], ids=ascii)
def test_values_survive_whatever_their_bytes_are(floe, texts, shards, tmp_path):
    name, project, entity = texts[0].replace("/", "_"), *texts[1:]
    file = tmp_path / f"{name}.yaml".replace("\n", "_")  # a name of two lines is refused
    done = floe("migrate", "--output", str(file), "--", "train.py", *MODELS, f"--laion_shards={shards['laion']}",
                f"--run_name=x/{name}", "--report_to_wandb", f"--wandb_project={project}", f"--wandb_entity={entity}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    # The printed word means the file to a shell.
    assert bash(f"printf %s {done.stdout.removeprefix('floe train ')}") == str(file)
    shown = floe("train", str(file), "model.random_init=true", "--print-config")
    assert shown.returncode == 0, shown.stderr
    for config in (yaml.safe_load(shown.stdout), yaml.safe_load(file.read_text())):
        found = [config["run"]["name"], config["log"]["wandb"]["project"], config["log"]["wandb"]["entity"]]
        assert [text.replace("$${", "${") for text in found] == [name, project, entity]


def bash(command):
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout


def test_the_printed_command_trains(floe, tmp_path):
    """The README's command, scaled down to two ranks, small models and few samples, as a shell runs what is printed."""
    goldens = SOURCE / "tests/goldens"
    shutil.copytree(goldens / "models/neox_x2/lm", tmp_path / "lm")
    for file in (goldens / "data/tokenizers/neox").iterdir():
        shutil.copy(file, tmp_path / "lm")
    text = README.replace("LAION", str(goldens / "data/corpus/laion/{000000..000004}.tar"))
    text = text.replace("MMC4", str(goldens / "data/corpus/mmc4/{000000000..000000003}.tar"))
    for before, after in (("32", "2"), ("64", "2"), ("125000", "8"), ("250000", "8"), ("480", "2"), ("1875", "1"),
                          ("--workers=4", "--workers=1"), ("n_layers 1", "n_layers 2"), ("0.24", "0.2")):  # fmt: skip
        assert before in text
        text = text.replace(f" {before}", f" {after}") if before.isdigit() else text.replace(before, after)
    done = floe("migrate", "--output", "run.yaml", "--", "torchrun", "--nproc_per_node=2", "train.py", "--lm_path", "./lm",
                "--tokenizer_path", "./lm", "--vision_encoder_path", str(goldens / "models/neox_x2/vision"), *shlex.split(text),
                cwd=tmp_path)  # fmt: skip
    assert done.stderr == "" and done.stdout == "floe launch -n 2 -- train run.yaml\n"
    path = f"{os.environ['FLOE_BIN_DIR']}:{os.environ['PATH']}"
    trained = subprocess.run(done.stdout, shell=True, cwd=tmp_path, env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
                             capture_output=True, text=True, timeout=120)  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    run = tmp_path / "runs/OpenFlamingo-3B-vitl-mpt1b"
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    assert {"loss_laion", "loss_mmc4"} <= steps[0].keys()
    # A checkpoint an epoch, all of them kept, in OpenFlamingo's layout.
    assert sorted(path.name for path in (run / "checkpoints").glob("checkpoint_*.pt")) == ["checkpoint_2.pt", "checkpoint_4.pt"]


def test_code_of_the_page_is_that_of_a_program():
    """Every line of C++ stands in a program that the tests run."""
    programs = [*(SOURCE / "tests/consumer").glob("*.cc"), *(SOURCE / "examples").glob("*.cc")]
    lines = {line.strip() for program in programs for line in program.read_text().splitlines()}
    shown = re.findall(r"^```cpp\n(.*?)^```", (SOURCE / "docs/migrating.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(shown) >= 3
    for line in "\n".join(shown).splitlines():
        assert not line.strip() or line.strip() in lines, line


def test_only_flags_are_a_command_too(floe):
    done = floe("migrate", "--", "--laion_shards", "x", "--seed=3")
    assert yaml.safe_load(done.stdout)["run"]["seed"] == 3


def test_variables_of_wandb_are_keys_and_secrets_are_not_repeated(floe):
    done = floe("migrate", "--", "WANDB_MODE=offline", "WANDB_PROJECT=p", "WANDB_ENTITY=e", "WANDB_API_KEY=abc123", "python",
                "train.py", "--laion_shards", "x", "--report_to_wandb")
    assert yaml.safe_load(done.stdout)["log"]["wandb"] == {"mode": "offline", "project": "p", "entity": "e"}
    unused = floe("migrate", "--", "WANDB_MODE=offline", "train.py", "--laion_shards", "x")
    assert "WANDB_MODE=offline: has no effect without --report_to_wandb" in unused.stdout
    assert "abc123" not in done.stdout + done.stderr and "WANDB_API_KEY is a secret" in done.stdout
    assert "#   floe train migrated.yaml" in done.stdout


def test_what_has_no_counterpart_is_said_and_what_matters_is_told(floe):
    done = floe("migrate", "--", "train.py", *MODELS, "--laion_shards", "x", "--mmc4_shards", "y", "--pile_shards", "a", "b",
                "--wandb_project", "p", "--horovod", "--fsdp_sharding_strategy", "hybrid", "--lr_scheduler", "step",
                "--batch_size_laion", "64", "--dist-backend", "mpi", "--dist-url", "file:///x", "--seed", "1", "--seed", "2")
    assert done.returncode == 0
    text = comments(done.stdout)
    for sentence in (
        "--pile_shards a b is no flag of OpenFlamingo's train.py; left out; did you mean",
        "--wandb_project p: has no effect without --report_to_wandb.",
        "--horovod: Ranks find each other by what the launcher sets",
        "--fsdp_sharding_strategy hybrid: has no effect without --fsdp.",
        "--dist-url file:///x: ranks meet by what the launcher sets.",
        "--dist-backend mpi: floe has nccl and gloo",
    ):
        assert sentence in text, done.stdout
    for warning in (
        "--pile_shards a b is no flag of OpenFlamingo's train.py; left out",
        "--lr_scheduler step is none that train.py knows: it takes a constant rate",
        "an epoch has 157 batches of LAION and 79 of MMC4 on 1 rank; train.py and floe both refuse",
        "no picture of MMC4 is as similar to its text as train.py's default of 30",
        "--dist-backend mpi has no counterpart",
        "--seed is given twice; train.py takes the last, 2",
    ):
        assert warning in done.stderr and warning in text, done.stderr
    values = yaml.safe_load(done.stdout)
    assert values["train"]["schedule"]["type"] == "constant" and values["run"]["seed"] == 2
    assert "dist" not in values


def test_every_line_fits_and_every_key_has_its_comment(floe, shards, tmp_path):
    launcher, text, _, _ = COMMANDS["its README"]
    done = floe("migrate", "--", *shlex.split(launcher), *flags_of(text, shards, tmp_path))
    lines = done.stdout.splitlines()
    assert max(len(line) for line in lines if "/" not in line) <= 100
    given = [word.split("=")[0] for word in flags_of(text, shards, tmp_path) if word.startswith("--")]
    for flag in given:
        assert re.search(rf"^ *# .*{flag}\b", done.stdout, re.MULTILINE), flag


def test_output_is_not_overwritten_without_a_word(floe, tmp_path):
    file = tmp_path / "run.yaml"
    words = ["--", "train.py", "--laion_shards", "x"]
    assert floe("migrate", "--output", str(file), *words).returncode == 0
    first = file.read_text()
    done = floe("migrate", "--output", str(file), *words, "--seed", "5")
    assert done.returncode == 2 and file.read_text() == first
    assert f"'{file}' exists; choose another name with --output, or replace it with --force" in done.stderr
    assert floe("migrate", "--force", "--output", str(file), *words, "--seed", "5").returncode == 0
    assert yaml.safe_load(file.read_text())["run"]["seed"] == 5
    done = floe("migrate", "--output", str(tmp_path / "no/where.yaml"), *words)
    assert done.returncode == 2 and "there is no folder" in done.stderr


@pytest.mark.parametrize(("words", "sentence"), [
    ([], "name a configuration of Lightning, or OpenFlamingo's command behind '--'"),
    (["--"], "name a configuration of Lightning, or OpenFlamingo's command behind '--'"),
    (["--", "train.py", "--lm_pth", "x"], "'--lm_pth' is no flag of OpenFlamingo's train.py; did you mean '--lm_path'?"),
    (["--", "train.py", "--laion_shards", "x", "--batch_size_laion", "0"],
     "command line '--batch_size_laion 0': data.laion.batch_size is 0, but must be"),
    (["--", "train.py", "--laion_shards", "x", "--num_epochs", "0"], "command line '--num_epochs 0': train.epochs is 0"),
    (["--", "torchrun", "--nproc_per_node=-3", "train.py", "--laion_shards", "x"],
     "--nproc_per_node is '-3', but must be a number of at least 1"),
    (["x.yaml", "--", "train.py"], "'x.yaml' stands in front of '--'"),
    (["nowhere.yaml"], "nowhere.yaml"),
    (["scripts/run_train.sh"], "'scripts/run_train.sh' is a script; put the command that it runs behind '--'"),
    (["--models", "x", "y.yaml"], "--models is for OpenFlamingo's commands"),
    (["--outptu", "x"], "there is no option '--outptu'; did you mean '--output'?"),
])  # fmt: skip
def test_wrong_commands_are_one_sentence_and_exit_2(floe, words, sentence):
    done = floe("migrate", *words)
    assert done.returncode == 2, done.stdout
    assert done.stdout == ""
    assert done.stderr.startswith("floe: ") and done.stderr.count("\n") == 1, done.stderr
    assert sentence in done.stderr


def test_ends_of_lines_of_other_readers_stay_out_of_comments(floe, tmp_path):
    """U+2028 and U+0085 end a line in YAML 1.1 and do not in 1.2: a comment that had one would end in PyYAML."""
    odd = "a\u2028b: c\x85d: e\ufeff"
    done = floe("migrate", "--", "train.py", "--laion_shards", "x", f"--run_name={odd}")
    config = yaml.safe_load(done.stdout)
    assert config.keys() == {"run", "model", "data", "train", "strategy", "checkpoint", "log"}
    (tmp_path / "x.yaml").write_text(done.stdout)
    shown = floe("plan", str(tmp_path / "x.yaml"), f"model.lm={LM}", f"model.vision={VISION}", f"model.tokenizer={LM}",
                 f"data.laion.shards={__file__}", "model.random_init=true", "--print-config")
    assert shown.returncode == 0 and f'name: "{odd}"' in shown.stdout, shown.stderr


def test_bytes_that_are_no_text_are_refused(floe):
    done = floe("migrate", "--", "train.py", "--laion_shards", b"\xff.tar")
    assert done.returncode == 2 and "'\\xff.tar' of the command is not UTF-8" in done.stderr


# ---- Lightning ----

BASE = """# @package trainer.strategy
_target_: lightning.pytorch.strategies.FSDPStrategy
sharding_strategy: FULL_SHARD
cpu_offload: false
use_orig_params: false
state_dict_type: sharded
"""
EXPERIMENT = """# @package _global_
trainer:
  strategy:
    auto_wrap_policy:
      _target_: xlm.utils.fsdp_grouping.make_layer_wrap_policy
      _args_: [my_package.modeling.MyDecoderLayer]
    activation_checkpointing_policy:
      _target_: xlm.utils.fsdp_grouping.make_layer_wrap_policy
      _args_: [my_package.modeling.MyDecoderLayer]
    mixed_precision:
      _target_: xlm.utils.fsdp_grouping.fsdp_bf16_mixed_precision
  precision: bf16-mixed
callbacks:
  fsdp_diagnostics:
    _target_: xlm.utils.fsdp_diagnostics_callback.FSDPDiagnosticsCallback
    num_logged_batches: 4
    log_module_tree_top_k: 6
    log_to_logger: false
  on_exception: {_target_: lightning.pytorch.callbacks.OnExceptionCheckpoint}
"""
CLASS_PATH = """seed_everything: 7
trainer:
  devices: 4
  num_nodes: 1
  precision: 16-mixed
  max_steps: 900
  max_epochs: 5
  accumulate_grad_batches: 2
  gradient_clip_val: 0.5
  log_every_n_steps: 20
  limit_val_batches: 30
  strategy:
    class_path: lightning.pytorch.strategies.FSDPStrategy
    init_args:
      sharding_strategy: HYBRID_SHARD
      device_mesh: [2, 2]
      auto_wrap_policy: [transformers.models.llama.modeling_llama.LlamaDecoderLayer, open_clip.transformer.ResidualAttentionBlock]
      timeout: {class_path: datetime.timedelta, init_args: {minutes: 30}}
      process_group_backend: nccl
  logger: {class_path: lightning.pytorch.loggers.WandbLogger, init_args: {project: p, entity: e, offline: true, name: r, log_model: all}}
  callbacks:
    - {class_path: lightning.pytorch.callbacks.ModelCheckpoint, init_args: {every_n_train_steps: 50, save_top_k: 3, monitor: val/loss, mode: min}}
    - {class_path: lightning.pytorch.callbacks.LearningRateMonitor}
model: {class_path: my.Model}
"""


def lightning(floe, tmp_path, *texts, code=0):
    files = []
    for text in texts:
        file = tmp_path / f"{len(files)}.yaml"
        file.write_text(text)
        files.append(str(file))
    done = floe("migrate", *files)
    assert done.returncode == code, done.stderr
    return done


MINE = f"model: {{lm: {LM}, vision: {VISION}, random_init: true}}\ndata: {{laion: {{shards: SHARDS}}}}\n"


@pytest.mark.parametrize(("texts", "values", "more"), [
    ([BASE], {"strategy.sharding": "full_shard", "strategy.cpu_offload": False, "checkpoint.state_dict_type": "sharded"},
     ["train.steps=5"]),
    ([BASE, "trainer: {max_steps: 5}"],
     {"strategy.mixed_precision.param": "fp32", "strategy.mixed_precision.reduce": "fp32", "train.clip.norm": None}, []),
    ([BASE, EXPERIMENT], {
        "strategy.sharding": "full_shard", "strategy.units": ["DecoderLayer"],
        "strategy.activation_checkpointing": ["DecoderLayer"], "strategy.mixed_precision.param": "bf16",
        "strategy.mixed_precision.reduce": "fp32", "strategy.mixed_precision.buffer": "fp32", "precision.autocast": "bf16",
        "log.diagnostics.batches": 4, "log.diagnostics.tree_top_k": 6, "log.diagnostics.to_loggers": False,
        "checkpoint.on_exception": True, "train.clip.norm": None}, ["train.steps=5"]),
    ([CLASS_PATH], {
        "run.seed": 7, "strategy.sharding": "hybrid", "strategy.hybrid_shard_size": 2, "strategy.units": ["DecoderLayer", "ViTBlock"],
        "strategy.mixed_precision.param": "fp32", "strategy.mixed_precision.reduce": "fp16", "precision.autocast": "fp16",
        "train.steps": 900, "train.epochs": None, "train.gradient_accumulation": 2, "train.clip.norm": 0.5,
        "log.every_steps": 20, "train.validation.max_batches": 30, "dist.timeout_s": 1800.0, "dist.backend": "nccl",
        "log.wandb.mode": "offline", "log.wandb.project": "p", "log.wandb.entity": "e", "log.wandb.checkpoints": True, "run.name": "r",
        "checkpoint.every_steps": 50, "checkpoint.keep_best.n": 3, "checkpoint.keep_best.metric": "val_loss",
        "checkpoint.keep_best.better": "lower"},
     ["train.validation={every_steps: 50, shards: SHARDS, max_batches: 30}"]),
    (["strategy: ddp\nprecision: bf16-mixed\nmax_epochs: 3\ngradient_clip_val: 1\ngradient_clip_algorithm: value\n"],
     {"strategy.sharding": "no_shard", "strategy.mixed_precision.reduce": "fp32", "precision.autocast": "bf16", "train.epochs": 3,
      "train.clip.value": 1.0, "train.clip.norm": None}, ["data.laion.num_samples=640"]),
    (["fit:\n  trainer: {strategy: fsdp_cpu_offload, precision: bf16-true, max_steps: 3}"],
     {"strategy.cpu_offload": True, "strategy.mixed_precision.param": "bf16", "strategy.mixed_precision.reduce": "bf16"}, []),
    (["sharding_strategy: 2\ncpu_offload: {_target_: torch.distributed.fsdp.CPUOffload, offload_params: true}\n"
      "mixed_precision: {_target_: torch.distributed.fsdp.MixedPrecision, param_dtype: {_target_: hydra.utils.get_object, "
      "path: torch.bfloat16}, reduce_dtype: torch.float32}"],
     {"strategy.sharding": "shard_grad_op", "strategy.cpu_offload": True, "strategy.mixed_precision.param": "bf16",
      "strategy.mixed_precision.reduce": "fp32", "strategy.mixed_precision.buffer": "fp32"}, ["train.steps=1"]),
    (["strategy: {_target_: pytorch_lightning.strategies.DeepSpeedStrategy, stage: 3, offload_optimizer: true}"],
     {"strategy.sharding": "full_shard", "strategy.cpu_offload": True}, ["train.steps=1"]),
    (['{"trainer": {"strategy": {"class_path": "ModelParallelStrategy", "init_args": {"data_parallel_size": 8}}, "devices": [0, 1]}}'],
     {"strategy.sharding": "full_shard"}, ["train.steps=1"]),
    (["trainer: {strategy: fsdp, callbacks: {stop: {_target_: EarlyStopping, monitor: val_loss, patience: 2, min_delta: 0.1}, "
      "save: {_target_: ModelCheckpoint, save_top_k: -1, every_n_epochs: 2}}, max_epochs: 4}"],
     {"train.stop.metric": "val_loss", "train.stop.patience": 2, "train.stop.min_delta": 0.1, "checkpoint.keep": None,
      "checkpoint.every_epochs": 2}, ["data.laion.num_samples=640", "train.validation={every_steps: 5, shards: SHARDS}"]),
    (["defaults: [&slow {max_steps: 9, precision: bf16-true}, &quick {max_steps: 2, gradient_clip_val: 0.5}]\n"
      "trainer: {<<: [*quick, *slow], strategy: {<<: {sharding_strategy: 2}, _target_: FSDPStrategy}, gradient_clip_val: 0.25}"],
     {"train.steps": 2, "train.clip.norm": 0.25, "strategy.sharding": "shard_grad_op", "strategy.mixed_precision.param": "bf16"}, []),
    (["trainer: {limit_val_batches: 0, max_epochs: 1, callbacks: [{_target_: ModelCheckpoint, every_n_train_steps: 0, every_n_epochs: 1}]}"],
     {"train.validation.every_steps": None, "checkpoint.every_steps": None, "checkpoint.every_epochs": 1}, ["data.laion.num_samples=640"]),
    (["trainer: {limit_val_batches: 0.0, max_steps: 1, callbacks: [{_target_: ModelCheckpoint, every_n_epochs: 0}]}"],
     {"train.validation.every_steps": None, "checkpoint.every_epochs": None}, []),
    (["trainer: {max_steps: 1, callbacks: [{_target_: EarlyStopping, monitor: val_loss, patience: 0}]}"],
     {"train.stop.patience": 1}, ["train.validation={every_steps: 5, shards: SHARDS}"]),
    (["trainer: {max_steps: 1, callbacks: [{_target_: ModelCheckpoint, monitor: val_loss, mode: max, save_top_k: 2}]}"],
     {"checkpoint.keep_best.metric": "val_loss", "checkpoint.keep_best.better": "higher", "checkpoint.keep_best.n": 2},
     ["train.validation={every_steps: 5, shards: SHARDS}"]),
])  # fmt: skip
def test_lightning_becomes_blocks_that_are_planned(floe, tmp_path, shards, texts, values, more):
    done = lightning(floe, tmp_path, *texts)
    mine, file = tmp_path / "mine.yaml", tmp_path / "migrated.yaml"
    mine.write_text(MINE.replace("SHARDS", f'"{shards["laion"]}"'))
    file.write_text(done.stdout)
    words = [str(mine), str(file), "world=4", *(word.replace("SHARDS", f"'{shards['laion']}'") for word in more)]
    planned = floe("plan", *words)
    assert planned.returncode == 0, planned.stderr
    config = yaml.safe_load(done.stdout)
    for key, value in values.items():
        assert number(at(config, key)) == value, key


@pytest.mark.parametrize("strategy", ["deepspeed_stage_2", "deepspeed_stage_3", "{_target_: DeepSpeedStrategy, stage: 3}"])
@pytest.mark.parametrize(("precision", "dtype", "autocast"), [
    ("bf16-mixed", "bf16", "bf16"), ("bf16-true", "bf16", None), ("16-mixed", "fp16", "fp16"), ("32-true", "fp32", None),
])  # fmt: skip
def test_deepspeed_computes_and_reduces_in_the_narrow_type(floe, tmp_path, shards, strategy, precision, dtype, autocast):
    done = lightning(floe, tmp_path, f"trainer: {{strategy: {strategy}, precision: {precision}, max_steps: 1}}")
    config = yaml.safe_load(done.stdout)
    assert config["strategy"]["mixed_precision"] == {"param": dtype, "reduce": dtype, "buffer": dtype}
    assert config.get("precision", {}).get("autocast") == autocast
    said = f"DeepSpeed computes with parameters in {dtype} under both -mixed and -true, keeps fp32 masters of them"
    assert (said in comments(done.stdout)) == (dtype != "fp32")
    assert "true precisions do not have" not in comments(done.stdout)
    mine, file = tmp_path / "mine.yaml", tmp_path / "migrated.yaml"
    mine.write_text(MINE.replace("SHARDS", f'"{shards["laion"]}"'))
    file.write_text(done.stdout)
    planned = floe("plan", str(mine), str(file), "world=2")
    assert planned.returncode == 0, planned.stderr


@pytest.mark.parametrize(("text", "autocast", "sentence"), [
    ("trainer: {strategy: fsdp, precision: '${prec}', max_steps: 1}", None, "because precision is a reference here"),
    ("trainer: {strategy: '${which}', max_steps: 1}", None, "because that of the strategy is a reference here"),
    ("trainer: {strategy: {_target_: FSDPStrategy, mixed_precision: '${mp}'}, precision: bf16-mixed}", "bf16",
     "because that of the strategy is a reference here"),
    ("trainer: {strategy: {_target_: FSDPStrategy, mixed_precision: {param_dtype: '${dtype}'}}, precision: bf16-true}", None,
     "because that of the strategy is a reference here"),
])  # fmt: skip
def test_types_that_are_references_are_not_written(floe, tmp_path, text, autocast, sentence):
    done = lightning(floe, tmp_path, text)
    config = yaml.safe_load(done.stdout)
    assert "mixed_precision" not in config.get("strategy", {})
    assert config.get("precision", {}).get("autocast") == autocast
    assert sentence in done.stderr and sentence in comments(done.stdout)
    assert "Neither precision nor mixed_precision" not in done.stdout
    assert "does not resolve; left out" in done.stderr


def test_types_of_a_strategy_hold_where_precision_is_a_reference(floe, tmp_path):
    text = "trainer: {strategy: {_target_: FSDPStrategy, mixed_precision: {param_dtype: torch.bfloat16}}, precision: '${p}'}"
    done = lightning(floe, tmp_path, text)
    assert yaml.safe_load(done.stdout)["strategy"]["mixed_precision"]["param"] == "bf16"
    assert "is not written" not in done.stdout


@pytest.mark.parametrize("text", [BASE, "strategy: fsdp\n", "strategy: {_target_: DDPStrategy}\n", "trainer: {strategy: ddp}\n"])
def test_a_strategy_alone_says_neither_types_nor_clipping(floe, tmp_path, text):
    config = yaml.safe_load(lightning(floe, tmp_path, text).stdout)
    assert "mixed_precision" not in config["strategy"] and "train" not in config


@pytest.mark.parametrize(("arguments", "sentence"), [
    ("monitor: val_loss, mode: max, patience: 3", "floe ends a run when a metric no longer falls, never when one no longer rises"),
    ("monitor: val_acc, patience: 3", "floe does not measure 'val_acc'; it has val_loss, val_loss_SOURCE"),
    ("monitor: '${metric}', patience: 3", "${metric} is a reference that this file does not resolve"),
    ("monitor: val_loss, mode: '${mode}', patience: 3", "${mode} is a reference that this file does not resolve"),
])  # fmt: skip
def test_a_stop_that_floe_does_not_have_is_left_out_with_a_word(floe, tmp_path, arguments, sentence):
    done = lightning(floe, tmp_path, f"trainer: {{max_steps: 3, callbacks: [{{_target_: EarlyStopping, {arguments}}}]}}")
    assert "stop" not in yaml.safe_load(done.stdout)["train"]
    end = comments(done.stdout).split("Without a counterpart in floe:")[1]
    for text in (end, done.stderr):
        assert sentence in text and "train.stop is left out" in text and "patience: 3" in text
    assert "train.stop needs validation" not in done.stderr


def test_best_checkpoints_need_a_direction(floe, tmp_path):
    save = "{_target_: ModelCheckpoint, monitor: val_loss, mode: '${mode}', save_top_k: 2}"
    done = lightning(floe, tmp_path, f"trainer: {{max_steps: 3, callbacks: [{save}]}}")
    assert "keep_best" not in yaml.safe_load(done.stdout).get("checkpoint", {})
    assert "checkpoint.keep_best is left out" in done.stderr


@pytest.mark.parametrize(("seed", "sentence"), [
    ("seed_everything: true", "seed_everything: true: Lightning chooses the seed itself, floe does not: run.seed is 0"),
    ("seed_everything: false", "seed_everything: false: floe always has a seed; run.seed is 0"),
    ("seed: '${seed}'", "is a reference that this file does not resolve; run.seed is 0"),
])
def test_seeds_that_are_no_numbers(floe, tmp_path, seed, sentence):
    done = lightning(floe, tmp_path, f"{seed}\ntrainer: {{max_steps: 3}}\n")
    assert "run" not in yaml.safe_load(done.stdout)
    assert sentence in comments(done.stdout) and "what a run trains" not in done.stdout


@pytest.mark.parametrize(("devices", "note", "command"), [
    ("[0, 2]", "GPUs 0 and 2 were chosen. CUDA_VISIBLE_DEVICES=0,2 in front of the command chooses them.",
     "CUDA_VISIBLE_DEVICES=0,2 floe launch -n 2 -- train mine.yaml"),
    ("'1, 3'", "GPUs 1 and 3 were chosen", "CUDA_VISIBLE_DEVICES=1,3 floe launch -n 2 -- train mine.yaml"),
    ("[5]", "GPU 5 was chosen", "CUDA_VISIBLE_DEVICES=5 floe train mine.yaml"),
    ("2", "", "floe launch -n 2 -- train mine.yaml"),
    ("auto", "the file does not say how many ranks there are", "floe train mine.yaml"),
])  # fmt: skip
def test_devices_by_number_are_chosen_by_the_command(floe, tmp_path, devices, note, command):
    done = lightning(floe, tmp_path, f"trainer: {{devices: {devices}}}")
    assert f"#   {command}" in done.stdout and note in comments(done.stdout)
    assert ("VISIBLE" in command) == (" chosen. " in comments(done.stdout))


OWN = sorted(str(file.relative_to(SOURCE)) for file in (SOURCE / "configs").rglob("*.yaml"))


@pytest.mark.parametrize("text", [
    "train: {steps: 3}\nstrategy: {sharding: full_shard}\n",
    "strategy: {sharding: full_shard, cpu_offload: true, mixed_precision: {param: bf16}}\n",
    "strategy: {cpu_offload: true}\nprecision: {autocast: bf16}\n",
    # recompute.yaml has one key, which is Lightning's too; tasks of floe eval are no configurations of a run.
    *(file for file in OWN if not file.endswith("recompute.yaml") and "/eval/" not in file),
])
def test_own_configurations_are_not_taken_for_lightning(floe, tmp_path, text):
    file = tmp_path / "mine.yaml"
    file.write_text((SOURCE / text).read_text() if text in OWN else text)
    done = floe("migrate", str(file))
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == f"floe: migrate: {file} is already a configuration of floe; give it to floe train\n"


def test_what_migrate_and_init_write_is_floes_own(floe, tmp_path):
    written = tmp_path / "migrated.yaml"
    written.write_text(lightning(floe, tmp_path, CLASS_PATH).stdout)
    goldens, first = SOURCE / "tests/goldens", tmp_path / "init.yaml"
    models = [str(goldens / "models/opt_x1/lm"), "--vision", str(goldens / "models/opt_x1/vision"), "--tokenizer",
              str(goldens / "data/tokenizers/neox")]  # fmt: skip
    done = floe("init", *models, "--data", str(goldens / "data/corpus/laion/00000{0..1}.tar"), "--output", str(first))
    assert done.returncode == 0, done.stderr
    for file in (written, first):
        done = floe("migrate", str(file))
        assert done.returncode == 2 and "is already a configuration of floe; give it to floe train" in done.stderr


@pytest.mark.parametrize("text", [
    "strategy: fsdp\ntrain: {epochs: 3}\n",
    "strategy: {sharding_strategy: FULL_SHARD}\nmodel: {type: gpt}\n",
    "strategy: {mixed_precision: {_target_: torch.distributed.fsdp.MixedPrecision, param_dtype: torch.bfloat16}}\nrun: {name: x}\n",
    "strategy: {cpu_offload: true}\n",
    "callbacks: []\ndata: {text: x}\n",
    "precision: bf16-mixed\ntrain: {optimizer: adam}\n",
    "trainer: {max_steps: 3}\ntrain: {steps: 3}\nrun: {name: x}\n",
])  # fmt: skip
def test_files_of_lightning_with_names_of_floe_are_translated(floe, tmp_path, text):
    lightning(floe, tmp_path, text)


def test_lightning_says_the_command(floe, tmp_path):
    assert "#   floe launch -n 4 -- train mine.yaml migrated.yaml" in lightning(floe, tmp_path, CLASS_PATH).stdout
    two = lightning(floe, tmp_path, CLASS_PATH.replace("num_nodes: 1", "num_nodes: 2")).stdout
    assert "#   torchrun --nnodes 2 --nproc-per-node 4 --no-python floe train mine.yaml migrated.yaml" in two
    assert "#   floe plan mine.yaml migrated.yaml world=8" in two
    assert "the file does not say how many ranks there are" in lightning(floe, tmp_path, BASE).stdout


SAMPLES = {
    "sharding_strategy": "FULL_SHARD", "device_mesh": "[2, 4]", "mixed_precision": "{param_dtype: bfloat16}", "cpu_offload": "false",
    "state_dict_type": "full", "process_group_backend": "gloo", "timeout": "60", "stage": "2", "precision": "32-true",
    "offload_optimizer": "true", "offload_parameters": "true",
    "auto_wrap_policy": "[a.B]", "activation_checkpointing_policy": "[a.BDecoderLayer]", "activation_checkpointing": "[a.BDecoderLayer]",
    "log_to_logger": "true", "offline": "true", "project": "p", "entity": "e", "name": "n", "log_model": "true",
    "gradient_clip_algorithm": "norm", "monitor": "val_loss", "strategy": "fsdp", "logger": "true", "callbacks": "[]", "mode": "min", "save_top_k": "2",
}  # fmt: skip


def test_every_key_of_the_tables_is_translated_or_said(floe, tmp_path):
    """One file per table with all of its keys: each is in a comment of what is printed."""
    tables = re.findall(r"^### (.*?)\n(.*?)(?=^### |\Z)", reference(floe), re.MULTILINE | re.DOTALL)
    wrappers = {
        "`trainer.strategy`": "strategy:\n{}", "`trainer`": "trainer:\n{}", "`ModelCheckpoint`": "callbacks:\n  a:\n{}",
        "`EarlyStopping`": "callbacks:\n  a:\n{}", "xlm-core's `FSDPDiagnosticsCallback`": "callbacks:\n  a:\n{}",
        "`WandbLogger`": "trainer: {{max_steps: 1}}\nlogger:\n{}",
    }  # fmt: skip
    assert {title for title, _ in tables} == wrappers.keys()
    for title, body in tables:
        keys = re.findall(r"^\| `(\w+)` \|", body, re.MULTILINE)
        assert keys
        kind = re.search(r"`(\w+)`", title).group(1) if "." not in title else "FSDPStrategy"
        lines = [f"    {key}: {SAMPLES.get(key, '1')}" for key in keys]
        if title != "`trainer`":
            lines.insert(0, f"    _target_: x.{kind}")
        done = lightning(floe, tmp_path, wrappers[title].format("\n".join(lines)))
        text = comments(done.stdout)
        for key in keys:
            if key not in ("strategy", "logger", "callbacks"):  # these have comments of their own
                assert re.search(rf"\b{key}\b", text), f"{key} of {title}\n{done.stdout}"


def test_what_lightning_has_beyond_is_said(floe, tmp_path):
    done = lightning(floe, tmp_path, """trainer:
  precision: ${precision}
  strategy: {_target_: FSDPStrategy, shard_strategy: 1, auto_wrap_policy: {_target_: functools.partial, _args_: [torch.distributed.fsdp.wrap.size_based_auto_wrap_policy], min_num_params: 1000}, ignored_modules: [a]}
  callbacks: [{_target_: my.Callback}]
  logger: {_target_: my.Logger}
  plugin: x
lightning_module: {lr: 1}
datamodule: {}
""")
    for sentence in (
        "trainer.precision is ${precision}, which this file does not resolve",
        "strategy.shard_strategy is no key that floe migrate knows; did you mean 'sharding_strategy'",
        "for which no class of floe's models is known; strategy.units stays as it is",
        "ignored_modules",
        "the callback Callback has no counterpart; left out",
        "the logger Logger has no counterpart; left out",
        "trainer.plugin is no key that floe migrate knows",
    ):
        assert sentence in done.stderr, done.stderr
    assert "lightning_module, datamodule: what a run trains" in done.stdout


@pytest.mark.parametrize(("text", "sentence"), [
    ("sharding_strategy: HALF\n", "0.yaml:1:20: sharding_strategy is 'HALF', but must be FULL_SHARD"),
    ("trainer: {accumulate_grad_batches: 0}\n", "0.yaml:1:36: train.gradient_accumulation is 0, but must be at least 1"),
    ("strategy: {sharding_strategy: FULL_SHARD\n", "0.yaml"),
    ("trainer: {<<: 5}\n", "0.yaml:1:15: '<<' merges a block or a list of blocks, not 5"),
])
def test_wrong_files_are_one_sentence_and_exit_2(floe, tmp_path, text, sentence):
    done = lightning(floe, tmp_path, text, code=2)
    assert done.stdout == ""
    assert done.stderr.startswith("floe: ") and done.stderr.count("\n") == 1, done.stderr
    assert sentence in done.stderr
