"""Checkpoints of ranks that share one GPU: saved there, loaded at another world size, on the CPU and
back, after a failure; the state is the same to the bit and the losses go on.

    gpu_checkpoints.py --device cuda|cpu        FLOE_BIN_DIR: where checkpoint_tool is

Needs Python with numpy; cpu is for trying the script itself.
"""

import os
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "support")]
import numpy as np  # noqa: E402
import runs  # noqa: E402
from gpu_script import Cases, expect, parse_arguments  # noqa: E402

STEPS = 10
SETS = dict(sets="a:layers.*,norm.* b:head.*,embed*", phase=2, rest="offload")


def environment(device):
    os.environ.pop("FLOE_TEST_DEVICE", None)
    if device == "cuda":
        os.environ["FLOE_TEST_DEVICE"] = "cuda"


def start(device, world, run, expect=0, **arguments):
    environment(device)
    return runs.run(world, expect=expect, run=run, **arguments)


def expect_same_state(folder, saved, saved_world, loaded, loaded_world):
    before = runs.read_dump(folder / saved, saved_world)
    after = runs.read_dump(folder / loaded, loaded_world)
    expect(before.keys() == after.keys(), "other state:", before.keys() ^ after.keys())
    for key, value in before.items():
        expect(np.array_equal(value, after[key]), key, "has changed on its way through the checkpoint")


def expect_losses(ranks, reference, steps, bound):
    expect(sorted(ranks.losses) == list(steps), "steps", sorted(ranks.losses), "instead of", list(steps))
    for step, loss in ranks.losses.items():
        expect(abs(loss - reference[step]) <= bound * abs(reference[step]),
               f"step {step}: loss {loss} instead of {reference[step]}")


class Script(Cases):
    def new_run(self):
        path = self.folder / self.new_name()
        path.mkdir()
        return path

    def resharded(self, worlds, **arguments):
        """Saved by some ranks, loaded by others; compared with a run that was never interrupted."""
        saved, loaded = worlds
        run = self.new_run()
        unbroken = start(self.device, saved, self.new_run(), steps=STEPS, **arguments).losses
        start(self.device, saved, run, steps=5, save_every=5, dump=run / "saved", **arguments)
        again = start(self.device, loaded, run, steps=STEPS, dump_loaded=run / "loaded", **arguments)
        expect(again.resumed and again.resumed["resumed"] == 5, "resumed", again.resumed)
        expect_same_state(run, "saved", saved, "loaded", loaded)
        bound = 1e-2 if arguments.get("mixed") else 1e-5
        expect_losses(again, unbroken, range(6, STEPS + 1), bound)

    def there_and_back(self):
        run = self.new_run()
        unbroken = start(self.device, 2, self.new_run(), steps=STEPS, ema=0.9).losses
        start(self.device, 2, run, steps=4, save_every=4, dump=run / "first", ema=0.9, **{"async": 1})
        middle = start("cpu", 3, run, steps=7, save_every=7, ema=0.9, dump_loaded=run / "on_cpu", dump=run / "second")
        expect_same_state(run, "first", 2, "on_cpu", 3)
        expect_losses(middle, unbroken, range(5, 8), 1e-4)
        last = start(self.device, 4, run, steps=STEPS, ema=0.9, dump_loaded=run / "back")
        expect_same_state(run, "second", 3, "back", 4)
        expect_losses(last, unbroken, range(8, STEPS + 1), 1e-4)

    def emergency(self, place, asynchronous):
        run = self.new_run()
        unbroken = start(self.device, 2, self.new_run(), steps=STEPS).losses
        failed = start(self.device, 2, run, expect=None, steps=STEPS, save_every=4, fail=f"{place}:6:1",
                       timeout=20, **{"async": asynchronous})
        expect(all(code != 0 for code in failed.codes), "codes", failed.codes)
        again = start(self.device, 3, run, steps=STEPS)
        expect(again.resumed and again.resumed["emergency"] and again.resumed["resumed"] == 5,
               "resumed", again.resumed, failed.log[-2000:])
        expect_losses(again, unbroken, range(6, STEPS + 1), 1e-5)

    def meets_the_cpu(self):
        here = start(self.device, 2, self.new_run(), steps=STEPS).losses
        on_cpu = start("cpu", 2, self.new_run(), steps=STEPS).losses
        for step, loss in on_cpu.items():
            expect(abs(here[step] - loss) <= 1e-4 * loss, f"step {step}: {here[step]} instead of {loss}")


def main():
    arguments = parse_arguments(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        script = Script(arguments.device, Path(folder), arguments.only)
        script.case("two ranks have the losses of the CPU", script.meets_the_cpu)
        script.case("2 to 3 ranks", lambda: script.resharded((2, 3)))
        script.case("2 to 4 ranks, saved behind the training", lambda: script.resharded((2, 4), **{"async": 1}))
        script.case("4 to 2 ranks, hybrid", lambda: script.resharded((4, 2), strategy="hybrid"))
        script.case("mixed precision with an average",
                    lambda: script.resharded((2, 3), mixed=1, ema=0.9, content="full", **{"async": 1}))
        script.case("sets in turn, offloaded", lambda: script.resharded((2, 2), **SETS))
        script.case("to the CPU and back", script.there_and_back)
        for place in ("forward", "backward"):
            script.case(f"emergency in {place}", lambda place=place: script.emergency(place, 0))
        script.case("emergency during a save", lambda: script.emergency("forward", 1))
    script.end()


if __name__ == "__main__":
    main()
