"""What the scripts that run on a GPU machine share: there is no pytest there."""

import argparse
import time


def expect(condition, *what):
    if not condition:
        raise AssertionError(" ".join(str(part) for part in what))


def parse_arguments(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], required=True)
    parser.add_argument("--only", help="cases with this word in their name")
    return parser.parse_args()


class Cases:
    """Tries every case (with `only`: that word in its name) and remembers which failed; `device` is the one that is
    tried."""

    def __init__(self, device, folder, only=None):
        self.device = device
        self.folder = folder
        self.only = only
        self.failed = []
        self.count = 0

    def case(self, name, body):
        if self.only and self.only not in name:
            return
        begin = time.time()
        try:
            body()
            print(f"ok      {name} ({time.time() - begin:.1f} s)", flush=True)
        except Exception as error:  # noqa: BLE001: every case is tried
            print(f"FAILED  {name}: {error}", flush=True)
            self.failed.append(name)

    def new_name(self):
        self.count += 1
        return f"run{self.count}"

    def end(self):
        if self.failed:
            raise SystemExit(f"{len(self.failed)} cases failed")
