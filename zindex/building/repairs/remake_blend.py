"""The values of single shards of a committed blend, computed again from its weights."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.building.blend import digest_counts
from zindex.building.blend_arrays import compute_scalable, draw_greedily, locate_samples
from zindex.building.executor import SerialExecutor, run_builds
from zindex.building.permutation import Permutation
from zindex.errors import FingerprintMismatchError, StoreError, VerificationError
from zindex.plan.blend_plan import BlendPlan
from zindex.store.commit import StorePlan
from zindex.store.layout import ArrayLayout, ChunkGrid
from zindex.store.open import open_reader
from zindex.store.verify import ShardId

AnyArray = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]


class RemadeBlend:
    """A blend whose shards can be made again; methods as of ``remake.RemadeStore``.

    Parameters
    ----------
    store_plan
        The plan of the store.
    known
        The plan of the blend, where a run says it; otherwise the stored weights do.
    damaged
        Shards that cannot be read.
    """

    def __init__(
        self, store_plan: StorePlan, known: BlendPlan | None, damaged: set[ShardId]
    ) -> None:
        self.store_plan = store_plan
        self.root = store_plan.root
        grid = store_plan.grid or ChunkGrid()
        plan = self._plan_of_store(damaged, grid) if known is None else replace(known, grid=grid)
        if plan.spec | {"store": plan.stored} != store_plan.spec:
            raise FingerprintMismatchError(
                f"{self.root} must be the blend of these weights, its fingerprint is another; name "
                "the run file that built it"
            )
        if plan.layouts != store_plan.layouts:
            raise StoreError(
                f"{self.root} must have the arrays that this zindex plans for it, it has others; "
                "remove it and build it again"
            )
        self.plan = plan
        self._permutation: Permutation | None = None

    def _plan_of_store(self, damaged: set[ShardId], grid: ChunkGrid) -> BlendPlan:
        """Return the plan of the blend from the weights or the sizes that it stores."""
        spec = self.store_plan.spec
        weights = self._read_small(schema.DATASET_WEIGHT.name, damaged)
        counts = self._read_small(schema.DATASET_COUNT.name, damaged)
        sizes = None
        if spec["exhaustive"]:
            if counts is None and weights is not None:
                counts = np.rint(weights * spec["num_samples"]).astype(np.int64)
            sizes = counts
            weights = None if sizes is None else sizes / float(spec["num_samples"])
        if weights is None:
            raise VerificationError(
                f"{self.root} must have its dataset_weight to be repaired, that is damaged; name "
                "the run file that built it"
            )
        return BlendPlan(
            split=spec["split"],
            weights=weights,
            sizes=sizes,
            num_samples=spec["num_samples"],
            order=spec["algorithm"],
            seed=spec.get("seed", 0),
            shuffle=spec.get("shuffle", "keyed"),
            stored=spec["store"],
            grid=grid,
        )

    def _read_small(self, name: str, damaged: set[ShardId]) -> AnyArray | None:
        """Return an array of one value per dataset, or None if a part of it is damaged."""
        if any(array == name for array, _ in damaged):
            return None
        layout = next(layout for layout in self.store_plan.layouts if layout.name == name)
        return open_reader(self.root, layout).read(0, layout.length)

    def make(self, shards: set[ShardId]) -> Iterator[tuple[ArrayLayout, int, AnyArray]]:
        """Compute the shards, those of both long arrays together."""
        plan = self.plan
        long = (plan.dataset_layout, plan.sample_layout)
        names = [layout.name for layout in long]
        for layout in (plan.weight_layout, plan.count_layout)[: 1 if plan.sizes is None else 2]:
            yield from self._cut(layout, shards, plan.weights if layout.unit == "share" else None)
        numbers = sorted({shard for name, shard in shards if name in names})
        for shard, arrays in zip(numbers, self._pairs(numbers), strict=True):
            for layout, values in zip(long, arrays, strict=True):
                if (layout.name, shard) in shards:
                    yield layout, shard, values
        if plan.sizes is None:
            yield from self._cut(plan.count_layout, shards, None)

    def _cut(
        self, layout: ArrayLayout, shards: set[ShardId], values: AnyArray | None
    ) -> Iterator[tuple[ArrayLayout, int, AnyArray]]:
        """Give the wanted shards of an array with a value per dataset; None: the counts."""
        for shard in range(layout.num_shards):
            if (layout.name, shard) in shards:
                if values is None:
                    values = self._counts()
                yield layout, shard, values[slice(*layout.shard_bounds(shard))]

    def _counts(self) -> Int64Array:
        """Return the samples that the whole blend draws of each dataset."""
        plan = self.plan
        if plan.sizes is not None or plan.order == "scalable":
            return plan.counts
        counts = np.zeros(plan.num_datasets, np.int64)
        for _ in self._count_along(counts, plan.dataset_layout.num_shards):
            pass
        return counts

    def _count_along(self, counts: Int64Array, stop: int, start: int = 0) -> Iterator[Int64Array]:
        """Add the samples of stored shards to counts, and give these after each shard."""
        layout = self.plan.dataset_layout
        reader = open_reader(self.root, layout)
        for shard in range(start, stop):
            datasets = reader.read(*layout.shard_bounds(shard))
            counts += np.bincount(datasets, minlength=self.plan.num_datasets)
            yield counts

    def _pairs(self, shards: list[int]) -> Iterator[tuple[AnyArray, AnyArray]]:
        """Give both long arrays of each shard."""
        plan = self.plan
        if plan.order == "scalable":
            for shard in shards:
                bounds = plan.dataset_layout.shard_bounds(shard)
                if plan.shuffle == "keyed":
                    yield compute_scalable(plan, *bounds)
                else:
                    yield locate_samples(plan, self._shuffled(shard))
            return
        # The greedy order goes on from the counts of all shards before.
        counts, counted = np.zeros(plan.num_datasets, np.int64), 0
        for shard in shards:
            for _ in self._count_along(counts, shard, counted):
                pass
            yield draw_greedily(plan, counts, *plan.dataset_layout.shard_bounds(shard))
            counted = shard + 1

    def _shuffled(self, shard: int) -> AnyArray:
        """Return one shard of an exactly uniform permutation; its scratch files serve the next."""
        folder = self.root.parent

        async def compute() -> AnyArray:
            permutation = Permutation(self.plan.permutation, SerialExecutor(), folder)
            self._permutation = permutation
            try:
                numbers = await permutation.take(shard)
            finally:
                await permutation.close()
            return np.asarray(numbers)

        return run_builds(compute())

    def facts(self) -> dict[str, Any]:
        """Return the totals, and of a greedy blend the digests of the counts between chunks."""
        plan = self.plan
        facts: dict[str, Any] = {"num_samples": plan.num_samples, "num_datasets": plan.num_datasets}
        if plan.order == "megatron":
            counts = np.zeros(plan.num_datasets, np.int64)
            num_shards = plan.dataset_layout.num_shards
            borders = [digest_counts(counts)] if num_shards else []
            borders += [digest_counts(part) for part in self._count_along(counts, num_shards)]
            facts["certificate"] = {"borders": borders}
        return facts

    def close(self) -> None:
        """Remove the scratch files."""
        if self._permutation is not None:
            run_builds(self._permutation.remove_scratch())
