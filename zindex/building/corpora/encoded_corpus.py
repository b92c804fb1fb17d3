"""A corpus whose tokens lie in files of streams beside the store: what is written out of them."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex.building.corpora.joined_corpus import cut_span
from zindex.building.corpora.text_documents import EncodedSegment
from zindex.errors import NotReadyError
from zindex.store.objects import Place
from zindex.store.scratch import read_note, read_stream, stored_nbytes, write_note

_TABLE = "corpus"


class EncodedCorpus:
    """The sequences, documents and tokens of all segments by position.

    It is at once the ``index`` and the ``tokens`` that a conversion asks for.

    Parameters
    ----------
    root
        Place beside whose files the streams lie.
    tag
        What the table of the segments is called there.
    dtype
        Of the tokens.
    segments
        In the order of the source.
    """

    has_modes = False

    def __init__(
        self, root: Place, tag: str, dtype: str, segments: Sequence[EncodedSegment]
    ) -> None:
        self.root = root
        self.tag = tag
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.segments = segments
        self._tokens = list(accumulate((item.num_tokens for item in segments), initial=0))
        self._sequences = list(accumulate((item.num_sequences for item in segments), initial=0))
        self._documents = list(accumulate((item.num_documents for item in segments), initial=0))

    def save(self) -> "EncodedCorpus":
        """Write the table of segments, of which tasks make the corpus again; return this."""
        rows = [segment.to_json() for segment in self.segments]
        write_note(self.root, f"{self.tag}-{_TABLE}", {"dtype": self.dtype.name, "rows": rows})
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return load_corpus, (self.root, self.tag)

    @property
    def prefix(self) -> str:
        """What tasks are called by."""
        return self.root.name

    @property
    def path(self) -> str:
        """Where the tokens are."""
        return str(self.root)

    @property
    def index(self) -> "EncodedCorpus":
        """Sequences and documents: this object."""
        return self

    @property
    def tokens(self) -> "EncodedCorpus":
        """Tokens by position: this object."""
        return self

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences."""
        return self._tokens[-1]

    @property
    def num_sequences(self) -> int:
        """Stored runs of tokens."""
        return self._sequences[-1]

    @property
    def num_documents(self) -> int:
        """Documents."""
        return self._documents[-1]

    @property
    def bin_nbytes(self) -> int:
        """Bytes of all tokens."""
        return self.num_tokens * self.dtype.itemsize

    def sequence_lengths(self, start: int, stop: int) -> npt.NDArray[np.int32]:
        """Return the tokens of sequences ``[start, stop)``, int32."""
        out = np.empty(stop - start, np.int32)
        for number, first, last, place in cut_span(self._sequences, start, stop):
            out[place : place + last - first] = self._read(number, 1, first, last)
        return out

    def sequence_pointers(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the byte offsets of sequences ``[start, stop)``, int64."""
        out = np.empty(stop - start, np.int64)
        for number, first, last, place in cut_span(self._sequences, start, stop):
            starts = _starts(self._read(number, 1, 0, last)) + self._tokens[number]
            out[place : place + last - first] = starts[first:last] * self.dtype.itemsize
        return out

    def document_indices(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return entries ``[start, stop)`` of the document indices, int64."""
        out = np.full(stop - start, self.num_sequences, np.int64)
        for number, first, last, place in cut_span(self._documents, start, stop):
            starts = _starts(self._read(number, 2, 0, last)) + self._sequences[number]
            out[place : place + last - first] = starts[first:last]
        return out

    def sequence_modes(self, start: int, stop: int) -> npt.NDArray[np.int8]:
        """Return zeros: texts have no modes."""
        return np.zeros(stop - start, np.int8)

    def read(self, dtype: npt.DTypeLike, count: int, offset: int) -> npt.NDArray[Any]:
        """Return ``count`` items from byte ``offset`` of the tokens."""
        nbytes, itemsize = count * np.dtype(dtype).itemsize, self.dtype.itemsize
        start, stop = offset // itemsize, -(-(offset + nbytes) // itemsize)
        out = np.empty(stop - start, self.dtype)
        for number, first, last, place in cut_span(self._tokens, start, stop):
            self._fill(number, 0, first, out[place : place + last - first])
        skipped = offset - start * itemsize
        return out.view(np.uint8)[skipped : skipped + nbytes].view(dtype)

    def _read(self, number: int, stream: int, start: int, stop: int) -> npt.NDArray[Any]:
        """Return elements of one stream of a segment: 1 lengths, 2 sequences of documents."""
        out = np.empty(stop - start, np.int32 if stream == 1 else np.int64)
        self._fill(number, stream, start, out)
        return out

    def _fill(self, number: int, stream: int, start: int, out: npt.NDArray[Any]) -> None:
        """Fill an array with elements of one stream of a segment, of tokens if it is 0."""
        if not out.size:
            return
        segment = self.segments[number]
        sizes = segment.sizes(self.dtype.itemsize)
        base = sum(map(stored_nbytes, sizes[:stream]))
        raw = out.view(np.uint8)
        read_stream(self.root, segment.name, base, sizes[stream], start * out.itemsize, raw)


@lru_cache(maxsize=4)
def load_corpus(root: Place, tag: str) -> EncodedCorpus:
    """Return a corpus of which `EncodedCorpus.save` has written the table.

    Raises
    ------
    NotReadyError
        If there is no table, as where the work is finished meanwhile.
    """
    note = read_note(root, f"{tag}-{_TABLE}")
    if note is None:
        raise NotReadyError(
            f"the tokens of {root} must be there until it is committed, they are gone; tokenize "
            "again",
            num_done=0,
            num_shards=1,
        )
    segments = [EncodedSegment(*row) for row in note["rows"]]
    return EncodedCorpus(root, tag, note["dtype"], segments)


def _starts(counts: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the sum of all counts before each."""
    stops: npt.NDArray[np.int64] = np.cumsum(counts, dtype=np.int64)
    stops -= counts
    return stops
