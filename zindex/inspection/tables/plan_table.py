"""Report on the indices of a run, built and unbuilt, as text and JSON.

The sizes are those of plans, so a report reads only a few small files and writes none.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from zindex.config import RunConfig
from zindex.forecast.nodes import NodeForecast, describe_stores, forecast_nodes
from zindex.indexing.packing import Basis, measure_packing, read_packing_sizes
from zindex.indexing.run_plan import PlannedIndex, RunPlan, plan_run
from zindex.indexing.store_build import find_index
from zindex.ingest.length_source import warn_of_duplicates
from zindex.inspection.tables.blend_table import BlendReport, make_blend_report
from zindex.inspection.tables.dataset_table import IndexRow, dataset_lines, index_fields
from zindex.inspection.tables.formatting import (
    format_nbytes,
    format_share,
    wrap_lines,
)
from zindex.io.files import free_nbytes
from zindex.io.machine import count_cpus
from zindex.io.objects import place_of
from zindex.plan.index_plan import IndexPlan
from zindex.plan.packing import PackingPlan
from zindex.store.commit import StoreStatus
from zindex.wording import count_noun

#: Documents to pack for an estimate: in total, and at least per dataset.
NUM_PACKED, _LEAST_PACKED = 1 << 22, 1 << 14
# Shorter builds are not worth a forecast.
_LEAST_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingRow(IndexRow):
    """One packed index of a run."""

    max_documents: int
    long_documents: str
    #: Whether the sizes are read from the index, computed, or estimated.
    basis: Basis
    #: Number of documents in the samples, counting each part of a long one.
    num_parts: int
    #: Share of padding in all samples.
    padding_share: float

    @property
    def mark(self) -> str:
        """Prefix of estimated sizes."""
        return "~" if self.basis == "estimated" else ""

    def to_cells(self) -> dict[str, str]:
        """Return the cells of the row by header."""
        return IndexRow.to_cells(self) | {"padding": self.mark + format_share(self.padding_share)}


def _make_packing_row(
    item: PlannedIndex[PackingPlan], status: StoreStatus, folder: str, length: int
) -> PackingRow:
    """Return the row of one packed index, estimated until the index is built."""
    plan = item.plan
    store = find_index(plan.store_plan(folder)) if status.committed else None
    if store is None:
        sizes = measure_packing(plan, item.source, length)
    else:
        sizes = read_packing_sizes(store)
    num_partitions = sizes.num_epochs * plan.partitions_per_epoch
    layouts = plan.layouts_of(num_partitions, sizes.num_samples, sizes.num_parts)
    nbytes = sum(layout.nbytes for layout in layouts)
    num_shards = sum(layout.num_shards for layout in layouts)
    fields = index_fields(item, status, nbytes, num_shards, plan.tokens_per_epoch, sizes)
    fields |= {name: getattr(sizes, name) for name in ("basis", "num_parts", "padding_share")}
    return PackingRow(**fields, **asdict(plan.rules))


def packing_lines(rows: Sequence[PackingRow]) -> list[str]:
    """Format the packing rules and the table of datasets and their splits."""
    first = rows[0]
    lines = [
        f"packed: at most {first.max_documents:,} documents in a sample, long documents "
        f"{_LONG[first.long_documents]}",
        "",
        *dataset_lines(rows),
    ]
    if any(row.mark for row in rows):
        lines += ["", "~: estimated from some of the documents, until the index is built"]
    return lines


_LONG = {"split": "split", "truncate": "truncated", "drop": "dropped"}


#: Shuffle of the last epoch.
LastEpoch = Literal["one epoch", "mixed", "apart", "each apart"]

_LAST_EPOCH_LEGEND: dict[LastEpoch, str] = {
    "mixed": "mixed: the samples of all epochs are shuffled together",
    "apart": "apart: few samples of the last epoch are wanted, so it is shuffled by itself",
    "each apart": "each apart: the samples of every epoch are shuffled by themselves",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow(IndexRow):
    """One index of samples of a run."""

    last_epoch: LastEpoch

    def to_cells(self) -> dict[str, str]:
        """Return the cells of the row by header."""
        return IndexRow.to_cells(self) | {"last epoch": self.last_epoch}


@dataclass(frozen=True, slots=True)
class PlanReport:
    """Plan of a build: its indices, blends and sizes."""

    order: str
    seed: int
    sequence_length: int
    split: str
    #: Directory of the index stores.
    index: str
    #: Free bytes in that directory; None if unlimited.
    free_nbytes: int | None
    rows: tuple[PlanRow, ...]
    blends: tuple[BlendReport, ...] = ()
    #: Replaces ``rows`` in a run that packs documents.
    packings: tuple[PackingRow, ...] = ()
    #: Forecast for the missing part on machines like this one; None if complete or unknown.
    forecast: NodeForecast | None = None

    @property
    def items(self) -> tuple[PlanRow | PackingRow | BlendReport, ...]:
        """All planned items."""
        return (*self.rows, *self.packings, *self.blends)

    @property
    def num_samples(self) -> int:
        """Samples of all indices."""
        return sum(row.num_samples for row in (*self.rows, *self.packings))

    @property
    def missing_nbytes(self) -> int:
        """Bytes that a build would write."""
        return sum(item.missing_nbytes for item in self.items)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values: its fields, the totals, and ``fits``."""
        counted = ("nbytes", "missing_nbytes", "num_shards", "num_done")
        totals = {name: sum(getattr(item, name) for item in self.items) for name in counted}
        totals["num_samples"] = self.num_samples
        return asdict(self) | {"totals": totals, "fits": self.fits}

    @property
    def fits(self) -> bool:
        """Whether the missing bytes fit."""
        return self.free_nbytes is None or self.missing_nbytes <= self.free_nbytes

    def to_text(self) -> str:
        """Format the report, with the totals at the end."""
        title = (
            f"order {self.order}, sequence_length {self.sequence_length:,}, seed {self.seed}, "
            f"split {self.split}"
        )
        blends = [line for blend in self.blends for line in ("", *blend.to_lines())]
        table = packing_lines(self.packings) if self.packings else dataset_lines(self.rows)
        lines = [title, "", *table, *blends, "", *self._total_lines()]
        return wrap_lines("\n".join(lines))

    def _total_lines(self) -> list[str]:
        """Format the legend, the totals, and a warning if the disk is too small."""
        used = {row.last_epoch for row in self.rows}
        lines = [text for kind, text in _LAST_EPOCH_LEGEND.items() if kind in used]
        if lines:
            lines.append("")
        num_built = sum(item.committed for item in self.items)
        blends = f" and {count_noun(len(self.blends), 'blend')}" if self.blends else ""
        indices = count_noun(len(self.rows) + len(self.packings), "index", "indices")
        samples = count_noun(self.num_samples, "sample")
        lines.append(f"{indices}{blends}, {num_built:,} of them built; {samples}")
        free = "any amount" if self.free_nbytes is None else format_nbytes(self.free_nbytes)
        lines.append(f"{format_nbytes(self.missing_nbytes)} to write, {free} free at {self.index}")
        if self.forecast is not None and self.forecast.seconds_alone >= _LEAST_SECONDS:
            lines.append(
                f"forecast: {self.forecast.seconds_alone:,.0f} s on a machine like this one, "
                f"{self.forecast.seconds:,.0f} s on {self.forecast.num_nodes:,}, more do not help; "
                "zindex bench measures"
            )
        if not self.fits:
            lines.append("Not enough room: free some, or set another index folder.")
        return lines


