"""Several hosts on one machine, for tests of launchers and of faults between hosts.

    with Cluster(2, folder) as cluster:
        process = cluster[1].start(["uname", "-n"], log=folder / "who")
        cluster[0].cut()

A host is a network, host name, mount and IPC namespace: it has a name, an address 10.77.x.y, an
/etc/hosts that knows all of them, and a /dev/shm of its own. Files and process numbers are those of
the machine, so that folders are shared as over a network file system. All hosts are plugged into
one bridge in a namespace of its own; nothing of the machine's network is touched.

Nothing outlives the process that has made a cluster: a `sleep` per host holds its namespaces and
dies with their maker, and so does what `start` starts. What that has started in turn (ranks of an
agent) is ended by a guard, a process that waits for the end of its standard input and then kills
whatever is in these namespaces.

Run as a program this file is that guard; each line of its input is the number of a network
namespace."""

import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PROGRAMS = {"unshare": "util-linux", "nsenter": "util-linux", "setpriv": "util-linux",
            "ip": "iproute2", "tc": "iproute2"}
# All namespaces of a host; the bridge needs the first only.
NAMESPACES = ("--net", "--uts", "--ipc", "--mount")

# $1: name, $2: its /etc/hosts.
HOST = """
set -e
echo "$1" >/proc/sys/kernel/hostname
mount --bind "$2" /etc/hosts
mount -t tmpfs -o mode=1777 shm /dev/shm
ip link set lo up
echo ready
exec sleep infinity
"""

BRIDGE = """
set -e
ip link add bridge type bridge
ip link set bridge up
echo ready
exec sleep infinity
"""

READY_S = 30  # for a namespace to be there, and for everything in it to be gone


@functools.cache
def why_not():
    """A sentence that says why this machine cannot make hosts; None if it can."""
    if os.geteuid() != 0:
        return "only root can make hosts for tests of a cluster"
    for program, package in PROGRAMS.items():
        if not shutil.which(program):
            return f"there is no {program} to make hosts with; it is in Debian's package {package}"
    tried = "ip link add bridge type bridge && ip link add port type veth peer name eth0"
    done = subprocess.run([*new_namespaces(*NAMESPACES), "sh", "-c", tried],
                          capture_output=True, text=True)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()[-1:]
        return f"this machine makes no network namespaces with a bridge: {''.join(said)}"
    return None


def new_namespaces(*kinds):
    """The beginning of a command that is to run in some."""
    return ["unshare", *kinds, *(["--propagation", "private"] if "--mount" in kinds else [])]


def bound_to_parent(*words):
    """A command that is killed when the process that starts it ends."""
    return ["setpriv", "--pdeathsig", "KILL", *map(str, words)]


def network_of(pid):
    """The number of its network namespace; None once it has ended, waited for or not."""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return None


def processes_in(networks):
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if network_of(pid) in networks]


def kill_in(networks, spared=()):
    """Kills everything there, and what that may still start meanwhile."""
    end = time.monotonic() + READY_S
    while found := [pid for pid in processes_in(networks) if pid not in spared]:
        assert time.monotonic() < end, f"processes {found} cannot be killed"
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.01)


class Process(subprocess.Popen):
    """A process on a host, in a session of its own. Files of what it says are `out` and `err`."""

    def __init__(self, host, words, log, env, cwd):
        self.host = host
        self.out, self.err = Path(f"{log}.out"), Path(f"{log}.err")
        self.out.parent.mkdir(parents=True, exist_ok=True)
        # Whoever runs the tests may have signals ignored, which processes would inherit.
        inside = host.inside("env", "--default-signal=INT,TERM,HUP", f"--chdir={cwd}", *words)
        with self.out.open("ab") as out, self.err.open("ab") as err:
            super().__init__(bound_to_parent(*inside), stdin=subprocess.DEVNULL, stdout=out,
                             stderr=err, env=env, start_new_session=True)

    def said(self):
        """Everything on its standard error."""
        return self.err.read_text(errors="replace")


