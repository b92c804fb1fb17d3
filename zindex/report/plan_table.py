"""What a run will build, and what of it is there already, as a table and as JSON.

The sizes come from plans, so a report reads a few small files and writes none.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from zindex.building.run import PlannedIndex, index_status, plan_run
from zindex.config import RunConfig
from zindex.plan.index_plan import IndexPlan
from zindex.store.commit import StoreStatus
from zindex.store.local import free_nbytes, local_path

#: How a run treats the last of its epochs.
LastEpoch = Literal["one epoch", "mixed", "apart", "each apart"]

_LAST_EPOCH_LEGEND: dict[LastEpoch, str] = {
    "mixed": "mixed: the samples of all epochs are shuffled together",
    "apart": "apart: few samples of the last epoch are wanted, so it is shuffled by itself",
    "each apart": "each apart: the samples of every epoch are shuffled by themselves",
}
_HEADERS = (
    "split",
    "documents",
    "tokens",
    "wanted",
    "epochs",
    "last epoch",
    "samples",
    "to write",
    "shards",
)
_TEXT_COLUMNS = ("split", "last epoch")
_GAP = "  "


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One index of a run."""

    dataset: str
    #: Documents and tokens of the whole dataset.
    num_documents: int
    num_tokens: int
    split: str
    #: Documents and tokens of one epoch of the split.
    documents_per_epoch: int
    tokens_per_epoch: int
    #: Samples asked for; None means one epoch.
    num_requested: int | None
    num_epochs: int
    last_epoch: LastEpoch
    #: Samples that all epochs give: at least the number asked for.
    num_samples: int
    #: Bytes of values of the whole index.
    nbytes: int
    #: Bytes that are still to be written, counting finished shards as equally large.
    missing_nbytes: int
    num_shards: int
    num_done: int
    committed: bool


