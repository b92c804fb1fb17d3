"""A window of tokenised texts, of which whole documents are packed into sequences by best fit."""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch

from zindex.arrays import Int64Array
from zindex.kernels.packing import SPLIT, FitRules, pack_documents
from zindex.plan.packing import PackingRules
from zindex.samples.tensors import fill_boundaries


class PackedText(NamedTuple):
    """A text to pack, and what earlier sequences have of it."""

    sample: Mapping[str, Any]
    #: Number of its tokens that earlier sequences have; 0 if documents are packed whole.
    num_tokens: int = 0
    #: Where the text is, for `Piece`.
    place: Any = None
    #: Numbers of the pieces that no earlier sequence has; None for all.
    pieces: Collection[int] | None = None


class Piece(NamedTuple):
    """A document, or adjacent tokens of one that is too long for a sequence."""

    tokens: Int64Array
    url: Any
    key: Any
    #: ``place`` of the text.
    place: Any
    #: Number of the piece in its text.
    number: int


class DocumentWindow:
    """Pieces of documents that have been read, and the sequences that they make.

    Parameters
    ----------
    room
        Tokens of a sequence, > 0.
    overlap
        Tokens that a piece of a long document shares with the previous one, 0 or 1.
    rules
        The size of sequences, and the treatment of long documents.
    size
        Pieces to choose from.

    Notes
    -----
    Law: the pieces that are left determine the next sequences, because without those of one
    sequence, best-fit decreasing makes the other sequences again.
    """

    def __init__(self, room: int, overlap: int, rules: PackingRules, size: int) -> None:
        self._room, self._overlap, self._rules, self._size = room, overlap, rules, size
        self._pieces: dict[int, Piece] = {}  # in the order of reading
        self._numbers = count()
        self._plan: deque[list[int]] | None = None

    def add(self, text: PackedText, ids: Int64Array) -> None:
        """Add the pieces of a text that no earlier sequence has."""
        room = self._room
        if len(ids) > room:
            if self._rules.long_documents == "drop":
                return
            if self._rules.long_documents == "truncate":
                ids = ids[:room]
        starts = range(0, max(len(ids) - self._overlap, len(ids) > 0), room - self._overlap)
        for number, start in enumerate(starts):
            if text.pieces is None or number in text.pieces:
                url, key = text.sample.get("__url__"), text.sample.get("__key__")
                # A copy, so that a short piece does not keep a long text.
                tokens = ids[start : start + room].copy()
                self._pieces[next(self._numbers)] = Piece(tokens, url, key, text.place, number)
        self._plan = None

    def sequences(self, fill: Callable[["DocumentWindow"], None]) -> Iterator[list[Piece]]:
        """Yield the pieces of each sequence, that of the oldest piece first.

        The emptiest sequence waits for further texts.

        Parameters
        ----------
        fill
            Called when less than half of the window is left. Adds texts until `is_full`, or there
            are none.
        """
        while True:
            if 2 * len(self._pieces) < self._size:
                fill(self)
            if not self._pieces:
                return
            if self._plan is None:
                self._plan = self._pack()
            yield [self._pieces.pop(number) for number in self._plan.popleft()]

    @property
    def is_full(self) -> bool:
        """Whether it has all pieces to choose from."""
        return len(self._pieces) >= self._size

    @property
    def is_empty(self) -> bool:
        """Whether all pieces are in sequences."""
        return not self._pieces

    def places(self) -> list[tuple[Any, int]]:
        """Return the place and number of each piece that is left, in the order of reading."""
        return [(piece.place, piece.number) for piece in self._pieces.values()]

    def _pack(self) -> deque[list[int]]:
        """Return the numbers of the pieces of each sequence."""
        numbers = np.fromiter(self._pieces, np.int64, len(self._pieces))
        lengths = np.array([len(piece.tokens) for piece in self._pieces.values()], np.int64)
        rules = FitRules(self._room, 0, self._rules.max_documents, SPLIT)
        packing = pack_documents(lengths, numbers, rules)
        bounds = packing.sample_offset
        sequences = [one.tolist() for one in np.split(packing.part_index[:, 0], bounds[1:-1])]
        places = np.searchsorted(numbers, packing.part_index[:, 0])
        totals = np.add.reduceat(lengths[places], bounds[:-1])
        last = sequences.pop(-1 - int(totals[::-1].argmin()))
        return deque([*sorted(sequences), last])


def mark_documents(
    sample: dict[str, Any], borders: Int64Array, num_tokens: int, num_boundaries: int
) -> Int64Array:
    """Add the fields of documents to the sample of a sequence.

    Parameters
    ----------
    sample
        Has ``tokens``, and ``loss_mask``, which becomes 0 where the label is in another document.
    borders
        Where documents start after the first one.
    num_tokens
        Tokens of the sequence and its last label that are not padding.
    num_boundaries
        Values of ``cu_seqlens``.

    Returns
    -------
    starts
        Shape (1, sequence_length), int64: where each token's document starts.
    """
    length = len(sample["tokens"])
    # Empty texts have the same border as the next one.
    offsets = np.unique(np.append(0, borders))
    bounds = np.append(offsets, num_tokens)
    bounds = bounds[bounds < length]
    arrays = {
        "tokens": sample["tokens"].numpy()[None],
        "cu_seqlens": np.empty((1, num_boundaries), np.int32),
        "max_seqlen": np.empty(1, np.int32),
    }
    columns = np.arange(len(bounds))
    starts = fill_boundaries(arrays, np.zeros_like(columns), columns, bounds)
    places = np.arange(length)
    numbers = np.searchsorted(offsets, places, side="right") - 1
    numbers[num_tokens:] = -1
    sample["loss_mask"][torch.from_numpy(offsets[1:] - 1)] = 0
    sample["position_ids"] = torch.from_numpy(places - starts[0])
    sample["document_ids"] = torch.from_numpy(numbers)
    sample["cu_seqlens"] = torch.from_numpy(arrays["cu_seqlens"][0])
    sample["max_seqlen"] = torch.tensor(int(arrays["max_seqlen"][0]), dtype=torch.int32)
    return starts
