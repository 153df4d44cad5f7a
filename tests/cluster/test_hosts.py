"""The hosts themselves: names, addresses, links that are cut, lossy and slow; and nothing stays."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import hosts
from patience import wait_until

PORT = 7000
# Sends so many bytes and says how many seconds it took until all of them were acknowledged.
SEND = """
import socket, sys, time
began = time.monotonic()
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[4])) as s:
    s.sendall(bytes(int(sys.argv[3])))
    s.shutdown(socket.SHUT_WR)
    s.recv(1)
print(time.monotonic() - began)
"""
RECEIVE = """
import socket, sys, threading
def receive(connection):
    while connection.recv(1 << 16): pass
    connection.close()
server = socket.create_server(("", int(sys.argv[1])))
print("listening", flush=True)
while True:
    connection, (address, _) = server.accept()
    print(address, flush=True)
    threading.Thread(target=receive, args=[connection], daemon=True).start()
"""


def listen(host, folder):
    server = host.start([sys.executable, "-c", RECEIVE, PORT], log=folder / "server")
    wait_until(lambda: "listening" in server.out.read_text())
    return server


def send(host, to, bytes_=1, timeout_s=20):
    """Seconds, or None if it fails."""
    done = host.run(sys.executable, "-c", SEND, to, PORT, bytes_, timeout_s, check=False)
    return float(done.stdout) if done.returncode == 0 else None


def known_as(host, name):
    return host.run("getent", "hosts", name).stdout.split()[0]


def test_every_host_has_a_name_and_an_address_that_all_know(cluster, tmp_path):
    nodes = cluster(3)
    server = listen(nodes[2], tmp_path)
    for host in nodes:
        assert host.run("uname", "-n").stdout == f"{host.name}\n"
        assert {name: known_as(host, name) for name in nodes.names()} == nodes.names()
        assert send(host, "node2") < 10
    assert server.out.read_text().split()[1:] == ["10.77.0.1", "10.77.0.2", "10.77.0.3"]
    assert os.uname().nodename not in nodes.names()
    assert "10.77" not in subprocess.run(["ip", "address"], capture_output=True, text=True).stdout


def test_a_host_may_know_itself_by_another_address(cluster):
    nodes = cluster(2)
    nodes[0].know({**nodes.names(), "node0": "127.0.1.1"})
    assert [known_as(host, "node0") for host in nodes] == ["127.0.1.1", "10.77.0.1"]


def test_a_host_may_have_another_copy_of_a_file(cluster, tmp_path):
    for name in ("usual", "other"):
        (tmp_path / name).write_text(name)
    nodes = cluster(2)
    nodes[1].bind(tmp_path / "other", tmp_path / "usual")
    assert [host.run("cat", tmp_path / "usual").stdout for host in nodes] == ["usual", "other"]
    assert (tmp_path / "usual").read_text() == "usual"


def test_a_link_is_cut_and_mended(cluster, tmp_path):
    nodes = cluster(2)
    listen(nodes[1], tmp_path)
    waits = SEND.replace("s.shutdown", "time.sleep(100); s.shutdown")
    words = [sys.executable, "-c", waits, "node1", PORT, 1, 100]
    held = nodes[0].start(words, log=tmp_path / "held")
    wait_until(lambda: nodes[0].connections() == 1)
    nodes[1].cut()
    assert send(nodes[0], "node1", timeout_s=2) is None
    assert held.poll() is None and nodes[0].connections() == 1  # nobody has told it
    nodes[1].mend()
    assert send(nodes[0], "node1") is not None


def test_a_link_loses_packets_or_is_slow(cluster, tmp_path):
    nodes = cluster(2)
    listen(nodes[1], tmp_path)
    assert send(nodes[0], "node1", 2_000_000) < 1
    nodes[0].slow(8)
    assert 1.5 < send(nodes[0], "node1", 2_000_000) < 10  # 2 s at 8 Mbit/s
    nodes[0].slow(None)
    nodes[1].lose(100)
    assert send(nodes[0], "node1", timeout_s=2) is None
    nodes[1].lose(10)
    for _ in range(3):
        assert send(nodes[0], "node1", 200_000) is not None
    text = nodes[1].at_bridge("tc", "-s", "qdisc", "show", "dev", nodes[1].port).stdout
    assert "dropped 0" not in text.split("clsact")[1].splitlines()[1], text
    nodes[1].lose(0)
    assert send(nodes[0], "node1", 2_000_000) < 1


def test_the_processes_of_a_host(cluster, tmp_path):
    nodes = cluster(2)
    seconds = f"7654.{os.getpid()}"
    script = f"sleep {seconds} & sleep {seconds}; true"
    process = nodes[0].start(["sh", "-c", script], log=tmp_path / "sleeps")
    wait_until(lambda: sorted(nodes[0].processes().values())[1:] == [f"sleep {seconds}"] * 2)
    assert process.pid in nodes[0].processes() and nodes[1].processes() == {}
    nodes[0].kill()
    assert process.wait(10) == -signal.SIGKILL and nodes[0].processes() == {}
    assert nodes[0].run("uname", "-n").stdout == "node0\n"


def test_nothing_stays_of_a_cluster_whose_maker_is_killed(cluster, tmp_path):
    cluster(1)  # or the test is skipped
    script = f"""
import sys, time
sys.path.insert(0, {str(Path(hosts.__file__).parent)!r})
import hosts
nodes = hosts.Cluster(2, {str(tmp_path / "killed")!r})
nodes[1].start(["sh", "-c", "setsid sleep 5432 & sleep 5432; true"], {str(tmp_path / "sleeps")!r})
while len(nodes[1].processes()) < 3: time.sleep(0.01)
print(*[host.network for host in nodes], hosts.network_of(nodes.bridge.pid), flush=True)
time.sleep(100)
"""
    maker = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    networks = {int(word) for word in maker.stdout.readline().split()}
    assert len(networks) == 3 and len(hosts.processes_in(networks)) == 6
    maker.kill()
    maker.communicate()
    wait_until(lambda: hosts.processes_in(networks) == [])
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


def test_without_namespaces_the_reason_is_a_sentence(monkeypatch):
    monkeypatch.setattr(hosts.shutil, "which", lambda program: None if program == "tc" else program)
    hosts.why_not.cache_clear()
    try:
        if os.geteuid() == 0:
            sentence = "there is no tc to make hosts with; it is in Debian's package iproute2"
            assert hosts.why_not() == sentence
        monkeypatch.setattr(hosts.os, "geteuid", lambda: 1000)
        hosts.why_not.cache_clear()
        assert hosts.why_not() == "only root can make hosts for tests of a cluster"
    finally:
        hosts.why_not.cache_clear()
