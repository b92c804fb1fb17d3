"""What a dataset offers so that loader workers can share it part by part."""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

Sample = dict[str, Any]


@runtime_checkable
class PartedDataset(Protocol):
    """A source whose samples come in parts, each of them read in one go by one loader worker.

    Parts never depend on ranks or loader workers: a part gives the same samples in the same order
    wherever and whenever it is read. That is all that exact resuming asks of a source. The samples
    become the reader's, which labels them: a source that keeps its own yields copies.
    """

    #: Parts of one epoch.
    num_parts: int
    #: Samples of a part among which the next one is drawn at random; 0 or 1: none.
    shuffle_buffer: int
    #: Damaged samples and files that were left out in this process so far. A source that never
    #: leaves any out may say so by ``may_skip = False``.
    num_skipped: int

    def read_part(self, part: int) -> Iterator[Sample]:
        """Return the samples of a part, each with ``__url__`` and ``__key__``."""
        ...

    def fingerprint(self) -> str:
        """Return what the states of this source hold for: other content has another fingerprint."""
        ...


@runtime_checkable
class UrlDataset(Protocol):
    """A source that can also be read file by file, as cogdata's order of files asks."""

    urls: list[str]
    shuffle_buffer: int
    num_skipped: int

    def read_url(self, number: int) -> Iterator[Sample]:
        """Return the samples of a file, each with ``__url__`` and ``__key__``."""
        ...

    def fingerprint(self) -> str:
        """Return what the states of this source hold for."""
        ...
