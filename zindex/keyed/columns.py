"""All values of one key of a store, one shard after the other, and where records begin in them.

What columns offer is here, and how spans of several are read in one round. The kinds of columns are
in `zindex.keyed.mapped_column` and `zindex.keyed.zarr_column`. Neither copies anything into shared
memory: a column pickles as the description of its files.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

#: What becomes of values on their way: nothing, int64, or whether they are not 0.
Form = Literal["copy", "int64", "bool"]


class Column(Protocol):
    """The values of one key."""

    @property
    def key(self) -> str:
        """The key."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values as they are stored."""
        ...

    @property
    def length(self) -> int:
        """Values of all shards."""
        ...

    @property
    def num_records(self) -> int | None:
        """Records; None where it is not known where they begin."""
        ...

    @property
    def has_groups(self) -> bool:
        """Whether a record is a group of items, each of a length of its own."""
        ...

    def record_offset(self, start: int, stop: int) -> Int64Array:
        """Return where records ``[start, stop)`` begin, and where the last one ends."""
        ...

    def record_spans(self, records: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return where records begin and end."""
        ...

    def item_lengths(self, records: Int64Array) -> list[Int64Array]:
        """Return the lengths of the items of each of some records."""
        ...

    @staticmethod
    def read_round(requests: "Sequence[Request]") -> None:
        """Fill the targets of requests of columns of this class; see `read_columns`."""
        ...


class Spans(NamedTuple):
    """Runs of values, and where each goes; requests that share one are read at a time."""

    #: Shape (spans,), int64: values of a column.
    starts: Int64Array
    stops: Int64Array
    #: Shape (spans,), int64: value of the flat target.
    places: Int64Array


class Request(NamedTuple):
    """Spans of a column that are wanted, and where they go."""

    column: Column
    spans: "Spans"
    #: C order, of any shape.
    target: Array
    form: Form = "copy"
    #: How many values further on than the spans say.
    shift: int = 0


def read_columns(requests: Sequence[Request]) -> None:
    """Fill targets with spans of columns, in one round for all of them.

    Parameters
    ----------
    requests
        What is wanted. Spans must lie in their columns and targets: callers check their users'.
        Values of targets that no span covers stay as they are.

    Raises
    ------
    SourceError
        If a file is no longer what it was when the store was loaded.
    VerificationError
        If a chunk of a Zarr store fails its checksum.
    """
    rounds: dict[Callable[[Sequence[Request]], None], list[Request]] = {}
    for request in requests:
        rounds.setdefault(request.column.read_round, []).append(request)
    for read_round, wanted in rounds.items():
        read_round(wanted)


def put_truth(request: Request, values: Array) -> None:
    """Write of the spans of a request whether they are not 0, and nothing else of its target.

    Parameters
    ----------
    request
        What was wanted.
    values
        In the shape of its target: the values themselves at the spans' places.
    """
    flat, source = request.target.reshape(-1), values.reshape(-1)
    lengths = request.spans.stops - request.spans.starts
    for place, length in zip(request.spans.places.tolist(), lengths.tolist(), strict=True):
        flat[place : place + length] = source[place : place + length] != 0