@dataclass(frozen=True, slots=True)
class PlanReport:
    """Everything that people ask before a build."""

    order: str
    seed: int
    sequence_length: int
    split: str
    #: Directory of the index stores.
    index: str
    #: Bytes that may still be written there.
    free_nbytes: int
    rows: tuple[PlanRow, ...]

    @property
    def missing_nbytes(self) -> int:
        """Bytes that a build would write."""
        return sum(row.missing_nbytes for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values: its fields, the totals, and ``fits``."""
        counted = ("num_samples", "nbytes", "missing_nbytes", "num_shards", "num_done")
        totals = {name: sum(getattr(row, name) for row in self.rows) for name in counted}
        return asdict(self) | {"totals": totals, "fits": self.missing_nbytes <= self.free_nbytes}

    def to_text(self) -> str:
        """Return the report as aligned lines, with a line of totals at the end."""
        title = (
            f"order {self.order}, sequence_length {self.sequence_length:,}, seed {self.seed}, "
            f"split {self.split}"
        )
        return "\n".join([title, "", *_table_lines(self.rows), "", *self._total_lines()])

    def _total_lines(self) -> list[str]:
        """Return the legend, the totals and whether there is room."""
        used = {row.last_epoch for row in self.rows}
        lines = [text for kind, text in _LAST_EPOCH_LEGEND.items() if kind in used]
        if lines:
            lines.append("")
        num_built = sum(row.committed for row in self.rows)
        num_samples = sum(row.num_samples for row in self.rows)
        lines.append(
            f"{len(self.rows):,} indices, {num_built:,} of them built; {num_samples:,} samples"
        )
        missing, free = format_nbytes(self.missing_nbytes), format_nbytes(self.free_nbytes)
        lines.append(f"{missing} to write, {free} free at {self.index}")
        if self.missing_nbytes > self.free_nbytes:
            lines.append("Not enough room: free some, or set another index folder.")
        return lines


def report_run(config: RunConfig) -> PlanReport:
    """Return the report of a run, with what its index folder holds already.

    Raises
    ------
    StoreNotFoundError, SourceError
        If a dataset is missing or damaged.
    PlanError
        If samples are asked of a split without tokens.
    """
    planned = plan_run(config)
    statuses = [index_status(item, config.index) for item in planned]
    return make_report(config, planned, statuses, free_nbytes(local_path(config.index)))


def make_report(
    config: RunConfig,
    planned: Sequence[PlannedIndex],
    statuses: Sequence[StoreStatus],
    free: int,
) -> PlanReport:
    """Return the report of planned indices, each with how far it has come.

    Parameters
    ----------
    config
        The run.
    planned
        Its indices.
    statuses
        The status of each of them.
    free
        Bytes that may be written below the index folder.
    """
    return PlanReport(
        order=config.order,
        seed=config.seed,
        sequence_length=config.sequence_length,
        split=config.split,
        index=str(local_path(config.index)),
        free_nbytes=free,
        rows=tuple(_make_row(*pair) for pair in zip(planned, statuses, strict=True)),
    )


def _make_row(item: PlannedIndex, status: StoreStatus) -> PlanRow:
    """Return the row of one index."""
    plan = item.plan
    num_missing = 0 if status.committed else status.num_shards - status.num_done
    return PlanRow(
        dataset=item.dataset,
        num_documents=plan.source.num_sequences,
        num_tokens=plan.source.num_tokens,
        split=plan.split,
        documents_per_epoch=plan.num_documents,
        tokens_per_epoch=plan.epochs.tokens_per_epoch,
        num_requested=item.num_requested,
        num_epochs=plan.epochs.num_epochs,
        last_epoch=_describe_last_epoch(plan),
        num_samples=plan.num_samples,
        nbytes=plan.nbytes,
        missing_nbytes=plan.nbytes * num_missing // max(1, status.num_shards),
        num_shards=status.num_shards,
        num_done=status.num_done,
        committed=status.committed,
    )


def _describe_last_epoch(plan: IndexPlan) -> LastEpoch:
    """Return in words how the last epoch is shuffled."""
    if plan.epochs.num_epochs == 1:
        return "one epoch"
    if plan.order == "scalable":
        return "each apart"
    return "apart" if plan.epochs.separate_final_epoch else "mixed"


def _table_lines(rows: Sequence[PlanRow]) -> list[str]:
    """Return the header, a line per dataset, and below each its splits in aligned columns."""
    cells = [_HEADERS, *(_row_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [_join_cells(_HEADERS, widths)]
    shown = None
    for row, texts in zip(rows, cells[1:], strict=True):
        if row.dataset != shown:
            shown = row.dataset
            documents, tokens = format_count(row.num_documents), format_count(row.num_tokens)
            lines.append(f"{row.dataset}: {documents} documents, {tokens} tokens")
        lines.append(_join_cells(texts, widths))
    return lines


def _row_cells(row: PlanRow) -> tuple[str, ...]:
    """Return one row's texts in the order of the headers."""
    return (
        row.split,
        format_count(row.documents_per_epoch),
        format_count(row.tokens_per_epoch),
        "all" if row.num_requested is None else format_count(row.num_requested),
        format_count(row.num_epochs),
        row.last_epoch,
        format_count(row.num_samples),
        format_nbytes(row.missing_nbytes),
        "built" if row.committed else f"{row.num_done}/{row.num_shards}",
    )


def _join_cells(texts: Sequence[str], widths: Sequence[int]) -> str:
    """Return one line: words to the left, numbers to the right."""
    aligned = [
        text.ljust(width) if header in _TEXT_COLUMNS else text.rjust(width)
        for header, text, width in zip(_HEADERS, texts, widths, strict=True)
    ]
    return (_GAP + _GAP.join(aligned)).rstrip()


def format_count(count: int) -> str:
    """Return a count for people: exact below a million, three digits above.

    Examples
    --------
    >>> format_count(999_999), format_count(1_234_567), format_count(15_000_000_000_000)
    ('999,999', '1.23 M', '15.0 T')
    """
    return _shorten(count, 1000, ("", "K", "M", "B", "T", "Q"), exact_below=1_000_000)


def format_nbytes(nbytes: int) -> str:
    """Return a size for people: exact below 10 KiB, three digits above.

    Examples
    --------
    >>> format_nbytes(4000), format_nbytes(3 << 20), format_nbytes(200 << 30)
    ('4,000 B', '3.00 MiB', '200 GiB')
    """
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    return _shorten(nbytes, 1024, units, exact_below=10_240)


def _shorten(number: int, base: int, units: Sequence[str], *, exact_below: int) -> str:
    """Return a number in the largest unit in which it is at least 1."""
    if number < exact_below:
        return f"{number:,} {units[0]}".rstrip()
    value, power = float(number), 0
    while value >= base - 0.5 and power < len(units) - 1:
        value /= base
        power += 1
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{digits}f} {units[power]}"
