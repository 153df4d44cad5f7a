"""Starts the program floe in the place of this process, once its torch is known to be there.

A program that meets another torch dies in the loader with a line about symbols; this says what is wrong.
"""

import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path

from floe._build import LIBRARY_FOLDERS, NEEDS_CUDA_TORCH, TORCH_VERSION, VERSION

PACKAGE = Path(__file__).resolve().parent
LIBRARY_PATH = "LD_LIBRARY_PATH"


class Refused(Exception):
    pass


def find_torch():
    """The folder that holds the packages torch and nvidia; raises Refused when floe cannot run with them."""
    remedy = f"run '{sys.executable} -m pip install torch=={TORCH_VERSION}'"
    try:
        version = importlib.metadata.version("torch")
        folders = importlib.util.find_spec("torch").submodule_search_locations
    except (importlib.metadata.PackageNotFoundError, AttributeError):
        raise Refused(f"floe {VERSION} needs torch {TORCH_VERSION}, and {sys.prefix} has none; {remedy}") from None
    if version.split("+")[0] != TORCH_VERSION:
        raise Refused(f"this floe {VERSION} was built for torch {TORCH_VERSION}, but {sys.prefix} has torch {version}; {remedy}, "
                      f"or build a wheel for that one from floe's sources: FLOE_TORCH={folders[0]} ./run wheel")
    if NEEDS_CUDA_TORCH and not Path(folders[0], "lib", "libtorch_cuda.so").exists():
        raise Refused(f"this floe {VERSION} was built with CUDA, but torch {version} of {sys.prefix} comes without it; "
                      f"{remedy} from PyPI, which runs without a GPU too")
    return Path(folders[0]).parent


def main():
    try:
        site = find_torch()
    except Refused as refused:
        print(f"floe: {refused}", file=sys.stderr)
        return 2
    # The program's own search path leads to a torch that is installed next to floe.
    if site.resolve() != PACKAGE.parent:
        before = os.environ.get(LIBRARY_PATH)
        folders = [str(site / folder) for folder in LIBRARY_FOLDERS]
        os.environ[LIBRARY_PATH] = os.pathsep.join(folders + ([before] if before else []))
    program = str(PACKAGE / "bin" / "floe")
    sys.stdout.flush()
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
