"""The tokens of many samples of many datasets, in as few rounds of reading as one sample takes.

A round reads what it needs of all datasets at once; in object storage it is one round trip. Which
parts of documents a sample is made of, each kind of index says for itself.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex.datasets.batching.gpt_sources import (
    DocumentGroups,
    Extents,
    read_extents,
    read_tokens,
    token_dtype,
)
from zindex.datasets.batching.held_arrays import find_held, take_spans
from zindex.store.reader import Spans, read_many

AnyArray = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Texts:
    """Token ids of the samples of a batch, and where they come from.

    Samples are in the order in which they were read: those of one dataset after those of another.
    """

    #: Shape (samples, sequence_length + x), in a dtype that holds all tokens, in the order asked.
    tokens: AnyArray
    #: Shape (samples,): the row of ``tokens`` of each sample.
    rows: Int64Array
    #: Shape (samples,): tokens of each sample.
    num_tokens: Int64Array
    #: Shape (samples,): the sample's number in its dataset.
    samples: Int64Array
    #: Shape (samples,): first part of each sample.
    first_parts: Int64Array
    #: Shape (parts,): which of the samples a part of a document belongs to.
    owners: Int64Array
    #: Shape (parts,): number of the document.
    documents: Int64Array
    #: Shape (parts,): tokens of the part.
    lengths: Int64Array
    #: Shape (parts,): token of its sample at which the part begins.
    offsets: Int64Array


@dataclass(frozen=True, slots=True)
class ChosenSamples:
    """The samples of a batch in the order in which they are read: those of a dataset together."""

    #: The datasets that they are of.
    members: list[Any]
    #: The arrays of each one's index.
    indices: list[Any]
    #: The samples of each one.
    cuts: list[slice]
    #: Shape (samples,): place of each sample in the batch.
    rows: Int64Array
    #: Shape (samples,): the sample's number in its dataset.
    samples: Int64Array

    def read(self, name: str, starts: Int64Array, stops: Int64Array) -> Int64Array:
        """Return rows ``[starts[i], stops[i])`` of an array of sample i's index, for each i."""
        return read_round(
            Spans(getattr(index, name), starts[cut], stops[cut])
            for index, cut in zip(self.indices, self.cuts, strict=True)
        )

    def member_of(self, sample: int) -> Any:
        """Return the dataset of one of the samples, for messages."""
        return next(
            member
            for member, cut in zip(self.members, self.cuts, strict=True)
            if cut.start <= sample < cut.stop
        )


def choose_samples(
    datasets: Sequence[Any], which: Int64Array, positions: Int64Array
) -> ChosenSamples:
    """Return the samples that stand at positions.

    Parameters
    ----------
    datasets
        Datasets of one configuration.
    which, positions
        Shape (samples,): the dataset of each sample, and its position there from the start.
    """
    rows, edges = order_samples(which, len(datasets))
    members = [datasets[i] for i in which[rows[edges]].tolist()]
    cuts = cut_slices(edges, len(rows))
    indices = [member._open_arrays() for member in members]
    samples = read_round(
        Spans(index.shuffle_index, *find_runs(positions[rows[cut]]))
        for index, cut in zip(indices, cuts, strict=True)
    )
    return ChosenSamples(members, indices, cuts, rows, samples)


