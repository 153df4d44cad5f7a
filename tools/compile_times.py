#!/usr/bin/env python3
"""What compiling took, from ninja's log: by target, and the objects that took longest.

usage: compile_times.py BUILD [--most SECONDS] [--top N]

The times are seconds of the clock for each object, added up over all that ran side by side; what ccache
answered counts as next to nothing. With --most an object that took longer is an error.
"""

import argparse
import collections
import re
import sys
from pathlib import Path

TARGET = re.compile(r"CMakeFiles/([^/]+)\.dir/")


def read_log(path):
    """Output -> seconds of its last build, for what a compiler made."""
    times = {}
    for line in path.read_text().splitlines():
        fields = line.split("\t")
        if len(fields) >= 4 and fields[3].endswith((".o", ".gch")):
            times[fields[3]] = (int(fields[1]) - int(fields[0])) / 1000
    return times


def by_target(times):
    """Target -> (seconds, objects), the slowest first."""
    sums = collections.defaultdict(lambda: (0.0, 0))
    for output, seconds in times.items():
        found = TARGET.search(output)
        name = found.group(1) if found else output
        sums[name] = (sums[name][0] + seconds, sums[name][1] + 1)
    return sorted(sums.items(), key=lambda item: -item[1][0])


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("--most", type=float)
    parser.add_argument("--top", type=int, default=12)
    arguments = parser.parse_args()
    log = arguments.build / ".ninja_log"
    if not log.is_file():
        sys.exit(f"compile_times.py: there is no {log}; build first")
    times = read_log(log)
    # An object of a source that is gone is still in the log.
    times = {output: seconds for output, seconds in times.items() if (arguments.build / output).exists()}
    floe = sum(seconds for name, (seconds, _) in by_target(times) if re.match("floe(_(?!test)|$)", name))
    print(f"{len(times)} objects, {sum(times.values()):.0f} s, of them floe itself {floe:.0f} s")
    print(f"\n{'target':<32} {'objects':>8} {'seconds':>8}")
    for name, (seconds, objects) in by_target(times)[: arguments.top]:
        print(f"{name:<32} {objects:>8} {seconds:>8.0f}")
    slowest = sorted(times.items(), key=lambda item: -item[1])
    print(f"\n{'object':<80} {'seconds':>8}")
    for output, seconds in slowest[: arguments.top]:
        print(f"{output[-80:]:<80} {seconds:>8.1f}")
    if arguments.most is None:
        return 0
    over = [output for output, seconds in slowest if seconds > arguments.most]
    for output in over:
        print(f"{output} took {times[output]:.0f} s to compile, more than {arguments.most:.0f} s: split its source or its module")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
