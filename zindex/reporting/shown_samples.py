"""Samples of a run with their texts, shortened so that they fit a page."""

from dataclasses import dataclass

import numpy as np

from zindex.arrays import Int64Array
from zindex.inspection.answers.documents import Decoder
from zindex.inspection.answers.run_order import RunOrder

# Maximum number of tokens and characters of a sample, and of its documents.
_MAX_TOKENS, _MAX_CHARACTERS, _MAX_PARTS = 1_000, 6_000, 40
# Least tokens shown of a document.
_LEAST_TOKENS = 12


@dataclass(frozen=True, slots=True)
class ShownPart:
    """A span of a document in a sample."""

    document: int
    #: Token range in the document, half-open.
    start: int
    stop: int
    #: Text of its first tokens, or their numbers.
    text: str
    #: Tokens that are left out, and the text after them.
    num_hidden: int = 0
    tail: str = ""


@dataclass(frozen=True, slots=True)
class ShownSample:
    """One sample of a run."""

    position: int
    dataset: str
    epoch: int
    sample: int
    num_tokens: int
    parts: tuple[ShownPart, ...]
    #: Documents that are left out.
    num_hidden: int


def choose_shown(num_positions: int, count: int) -> Int64Array:
    """Return positions that are spread over a run, the first and the last one included.

    Examples
    --------
    >>> choose_shown(1000, 3)
    array([  0, 500, 999])
    """
    positions = np.linspace(0, num_positions - 1, min(count, num_positions))
    return np.unique(np.rint(positions).astype(np.int64))


def show_samples(
    order: RunOrder, positions: Int64Array, decode: Decoder | None
) -> tuple[ShownSample, ...]:
    """Return samples with their texts, or with the numbers of their tokens without a decoder."""
    if not len(positions):
        return ()
    found, samples = order.read(positions), []
    for row, position in enumerate(found.positions.tolist()):
        own = np.flatnonzero(found.parts.owners == row)
        path = order.paths[int(found.datasets[row])]
        spans = [found.parts[1:][column][own].tolist() for column in range(3)]
        num_tokens = sum(stop - start for start, stop in zip(*spans[1:], strict=True))
        parts, room = [], _MAX_CHARACTERS
        for document, start, stop in list(zip(*spans, strict=True))[:_MAX_PARTS]:
            budget = max(_LEAST_TOKENS, _MAX_TOKENS * (stop - start) // num_tokens)
            part = _show_part(order, path, (document, start, stop), budget, decode, room)
            room -= len(part.text) + len(part.tail)
            parts.append(part)
            if room <= 0:
                break
        samples.append(
            ShownSample(
                position=position,
                dataset=order.labels[path],
                epoch=int(found.epochs[row]),
                sample=int(found.samples[row]),
                num_tokens=num_tokens,
                parts=tuple(parts),
                num_hidden=len(own) - len(parts),
            )
        )
    return tuple(samples)


def _show_part(
    order: RunOrder,
    path: str,
    span: tuple[int, int, int],
    budget: int,
    decode: Decoder | None,
    room: int,
) -> ShownPart:
    """Return a span of a document with at most ``budget`` tokens and ``room`` characters."""
    document, start, stop = span

    def text_of(first: int, last: int) -> str:
        tokens = order.documents.read(path, document, first, last).tolist()
        return " ".join(map(str, tokens)) if decode is None else decode(tokens)

    hidden = stop - start - budget
    if hidden <= 0:
        text = text_of(start, stop)
        return ShownPart(*span, text if len(text) <= room else text[:room] + "…")
    head, tail = start + budget * 3 // 4, stop - (budget - budget * 3 // 4)
    texts = text_of(start, head), text_of(tail, stop)
    return ShownPart(*span, texts[0][:room], tail - head, texts[1][: max(0, room - len(texts[0]))])