@dataclass(frozen=True, slots=True)
class Parts:
    """The documents that samples are made of parts of, sample after sample."""

    chosen: ChosenSamples
    #: Shape (parts,): number of each part's document.
    documents: Int64Array
    #: Where the documents lie.
    extents: Extents
    #: Shape (samples,): first part of each sample.
    firsts: Int64Array
    #: Shape (samples,): last part of each sample.
    lasts: Int64Array
    #: The low-level datasets, each with the documents that are its own.
    groups: DocumentGroups

    @property
    def dtype(self) -> np.dtype[Any]:
        """A dtype that holds all of their tokens."""
        dtypes = {token_dtype(source) for source, _ in self.groups}
        return dtypes.pop() if len(dtypes) == 1 else np.dtype(np.int64)

    def lay_out(self, lengths: Int64Array, tokens: AnyArray) -> Texts:
        """Return the samples with their parts one after the other, whose tokens are yet to be read.

        Parameters
        ----------
        lengths
            Shape (parts,): tokens of each part.
        tokens
            Shape (samples, width), where they will go.
        """
        owners = np.repeat(np.arange(len(self.firsts)), self.lasts - self.firsts + 1)
        before = np.cumsum(lengths) - lengths
        return Texts(
            tokens=tokens,
            rows=self.chosen.rows,
            num_tokens=np.add.reduceat(lengths, self.firsts),
            samples=self.chosen.samples,
            first_parts=self.firsts,
            owners=owners,
            documents=self.documents,
            lengths=lengths,
            offsets=before - before[self.firsts][owners],
        )

    def find_damage(self, texts: Texts, begins: Int64Array, *, min_length: int) -> int | None:
        """Return a sample that does not fit into its row, or a part of it not into its document.

        Parameters
        ----------
        texts
            The samples, laid out.
        begins
            Shape (parts,): first token of each part, counted in its document.
        min_length
            Tokens that a part has at least.
        """
        lengths = texts.lengths
        room = (texts.tokens.shape[1] - texts.num_tokens)[texts.owners]
        # Below 0 where one of them is.
        signs = begins | (lengths - min_length) | (self.extents.lengths - begins - lengths) | room
        return int(texts.owners[np.argmax(signs < 0)]) if signs.min() < 0 else None

    def read(self, texts: Texts, begins: Int64Array) -> None:
        """Read the tokens of samples that `find_damage` finds sound; arguments as there."""
        width = texts.tokens.shape[1]
        places = texts.rows[texts.owners] * width + texts.offsets
        tokens = texts.tokens.reshape(-1)
        read_tokens(
            self.groups, self.documents, self.extents, begins, texts.lengths, tokens, places
        )


def locate_parts(chosen: ChosenSamples, documents: Int64Array, counts: Int64Array) -> Parts:
    """Return where the documents lie that samples are made of.

    Parameters
    ----------
    chosen
        The samples.
    documents
        Shape (parts,): numbers of the documents, sample after sample.
    counts
        Shape (samples,): parts of each sample, at least 1.
    """
    lasts = np.cumsum(counts) - 1
    firsts = lasts - counts + 1
    sources = [member.dataset for member in chosen.members]
    edges = firsts[[cut.start for cut in chosen.cuts]]
    groups = list(zip(sources, cut_slices(edges, len(documents)), strict=True))
    return Parts(chosen, documents, read_extents(groups, documents), firsts, lasts, groups)


def order_samples(which: Int64Array, num_datasets: int) -> tuple[Int64Array, npt.NDArray[np.intp]]:
    """Return the samples in an order in which those of a dataset come together, and its starts."""
    if num_datasets == 1:
        return np.arange(len(which)), np.zeros(1, np.intp)
    rows = np.argsort(which, kind="stable")
    ordered = which[rows]
    return rows, np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))


def cut_slices(edges: npt.NDArray[np.integer[Any]], size: int) -> list[slice]:
    """Return the slices that begin at given places and together are all of ``size``."""
    starts = edges.tolist()
    return [slice(a, b) for a, b in zip(starts, [*starts[1:], size], strict=True)]


def find_runs(numbers: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return starts and stops of runs of consecutive numbers, which are read as one span.

    Examples
    --------
    >>> starts, stops = find_runs(np.array([4, 5, 6, 2, 3, 3]))
    >>> starts.tolist(), stops.tolist()
    ([4, 2, 3], [7, 4, 4])
    """
    cuts = np.flatnonzero(numbers[1:] - numbers[:-1] != 1) + 1
    if not cuts.size:
        return numbers[:1], numbers[-1:] + 1
    starts = numbers[np.concatenate(([0], cuts))]
    return starts, numbers[np.append(cuts - 1, len(numbers) - 1)] + 1


def read_round(wanted: Iterable[Spans]) -> Int64Array:
    """Return the rows of all spans, one array after another, as int64."""
    asked = list(wanted)
    rows: dict[int, AnyArray] = {}
    for i, spans in enumerate(asked):
        held = find_held(spans.reader, len(spans.starts))
        if held is not None:
            rows[i] = take_spans(held, spans.starts, spans.stops)
    missing = [i for i in range(len(asked)) if i not in rows]
    if missing:
        rows.update(zip(missing, read_many([asked[i] for i in missing]), strict=True))
    if len(asked) == 1:
        return rows[0].astype(np.int64)
    return np.concatenate([rows[i] for i in range(len(asked))], dtype=np.int64)
