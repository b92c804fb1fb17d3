"""Read spans of the token stream of a GPT index, and make samples of several spans.

The label of the last token of a span is the next token of the corpus, never the first token of the
next span.
"""

from typing import NamedTuple

import numpy as np

from zindex.arrays import AnyArray, BoolArray, Int64Array
from zindex.errors import VerificationError
from zindex.indexing.stream_parts import TokenSpans as TokenSpans
from zindex.indexing.stream_parts import find_stream_parts
from zindex.samples.batch import Tensors
from zindex.samples.tensors import TextSettings, make_text_tensors
from zindex.samples.texts import Bounds, IndexedText, Texts, read_bounds, read_tokens


class SpanTexts(NamedTuple):
    """The concatenated tokens of spans, and the documents that they come from."""

    #: Shape (tokens,), in the dtype of the corpus.
    tokens: AnyArray
    #: Shape (parts,): the span of each part of a document.
    spans: Int64Array
    #: Shape (parts,): number of the document.
    documents: Int64Array
    #: Shape (parts,): offset of the part in its span, in tokens.
    offsets: Int64Array
    #: Shape (parts,): tokens of the part.
    lengths: Int64Array


def read_token_spans(text: IndexedText, starts: Int64Array, stops: Int64Array) -> SpanTexts:
    """Return spans of the token stream of an index.

    Parameters
    ----------
    text
        The index. Its sample j is tokens ``[j * S, (j + 1) * S + x)`` of the stream.
    starts, stops
        Shape (spans,): ``[starts[i], stops[i])``, none empty, all within the samples.

    Raises
    ------
    VerificationError
        If the index refers to tokens that do not exist in a document, or data are damaged.
    """
    settings, sizes = text.settings, stops - starts
    known: list[Bounds] = []

    def read_lengths(documents: Int64Array) -> Int64Array:
        known.append(read_bounds([(text.documents, slice(None))], documents))
        return known[0].lengths

    parts = find_stream_parts(
        text.arrays,
        read_lengths,
        starts,
        stops,
        length=settings.sequence_length,
        extra=settings.extra,
        refuse=lambda span: _damaged(text, starts, stops, span),
    )
    tokens = np.empty(int(sizes.sum()), text.documents.tokens.dtype)
    read_tokens(
        [(text.documents, slice(None))],
        known[0].starts[parts.places] + parts.begins,
        parts.lengths,
        tokens,
        (np.cumsum(sizes) - sizes)[parts.spans] + parts.offsets,
    )
    return SpanTexts(tokens, parts.spans, parts.documents, parts.offsets, parts.lengths)


def _damaged(
    text: IndexedText, starts: Int64Array, stops: Int64Array, span: int
) -> VerificationError:
    """Return the error for a span with parts outside its documents."""
    return VerificationError(
        f"tokens [{starts[span]}, {stops[span]}) of {text.where} must be made of parts of its "
        "documents, its index gives more than they hold; restore the data if they changed, or "
        "remove the index to build it again"
    )


def make_span_tensors(
    text: IndexedText,
    spans: TokenSpans,
    settings: TextSettings,
    samples: Int64Array,
    is_padding: BoolArray,
    dataset_ids: AnyArray | None,
    epochs: Int64Array | None,
) -> Tensors:
    """Return the tensors of samples that consist of spans, by the names of a GPT item.

    Parameters
    ----------
    text
        The index of the spans.
    spans
        The spans of each sample, by its place in the batch.
    settings
        Settings of the samples.
    samples
        Shape (samples,): numbers of the samples.
    is_padding, dataset_ids, epochs
        As of `zindex.samples.tensors.make_text_tensors`.
    """
    length, extra = settings.sequence_length, settings.extra
    # With the label of the last token.
    read = read_token_spans(text, spans.starts, spans.stops + extra)
    is_last = np.append(np.diff(spans.owners) > 0, True)
    sizes = spans.stops - spans.starts
    before = np.cumsum(sizes) - sizes
    columns = before - spans.owners * length
    kept = sizes + np.where(is_last, extra, 0)
    read_starts = np.cumsum(sizes + extra) - (sizes + extra)
    tokens = np.empty((len(samples), length + extra), read.tokens.dtype)
    for owner, column, size, start in zip(
        spans.owners.tolist(), columns.tolist(), kept.tolist(), read_starts.tolist(), strict=True
    ):
        tokens[owner, column : column + size] = read.tokens[start : start + size]
    # A label that is not in its row does not belong to a document there.
    stops = np.minimum(read.offsets + read.lengths, kept[read.spans])
    parts = np.flatnonzero(stops > read.offsets)
    owners = spans.owners[read.spans[parts]]
    texts = Texts(
        tokens=tokens,
        rows=np.arange(len(samples)),
        num_tokens=np.full(len(samples), length + extra),
        samples=samples,
        first_parts=np.flatnonzero(np.append(True, np.diff(owners) > 0)),
        owners=owners,
        documents=read.documents[parts],
        lengths=(stops - read.offsets)[parts],
        offsets=read.offsets[parts] + columns[read.spans[parts]],
    )
    tensors = make_text_tensors(texts, settings, is_padding, dataset_ids, epochs)
    joints = np.flatnonzero(~is_last)
    if joints.size:
        last = spans.owners[joints], (columns + sizes - 1)[joints]
        # Without an extra token, the last tokens of spans have no labels, as in padding.
        labels = read.tokens[(read_starts + sizes)[joints]] if extra else np.array(settings.pad)
        is_pad = labels == settings.pad
        weight = ~(is_padding[last[0]] | is_pad)
        if settings.eod_mask_loss:
            weight &= tensors["tokens"].numpy()[last] != settings.eod
        tensors["labels"].numpy()[last] = np.where(is_pad, 0, labels)
        tensors["loss_mask"].numpy()[last] = weight
    return tensors