def report_run(config: RunConfig, *, num_packed: int = NUM_PACKED) -> PlanReport:
    """Return the report of a run, with the status of its index folder.

    Parameters
    ----------
    config
        The run.
    num_packed
        Documents to pack for an estimate of packed indices.

    Raises
    ------
    StoreNotFoundError, SourceError
        If a dataset is missing or damaged.
    PlanError
        If samples are requested of a split without tokens.
    """
    warn_of_duplicates(dataset.path for dataset in config.members)
    plan = plan_run(config)
    statuses = [item.plan.store_plan(config.index).read_status() for item in plan]
    free = free_nbytes(place_of(config.index))
    report = make_report(config, plan, statuses, free, num_packed=num_packed)
    missing = [item for item, status in zip(plan, statuses, strict=True) if not status.committed]
    if missing:
        job = describe_stores(config, missing)
        report = replace(report, forecast=forecast_nodes(job, num_threads=count_cpus()))
    return report


def make_report(
    config: RunConfig,
    plan: RunPlan,
    statuses: Sequence[StoreStatus],
    free: int | None,
    *,
    num_packed: int = NUM_PACKED,
) -> PlanReport:
    """Return the report of a planned run.

    Parameters
    ----------
    config
        The run.
    plan, statuses
        Its indices and blends in the order of the plan, and the status of each.
    free
        Free bytes of the index folder; None: unlimited.
    num_packed
        Documents to pack for an estimate of packed indices.
    """
    left = iter(statuses)
    rows = tuple(_make_row(item, next(left)) for item in plan.indices)
    length = max(min(_LEAST_PACKED, num_packed), num_packed // max(1, len(plan.packings)))
    packed = tuple(
        _make_packing_row(item, next(left), config.index, length) for item in plan.packings
    )
    num_samples = {(row.dataset, row.split): row.num_samples for row in (*rows, *packed)}
    return PlanReport(
        **{name: getattr(config, name) for name in ("order", "seed", "sequence_length", "split")},
        index=str(place_of(config.index)),
        free_nbytes=free,
        rows=rows,
        blends=tuple(
            make_blend_report(config, blend, next(left), num_samples) for blend in plan.blends
        ),
        packings=packed,
    )


def _make_row(item: PlannedIndex[IndexPlan], status: StoreStatus) -> PlanRow:
    """Return the row of one index."""
    plan = item.plan
    tokens, epochs = plan.epochs.tokens_per_epoch, plan.epochs
    fields = index_fields(item, status, plan.nbytes, status.num_shards, tokens, epochs)
    return PlanRow(**fields, last_epoch=_describe_last_epoch(plan))


def _describe_last_epoch(plan: IndexPlan) -> LastEpoch:
    """Describe the shuffle of the last epoch."""
    if plan.epochs.num_epochs == 1:
        return "one epoch"
    if plan.order == "scalable":
        return "each apart"
    return "apart" if plan.epochs.separate_final_epoch else "mixed"
