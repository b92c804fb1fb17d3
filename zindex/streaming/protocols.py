"""Protocols of datasets that loader workers share part by part, and the attributes of mixtures."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from zindex.plan.percent_schedules import parse_percent

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


def is_mixture(dataset: Any) -> bool:
    """Return whether a dataset is a `MergedDataset`, without importing torch."""
    return hasattr(dataset, "set_dataloader_states")


def is_epochs(given: Any) -> bool:
    """Return whether a value can be the ``max_epochs`` of a dataset; None is no limit."""
    return given is None or (type(given) is int and given >= 1)


def find_fault(dataset: Any) -> tuple[str, str] | None:
    """Return the attribute that a dataset of a mixture lacks and its requirement, or None.

    A dataset needs a percent and, unless it is a mixture itself, a name for the keys of states.
    """
    percent: Any = getattr(dataset, "percent", None)
    if isinstance(percent, Mapping) and parse_percent(percent) is None:
        return "percent", (
            f"a percent that maps samples, from 0 on, to numbers >= 0, got {dict(percent)!r}; "
            "write it as in {0: 0.5, 1_000_000: 0.2}"
        )
    if parse_percent(percent) is None:
        return "percent", f"a percent >= 0, got {percent!r}; set its attribute percent"
    name = getattr(dataset, "name", None)
    if is_mixture(dataset) or (isinstance(name, str) and name and "@" not in name):
        return None
    return "name", f"a name without '@', got {name!r}; set its attribute name, which keys its state"
