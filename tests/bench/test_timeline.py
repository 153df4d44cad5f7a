"""bench/timeline.py on a timeline whose answer is known."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(os.environ["FLOE_SOURCE_DIR"]) / "bench"))
import timeline  # noqa: E402

# Stream 7 computes: [0, 100] gemm, [101, 131] norm, idle until 161, [161, 181] gemm inside of which a copy of
# stream 9 ends that began in the gap.
EVENTS = {
    "names": ["nvjet_gemm", "layer_norm_kernel", "Memcpy DtoD"],
    "events": [[0, 7, 0.0, 100.0], [0, 7, 161.0, 20.0], [1, 7, 101.0, 30.0], [2, 9, 141.0, 30.0]],
}


@pytest.fixture
def found():
    return timeline.analyse(EVENTS)


def test_busy_and_idle_time_add_up(found):
    assert found["span_ms"] == pytest.approx(0.181)
    assert found["busy_ms"] == pytest.approx(0.150)
    assert found["idle_ms"] == pytest.approx(0.031)
    assert found["launches"] == 3


def test_gaps_are_named_largest_first(found):
    assert found["largest_gaps"] == [[30.0, 131.0, "layer_norm_kernel", "nvjet_gemm"],
                                     [1.0, 100.0, "nvjet_gemm", "layer_norm_kernel"]]
    assert found["gap_classes"] == {"< 2 µs": (1, pytest.approx(0.001)), "< 100 µs": (1, pytest.approx(0.030))}


def test_families_count_the_compute_stream_only(found):
    assert found["families"] == {"matrix products": (pytest.approx(0.120), 2), "norms": (pytest.approx(0.030), 1)}


def test_what_runs_beside_is_split_by_whether_it_is_hidden(found):
    (beside,) = found["beside"]
    assert beside["busy_ms"] == pytest.approx(0.030)
    assert beside["while_computing_ms"] == pytest.approx(0.010)


def test_overlapping_kernels_of_one_stream_count_once():
    found = timeline.analyse({"names": ["a"], "events": [[0, 7, 0.0, 10.0], [0, 7, 5.0, 10.0]]})
    assert found["busy_ms"] == pytest.approx(0.015)
    assert found["largest_gaps"] == []


def test_a_step_without_a_gpu_has_no_timeline():
    assert timeline.analyse({"names": [], "events": []}) is None
