"""The plan of an inverse: which orders need one, and what makes its identity."""

from dataclasses import replace

import numpy as np

from tests.plan.test_index_plan import make_large_plan, make_plan
from zindex.plan.blend_plan import BlendPlan
from zindex.plan.inverse_plan import InversePlan
from zindex.store.layout import ChunkGrid


def test_orders_that_need_one() -> None:
    assert InversePlan.of(make_plan()) is not None
    assert InversePlan.of(make_plan(order="scalable")) is None
    for order, shuffle, is_needed in (
        ("megatron", "keyed", False),
        ("scalable", "keyed", False),
        ("scalable", "uniform", True),
    ):
        blend = BlendPlan.weighted([1.0, 2.0], 9, split="train", order=order, shuffle=shuffle)
        assert (InversePlan.of(blend) is not None) == is_needed


def test_arrays() -> None:
    plan = make_plan()
    inverse = InversePlan.of(plan)
    assert inverse is not None
    rows, positions = inverse.arrays
    assert (rows.layout.length, rows.num_occurrences, rows.first_value) == (12, 2, 0)
    assert (positions.layout.length, positions.num_occurrences) == (plan.num_samples, 1)
    assert inverse.num_build_rows == 12 + 13
    large = InversePlan.of(
        make_large_plan(num_documents=10**9, num_epochs=5, num_samples=4 * 10**9)
    )
    assert large is not None
    dtypes = [np.dtype(layout.dtype) for layout in large.layouts]
    assert dtypes == [np.int64, np.uint32]  # 5e9 rows exceed 32 bits


def test_identity() -> None:
    plan = make_plan()
    specs = []
    for each in (plan, replace(plan, grid=ChunkGrid(2, 4)), replace(plan, seed=5)):
        inverse = InversePlan.of(each)
        assert inverse is not None
        specs.append(inverse.spec)
    assert specs[0] == specs[1] != specs[2]
