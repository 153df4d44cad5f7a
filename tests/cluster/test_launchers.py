"""The scripts of examples/cluster, as they are but for paths and numbers, under the real launchers on
several hosts; and stops by SLURM, of which none may lose what was trained."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import jobs
import slurm
from jobs import AGAIN_S, AGENTS_PORT, FLOE, RUN_S, START_S, STEPS
from running import environment

pytestmark = pytest.mark.timeout(1800)
EXAMPLES = Path(os.environ["FLOE_SOURCE_DIR"]) / "examples" / "cluster"
TWO_BY_TWO = (0, 0, 1, 1)
ENDLESS = ("train.steps=1000000", "checkpoint.every_steps=1000000")
STOPPED = 75
TIMES = int(os.environ.get("FLOE_TIMES", 20))  # stops of each kind, in the long tests

# What differs here: two ranks per host of two, no GPUs, another folder.
NUMBERS = {"launch -n 8": "launch -n 2", "--nnodes 2:4": "--nnodes 2:2", "--nproc-per-node 8": "--nproc-per-node 2",
           "#SBATCH --ntasks-per-node=8": "#SBATCH --ntasks-per-node=2", "#SBATCH --gpus-per-node=8\n": "",
           "#SBATCH --cpus-per-task=12": "#SBATCH --cpus-per-task=1"}


class Script:
    """A run that a script of the examples starts; `run` is what it does."""

    def __init__(self, run, job, name):
        self.run = run
        self.folder = run.folder.parents[1] / "script"
        self.folder.mkdir(exist_ok=True)
        text = (EXAMPLES / name).read_text()
        for there, here in {**NUMBERS, "/shared/runs": str(run.folder.parent), "run.name=my": "run.name=run"}.items():
            text = text.replace(there, here)
        self.path = self.folder / name
        self.path.write_text(text)
        self.path.chmod(0o755)
        (self.folder / "my.yaml").write_text(job.config.read_text())

    def environment(self, **more):
        """In which `floe` and `torchrun` are found."""
        path = os.pathsep.join([str(FLOE.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
        return environment(PATH=path, **more)

    def start(self, host, *words, **more):
        """The script on one host."""
        self.run.start(host.name, host, "env", f"--chdir={self.folder}", self.path, *words,
                       env=self.environment(**more))


@pytest.fixture
def script(start, job):
    def make(name, *words):
        return Script(start(*words, places=TWO_BY_TWO), job, name)

    return make


def assert_trained(run, job, codes):
    assert run.wait(RUN_S) == codes, run.story()
    losses = run.losses()
    assert sorted(losses) == list(range(1, STEPS + 1))
    assert losses == job.undisturbed(len(run.hosts))


def test_every_script_is_run():
    """A line that is not there any more would silently stay as it is."""
    scripts = {path.name: path.read_text() for path in EXAMPLES.iterdir()}
    assert set(scripts) == {"slurm.sbatch", "torchrun.sh", "mpirun.sh", "floe_launch.sh", "kubernetes.yaml"}
    for there in NUMBERS:
        assert any(there in text for text in scripts.values()), there


def test_floe_launch(script, job):
    here = script("floe_launch.sh")
    for host in here.run.different:
        here.start(host, HEAD="node0")
    assert_trained(here.run, job, [0, 0])


@pytest.mark.long
def test_torchrun(script, job):
    here = script("torchrun.sh")
    for host in here.run.different:
        here.start(host, HEAD="node0")
    assert_trained(here.run, job, [0, 0])


@pytest.mark.long
def test_mpirun(script, job):
    """Without ssh, and as root, which OpenMPI wants to be asked for."""
    here = script("mpirun.sh")
    host = here.run.hosts[0]
    network = f"{host.address}/16"
    here.start(host, HOSTS="node0:2,node1:2", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
               OMPI_MCA_plm_rsh_agent=str(here.run.cluster.remote_shell()), OMPI_MCA_oob_tcp_if_include=network,
               OMPI_MCA_hwloc_base_binding_policy="none")
    assert_trained(here.run, job, [0])


# -------------------------------------------------------------------------------------------- SLURM


class Submitted:
    """slurm.sbatch, given to a SLURM of its own."""

    def __init__(self, here, *words):
        self.here, self.run = here, here.run
        self.slurm = slurm.Slurm(here.run.cluster)
        self.run.daemons = self.slurm.daemons
        self.number = self.command("sbatch", "--parsable", f"--chdir={here.folder}", here.path, *words).strip()

    def command(self, *words):
        variables = {**self.here.environment(), **self.slurm.environment(), "PATH": self.here.environment()["PATH"]}
        return self.run.hosts[0].run(*words, env=variables).stdout

    def log(self):
        path = self.here.folder / f"floe-{self.number}.log"
        return path.read_text() if path.exists() else ""

    def about(self, name):
        text = self.command("scontrol", "show", "job", self.number)
        return re.search(rf"\b{name}=(\S+)", text).group(1)

    def wait_until(self, condition, seconds, what):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"not within {seconds} s: {what}\n{self.log()[-6000:]}\n{self.slurm.logs()}"
            time.sleep(0.1)

    def wait_for_steps(self, count):
        self.wait_until(lambda: len(self.run.losses()) >= count, START_S, f"{count} steps")

    def wait_for_state(self, *states):
        self.wait_until(lambda: self.about("JobState") in states, AGAIN_S, f"one of {states}")


@pytest.mark.long
@pytest.mark.parametrize("way", ["asked to stop", "requeued from outside", "a rank is killed"])
def test_sbatch_is_queued_again_and_goes_on(script, job, way):
    """By what SLURM does before a time limit, as an operator does it, and after a failure."""
    steps = 120
    job_ = Submitted(script("slurm.sbatch"), f"train.steps={steps}", "dist.timeout_s=60", "checkpoint.every_steps=25")
    job_.wait_for_steps(30)
    if way == "asked to stop":
        job_.command("scancel", "--signal=TERM", job_.number)
    elif way == "requeued from outside":
        job_.command("scontrol", "requeue", job_.number)
    else:
        job_.run.signal(3, signal.SIGKILL)
    job_.wait_until(lambda: job_.about("Restarts") == "1", START_S, "the second start")
    done = max(job_.run.losses())
    job_.wait_for_state("COMPLETED")
    assert done < steps, "the run was over before it was stopped"
    assert job_.run.losses() == job.undisturbed(4, f"train.steps={steps}")
    log = job_.log()
    after = int(re.findall(r"continuing after step (\d+)", log)[-1])
    if way == "a rank is killed":
        assert after >= 25, log
    else:
        assert [str(after)] == re.findall(r"stopped after step (\d+), with a checkpoint", log), log


# Ways to start four ranks on two nodes, each under srun.
def plain(run):
    return ["--ntasks-per-node=2", *run.words]


def by_floe_launch(run):
    return ["--ntasks-per-node=1", FLOE, "launch", "-n", "2", "--nnodes", "2", "--rdzv", f"node0:{AGENTS_PORT}", "--",
            *run.words[1:]]


def by_torchrun(run):
    return ["--ntasks-per-node=1", sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2",
            "--rdzv-backend=c10d", f"--rdzv-endpoint=node0:{AGENTS_PORT}", "--rdzv-id=job", "--no-python", *run.words]


@pytest.mark.long
@pytest.mark.parametrize("way", [plain, by_floe_launch, by_torchrun], ids=["srun", "srun floe launch", "srun torchrun"])
def test_scancel_loses_nothing(start, way, capsys):
    """However often, and whenever: SLURM tells everything in the job at once."""
    first = start(*ENDLESS, places=TWO_BY_TWO)
    scheduler = slurm.Slurm(first.cluster)
    saved, seconds = [], []
    for number in range(TIMES):
        run = start(*ENDLESS, on=first, places=TWO_BY_TWO)
        run.daemons = scheduler.daemons
        before = max(run.losses(), default=0)
        run.start("srun", run.hosts[0], "srun", "--nodes=2", "--job-name=floe", "--kill-on-bad-exit=0", *way(run),
                  env=scheduler.environment())
        run.wait_until(lambda: max(run.losses(), default=0) > before + number % 7, START_S, "steps")
        began = time.monotonic()
        run.hosts[0].run("scancel", "--name=floe", env=scheduler.environment())
        run.wait(jobs.GONE_S + 30)
        seconds.append(time.monotonic() - began)
        saved.append(f"step_{max(run.losses())}" in run.checkpoints())
        assert saved[-1], f"stop {number}: {run.checkpoints()}, the last step is {max(run.losses())}\n{run.story(40)}"
    with capsys.disabled():
        print(f"\nscancel with {way.__name__}: {sum(saved)} of {TIMES} saved, seconds to the end: "
              f"median {sorted(seconds)[TIMES // 2]:.1f}, most {max(seconds):.1f}")
