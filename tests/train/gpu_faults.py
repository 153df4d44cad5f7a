"""Ranks of `floe train` that share one GPU over NCCL, and what happens to one of them: killed, hung, failed and
told. How long it takes until the last process has ended, with and without CUDA graphs, and which cause the others give.

    gpu_faults.py --device cuda|cpu        FLOE_BIN_DIR: where floe is

cpu (over Gloo, without graphs) is for trying the script itself.
"""

import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "support")]
from gpu_script import Cases, expect, parse_arguments  # noqa: E402
from gpu_train import configuration, ranks_on_one_gpu, write_config  # noqa: E402
from patience import wait_until  # noqa: E402
from running import GOLDENS, children_of, command, environment, rank_process, wait_for_steps  # noqa: E402

TIMEOUT = 20  # dist.timeout_s: a process that hangs is waited for so long
# Noticed by its connection to rank 0: at once, and what others do about it takes seconds.
GONE = 30
GRACE = 5  # of floe launch: so long a process that does not end is waited for
BATCHES = GOLDENS / "neox_x2-train-world2"


class Script(Cases):
    def start(self, ranks, graphs):
        config = configuration(world2=True)
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        for rank in range(ranks):
            link = data / f"batches_rank{rank}.safetensors"
            if not link.exists():
                link.symlink_to(BATCHES / f"batches_rank{rank % 2}.safetensors")
        config["data"]["batches"] = str(data / "batches_rank{rank}.safetensors")
        config["train"]["steps"] = 1000000
        config["log"]["diagnostics"] = None
        config["checkpoint"] = {"every_steps": 50}
        config["dist"] = {"timeout_s": TIMEOUT}
        name = self.new_name()
        words = [write_config(self.folder, name, config), f"run.dir={self.folder / 'runs'}", f"run.name={name}",
                 f"dist.device={self.device}", f"dist.backend={'nccl' if self.device == 'cuda' else 'gloo'}"]
        if graphs:
            words.append("strategy.cuda_graphs=true")
        line = ranks_on_one_gpu(words, ranks) if self.device == "cuda" else command(words, ranks)
        line[2:2] = ["--grace", str(GRACE)]
        process = subprocess.Popen(line, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        process.folder = self.folder / "runs" / name
        wait_for_steps(process, 8, seconds=150)  # passes are recorded by then
        return process

    def fault(self, what, ranks, graphs, victim):
        process = self.start(ranks, graphs)
        everybody = children_of(process.pid)
        expect(len(everybody) >= ranks, "processes", everybody)
        pid = rank_process(process.pid, victim)
        limit = GONE
        begin = time.time()
        if what == "killed":
            os.kill(pid, signal.SIGKILL)
        elif what == "hung":
            os.kill(pid, signal.SIGSTOP)
            limit += TIMEOUT + GRACE
        else:  # told: its part of the next checkpoint cannot be written; it begins when that is known
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, 4096))
            logs = process.folder / "logs"
            wait_until(lambda: any(" error: " in log.read_text() for log in logs.iterdir()), 300)
            begin = time.time()
        said = process.communicate(timeout=10 * limit)[1]
        seconds = time.time() - begin
        left = [pid for pid in everybody if Path(f"/proc/{pid}").exists()]
        expect(not left, "processes are left:", left)
        expect(process.returncode != 0, "exit", process.returncode)
        expect(seconds < limit, f"it took {seconds:.1f} s; at most {limit} s")
        for rank in range(ranks):
            if rank == victim:  # it has no time or no room to say anything
                continue
            log = (process.folder / "logs" / f"rank_{rank}.log").read_text().splitlines()
            last = [line for line in log if " error: " in line][-1:]
            expect(last, f"rank {rank} has no cause in its log:", "\n".join(log[-5:]))
            expect(re.search(rf"rank {victim}\b", last[0]), f"rank {rank} does not name rank {victim}:", last[0])
            if rank == (0 if victim else 1):
                print(f"        {last[0][:300]}")
        print(f"        the last process had ended after {seconds:.1f} s (exit {process.returncode})")
        expect("error:" in said, said[-2000:])


def main():
    arguments = parse_arguments(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        script = Script(arguments.device, Path(folder), arguments.only)
        # (ranks, the one it happens to, with graphs)
        for ranks, victim, graphs in ((2, 1, False), (2, 1, True), (4, 0, False), (4, 2, True)):
            if graphs and arguments.device == "cpu":
                continue
            for what in ("killed", "hung", "told"):
                name = f"rank {victim} of {ranks} {what}{', with graphs' if graphs else ''}"
                script.case(name, partial(script.fault, what, ranks, graphs, victim))
    script.end()


if __name__ == "__main__":
    main()
