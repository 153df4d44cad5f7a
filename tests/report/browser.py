"""The browser that looks at the pages of `floe report`: Chromium or one made from it, headless.

Run as a program it prints the browser's path, or says why there is none (exit status 1)."""

import os
import shutil
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "google-chrome-beta", "chrome",
         "microsoft-edge", "brave-browser", "chrome-headless-shell")


def is_snap(program):
    """Whether it is from a snap, which sees neither the files of tests nor those of root, or only a script that
    asks for one, as in Ubuntu's package."""
    real = Path(program).resolve()
    if Path(program).is_relative_to("/snap") or real.is_relative_to("/snap") or real.name == "snap":
        return True
    with real.open("rb") as file:
        beginning = file.read(20_000)
    return beginning.startswith(b"#!") and (b"/snap/" in beginning or b"snap install" in beginning or b"snap run" in beginning)


def find():
    """The path of a browser, and a sentence that says why there is none; one of the two is None."""
    snaps = []
    for name in NAMES:
        for folder in os.environ.get("PATH", "").split(os.pathsep):
            program = shutil.which(name, path=folder) if folder else None
            if program and not is_snap(program):
                return program, None
            if program:
                snaps.append(name)
    if snaps:
        return None, f"{snaps[0]} is only a snap here, which cannot read the pages; Debian's package chromium or Google Chrome would do"
    return None, "there is no Chromium or Chrome here; Debian's package chromium or Google Chrome would do"


if __name__ == "__main__":
    found, reason = find()
    if found is None:
        sys.exit(reason)
    print(found)
