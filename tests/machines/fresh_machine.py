#!/usr/bin/env python3
"""A bare system in a folder, made by debootstrap, and in it `./run demo` from a fresh clone: what somebody sees
who has nothing but a new machine. Needs root.

    fresh_machine.py debian|ubuntu [WORDS...]      WORDS for ./run instead of: demo

Packages come from where this machine has its own, Python packages too: apt's sources and proxies, pip's
configuration and environment. Prints what ./run says with the time, then a table of its stages with wall time
and CPU seconds. Everything is mounted in a namespace of its own and is gone with it, whatever happens."""

import ast
import contextlib
import hashlib
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
# Codename, components, where its packages are if this machine is another system, the script of debootstrap.
SYSTEMS = {
    "debian": ("bookworm", "main", "http://deb.debian.org/debian", None),
    "ubuntu": ("noble", "main,universe", "http://archive.ubuntu.com/ubuntu", "gutsy"),
}
# Signs the packages of Ubuntu; Debian's systems do not have it.
UBUNTU_KEYS = "pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb"
UBUNTU_KEYS_SHA256 = "36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8"

# In a mount and a process namespace of its own: what the kernel shows every system, no device of this machine.
INSIDE = r"""
set -eu
root=$1
shift
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=755 dev "$root/dev"
for node in null zero full random urandom tty; do
  touch "$root/dev/$node"
  mount --bind "/dev/$node" "$root/dev/$node"
done
mkdir -m 1777 "$root/dev/shm"
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
ln -s /proc/self/fd "$root/dev/fd"
for number in 0 1 2; do ln -s "/proc/self/fd/$number" "$root/dev/$(echo stdin stdout stderr | cut -d' ' -f$((number + 1)))"; done
exec chroot "$root" "$@"
"""


def fail(sentence):
    sys.exit(f"fresh_machine: {sentence}")


def namespace(*words):
    """A command whose mounts and processes are its own, and which ends when this program does."""
    return ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private", "--pid", "--fork",
            "--kill-child", *map(str, words)]


def output(*words):
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


def mirror_of(codename, default):
    """Where this machine has the packages of the system from, if it is the same one."""
    said = output("apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)", "Created-By: Packages")
    for line in said.splitlines():
        uri, _, name = line.partition(" ")
        if name == codename:
            return uri.rstrip("/")
    return default


def keyring_of(system, mirror, folder):
    if system != "ubuntu":
        return Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    installed = Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg")
    if installed.exists():
        return installed
    package = folder / "keys.deb"
    with urllib.request.urlopen(f"{mirror}/{UBUNTU_KEYS}", timeout=60) as answer:
        package.write_bytes(answer.read())
    if hashlib.sha256(package.read_bytes()).hexdigest() != UBUNTU_KEYS_SHA256:
        fail("the package with the keys of Ubuntu is not the one that is known")
    subprocess.run(["dpkg-deb", "-x", package, folder / "keys"], check=True)
    return folder / "keys/usr/share/keyrings/ubuntu-archive-keyring.gpg"


def pip_settings():
    """As pip itself finds them: from its configuration, above that from its environment."""
    found = {"global": {}, ":env:": {}}
    for line in output(sys.executable, "-m", "pip", "config", "list").splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.partition(".")
        if section in found:
            found[section][name] = str(ast.literal_eval(value))
    return {**found["global"], **found[":env:"]}


def copy_settings(root):
    """How this machine reaches the network. Returns the environment of the bare system."""
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        if name in os.environ:
            environment[name] = os.environ[name]
    for name in ("resolv.conf", "hosts"):
        if Path("/etc", name).exists():
            shutil.copyfile(Path("/etc", name), root / "etc" / name)
    lines = [line for line in output("apt-config", "dump").splitlines() if line.startswith(("Acquire::http", "Acquire::Check"))]
    (root / "etc/apt/apt.conf.d/90host").write_text("".join(f"{line}\n" for line in lines))
    pip = pip_settings()
    for name in ("index-url", "extra-index-url", "trusted-host", "proxy", "default-timeout"):
        if name in pip:
            environment["PIP_" + name.upper().replace("-", "_")] = pip[name]
    if "cert" in pip:
        shutil.copyfile(pip["cert"], root / "root/certificates.crt")
        environment["PIP_CERT"] = "/root/certificates.crt"
    return environment


