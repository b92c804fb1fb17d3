"""Readable form of samples: datasets, documents, token spans, steps and texts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from zindex.inspection.answers.documents import Decoder, source_text
from zindex.inspection.answers.run_order import RunOrder, Samples
from zindex.inspection.answers.screen import fit, fit_table
from zindex.inspection.answers.steps import Steps

# Maximum number of document spans per sample in terminal output.
_MAX_ROWS = 40


@dataclass(frozen=True, slots=True)
class TracedPart:
    """A span of a document in a sample."""

    document: int
    #: Token range in the document, half-open.
    start: int
    stop: int
    #: Decoded text; None if it was not decoded.
    text: str | None = None
    #: Fields of its source that the corpus keeps, such as id and url.
    source: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class TracedSample:
    """The sample at one position of a run."""

    position: int
    #: Step and rank that consume it; None if the batch size is unknown.
    step: int | None
    rank: int | None
    #: Path of the dataset, and its index in the run.
    dataset: str
    dataset_id: int
    #: Sample number in the index of the dataset, before shuffling.
    sample: int
    #: Epoch of the dataset at the start of the sample.
    epoch: int
    #: Spans in order, including tokens that are only labels, such as the last of a sample.
    parts: tuple[TracedPart, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, omitting texts and sources that are unknown."""
        parts = [
            {name: value for name, value in asdict(part).items() if value is not None}
            for part in self.parts
        ]
        return asdict(self) | {"parts": parts}


def describe_samples(
    order: RunOrder,
    samples: Samples,
    steps: Steps | None = None,
    decode: Decoder | None = None,
    *,
    with_sources: bool = False,
) -> tuple[TracedSample, ...]:
    """Return readable samples, in the order of the requested positions.

    Parameters
    ----------
    order, samples
        The run, and samples that it returned.
    steps
        Batches of the training run, for steps and ranks.
    decode
        Function that decodes tokens; None omits the texts.
    with_sources
        Whether to read the fields of the documents' sources that the corpora keep.
    """
    none = [None] * len(samples.positions)
    numbers = none if steps is None else steps.steps_of(samples.positions).tolist()
    ranks = none if steps is None else steps.ranks_of(samples.positions).tolist()
    paths = [order.paths[number] for number in samples.datasets.tolist()]
    parts: list[list[TracedPart]] = [[] for _ in paths]
    rows = list(zip(*(column.tolist() for column in samples.parts), strict=True))
    sources = _read_sources(order, samples) if with_sources else [None] * len(rows)
    for (owner, document, start, stop), source in zip(rows, sources, strict=True):
        text = None
        if decode is not None:
            text = decode(order.documents.read(paths[owner], document, start, stop).tolist())
        parts[owner].append(TracedPart(document, start, stop, text, source))
    columns = (samples.positions, samples.datasets, samples.samples, samples.epochs)
    facts = zip(*(column.tolist() for column in columns), strict=True)
    return tuple(
        TracedSample(
            position=position,
            step=numbers[row],
            rank=ranks[row],
            dataset=paths[row],
            dataset_id=dataset,
            sample=sample,
            epoch=epoch,
            parts=tuple(parts[row]),
        )
        for row, (position, dataset, sample, epoch) in enumerate(facts)
    )


def _read_sources(order: RunOrder, samples: Samples) -> list[dict[str, Any] | None]:
    """Return the kept fields of the document of each span; each dataset is read at once."""
    owners, documents = samples.parts.owners, samples.parts.documents
    found: list[dict[str, Any] | None] = [None] * len(owners)
    datasets = samples.datasets[owners]
    for dataset in np.unique(datasets).tolist():
        places = np.flatnonzero(datasets == dataset)
        own = order.documents.read_sources(order.paths[dataset], documents[places])
        for place, source in zip(places.tolist(), own, strict=True):
            found[place] = source
    return found


def dataset_lines(samples: Sequence[TracedSample], labels: dict[str, str]) -> list[str]:
    """Format a table of the datasets of samples."""
    counts = Counter(sample.dataset for sample in samples)
    rows = []
    for path, count in counts.most_common():
        own = [sample for sample in samples if sample.dataset == path]
        epochs = sorted({sample.epoch for sample in own})
        row = {"dataset": labels.get(path, path), "samples": f"{count:,}"}
        row["documents"] = f"{len({part.document for each in own for part in each.parts}):,}"
        row["tokens"] = f"{sum(part.stop - part.start for each in own for part in each.parts):,}"
        row["epochs"] = f"{epochs[0]}" if len(epochs) == 1 else f"{epochs[0]} to {epochs[-1]}"
        rows.append(row)
    return fit_table(rows, text_columns=("dataset", "epochs"), wide="dataset")


def sample_lines(samples: Sequence[TracedSample], labels: dict[str, str]) -> list[str]:
    """Format a table of samples with one row per document span; long samples are truncated."""
    rows: list[dict[str, str]] = []
    details: list[list[str]] = []
    for sample in samples:
        for part in sample.parts:
            row = {"position": f"{sample.position:,}"}
            if sample.step is not None:
                row |= {"step": f"{sample.step:,}", "rank": f"{sample.rank}"}
            row |= {"dataset": labels.get(sample.dataset, sample.dataset)}
            row |= {"epoch": f"{sample.epoch}", "document": f"{part.document:,}"}
            row |= {"tokens": f"{part.start}:{part.stop}"}
            rows.append(row)
            source = [] if part.source is None else [source_text(part.source)]
            details.append(source if part.text is None else [*source, repr(part.text)])
            if len(rows) > _MAX_ROWS:
                break
    shown = fit_table(rows[:_MAX_ROWS], text_columns=("dataset",), wide="dataset")
    lines = shown[:1]
    for line, own in zip(shown[1:], details, strict=False):
        lines += [line, *(fit(f"    {text}") for text in own)]
    if len(rows) > _MAX_ROWS:
        num_parts = sum(len(sample.parts) for sample in samples)
        lines.append(f"  and {num_parts - _MAX_ROWS:,} more parts; --json lists all")
    return lines


def as_span(position: int | tuple[int, int] | range) -> tuple[int, int]:
    """Return a position, or a half-open range of positions, as its bounds."""
    if isinstance(position, int | np.integer):
        return int(position), int(position) + 1
    start, stop = (position.start, position.stop) if isinstance(position, range) else position
    return start, stop
