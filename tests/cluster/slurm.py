"""SLURM on the hosts of a cluster: slurmctld on the first one, slurmd on all of them."""

import shutil
import time

import running

CONFIGURATION = """\
ClusterName=floe
SlurmctldHost={first}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobRequeue=1
MpiDefault=none
SelectType=select/linear
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,batch_sched_delay=1
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
NodeName={names} CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "sinfo", "scancel")
READY_S = 60


def why_not():
    """A sentence that says why there can be no SLURM here; None if it can."""
    for program in PROGRAMS:
        if not shutil.which(program):
            return f"there is no {program} here; Debian's package slurm-wlm would do"
    return None


class Slurm:
    """Its daemons are processes of the hosts and end with them."""

    def __init__(self, cluster, cpus=4):
        assert why_not() is None, why_not()
        self.cluster = cluster
        self.folder = folder = cluster.folder / "slurm"
        (folder / "state").mkdir(parents=True)
        self.daemons = set()
        names = ",".join(cluster.names())
        text = CONFIGURATION.format(first=cluster[0].name, folder=folder, names=names, cpus=cpus)
        (folder / "slurm.conf").write_text(text)
        self.start_munge()
        self.start(cluster[0], "slurmctld", "-D")
        for host in cluster.hosts:
            self.start(host, "slurmd", "-D", "-N", host.name)
        self.wait_until(lambda: self.num_idle() == len(cluster.hosts), "its nodes")
        # Some have helpers. Nothing else runs on the hosts yet.
        self.daemons |= {pid for _, pid in cluster.processes()}

    def environment(self):
        """For its commands."""
        return running.environment(SLURM_CONF=str(self.folder / "slurm.conf"))

    def start_munge(self):
        """One for all hosts: they share files, and so its socket."""
        (self.folder / "munge.key").write_bytes(bytes(range(128)))
        (self.folder / "munge.key").chmod(0o600)
        kinds = ("key-file", "socket", "pid-file", "log-file", "seed-file")
        paths = [self.folder / f"munge.{kind.removesuffix('-file')}" for kind in kinds]
        words = [f"--{kind}={path}" for kind, path in zip(kinds, paths)]
        self.start(self.cluster[0], "munged", "--foreground", "--force", *words)
        self.wait_until(paths[1].exists, "munged")

    def start(self, host, program, *words):
        log = self.folder / f"{program}.{host.name}"
        process = host.start([shutil.which(program), *words], log=log, env=self.environment())
        self.daemons.add(process.pid)

    def num_idle(self):
        """Hosts that wait for work."""
        words = ["sinfo", "--noheader", "--Node", "--format=%T"]
        done = self.cluster[0].run(*words, check=False, env=self.environment())
        return done.stdout.split().count("idle")

    def wait_until(self, condition, what):
        end = time.monotonic() + READY_S
        while not condition():
            assert time.monotonic() < end, f"{what} did not come up\n{self.logs()}"
            time.sleep(0.2)

    def logs(self):
        """The end of each, for whoever reads why a test failed."""
        return "\n".join(f"--- {path.name}\n{path.read_text()[-2000:]}"
                         for path in sorted(self.folder.glob("*.log")))
