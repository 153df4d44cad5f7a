"""Checkpoints as PyTorch reads them, and floe's own words about them; helpers of several tests."""

import json
import zlib

import torch
import torch.distributed.checkpoint as dcp


def names_of(directory, part="model"):
    """Flat names in a directory of torch.distributed.checkpoint, below `part`."""
    names = dcp.FileSystemReader(directory).read_metadata().state_dict_metadata
    return {name[len(part) + 1 :] for name in names if name.startswith(part + ".")}


def read(directory, part="model"):
    """The tensors below `part`, loaded by torch.distributed.checkpoint."""
    about = dcp.FileSystemReader(directory).read_metadata().state_dict_metadata
    state = {
        name: torch.empty(value.size, dtype=value.properties.dtype)
        for name, value in about.items() if name.startswith(part + ".")
    }
    dcp.load(state, checkpoint_id=directory)
    return {name[len(part) + 1 :]: value for name, value in state.items()}


def manifest(checkpoint):
    path = checkpoint / "floe.json" if checkpoint.is_dir() else checkpoint.with_name(checkpoint.name + ".floe.json")
    return json.loads(path.read_text().splitlines()[0])


def change_manifest(directory, change):
    """Rewrites floe.json, with its checksum."""
    content = manifest(directory)
    change(content)
    line = json.dumps(content, separators=(",", ":")) + "\n"
    (directory / "floe.json").write_text(line + '{"crc32":"%08x"}\n' % zlib.crc32(line.encode()))
