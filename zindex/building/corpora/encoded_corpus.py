"""A corpus whose tokens lie in files of streams beside the store: what is written out of them."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex.building.corpora.parted_corpus import PartedCorpus
from zindex.building.corpora.text_documents import EncodedSegment
from zindex.errors import NotReadyError
from zindex.store.objects import Place
from zindex.store.scratch import read_note, read_stream, stored_nbytes, write_note

_TABLE = "corpus"


class EncodedCorpus(PartedCorpus):
    """The sequences, documents and tokens of all segments by position.

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

    def sequence_modes(self, start: int, stop: int) -> npt.NDArray[np.int8]:
        """Return zeros: texts have no modes."""
        return np.zeros(stop - start, np.int8)

    def _part_lengths(self, number: int, start: int, stop: int) -> npt.NDArray[np.int32]:
        return self._read(number, 1, start, stop)

    def _part_pointers(self, number: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        return _starts(self._read(number, 1, 0, stop))[start:] * self.dtype.itemsize

    def _part_documents(self, number: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        return _starts(self._read(number, 2, 0, stop))[start:]

    def _fill_tokens(self, number: int, start: int, out: npt.NDArray[Any]) -> None:
        self._fill(number, 0, start, out)

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
