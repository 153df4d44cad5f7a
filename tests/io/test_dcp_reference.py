"""torch.distributed.checkpoint is the reference: floe reads what it saves, bit for bit.

Needs FLOE_BIN_DIR, the folder of built programs (safetensors_tool among them), and the samples in
tests/goldens/checkpoints.
"""

import pathlib
import shutil
import subprocess
import sys
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from torch_tool import check_list, refusal

HERE = pathlib.Path(__file__).parent
GOLDENS = HERE.parent / "goldens" / "checkpoints"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Saves all kinds at once: starting Python's torch takes longer than anything else."""
    folder = tmp_path_factory.mktemp("saved")
    kinds = ["1:plain", "2:fsdp1,fsdp2,ddp,plain", "3:fsdp2", "4:mesh"]
    subprocess.run([sys.executable, HERE / "dcp_saves.py", folder, *kinds], check=True, timeout=300)
    return folder


def as_torch_loads(folder, scratch):
    """Every tensor by its flat name, put together by torch itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp_to_torch_save(folder, scratch)
    flat, _ = flatten_state_dict(torch.load(scratch, weights_only=False))
    return {name: value for name, value in flat.items() if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize(
    "kind, world",
    [("fsdp1", 2), ("fsdp2", 2), ("fsdp2", 3), ("ddp", 2), ("mesh", 4), ("plain", 1), ("plain", 2)],
)
def test_fresh(kind, world, saved, tmp_path):
    folder = saved / str(world) / kind
    check_list(folder, as_torch_loads(folder, tmp_path / "all.pt"))


def test_files_per_tensor_and_threads(tmp_path):
    """Writers that make many files."""
    state = {"model": {f"w{i}": torch.randn(3, 4) for i in range(5)}}
    folder = tmp_path / "ckpt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        writer = dcp.FileSystemWriter(folder, single_file_per_rank=False, thread_count=2)
        dcp.save(state, storage_writer=writer, no_dist=True)
    assert len(list(folder.glob("*.distcp"))) > 1
    check_list(folder, {f"model.{name}": tensor for name, tensor in state["model"].items()})


def test_goldens(tmp_path):
    check_list(GOLDENS / "dcp_fsdp2_world2/dcp", load_file(GOLDENS / "dcp_fsdp2_world2/expected_full.safetensors"))


def damaged(tmp_path):
    folder = tmp_path / "ckpt"
    shutil.copytree(GOLDENS / "dcp_fsdp2_world2/dcp", folder)
    return folder


def test_unfinished(tmp_path):
    folder = damaged(tmp_path)
    (folder / ".metadata").rename(folder / ".metadata.tmp")
    assert "unfinished" in refusal(folder)


def test_missing_file(tmp_path):
    folder = damaged(tmp_path)
    (folder / "__1_0.distcp").unlink()
    assert "lacks the file '__1_0.distcp'" in refusal(folder)


def test_cut_off(tmp_path):
    folder = damaged(tmp_path)
    data = (folder / "__1_0.distcp").read_bytes()
    (folder / "__1_0.distcp").write_bytes(data[:-100])
    assert "it is cut off" in refusal(folder)


def test_metadata_cut_off(tmp_path):
    folder = damaged(tmp_path)
    data = (folder / ".metadata").read_bytes()
    for length in (0, 1, 100, len(data) // 2, len(data) - 1):
        (folder / ".metadata").write_bytes(data[:length])
        assert "cut off" in refusal(folder / "").replace("has no end", "cut off")


def test_hostile_metadata(tmp_path):
    """What a pickle would call is data."""
    folder = damaged(tmp_path)
    mark = tmp_path / "ran"
    (folder / ".metadata").write_bytes(b"\x80\x02cos\nsystem\nX%c\x00\x00\x00touch %s\x85R." % (len(f"touch {mark}"), str(mark).encode()))
    assert "is no metadata of torch.distributed.checkpoint" in refusal(folder)
    assert not mark.exists()
