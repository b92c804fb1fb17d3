"""The plan of an inverse: where a stored order has each document or sample."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from zindex import schema
from zindex.plan.blend_plan import BlendPlan
from zindex.plan.build_plan import UINT32_MAX, BuildPlan
from zindex.plan.index_plan import IndexPlan
from zindex.store.commit import fingerprint
from zindex.store.layout import ArrayLayout

#: Bumped when the same plan gives another inverse.
INVERSE_VERSION = 1


class InvertedArray(NamedTuple):
    """One array of an inverse."""

    layout: ArrayLayout
    #: The stored arrays that determine the values of the order.
    names: tuple[str, ...]
    #: Least value of the order, and how often each value occurs.
    first_value: int
    num_occurrences: int


@dataclass(frozen=True, kw_only=True)
class InversePlan(BuildPlan):
    """The inverse of the stored orders of an index or a blend, to look up positions."""

    prefix = "inverse"

    #: The index, in Megatron's order, or the blend, with a uniform shuffle.
    inverted: IndexPlan | BlendPlan

    @classmethod
    def of(cls, plan: BuildPlan) -> "InversePlan | None":
        """Return the inverse of an index or a blend; None if its order needs no stored one.

        Keyed orders have a formula, and greedy blends are searched by interpolation.
        """
        is_index = isinstance(plan, IndexPlan) and plan.order == "megatron"
        is_blend = isinstance(plan, BlendPlan) and plan.order == "scalable"
        if is_index or (is_blend and plan.shuffle == "uniform"):  # type: ignore[attr-defined]
            inverted: Any = plan
            return cls(split=plan.split, seed=plan.seed, grid=plan.grid, inverted=inverted)
        return None

    @cached_property
    def arrays(self) -> tuple[InvertedArray, ...]:
        """The arrays of the inverse."""
        plan = self.inverted
        samples = self._plan_array(schema.SAMPLE_POSITION, plan.num_samples)
        if isinstance(plan, BlendPlan):
            names = schema.DATASET_INDEX.name, schema.DATASET_SAMPLE_INDEX.name
            return (InvertedArray(samples, names, 0, 1),)
        rows = self._plan_array(schema.DOCUMENT_ROW, plan.num_rows)
        epochs = plan.epochs.num_epochs
        return (
            InvertedArray(rows, (schema.DOCUMENT_INDEX.name,), plan.start, epochs),
            InvertedArray(samples, (schema.SHUFFLE_INDEX.name,), 0, 1),
        )

    def _plan_array(self, spec: schema.ArraySpec, num_rows: int) -> ArrayLayout:
        return self.layout(spec, num_rows, np.uint32 if num_rows <= UINT32_MAX else np.int64)

    @property
    def layouts(self) -> tuple[ArrayLayout, ...]:
        """Layouts of the stored arrays."""
        return tuple(array.layout for array in self.arrays)

    @property
    def num_build_rows(self) -> int:
        """Rows that a build computes."""
        return sum(layout.length for layout in self.layouts)

    @cached_property
    def spec(self) -> dict[str, Any]:
        """Everything that decides the values, as JSON."""
        return {
            "algorithm_version": INVERSE_VERSION,
            "inverts": fingerprint(self.inverted.spec),
            "kind": "inverse",
            "split": self.split,
        }
