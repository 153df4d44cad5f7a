"""Starting checkpoint_tool on several ranks, and reading what it left."""

import json
import os
import pathlib
import socket
import subprocess
import threading
import time

import numpy as np

TOOL = str(pathlib.Path(os.environ["FLOE_BIN_DIR"]) / "checkpoint_tool")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Ranks:
    """The processes of one start; `lines` are the JSON lines of rank 0."""

    def __init__(self, world, environment=None, prefix=(), **arguments):
        port = free_port()
        command = [*prefix, TOOL, *(f"{key}={value}" for key, value in arguments.items())]
        self.processes = []
        for rank in range(world):
            env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world),
                       MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1",
                       **(environment or {}))
            self.processes.append(subprocess.Popen(command, env=env, text=True,
                                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE))

    def end_together(self):
        """As a launcher does it: when one rank has died, the others get a moment and are killed."""

        def watch():
            while all(process.poll() is None for process in self.processes):
                time.sleep(0.02)
            if any(process.poll() not in (0, None) for process in self.processes):
                time.sleep(0.3)
                for process in self.processes:
                    process.kill()

        threading.Thread(target=watch, daemon=True).start()
        return self

    def wait(self, timeout=120):
        self.outputs = [None] * len(self.processes)

        def collect(i):
            self.outputs[i] = self.processes[i].communicate(timeout=timeout)

        threads = [threading.Thread(target=collect, args=(i,)) for i in range(len(self.processes))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        assert all(output is not None for output in self.outputs), "a rank did not end in time"
        self.codes = [process.returncode for process in self.processes]
        self.lines = [json.loads(line) for line in self.outputs[0][0].splitlines() if line.startswith("{")]
        return self

    @property
    def log(self):
        return "\n".join(f"--- rank {i}\n{output[1]}" for i, output in enumerate(self.outputs))

    @property
    def losses(self):
        return {line["step"]: line["loss"] for line in self.lines if "loss" in line}

    @property
    def resumed(self):
        return next((line for line in self.lines if "resumed" in line), None)


def run(world, expect=0, timeout=120, **arguments):
    ranks = Ranks(world, **arguments).wait(timeout)
    if expect is not None:
        assert ranks.codes == [expect] * world, ranks.log
    return ranks


def read_dump(prefix, world):
    """{(kind, name): array}, put together from the slices of all ranks; every element must be there."""
    whole, filled, numbers = {}, {}, {}
    for rank in range(world):
        data = np.fromfile(f"{prefix}.{rank}.bin", dtype="<f4")
        for piece in json.loads(pathlib.Path(f"{prefix}.{rank}.json").read_text()):
            key = (piece["kind"], piece["name"])
            if "value" in piece:
                assert whole.setdefault(key, piece["value"]) == piece["value"]
                continue
            numbers[key] = piece["number"]
            if key not in whole:
                whole[key] = np.zeros(int(np.prod(piece["shape"])), dtype=np.float32)
                filled[key] = np.zeros(whole[key].shape, dtype=bool), piece["shape"]
            span = slice(piece["first"], piece["first"] + piece["numel"])
            whole[key][span] = data[piece["at"]:piece["at"] + piece["numel"]]
            filled[key][0][span] = True
    for key, (mask, shape) in filled.items():
        assert mask.all(), key
        whole[key] = whole[key].reshape(shape)
    return dict(sorted(whole.items(), key=lambda item: numbers.get(item[0], -1)))  # as registered
