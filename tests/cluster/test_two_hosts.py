"""`floe train` over two hosts: the straight ways to start it, and ranks that do not belong
together, which are refused before they train."""

import re
import shutil
import time

import pytest

import jobs
import slurm
from jobs import LM, PORT, RUN_S, STEPS, names_rank, other_weights

pytestmark = pytest.mark.timeout(900)
TWO_BY_TWO = (0, 0, 1, 1)


def assert_trained(run, job, *words):
    """To the end, and with the losses of one host."""
    codes = run.wait(RUN_S)
    assert codes == [0] * len(run.processes), run.story()
    losses = run.losses()
    assert sorted(losses) == list(range(1, STEPS + 1))
    assert losses == job.undisturbed(len(run.hosts), *words)


def assert_refused(run, *parts):
    """On every rank, as a wrong configuration is, with a sentence in which all these words stand;
    nothing was made."""
    codes = run.wait(RUN_S)
    assert codes == [2] * len(codes), run.story()
    for rank in run.processes:
        said = run.last_words(rank)
        missing = [part for part in parts if not re.search(rf"\b{re.escape(part)}\b", said)]
        assert not missing, f"rank {rank} does not say {missing}\n{run.story()}"
    assert not (run.folder / "config.yaml").exists() and not (run.folder / "metrics.jsonl").exists()


# ---------------------------------------------------------------------------------- straight ways


@pytest.mark.long
@pytest.mark.parametrize("places", [(0, 1), TWO_BY_TWO], ids=["2x1", "2x2"])
def test_variables_by_hand(start, job, places):
    assert_trained(start(places=places).by_hand(), job)


@pytest.mark.long
@pytest.mark.parametrize("places", [(0, 1), TWO_BY_TWO], ids=["2x1", "2x2"])
def test_an_agent_of_torchrun_on_each_host(start, job, places):
    assert_trained(start(places=places).torchrun(), job)


@pytest.mark.long
def test_srun(start, job):
    run = start(places=TWO_BY_TWO)
    assert_trained(run.srun(slurm.Slurm(run.cluster)), job)


@pytest.mark.long
@pytest.mark.parametrize(
    "variables", [jobs.openmpi_variables, jobs.mpich_variables, jobs.horovod_variables])
def test_variables_of_other_launchers(start, job, variables):
    run = start().by_hand(variables=variables)
    assert_trained(run, job)


def test_the_hosts_of_a_step_come_before_those_of_its_job(start, job):
    """`srun -w node0,node1` in a job of four."""

    def variables(rank, size, local):
        return {"SLURM_PROCID": rank, "SLURM_NTASKS": size, "SLURM_LOCALID": local,
                "SLURM_JOB_ID": 77, "SLURM_JOB_NODELIST": "absent[0-1],node[0-1]",
                "SLURM_STEP_ID": 1, "SLURM_STEP_NODELIST": "node[0-1]",
                "SLURM_STEP_NUM_TASKS": size, "SLURM_STEP_NUM_NODES": 2}

    run = start("dist.timeout_s=30").by_hand(variables=variables, master=False)
    assert_trained(run, job)


def test_a_batch_script_without_srun_is_one_rank(start, job):
    """sbatch sets these for its script, although nobody starts the other tasks."""
    run = start("dist.timeout_s=30", places=(0,))
    run.start_rank(0, variables=jobs.no_variables, master=False, SLURM_PROCID=0, SLURM_NTASKS=2,
                   SLURM_LOCALID=0, SLURM_JOB_ID=77, SLURM_JOB_NODELIST="node[0-1]")
    assert_trained(run, job)


@pytest.mark.long
def test_places_from_the_configuration(start, job):
    """Keys that differ between ranks as they must."""
    run = start(f"dist.init=tcp://node0:{PORT}", "dist.world_size=2")
    words_of = {rank: [f"dist.rank={rank}"] for rank in (0, 1)}
    run.by_hand(words_of, variables=jobs.no_variables, master=False)
    assert_trained(run, job)


@pytest.mark.long
def test_another_copy_of_the_same_weights(start, job, tmp_path):
    """Each host may have files of its own, as long as the same is in them."""
    run = start()
    run.hosts[1].bind(shutil.copytree(LM, tmp_path / "lm", copy_function=shutil.copyfile), LM)
    assert_trained(run.by_hand(), job)


@pytest.mark.long
@pytest.mark.parametrize("crooked", [(0,), (1,), (0, 1)], ids=["first", "second", "both"])
def test_a_host_whose_name_is_a_loopback_address_to_itself(start, job, crooked):
    """As Debian's installer leaves it: 127.0.1.1."""
    run = start("dist.timeout_s=30")
    for number in crooked:
        host = run.cluster[number]
        host.know({**run.cluster.names(), host.name: "127.0.1.1"})
    assert_trained(run.by_hand(), job)


