"""What `pip install` brings: the program floe beside the torch that it was built for.

`floe ARGS...` on the command line and `python -m floe ARGS...` run it; `floe.program()` is its path.
"""

from floe._build import TORCH_VERSION, VERSION as __version__

__all__ = ["TORCH_VERSION", "__version__", "program"]


def program():
    """The path of the program. It needs the environment that `python -m floe` makes if torch lies elsewhere."""
    from pathlib import Path

    return str(Path(__file__).resolve().parent / "bin" / "floe")
