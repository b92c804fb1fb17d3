"""A blend read once through: every sample is marked, none twice."""

import numpy as np
import pytest

from zindex.building.blend_arrays import BlendArrays, compute_blend_arrays
from zindex.building.edits import blend_scan
from zindex.building.edits.blend_scan import BlendScan
from zindex.errors import VerificationError
from zindex.plan.blend_plan import BlendPlan


def test_draws_are_counted_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blend_scan, "BLOCK", 7)
    plan = BlendPlan.weighted([3.0, 1.0, 2.0], 200, split="train", order="scalable")
    arrays = compute_blend_arrays(plan)
    scan = BlendScan(arrays)
    found = scan.mark_all([(0, 33), (50, 61)])
    drawn = np.concatenate([arrays.dataset_index[0:33], arrays.dataset_index[50:61]])
    assert found.tolist() == np.bincount(drawn, minlength=3).tolist()
    assert scan.mark_all([(33, 50), (61, 200)]).tolist() == (plan.counts - found).tolist()
    with pytest.raises(VerificationError, match="no sample twice, 5 of 5 positions do"):
        scan.mark_all([(7, 12)])


def test_a_sample_that_is_drawn_twice_is_found() -> None:
    datasets, samples = np.zeros(3, np.int16), np.array([0, 1, 1], np.int32)
    scan = BlendScan(BlendArrays(datasets, samples, np.array([3])))
    with pytest.raises(VerificationError, match="no sample twice, 1 of 3 positions do"):
        scan.mark_all([(0, 3)])