def test_the_log_says_who_is_where(start, job):
    run = start(places=TWO_BY_TWO).by_hand()
    assert_trained(run, job)
    said = run.processes[0].said()
    lines = [line.partition("] ")[2] for line in said.splitlines()]  # without host and rank
    for rank, host in enumerate(run.hosts):
        row = [rf"\b{re.escape(word)}\b" for word in (str(rank), host.name, host.address, "cpu")]
        assert any(all(re.search(word, line) for word in row) for line in lines), said
        for line in run.log(rank):
            date = re.match(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d", line)
            place = line[19:45]
            assert date and host.name in place and re.search(rf"\b{rank}\b", place), line


# ------------------------------------------------------------- ranks that do not belong together


@pytest.mark.parametrize(
    ("key", "usual", "other"),
    [
        ("train.optimizer.lr", "0.001", "0.002"),
        ("train.gradient_accumulation", "1", "2"),
        ("data.laion.batch_size", "2", "3"),
        ("log.every_steps", "1", "5"),
    ],
)
def test_another_setting_on_one_rank(start, key, usual, other):
    """Each of them says which key has which value on which ranks."""
    run = start("dist.timeout_s=60", places=TWO_BY_TWO).by_hand({3: [f"{key}={other}"]})
    assert_refused(run, key, usual, other, "rank 0", "rank 3")


def test_another_world_size_on_one_rank(start):
    run = start("dist.timeout_s=60")
    run.start_rank(0)
    run.start_rank(1, WORLD_SIZE="3")
    assert_refused(run, "2", "3", "rank 0", "rank 1")


@pytest.mark.parametrize("every", [1, None], ids=["every number", "one number"])
def test_other_weights_of_the_same_shape_on_one_host(start, tmp_path, every):
    """A stale copy of a file on a node."""
    run = start("train.steps=2000", "checkpoint.every_steps=100")
    run.hosts[1].bind(other_weights(tmp_path, every), LM)
    run.by_hand()
    codes = run.wait(RUN_S)
    assert codes == [2, 2], run.story()
    for rank in (0, 1):
        said = run.last_words(rank)
        named = [names_rank(said, other, run.hosts[other]) for other in (0, 1)]
        assert "model.safetensors" in said and all(named), run.story()
    assert run.checkpoints() == []


def test_hybrid_over_hosts_that_do_not_fit(start):
    """A group of two that lies on two hosts would gather over the network."""
    words = ("strategy.sharding=hybrid", "strategy.hybrid_shard_size=2")
    run = start(*words, places=(0, 0, 0, 1)).by_hand()
    assert_refused(run, "strategy.hybrid_shard_size", "node0", "node1")


@pytest.mark.parametrize("when", ["before", pytest.param("while it trains", marks=pytest.mark.long)])
def test_a_stranger_at_the_port(start, job, when):
    """Two jobs that were given the same port: the second is told so, the first does not notice."""
    steps = f"train.steps={STEPS if when == 'before' else 400}"
    ours = start(steps)
    theirs = start("train.optimizer.lr=0.5", "dist.timeout_s=60", on=ours, name="stranger")
    if when == "before":
        theirs.start_rank(1)
        time.sleep(3)  # by then it looks for a store where ours is about to open
        ours.by_hand()
    else:
        ours.by_hand()
        ours.wait_for_steps(3)
        theirs.by_hand()
    assert 0 not in theirs.wait(RUN_S, alone=False), theirs.story()
    assert ours.wait(RUN_S) == [0, 0], ours.story()
    assert ours.losses() == job.undisturbed(2, steps)
    told = r"refused|another job|in use"
    for rank in theirs.processes:
        said = theirs.last_words(rank)
        assert str(PORT) in said and re.search(told, said), theirs.story()
    assert not theirs.folder.exists()


# ------------------------------------------------------------------------------ the run's folder


def test_a_folder_that_is_not_shared_is_noticed_at_the_start(start):
    run = start("dist.timeout_s=20", places=(0, 1))
    run.folder.mkdir(parents=True)
    run.hosts[1].run("mount", "-t", "tmpfs", "none", run.folder)
    run.by_hand()
    codes = run.wait(RUN_S)
    assert 0 not in codes, run.story()
    assert "they have different folders of this name" in run.processes[1].said() + run.processes[0].said()
    assert not (run.folder / "metrics.jsonl").exists()


def test_a_folder_that_one_host_cannot_write_is_noticed_at_the_start(start):
    run = start(places=(0, 1))
    (run.folder / "logs").mkdir(parents=True)
    run.hosts[1].run("mount", "--bind", run.folder, run.folder)
    run.hosts[1].run("mount", "-o", "remount,ro,bind", run.folder)
    run.by_hand()
    codes = run.wait(RUN_S)
    assert codes[1] == 2 and codes[0] != 0, run.story()
    for rank in (0, 1):
        assert names_rank(run.last_words(rank), 1, run.hosts[1]), run.story()
        assert "cannot write into" in run.last_words(rank) and "Read-only" in run.last_words(rank)
    assert not (run.folder / "metrics.jsonl").exists()
