"""Protocols of datasets that loader workers share part by part."""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

Sample = dict[str, Any]


@runtime_checkable
class PartitionedDataset(Protocol):
    """A source of independent parts, each of which one loader worker reads sequentially.

    Parts must be deterministic: a part gives the same samples in the same order for any rank and
    loader worker. Exact resuming requires nothing else. The reader adds fields to samples, so a
    source that caches samples must yield copies.
    """

    #: Parts of one epoch.
    num_parts: int
    #: Size of the shuffle buffer for the samples of a part; 0 or 1 disables it.
    shuffle_buffer: int
    #: Damaged samples and files skipped so far in this process. A source that never skips any may
    #: declare ``may_skip = False``.
    num_skipped: int

    def read_part(self, part: int) -> Iterator[Sample]:
        """Return the samples of a part, each with ``__url__`` and ``__key__``."""
        ...

    def fingerprint(self) -> str:
        """Return the identity of the content; states are valid only for the same identity."""
        ...


@runtime_checkable
class UrlDataset(Protocol):
    """A source that can also be read file by file, for cogdata's order of files."""

    urls: list[str]
    shuffle_buffer: int
    num_skipped: int

    def read_url(self, number: int) -> Iterator[Sample]:
        """Return the samples of a file, each with ``__url__`` and ``__key__``."""
        ...

    def fingerprint(self) -> str:
        """Return the identity of the content."""
        ...
