"""How long ranks wait for each other is in every record, apart for parameters and for sums."""

import os
import signal
import time

from running import rank_process, steps_of, wait_for_steps

TIMES = {"data": ("fastest_data_time", "slowest_data_time", "slowest_data_rank"),
         "own": ("fastest_own_time", "slowest_own_time", "slowest_own_rank"),
         "gather": ("shortest_gather_wait", "longest_gather_wait", "longest_gather_wait_rank"),
         "reduce": ("shortest_reduce_wait", "longest_reduce_wait", "longest_reduce_wait_rank")}


def test_who_waits_for_whom(start, golden):
    config = golden("neox_x2", world2=True)
    config["train"]["steps"] = 1_000_000
    config["checkpoint"] = {"every_steps": 1_000_000}
    run = start(config, ranks=2)
    wait_for_steps(run, 3)
    held_up = rank_process(run.pid, 1)
    for _ in range(5):
        before = max(steps_of(run.folder))
        os.kill(held_up, signal.SIGSTOP)
        time.sleep(0.6)
        os.kill(held_up, signal.SIGCONT)
        wait_for_steps(run, before + 3)
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=60)

    records = [record for step, record in sorted(steps_of(run.folder).items()) if step > 1]
    for record in records:
        for least, most, rank in TIMES.values():
            assert 0 <= record[least] <= record[most] and record[rank] in (0, 1), record
        assert record["slowest_data_time"] <= record["slowest_own_time"] + 1e-3
    assert any(record["longest_gather_wait"] > 0 for record in records)
    assert any(record["longest_reduce_wait"] > 0 for record in records)
    # The other waits for the one that is stopped, which may have been waiting itself at that moment.
    waits = [record for record in records if max(record["longest_gather_wait"], record["longest_reduce_wait"]) > 0.4]
    assert len(waits) >= 3, records


def test_one_rank_waits_for_nobody(train, golden):
    run = train(golden("neox_x2"), "train.steps=2")
    assert not any("wait" in name and "checkpoint" not in name for record in run.steps() for name in record)