class Host:
    """Made by a Cluster. `name`, `address`, and `pause`, the process that holds its namespaces."""

    def __init__(self, cluster, number):
        self.cluster = cluster
        self.name = f"node{number}"
        self.address = f"10.77.{number // 250}.{number % 250 + 1}"
        self.port = f"port{number}"  # of the bridge
        self.hosts_file = cluster.folder / f"{self.name}.hosts"

    def open(self):
        self.pause = self.cluster.hold(NAMESPACES, HOST, self.name, self.hosts_file)
        self.network = network_of(self.pause.pid)
        self.at_bridge(
            "ip", "link", "add", self.port, "type", "veth", "peer", "name", "eth0",
            "netns", self.pause.pid)
        self.at_bridge("ip", "link", "set", self.port, "master", "bridge", "up")
        self.run("ip", "address", "add", f"{self.address}/16", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")

    # ---- what runs on it

    def inside(self, *words):
        """The command as it is to be given on the machine."""
        return ["nsenter", f"--target={self.pause.pid}", *NAMESPACES, "--", *map(str, words)]

    def start(self, words, log, env=None, cwd="/"):
        """Leaves it running; what it says is in `log`.out and `log`.err."""
        process = Process(self, words, log, env, cwd)
        self.cluster.started.append(process)
        return process

    def run(self, *words, check=True, env=None):
        return subprocess.run(self.inside(*words), capture_output=True, text=True, check=check,
                              timeout=60, env=env)

    def processes(self):
        """{process number: its command line} of all that runs on it."""
        found = {}
        for pid in processes_in({self.network}):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
            except OSError:
                continue
            if pid != self.pause.pid:
                found[pid] = line.decode(errors="replace").strip()
        return found

    def kill(self):
        """Everything that runs on it, at once; the host is still there, as after a restart."""
        self.kill_all_but(())

    def kill_all_but(self, spared):
        kill_in({self.network}, spared={self.pause.pid, *spared})

    # ---- its files and names

    def bind(self, source, target):
        """This host finds `source` where the others have `target`: another copy."""
        self.run("mount", "--bind", source, target)

    def know(self, names):
        """Writes its /etc/hosts: {name: address}."""
        lines = [f"{address} {name}\n" for name, address in names.items()]
        self.hosts_file.write_text("".join(["127.0.0.1 localhost\n", *lines]))

    # ---- its link

    def cut(self):
        """As if the cable were pulled: nothing arrives, and nobody is told."""
        self.at_bridge("ip", "link", "set", self.port, "down")

    def mend(self):
        self.at_bridge("ip", "link", "set", self.port, "up")

    def lose(self, percent):
        """So many packets of a hundred, in both directions; 0: none any more."""
        # Classic BPF, since netem is missing in some kernels: a random number of 32 bits; from the
        # bound on the packet passes (0), below it is dropped (2).
        bound = round(percent / 100 * (2**32 - 1))
        program = f"4,32 0 0 {2**32 - 0x1000 + 56},53 1 0 {bound},6 0 0 2,6 0 0 0"
        for run, device in self.ends():
            run("tc", "qdisc", "replace", "dev", device, "clsact")
            run("tc", "filter", "del", "dev", device, "egress")
            if percent:
                run("tc", "filter", "add", "dev", device, "egress",
                    "bpf", "da", "bytecode", program)

    def slow(self, megabits):
        """To so many per second, in both directions; None: as fast as it can."""
        for run, device in self.ends():
            if megabits:
                run("tc", "qdisc", "replace", "dev", device, "root", "tbf",
                    "rate", f"{megabits}mbit", "burst", "64kb", "latency", "200ms")
            else:
                run("tc", "qdisc", "del", "dev", device, "root", check=False)

    def ends(self):
        """Of its link: how to run a command there, and the device."""
        return (self.run, "eth0"), (self.at_bridge, self.port)

    def at_bridge(self, *words, check=True):
        enter = ["nsenter", f"--target={self.cluster.bridge.pid}", "--net", "--"]
        command = [*enter, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=check, timeout=60)

    def connections(self):
        """How many TCP connections its processes have to other hosts."""
        lines = []
        for table in ("tcp", "tcp6"):
            lines += Path(f"/proc/{self.pause.pid}/net/{table}").read_text().splitlines()[1:]
        # ADDRESS:PORT in hexadecimal digits; the state 01: established.
        rows = [line.split() for line in lines]
        ends = [(row[1].split(":")[0], row[2].split(":")[0]) for row in rows if row[3] == "01"]
        return sum(own != other for own, other in ends)


class Cluster:
    """Hosts `node0`, `node1`, …; `folder` is for files of its own, and shared like all others."""

    def __init__(self, count, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.started, self.pauses = [], []
        self.guard = subprocess.Popen([sys.executable, "-IS", __file__], stdin=subprocess.PIPE,
                                      text=True, start_new_session=True)
        try:
            self.bridge = self.hold(("--net",), BRIDGE)
            self.hosts = [Host(self, number) for number in range(count)]
            for host in self.hosts:
                host.know(self.names())
                host.open()
        except BaseException:
            self.close()
            raise

    def __getitem__(self, number):
        return self.hosts[number]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def names(self):
        return {host.name: host.address for host in self.hosts}

    def hold(self, namespaces, script, *words):
        """A process that keeps new namespaces, once the script has made them ready."""
        command = bound_to_parent(*new_namespaces(*namespaces), "sh", "-c", script, "sh", *words)
        pause = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.pauses.append(pause)
        if pause.stdout.readline() != "ready\n":
            raise OSError(f"a host cannot be made: {pause.communicate()[1].strip()}")
        print(network_of(pause.pid), file=self.guard.stdin, flush=True)
        return pause

    def remote_shell(self):
        """The path of a program that is called as ssh is, on any host: HOST COMMAND..."""
        path = self.folder / "remote_shell"
        cases = "".join(f"  {host.name}) target={host.pause.pid} ;;\n" for host in self.hosts)
        path.write_text(f"""#!/bin/sh
case $1 in
{cases}  *) echo "there is no host $1" >&2; exit 255 ;;
esac
shift
exec nsenter --target="$target" {' '.join(NAMESPACES)} -- sh -c "$*"
""")
        path.chmod(0o755)
        return path

    def processes(self):
        """{(host name, process number): command line} of all that runs on any host."""
        return {(host.name, pid): line
                for host in self.hosts for pid, line in host.processes().items()}

    def close(self):
        """Kills everything on all hosts, and with it the hosts."""
        self.guard.stdin.close()
        self.guard.wait(2 * READY_S)
        for process in [*self.started, *self.pauses]:
            process.kill()  # one that failed before the guard knew of it
            process.wait(READY_S)
        for pause in self.pauses:
            pause.stdout.close()
            pause.stderr.close()


if __name__ == "__main__":
    kill_in({int(line) for line in sys.stdin})
