"""The figures of a report: everything that its pages show, as data."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from zindex.config import RunConfig, as_config
from zindex.errors import ConfigError, PlanError, StoreNotFoundError, check_whole
from zindex.inspection.answers.documents import Decoder, as_decoder
from zindex.inspection.answers.run_order import RunLike, RunOrder
from zindex.inspection.tables.blend_table import largest_rows
from zindex.inspection.tables.plan_table import PlanReport, report_run
from zindex.reporting.drawn_datasets import DatasetFigures, describe_datasets
from zindex.reporting.limits import Limit, find_limits
from zindex.reporting.mix import (
    FillFigures,
    MixFigures,
    measure_fill,
    measure_mix,
)
from zindex.reporting.observations import (
    MAX_OBSERVED,
    Observations,
    join_observations,
    observe,
)
from zindex.reporting.read_simulator import (
    ReadFigures,
    ReadSettings,
    choose_settings,
    simulate_reads,
)
from zindex.reporting.shown_samples import ShownSample, choose_shown, show_samples
from zindex.reporting.shuffle_quality import ShuffleTest, measure_shuffle, rank_places

# Points of the picture of the order.
_MAX_POINTS = 1_200


@dataclass(frozen=True, slots=True)
class RunFigures:
    """All figures of the report of one run."""

    name: str
    split: str
    plan: PlanReport
    #: Samples of the run; None if its order cannot be read and no blend is planned.
    num_samples: int | None
    #: Tokens of these samples without padding, an estimate unless all were read.
    num_tokens: int | None
    sequence_length: int
    num_edits: int
    #: Why the order was not read; None if it was.
    problem: str | None
    #: Samples that were read; fewer than there are if the run is long.
    num_observed: int
    datasets: tuple[DatasetFigures, ...]
    limits: tuple[Limit, ...]
    tests: tuple[ShuffleTest, ...] = ()
    #: Positions, and places in the dataset, of samples of the one with the most documents read.
    points: tuple[tuple[int, float], ...] = ()
    points_dataset: str = ""
    mix: MixFigures | None = None
    fill: FillFigures | None = None
    reads: ReadFigures | None = None
    reads_problem: str | None = None
    samples: tuple[ShownSample, ...] = ()
    #: Why texts are not decoded; None if they are.
    samples_problem: str | None = None

    @property
    def is_exact(self) -> bool:
        """Whether every sample of the run was read."""
        return self.num_samples is not None and self.num_observed == self.num_samples

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        own = {
            "plan": self.plan.to_json(),
            "tests": [test.to_json() for test in self.tests],
            "reads": None if self.reads is None else self.reads.to_json(),
            "is_exact": self.is_exact,
        }
        return asdict(self) | own


def measure_run(
    run: RunLike,
    *,
    split: str = "train",
    reads: ReadSettings | Mapping[str, Any] | None = None,
    num_shown: int = 6,
    tokenizer: Any = True,
    max_observed: int = MAX_OBSERVED,
) -> RunFigures:
    """Return the figures of a run; see `zindex.report` for the arguments.

    Raises
    ------
    PlanError
        If the split has no samples.
    """
    check_whole("max_observed", max_observed, 64)
    config = as_config(run)
    name = str(run) if isinstance(run, str | os.PathLike) else "run"
    plan = report_run(config)
    if not any(row.split == split for row in (*plan.rows, *plan.packings)):
        known = sorted({row.split for row in (*plan.rows, *plan.packings)})
        raise PlanError(
            f"a report needs a split with samples, {split} has none; choose one of "
            f"{', '.join(known)}"
        )
    orders, problem = _open_orders(config, plan, split)
    seen = None
    if orders:
        room = max_observed // len(orders)
        seen = join_observations([observe(each, room) for each in orders])
    order = orders[0] if len(orders) == 1 else None
    datasets = describe_datasets(config, plan, split, order, seen)
    blend = next((each for each in plan.blends if each.split == split), None)
    num_samples = len(order) if order else blend.num_samples if blend else None
    num_tokens = None if num_samples is None else num_samples * config.sequence_length
    if order is not None and seen is not None:  # edits may change the length of samples
        num_tokens = round(seen.num_inputs.mean() * len(order))
    figures = RunFigures(
        name=name,
        split=split,
        plan=plan,
        num_samples=num_samples,
        num_tokens=num_tokens,
        sequence_length=config.sequence_length,
        num_edits=order.num_edits if order else 0,
        problem=problem,
        num_observed=0 if seen is None else len(seen.positions),
        datasets=datasets,
        limits=find_limits(config, split, num_samples, num_tokens, datasets),
    )
    if seen is not None:
        segments = order.segments if order and order.plans else ()
        mixes = [(each.start, each.stop) for each in segments]
        names = {item.path: item.name for item in datasets}
        paths = [path for each in orders for path in each.paths]
        figures = replace(
            figures,
            tests=tuple(measure_shuffle(seen, mixes)),
            fill=measure_fill(seen),
            **_pick_points(seen, [names[path] for path in paths]),
            **_show(orders[:num_shown], num_shown, tokenizer),
        )
    if order is not None and seen is not None:
        figures = replace(
            figures,
            mix=measure_mix(order, seen) if order.plans else None,
            **_simulate(order, reads or {}),
        )
    return figures


def _open_orders(
    config: RunConfig, plan: PlanReport, split: str
) -> tuple[list[RunOrder], str | None]:
    """Return the order of a run, or those of its largest datasets if it has no blend."""
    rows = [row for row in (*plan.rows, *plan.packings) if row.split == split]
    try:
        if config.blend_kind is not None or len(rows) == 1:
            members = {row.dataset for row in rows}
            own = tuple(item for item in config.datasets if item.path in members)
            is_blend = config.blend_kind is not None
            return [RunOrder(config if is_blend else replace(config, datasets=own), split)], None
        largest = largest_rows([row.num_samples for row in rows])
        chosen = {rows[number].dataset for number in largest}
        own = tuple(item for item in config.datasets if item.path in chosen)
        orders = [RunOrder(replace(config, datasets=(item,)), split) for item in own]
    except StoreNotFoundError as error:
        return [], str(error)
    problem = (
        "datasets that are not blended have no common order, so there is no mix and no sequence of "
        "reads; the orders of the datasets are tested together"
    )
    return orders, problem


def _pick_points(seen: Observations, names: Sequence[str]) -> dict[str, Any]:
    """Return positions and places of samples of the dataset with the most documents read."""
    pairs = np.unique(np.stack([seen.datasets, seen.documents]), axis=1)
    dataset = int(np.argmax(np.bincount(pairs[0])))
    rows = np.flatnonzero(seen.datasets == dataset)
    if len(rows) > _MAX_POINTS:
        # Random rows, because regular ones may hide or show regular orders.
        rows = np.sort(np.random.default_rng(0).choice(rows, _MAX_POINTS, replace=False))
    places = np.round(rank_places(seen)[rows], 4).tolist()
    points = tuple(zip(seen.positions[rows].tolist(), places, strict=True))
    return {"points": points, "points_dataset": names[dataset]}


def _simulate(order: RunOrder, settings: ReadSettings | Mapping[str, Any]) -> dict[str, Any]:
    """Return the reads of a run, or why they cannot be simulated."""
    if not isinstance(settings, ReadSettings):
        settings = choose_settings(len(order), **settings)
    try:
        return {"reads": simulate_reads(order, settings)}
    except ConfigError as error:
        return {"reads_problem": str(error)}


def _show(orders: Sequence[RunOrder], num_shown: int, tokenizer: Any) -> dict[str, Any]:
    """Return samples of orders with their texts, if there is a tokenizer."""
    problem = None
    try:
        decode: Decoder | None = as_decoder(
            tokenizer, [path for own in orders for path in own.paths]
        )
    except ConfigError as error:
        if tokenizer is not True:
            raise
        decode, problem = None, str(error)
    shown: list[ShownSample] = []
    for order in orders:
        positions = choose_shown(len(order), num_shown // len(orders))
        shown += show_samples(order, positions, decode)
    return {"samples": tuple(shown), "samples_problem": problem}