def clone(root):
    folder = root / "root/floe"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", SOURCE, folder], check=True)
    if output("git", "-C", str(SOURCE), "status", "--porcelain"):
        print("(what is not committed is not in the clone)")
    return folder


def child_of(process):
    while process.poll() is None:
        if children := Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            return int(children[0])
        time.sleep(0.01)
    return process.pid


def cpu_seconds(pid):
    """Of a process and its children that have ended."""
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return None


def cpu_of_children():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def clock(seconds):
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class Stages:
    """Each begins with a line `==> NAME`; a build lasts until the demo says its first own word."""

    def __init__(self):
        self.rows, self.began = [], time.monotonic()

    def begin(self, name, cpu):
        self.end(cpu)
        self.open = (name, time.monotonic(), cpu)

    def end(self, cpu):
        if getattr(self, "open", None):
            name, began, before = self.open
            self.rows.append((name, time.monotonic() - began, cpu - before))
            self.open = None

    def print(self, wall, cpu):
        print(f"\n{'stage':<72} {'wall':>8} {'CPU':>9}")
        for name, seconds, used in [*self.rows, ("all of it", wall, cpu)]:
            name = name if len(name) <= 70 else name[:67] + "..."
            print(f"{name:<72} {clock(seconds):>8} {used:>7.1f} s")


def run_inside(root, environment, words):
    """./run WORDS in the bare system; returns its exit status."""
    settings = [f"{name}={value}" for name, value in environment.items()]
    command = namespace("bash", "-c", INSIDE, "inside", root, "/usr/bin/env", "-i", *settings,
                        "bash", "-c", 'cd /root/floe && exec ./run "$@"', "run", *words)
    stages, began, used, before = Stages(), time.monotonic(), 0.0, cpu_of_children()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, errors="replace")
    try:
        pid = child_of(process)
        for line in process.stdout:
            used = cpu_seconds(pid) or used
            print(f"{clock(time.monotonic() - began):>6}  {line}", end="", flush=True)
            if line.startswith("==> "):
                stages.begin(line[4:].strip(), used)
            elif line.startswith("1. "):
                stages.begin("The demo itself", used)
        process.wait()
    finally:
        process.kill()
        process.wait()
    used = max(used, cpu_of_children() - before)  # with what the last stage has used since its last line
    stages.end(used)
    stages.print(time.monotonic() - began, used)
    return process.returncode


def main(system="", *words):
    if system not in SYSTEMS:
        fail(f"say which system: {' or '.join(SYSTEMS)}")
    if os.geteuid() != 0:
        fail("only root can make a bare system")
    if not shutil.which("debootstrap"):
        fail("there is no debootstrap here; it is Debian's package of that name")
    if subprocess.run(namespace("true"), capture_output=True).returncode != 0:
        fail("this machine lets nobody make namespaces, so there is no bare system to try")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    codename, components, default, script = SYSTEMS[system]
    folder = Path(tempfile.mkdtemp(prefix="floe-fresh-"))
    root = folder / "root"
    try:
        mirror = mirror_of(codename, default)
        keys = keyring_of(system, mirror, folder)
        print(f"A bare {system} {codename} on {platform.machine()}, {os.cpu_count()} cores, nothing installed, empty ccache.",
              flush=True)
        began = time.monotonic()
        make = ["debootstrap", "--variant=minbase", f"--components={components}", f"--keyring={keys}", codename, root, mirror]
        if script:
            make.append(f"/usr/share/debootstrap/scripts/{script}")
        with (folder / "debootstrap.log").open("w") as log:
            if subprocess.run(namespace(*make), stdin=subprocess.DEVNULL, stdout=log, stderr=log).returncode != 0:
                print((folder / "debootstrap.log").read_text()[-2000:])
                fail("debootstrap failed")
        print(f"debootstrap --variant=minbase: {clock(time.monotonic() - began)}", flush=True)
        environment = copy_settings(root)
        clone(root)
        words = words or ("demo",)
        print(f"$ git clone … floe && cd floe && ./run {' '.join(words)}", flush=True)
        status = run_inside(root, environment, words)
        if status == 0 and words == ("demo",) and not (root / "root/floe/runs/demo/report.html").exists():
            fail("./run demo left no report")
        print(f"exit status {status}")
        return status
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
