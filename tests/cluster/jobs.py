"""A small training job, and runs of it on the hosts of a cluster.

    run = Run(cluster, job, folder, "train.steps=40").by_hand()
    run.wait_for_steps(5)
    run.signal(1, signal.SIGKILL)
    run.wait(GONE_S)
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time

import yaml

from running import FLOE, GOLDENS, command, environment, steps_of
from small_data import pairs_config, write_shards

# Seconds, for a slow machine: two agents that import torch, four ranks on two cores.
START_S = 120  # until a run has made its first steps
RUN_S = 180  # until a run that nothing disturbs has ended, and one that is refused
LONG_S = 600  # the same with many steps
AGAIN_S = 300  # until a run that was started again has ended
LEFT_S = 3  # what a launcher has ended may be in the middle of it
# What floe promises: nothing waits longer for a rank or a host that is gone.
GONE_S = 30

STEPS = 40
PORT = 29611  # where ranks meet; every cluster has ports of its own
AGENTS_PORT = 29411  # where agents of torchrun meet
# By which of its variables a rank is found, whatever has started it.
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
LM = GOLDENS / "neox_x2" / "lm"  # the language model of the job


class Job:
    """A tiny Flamingo and tar shards for it. Its losses depend on the number of ranks only."""

    def __init__(self, folder):
        self.folder = folder
        self.config = folder / "config.yaml"
        self.known = {}
        if self.config.exists():
            return  # of an earlier process
        shards = write_shards(folder / "data", 8, 16)
        config = pairs_config(folder / "data" / shards, steps=STEPS)
        self.config.write_text(yaml.safe_dump(config))

    def load(self, path):
        """The losses of undisturbed runs that an earlier process has kept there."""
        if path.exists():
            kept = json.loads(path.read_text())
            self.known = {tuple(key): {int(step): tuple(values) for step, values in losses.items()}
                          for key, losses in kept}

    def keep(self, path):
        path.write_text(json.dumps([[key, losses] for key, losses in self.known.items()]))

    def words(self, folder, name, *words):
        """What is given to `floe train`."""
        return [self.config, f"run.dir={folder}", f"run.name={name}", *words]

    def undisturbed(self, ranks, *words):
        """The losses of a run of so many ranks on one host, under `floe launch`."""
        key = (ranks, *words)
        if key not in self.known:
            name = f"undisturbed{len(self.known)}"
            started = command(self.words(self.folder, name, *words), ranks)
            done = subprocess.run(started, capture_output=True, text=True, timeout=LONG_S,
                                  env=environment())
            assert done.returncode == 0, done.stderr
            self.known[key] = losses_of(self.folder / name)
        return self.known[key]


def losses_of(run):
    """{step: what was trained there}, every digit of it."""
    lines = steps_of(run).items()
    return {step: (line["loss_laion"], line["grad_norm"]) for step, line in lines}


# ---- the variables by which launchers tell a rank its place


def torch_variables(rank, size, local):
    return {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": local}


def openmpi_variables(rank, size, local):
    return {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": size,
            "OMPI_COMM_WORLD_LOCAL_RANK": local}


def mpich_variables(rank, size, local):
    return {"PMI_RANK": rank, "PMI_SIZE": size, "MPI_LOCALRANKID": local}


def horovod_variables(rank, size, local):
    return {"HOROVOD_RANK": rank, "HOROVOD_SIZE": size, "HOROVOD_LOCAL_RANK": local}


def no_variables(rank, size, local):
    return {}


class Run:
    """One start of the job. `places` has the number of the host of each rank. What was started is
    in `processes`: by hand under the rank, else under the name of the host that the agent is on."""

    def __init__(self, cluster, job, folder, *words, name="run", places=(0, 1)):
        self.cluster = cluster
        self.hosts = [cluster[place] for place in places]  # of each rank
        self.different = list(dict.fromkeys(self.hosts))
        self.words = [FLOE, "train", *job.words(folder / "runs", name, *words)]
        self.folder = folder / "runs" / name
        # A run that is started again has outputs of its own.
        number = len(list(folder.glob(f"outputs/{name}*")))
        self.outputs = folder / "outputs" / f"{name}{number}"
        self.processes = {}
        self.more = {}  # further variables of everything that is started
        self.daemons = set()  # of a scheduler: they stay when the run has ended

    # ---- starting

    def start(self, name, host, *words, env=None):
        log = self.outputs / str(name)
        env = {**(env or environment()), **self.more}
        self.processes[name] = host.start(words, log=log, env=env)

    def start_rank(self, rank, *words, variables=torch_variables, master=True, **more):
        """One rank, with the variables of a launcher; `more` are further ones."""
        host = self.hosts[rank]
        own = variables(rank, len(self.hosts), self.hosts[:rank].count(host))
        if master:
            own.update(MASTER_ADDR=self.hosts[0].name, MASTER_PORT=PORT)
        own = {name: str(value) for name, value in {**own, **more}.items()}
        self.start(rank, host, *self.words, *words, env=environment(**own))

    def by_hand(self, words_of=None, **more):
        """All ranks; `words_of` has what is different on some."""
        for rank in range(len(self.hosts)):
            self.start_rank(rank, *(words_of or {}).get(rank, ()), **more)
        return self

    def torchrun(self, max_restarts=0):
        """An agent on every host; they meet at that of the first."""
        endpoint = f"{self.hosts[0].name}:{AGENTS_PORT}"
        for host in self.different:
            self.start(
                host.name, host, sys.executable, "-m", "torch.distributed.run",
                f"--nnodes={len(self.different)}", f"--nproc-per-node={self.per_host()}",
                "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=job",
                f"--local-addr={host.address}", f"--max-restarts={max_restarts}",
                "--monitor-interval=0.2", "--no-python", *self.words)
        return self

    def floe_launch(self, nnodes, *options, on=None):
        """A launcher of floe on every host, or on that one; they meet at that of the first."""
        endpoint = f"{self.hosts[0].name}:{AGENTS_PORT}"
        for host in [on] if on else self.different:
            self.start(host.name, host, FLOE, "launch", "-n", self.per_host(), "--nnodes", nnodes,
                       "--rdzv", endpoint, *options, "--", *self.words[1:])
        return self

    def mpirun(self):
        """OpenMPI's, on the first host; it reaches the others as it would with ssh."""
        host, network = self.hosts[0], f"{self.hosts[0].address}/16"
        places = ",".join(f"{each.name}:{self.per_host()}" for each in self.different)
        words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--host", places]
        words += ["--mca", "plm_rsh_agent", self.cluster.remote_shell()]
        words += ["--mca", "oob_tcp_if_include", network, "--mca", "btl_tcp_if_include", network]
        variables = [f"MASTER_ADDR={host.name}", f"MASTER_PORT={PORT}", "OMP_NUM_THREADS=1"]
        for variable in [*variables, *self.more]:
            words += ["-x", variable]
        self.start(host.name, host, *words, *self.words)
        return self

    def srun(self, slurm, *options):
        """A step of SLURM, from the first host."""
        host, per_host = self.hosts[0], f"--ntasks-per-node={self.per_host()}"
        step = ["srun", f"--nodes={len(self.different)}", f"--ntasks={len(self.hosts)}", per_host]
        self.start(host.name, host, *step, *options, *self.words, env=slurm.environment())
        self.daemons = slurm.daemons
        return self

    def per_host(self):
        """Ranks on every host, for launchers that start as many on each."""
        (count,) = {self.hosts.count(host) for host in self.different}
        return count

    # ---- disturbing

    def pid(self, rank):
        """The process of a rank, whoever has started it."""
        if rank in self.processes:
            return self.processes[rank].pid
        wanted = {f"{name}={rank}".encode() for name in RANK_VARIABLES}
        for pid, line in self.hosts[rank].processes().items():
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    variables = set(file.read().split(b"\0"))
            except OSError:
                continue
            if line.startswith(str(FLOE)) and wanted & variables:
                return pid
        raise AssertionError(f"rank {rank} is not there\n{self.story()}")

    def signal(self, rank, number):
        os.kill(self.pid(rank), number)

    # ---- watching

    def losses(self):
        return losses_of(self.folder)

    def checkpoints(self):
        folder = self.folder / "checkpoints"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    def has_saved(self):
        return "last" in self.checkpoints()

    def wait_until(self, condition, seconds, what):
        """While the run goes on."""
        end = time.monotonic() + seconds
        while not condition():
            alive = any(process.poll() is None for process in self.processes.values())
            assert alive, f"the run was over before {what}\n{self.story()}"
            assert time.monotonic() < end, f"not within {seconds} s: {what}\n{self.story()}"
            time.sleep(0.02)

    def wait_for_steps(self, count):
        self.wait_until(lambda: len(steps_of(self.folder)) >= count, START_S, f"step {count}")

    def wait(self, seconds, but=(), alone=True):
        """Until everything has ended (but those), and nothing else is left on the hosts, which a
        run has `alone`. Returns the exit codes; what was killed has 128 and the signal."""
        end = time.monotonic() + seconds
        ending = {name: each for name, each in self.processes.items() if name not in but}
        while late := [name for name, process in ending.items() if process.poll() is None]:
            assert time.monotonic() < end, f"after {seconds} s there are {late}\n{self.story()}"
            time.sleep(0.02)
        if alone:
            spared = {self.processes[name].pid for name in but} | self.daemons
            soon = time.monotonic() + LEFT_S
            while left := {key: line for key, line in self.cluster.processes().items() if key[1] not in spared}:
                assert time.monotonic() < soon, f"processes are left: {left}\n{self.story()}"
                time.sleep(0.05)
        codes = [process.returncode for process in ending.values()]
        return [code if code >= 0 else 128 - code for code in codes]

    # ---- what was said

    def last_words(self, name):
        """The last line of a process, without what stands before the sentence in every line."""
        lines = [line for line in self.processes[name].said().splitlines() if line.strip()]
        return sentence(lines[-1]) if lines else ""

    def log(self, rank):
        path = self.folder / "logs" / f"rank_{rank}.log"
        return path.read_text().splitlines() if path.exists() else []

    def story(self, most=12):
        """The end of what each process has said, for whoever reads why a test failed."""
        lines = []
        for name, process in self.processes.items():
            said = process.said().splitlines()
            end = f"ended with {process.returncode}" if process.poll() is not None else "runs"
            lines.append(f"--- {name} on {process.host.name} {end}, {len(said)} lines:")
            lines += said[-most:]
        return "\n".join(lines)


def sentence(line):
    """A line of a log without date, host, rank and mark."""
    return re.sub(r"^(.*? )??(error: |floe: )", "", line)


def names_rank(text, rank, host):
    return all(re.search(rf"\b{words}\b", text) for words in (f"rank {rank}", host.name))


def other_weights(folder, every=None):
    """A copy of the job's language model in which every so many-th number is a little different;
    None: one of all."""
    copy = folder / "lm"
    shutil.copytree(LM, copy)
    (path,) = copy.glob("*.safetensors")
    content = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(content[:8], "little")  # behind the header
    one = begin + (len(content) - begin) // 8 * 4
    for place in range(begin, len(content), 4 * every) if every else [one]:
        content[place] ^= 1
    path.write_bytes(content)
    return copy
