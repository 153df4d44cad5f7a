"""A rank that hangs: the others say who they wait for, and it says itself where it is."""

import subprocess
import sys
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parent))
from running import command, environment  # noqa: E402
from small_data import pairs_config, write_shards  # noqa: E402


def test_a_rank_that_others_wait_for_says_where_it_is(tmp_path):
    write_shards(tmp_path, 2, 16)
    # The second rank waits for its data without end.
    shards = f'pipe:[ "$RANK" = 0 ] || sleep 20; cat {tmp_path}/t0.tar::pipe:[ "$RANK" = 0 ] || sleep 20; cat {tmp_path}/t1.tar'
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(pairs_config(shards, steps=5)))
    words = [config, f"run.dir={tmp_path}", "run.name=run", "dist.timeout_s=9"]
    done = subprocess.run(command(words, 2), env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    waiting, hanging = ((tmp_path / "run/logs" / f"rank_{rank}.log").read_text() for rank in (0, 1))
    assert "what the ranks are doing: " in waiting and "rank 1: reads data" in waiting, waiting
    assert "others wait for this rank, which reads data since" in hanging, hanging
    stacks = hanging.split("where its threads are:")[1]
    assert stacks.count("thread ") >= 3 and "libc.so" in stacks, hanging
    assert "others wait for this rank" not in waiting
