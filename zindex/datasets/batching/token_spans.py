"""Any spans of the token stream that a GPT index makes of its documents, in a few rounds."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from zindex.datasets.batching.gpt_sources import Extents, read_extents, read_tokens, token_dtype
from zindex.datasets.gpt_dataset import GPTDataset
from zindex.errors import VerificationError
from zindex.store.reader import Spans, read_many

Int64Array = npt.NDArray[np.int64]


class SpanTexts(NamedTuple):
    """The tokens of spans, one span after the other, and the documents that they are parts of."""

    #: Shape (tokens,), in the dtype of the corpus.
    tokens: npt.NDArray[np.generic]
    #: Shape (parts,): which of the spans a part of a document belongs to.
    spans: Int64Array
    #: Shape (parts,): number of the document.
    documents: Int64Array
    #: Shape (parts,): token of its span at which the part begins.
    offsets: Int64Array
    #: Shape (parts,): tokens of the part.
    lengths: Int64Array


def read_token_spans(dataset: GPTDataset, starts: Int64Array, stops: Int64Array) -> SpanTexts:
    """Return spans of the token stream of an index.

    Parameters
    ----------
    dataset
        The index. Its sample j is tokens ``[j * S, (j + 1) * S + x)`` of the stream.
    starts, stops
        Shape (spans,): ``[starts[i], stops[i])``, none empty, all of them tokens of its samples.

    Raises
    ------
    VerificationError
        If the index asks for tokens that a document does not hold, or data are damaged.
    """
    config = dataset.config
    length, extra = config.sequence_length, int(config.add_extra_token_to_sequence)
    wanted = stops - starts
    first = np.minimum(starts // length, len(dataset) - 1)
    last = np.maximum(-(-(stops - extra) // length), first + 1)
    boundaries = np.concatenate([first, last])
    [rows] = read_many([Spans(dataset.sample_index, boundaries, boundaries + 1)])
    (row, offset), (last_row, last_offset) = rows.astype(np.int64).reshape(2, -1, 2).swapaxes(1, 2)
    counts = last_row - row + 1
    if (counts < 1).any():
        raise _damaged(dataset, starts, stops, int(np.argmax(counts < 1)))
    [numbers] = read_many([Spans(dataset.document_index, row, last_row + 1)])
    documents = numbers.astype(np.int64)
    spans = np.repeat(np.arange(len(starts)), counts)
    last_parts = np.cumsum(counts) - 1
    first_parts = last_parts - counts + 1
    extents = read_extents([(dataset.dataset, slice(0, len(documents)))], documents)
    begins = np.zeros_like(documents)
    begins[first_parts] = offset
    ends = extents.lengths.copy()
    ends[last_parts] = last_offset + extra
    # Where each part lies, counted from the span's first token.
    lengths = ends - begins
    before = np.cumsum(lengths) - lengths
    places = before - before[first_parts][spans] - (starts - first * length)[spans]
    low = np.maximum(places, 0)
    high = np.minimum(places + lengths, wanted[spans])
    kept = np.flatnonzero(high > low)
    found = np.bincount(spans[kept], (high - low)[kept], len(starts)).astype(np.int64)
    found[spans[(begins < 0) | (lengths < 0) | (ends > extents.lengths)]] = -1
    if (found != wanted).any():
        raise _damaged(dataset, starts, stops, int(np.argmax(found != wanted)))
    documents, spans = documents[kept], spans[kept]
    offsets = low[kept]
    begins, lengths = (begins + low - places)[kept], (high - low)[kept]
    tokens = np.empty(int(wanted.sum()), token_dtype(dataset.dataset))
    read_tokens(
        [(dataset.dataset, slice(0, len(documents)))],
        documents,
        Extents(extents.starts[kept], extents.lengths[kept]),
        begins,
        lengths,
        tokens,
        (np.cumsum(wanted) - wanted)[spans] + offsets,
    )
    return SpanTexts(tokens, spans, documents, offsets, lengths)


def _damaged(
    dataset: GPTDataset, starts: Int64Array, stops: Int64Array, span: int
) -> VerificationError:
    """Return the error of a span that is not made of parts of documents."""
    return VerificationError(
        f"tokens [{starts[span]}, {stops[span]}) of {dataset._where} must be made of parts of its "
        "documents, its index gives more than they hold; restore the data if they changed, or "
        "remove the index to build it again"
    )
