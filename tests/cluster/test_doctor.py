"""`floe doctor` on the ranks of a job: what no machine can see alone."""

import shutil

import pytest

from jobs import PORT, START_S, torch_variables
from running import FLOE, environment

pytestmark = pytest.mark.timeout(300)
PLACES = (0, 0, 1)


def doctor(cluster, folder, *words):
    """Three ranks on two hosts: {rank: (exit code, what it said)}."""
    hosts = [cluster[place] for place in PLACES]
    started = []
    for rank, host in enumerate(hosts):
        own = torch_variables(rank, len(hosts), hosts[:rank].count(host))
        own = {name: str(value) for name, value in own.items()}
        env = environment(**own, MASTER_ADDR=hosts[0].name, MASTER_PORT=str(PORT))
        started.append(host.start([FLOE, "doctor", *words], log=folder / f"doctor{rank}", env=env))
    return {rank: (process.wait(timeout=START_S), process.out.read_text()) for rank, process in enumerate(started)}


def test_all_is_well(cluster, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    found = doctor(cluster(2), tmp_path, "--folder", shared)
    code, said = found[0]
    lines = {line.split(":")[0]: line for line in said.splitlines()}
    assert "rank 2: " in lines["ok       ranks"]
    assert "the same on all ranks" in lines["ok       program"]
    assert "1 pair of hosts over TCP" in lines["ok       connections"] and "iB/s" in lines["ok       connections"]
    assert "all ranks write there" in lines["ok       folder"]
    assert "with the right numbers" in lines["ok       all-reduce"]
    assert {each[0] for each in found.values()} == {code}  # all or none: this machine may have a low limit
    assert found[1][1] == found[2][1] == "", "only rank 0 prints"
    assert list(shared.iterdir()) == []


def test_another_program_and_another_folder_on_one_host(cluster, tmp_path):
    nodes, shared, copy = cluster(2), tmp_path / "shared", tmp_path / "floe"
    shared.mkdir()
    shutil.copy(FLOE, copy)
    with copy.open("ab") as file:
        file.write(b"\0")
    nodes[1].bind(copy, FLOE)
    nodes[1].run("mount", "-t", "tmpfs", "none", shared)
    found = doctor(nodes, tmp_path, "--folder", shared)
    code, said = found[0]
    assert code == 1 and "There are problems" in said
    names = [node.name for node in (nodes[0], nodes[1])]
    assert f"rank 0 on {names[0]} runs another floe (" in said and f"than rank 2 on {names[1]} (" in said
    assert f"rank 2 on {names[1]}: does not see what rank 0 on {names[0]} has written" in said
