"""The datasets of a run: what the run draws of each, and what there is."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zindex.config import RunConfig
from zindex.indexing.run_plan import label_paths, plan_run
from zindex.inspection.answers.run_order import RunOrder
from zindex.inspection.tables.blend_table import BlendRow
from zindex.inspection.tables.plan_table import PlanReport
from zindex.maintenance.edits.order_sources import CutSource
from zindex.reporting.document_lengths import DocumentLengths, measure_lengths
from zindex.reporting.mix import mean_targets
from zindex.reporting.observations import Observations

# Largest datasets whose document lengths are read.
_MAX_LENGTHS = 20


@dataclass(frozen=True, slots=True)
class DatasetFigures:
    """One dataset of a run."""

    #: Short name, and path.
    name: str
    path: str
    #: Share of the samples that the weights intend in the whole run; None without a blend.
    target: float | None
    #: Samples drawn, whether that is an estimate, and their share of the run.
    num_samples: int
    is_estimate: bool
    share: float
    #: Tokens drawn, in epochs of the dataset; None if unknown.
    num_epochs: float | None
    #: Share of its samples that are from the second or a later epoch; None if they were not read.
    repeated_share: float | None
    #: Documents and tokens of one epoch of the split.
    num_documents: int
    num_tokens: int
    #: Whether max_epochs limits it.
    is_capped: bool
    #: Lengths of its documents; only of the largest datasets.
    lengths: DocumentLengths | None = None


def describe_datasets(
    config: RunConfig,
    plan: PlanReport,
    split: str,
    order: RunOrder | None = None,
    seen: Observations | None = None,
) -> tuple[DatasetFigures, ...]:
    """Return the datasets of a run.

    Parameters
    ----------
    config, plan, split
        The run.
    order, seen
        Its order and samples of it; without them, figures are those of the plan.

    Returns
    -------
    datasets
        In the order of the run, those that edits added last. What is drawn of a dataset is counted
        if all samples were read, estimated from some for a long run with edits, and planned
        otherwise.
    """
    rows = {row.dataset: row for row in (*plan.rows, *plan.packings) if row.split == split}
    blends = [blend for blend in plan.blends if blend.split == split]
    blended = {row.dataset: row for blend in blends for row in blend.rows}
    paths = order.paths if order else tuple(blended or rows)
    labels, sizes = label_paths(paths), [_size_epoch(rows.get(path), order, path) for path in paths]
    targets = [blended[path].share if path in blended else None for path in paths]
    if order and blends:
        targets = mean_targets(order).tolist()
    found = [
        DatasetFigures(
            name=labels[path],
            path=path,
            target=targets[number],
            **_planned(blended.get(path), rows.get(path)),
            num_documents=sizes[number][0],
            num_tokens=sizes[number][1],
        )
        for number, path in enumerate(paths)
    ]
    if order is not None and seen is not None:
        found = _count_drawn(found, order, seen)
    total = max(1, sum(item.num_samples for item in found))
    found = [replace(item, share=item.num_samples / total) for item in found]
    return _with_lengths(config, split, found)


def _planned(blended: BlendRow | None, row: Any) -> dict[str, Any]:
    """Return what a plan draws of a dataset."""
    fields: dict[str, Any] = {"is_estimate": False, "share": 0.0, "repeated_share": None}
    if blended is not None:
        own = {"num_samples": blended.num_samples, "num_epochs": blended.num_epochs}
        return fields | own | {"is_capped": blended.capped}
    own = {"num_samples": row.num_samples, "num_epochs": float(row.num_epochs)} if row else {}
    return fields | {"num_samples": 0, "num_epochs": None, "is_capped": False} | own


def _size_epoch(row: Any, order: RunOrder | None, path: str) -> tuple[int, int]:
    """Return the documents and tokens of one epoch of a dataset."""
    if row is not None:
        return row.documents_per_epoch, row.tokens_per_epoch
    sources: tuple[Any, ...] = tuple(order.sources) if order else ()
    for source in sources:  # added by an edit
        if source.path == path:
            plan: Any = (source.base if isinstance(source, CutSource) else source).plan
            return plan.num_documents, plan.epochs.tokens_per_epoch
    return 0, 0


def _count_drawn(
    datasets: list[DatasetFigures], order: RunOrder, seen: Observations
) -> list[DatasetFigures]:
    """Return datasets with the samples that were read of them."""
    size, scale = len(datasets), seen.num_positions / len(seen.positions)
    samples = np.bincount(seen.datasets, minlength=size)
    tokens = np.bincount(seen.datasets, seen.num_inputs, size) * scale
    repeated = np.bincount(seen.datasets, seen.epochs > 0, size) / np.maximum(samples, 1)
    counted = []
    for number, item in enumerate(datasets):
        item = replace(item, repeated_share=float(repeated[number]))
        if seen.is_exact or order.num_edits or not order.plans:
            item = replace(
                item,
                num_samples=round(int(samples[number]) * scale),
                num_epochs=float(tokens[number]) / item.num_tokens if item.num_tokens else None,
                is_estimate=not seen.is_exact and len(order.paths) > 1,
            )
        counted.append(item)
    return counted


def _with_lengths(
    config: RunConfig, split: str, datasets: list[DatasetFigures]
) -> tuple[DatasetFigures, ...]:
    """Return datasets with the lengths of the documents of the largest ones."""
    by_size = sorted(datasets, key=lambda item: -item.num_samples)
    largest = {item.path for item in by_size[:_MAX_LENGTHS]}
    members = [
        item
        for item in plan_run(config).members
        if item.plan.split == split and item.dataset in largest
    ]
    lengths = {
        item.dataset: measure_lengths(item.source, item.plan.start, item.plan.stop)
        for item in members
    }
    return tuple(replace(item, lengths=lengths.get(item.path)) for item in datasets)
