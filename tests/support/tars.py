"""Tars of files that a test makes up."""

import io
import tarfile


def write_tar(path, files, mode="w"):
    """`files`: bytes by name, in their order. Returns the path, whose folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path
