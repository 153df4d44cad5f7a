"""What is another than on the pages when their commands run, and which commands are left to others."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Substitute:
    """Text of a command, and what stands in its place here. {folder} is the scratch folder, {bin} that of the
    programs. A page: only there."""

    text: str
    instead: str
    page: str = ""


@dataclass(frozen=True)
class Left:
    """A whole command that is not run here; its words are looked at all the same."""

    command: str
    why: str  # in words, or "by FILE::TEST": another test runs it


SUBSTITUTES = [
    # The program is built; ./run would look whether it is.
    Substitute("./run floe ", "floe "),
    Substitute("./build/release/bin/", "{bin}/"),
    # Two ranks share the cores of a small machine.
    Substitute("-n 8 ", "-n 2 "),
    Substitute("--nproc-per-node 8 ", "--nproc-per-node 2 "),
    # Small models, few shards, few steps.
    Substitute("FLOE_MODELS=/models", "FLOE_MODELS={folder}/models"),
    Substitute("'/data/", "'{folder}/"),
    Substitute("{00000..00127}", "{00000..00003}"),
    Substitute("{0000..0511}", "{0000..0003}"),
    Substitute("train.steps=100000", "train.steps=2 data.laion.batch_size=2 data.mmc4.batch_size=2 model.perceiver.depth=1"),
    Substitute("train.steps=60", "train.steps=12", "docs/reading-the-log.md"),
    Substitute("train.steps=80", "train.steps=16", "docs/reading-the-log.md"),
    Substitute("log.every_steps=20", "log.every_steps=4", "docs/reading-the-log.md"),
    Substitute("every_steps=30", "every_steps=6", "docs/reading-the-log.md"),
    Substitute("train.epochs=20", "train.epochs=1"),
    Substitute("floe train first.yaml", "floe train first.yaml ~train.epochs train.steps=2"),
    Substitute("checkpoints/step_1000", "checkpoints/step_3"),
    Substitute("raw/shard_{0..99}.zip", "raw/shard_{0..2}.zip", "docs/data.md"),
]

CONSUMER = "by tests/tools/test_package.py::test_a_foreign_model_trains_as_without_floe"
BUILT = "what it builds is what the tests run"
NETWORK = "downloads models"
LEFT = [
    Left("hf download facebook/opt-125m --local-dir models/lm", NETWORK),
    Left("hf download openai/clip-vit-base-patch32 --local-dir models/clip", NETWORK),
    Left("./run demo", "by tests/tools/test_wheel.py::test_pip_install_then_floe_demo"),
    Left("./run test", "tests do not run all tests"),
    Left("./run build", BUILT),
    Left("./run build shard_mlp", BUILT),
    Left("./run test launch", "tests do not run tests"),
    Left("./run test decoders", "tests do not run tests"),
    Left("./run test flamingo", "tests do not run tests"),
    Left("./run bench engine", "by tests/bench/test_engine_bench.py::test_every_configuration_gives_the_same_losses"),
    Left("./run docs", "by tests/docs/test_site.py::test_run_docs"),
    Left("./run wheel", "by tests/tools/test_wheel.py::test_the_wheel_names_its_torch_and_brings_its_licenses"),
    Left("pip install dist/floe-*.whl", "by tests/tools/test_wheel.py::test_pip_install_then_floe_demo"),
    Left("floe demo", "by tests/tools/test_wheel.py::test_pip_install_then_floe_demo"),
    Left("./run build floe floe_engine floe_floe", BUILT),
    Left("cmake --install build/release --prefix /opt/floe", "by tests/tools/test_package.py::test_what_is_installed"),
    Left("floe launch -n 8 --nnodes 2:4 --rdzv node0:29400 --max-restarts 5 -- train my.yaml",
         "by tests/cluster/test_elastic.py::test_a_host_is_lost_and_comes_back"),
    Left("floe launch -n 2 --exec consumer train FOLDER 5", CONSUMER),
    Left("floe launch -n 3 --exec consumer train FOLDER 12", CONSUMER),
    Left("pip install --no-deps open_flamingo==2.0.1 einops einops-exts", "by tests/interop/test_open_flamingo.py::test_what_was_trained"),
    Left("floe export runs/language-model exported-lm",
         "by tests/interop/test_language_models.py::test_transformers_loads_what_was_trained"),
    Left("pip install 'lm_eval[hf]'", "installs packages of another project"),
    Left("lm_eval --model hf --model_args pretrained=exported-lm,dtype=float32 --tasks hellaswag",
         "by tests/eval/test_judges.py::test_scores_are_those_of_the_judge"),
    Left("xlm job_type=train experiment=[my_experiment,fsdp_args] trainer.strategy=fsdp ++trainer.precision=bf16-mixed "
         "~callbacks.on_exception_checkpoint", "a program of another project"),
]
