"""Tables of the samples that the blends of a run draw from each dataset."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zindex.config import RunConfig
from zindex.inspection.tables.formatting import (
    format_count,
    format_epochs,
    format_nbytes,
    format_share,
    table_lines,
)
from zindex.plan.blend_request import BlendKind
from zindex.store.commit import StoreStatus
from zindex.wording import count_noun

if TYPE_CHECKING:  # planning imports kernels and their compiler
    from zindex.indexing.run_plan import PlannedBlend

#: Maximum number of rows; the largest datasets are shown. JSON output has all of them.
MAX_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSize:
    """Size of a store in a run, and how much of it remains to be written."""

    #: Size of all arrays in the store, in bytes.
    nbytes: int
    #: Bytes still to write, assuming shards of equal size.
    missing_nbytes: int
    num_shards: int
    num_done: int
    committed: bool


def size_fields(nbytes: int, num_shards: int, status: StoreStatus) -> dict[str, Any]:
    """Return the fields of a `StoreSize`."""
    num_missing = 0 if status.committed else max(0, num_shards - status.num_done)
    return {
        "nbytes": nbytes,
        "missing_nbytes": nbytes * num_missing // max(1, num_shards),
        "num_shards": num_shards,
        "num_done": status.num_done,
        "committed": status.committed,
    }


@dataclass(frozen=True, slots=True)
class BlendRow:
    """One dataset of a blend; its row number is its id in ``dataset_index``."""

    dataset: str
    #: Configured weight, tokens or epochs; None if not configured.
    given: float | None
    #: Samples that the blend draws; Megatron's order may differ by a few.
    num_samples: int
    #: Share of the blend.
    share: float
    #: Epochs of the dataset in the blend.
    num_epochs: float | None
    #: Whether max_epochs limits it.
    capped: bool
    #: Requested samples of its index; None means one epoch.
    num_requested: int | None
    #: Number of samples in its index, which has whole epochs.
    num_index_samples: int | None


@dataclass(frozen=True, slots=True)
class BlendReport(StoreSize):
    """The blend of one split."""

    split: str
    #: Basis of the shares; ``"sizes"`` for one epoch of each dataset.
    kind: BlendKind
    order: str
    #: Shuffle of the scalable order; None in Megatron's order.
    shuffle: str | None
    #: Whether every counted sample is drawn.
    exhaustive: bool
    num_samples: int
    rows: tuple[BlendRow, ...]

    def to_lines(self) -> list[str]:
        """Format a summary line of the blend and a table of its datasets."""
        shuffle = f", shuffle {self.shuffle}" if self.shuffle else ""
        whole = ", one epoch" if self.kind == "sizes" and self.exhaustive else ""
        progress = "built" if self.committed else f"{self.num_done}/{self.num_shards} shards"
        first = (
            f"blend of {self.split} by {self.kind}: {format_count(self.num_samples)} samples"
            f"{whole} of {count_noun(len(self.rows), 'dataset')}; order {self.order}{shuffle}; "
            f"{format_nbytes(self.nbytes)}, {progress}"
        )
        ids = largest_rows([row.num_samples for row in self.rows])
        lines = [first, *self._table_lines([self.rows[i] for i in ids])]
        shown = set(ids)
        rest = [row for i, row in enumerate(self.rows) if i not in shown]
        if rest:
            num_capped = sum(row.capped for row in rest)
            capped = f", {num_capped:,} of them capped" if num_capped else ""
            lines.append(
                f"  and {count_noun(len(rest), 'dataset')} more with "
                f"{format_share(sum(row.share for row in rest))}{capped}; --json lists all"
            )
        return lines

    def _table_lines(self, rows: Sequence[BlendRow]) -> list[str]:
        """Format the columns; paths are last because of their length."""
        # ``epochs`` is the header of the result.
        given = "given" if self.kind == "epochs" else self.kind
        cells = [
            {
                given: _format_given(row.given, self.kind),
                "samples": format_count(row.num_samples),
                "share": format_share(row.share),
                "epochs": "" if row.num_epochs is None else format_epochs(row.num_epochs),
                "to build": ""
                if row.num_index_samples is None
                else format_count(row.num_index_samples),
                "limit": "capped" if row.capped else "",
                "dataset": row.dataset,
            }
            for row in rows
        ]
        return table_lines(cells, text_columns=("limit", "dataset"))


def make_blend_report(
    config: RunConfig,
    blend: "PlannedBlend",
    status: StoreStatus,
    index_samples: Mapping[tuple[str, str], int],
) -> BlendReport:
    """Return the report of one planned blend.

    Parameters
    ----------
    config
        The run.
    blend, status
        The blend, and the status of its store.
    index_samples
        Samples of the run's indices by dataset and split.
    """
    plan, sizes = blend.plan, blend.sizes
    shares = {dataset.path: dataset.share for dataset in config.members}
    one_epoch = all(count is None for count in sizes.requested)
    rows = tuple(
        BlendRow(
            dataset=path,
            given=shares[path],
            num_samples=count,
            share=count / max(1, sizes.num_samples),
            num_epochs=None if sizes.epochs is None else sizes.epochs[i],
            capped=sizes.capped[i],
            num_requested=sizes.requested[i],
            num_index_samples=index_samples.get((path, plan.split)),
        )
        for i, (path, count) in enumerate(zip(blend.datasets, sizes.counts, strict=True))
    )
    return BlendReport(
        **{name: getattr(plan, name) for name in ("split", "order", "num_samples")},
        kind="sizes" if one_epoch else config.blend_kind or "sizes",
        shuffle=plan.shuffle if plan.order == "scalable" else None,
        exhaustive=plan.sizes is not None,
        rows=rows,
        **size_fields(plan.nbytes, status.num_shards, status),
    )


def largest_rows(sizes: Sequence[int]) -> list[int]:
    """Return the rows to show, in order: all if there are few, else the largest."""
    if len(sizes) <= MAX_SHOWN:
        return list(range(len(sizes)))
    return sorted(sorted(range(len(sizes)), key=lambda i: -sizes[i])[:MAX_SHOWN])


def _format_given(given: float | None, kind: BlendKind) -> str:
    """Format a configured share; empty if the dataset sizes determine the shares."""
    if given is None or kind == "sizes":
        return ""
    return format_count(int(given)) if kind == "tokens" else f"{given:g}"
