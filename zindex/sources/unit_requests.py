"""What a process keeps of the units that it reads: requests for the next ones, a shared group."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from zindex.io.request_threads import DaemonPool, ForkSafePool
from zindex.sources.sample_offsets import RawSample
from zindex.sources.sample_requests import SampleRequests

# Units that are requested in advance, and requests of a source at a time.
_MAX_AHEAD, _NUM_THREADS = 64, 64


class Unit(NamedTuple):
    """A unit of samples to read."""

    part: int
    #: Seed, name and epoch of the order of samples; None for that of the files.
    order: tuple[int, str, int] | None = None
    #: Samples to leave out at the start, without parsing them; 0 unless the dataset `can_skip`.
    skip: int = 0


class UnitRequests:
    """Requests for the units that a process reads next, and their threads; they are not pickled."""

    def __init__(self) -> None:
        self._made: dict[Unit, SampleRequests] = {}
        self._threads = ForkSafePool(_NUM_THREADS, "zindex-samples")

    def __reduce__(self) -> tuple[Any, ...]:
        return UnitRequests, ()

    def read(
        self,
        unit: Unit,
        upcoming: Iterator[Unit],
        num_ahead: int,
        begin: Callable[[Unit, DaemonPool], SampleRequests],
    ) -> Iterator[RawSample]:
        """Yield the samples of a unit.

        Parameters
        ----------
        unit
            The unit.
        upcoming, num_ahead
            Units that are read next, and how many of them are requested in advance, after the first
            sample of this one.
        begin
            Returns the requests for a unit, which are not made yet, for some threads.
        """
        if not self._threads.is_own:
            self._made = {}
        threads = self._threads.get()
        raws = iter(requests := self._made.pop(unit, None) or begin(unit, threads))
        first = next(raws, None)
        if first is None:
            return
        yield first
        requests.begin()
        before, self._made = self._made, {}
        for one in islice(upcoming, max(1, min(num_ahead, _MAX_AHEAD))):
            self._made[one] = before.get(one) or begin(one, threads)
            self._made[one].begin()
        yield from raws


class OpenedGroup:
    """The samples of the last group of units, kept for its next units; they are not pickled."""

    def __init__(self) -> None:
        self._last: tuple[Hashable, Sequence[Any]] = None, ()

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenedGroup, ()

    def read(self, key: Hashable, open_group: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """Return the samples of a group, which are opened unless it was the last one."""
        last = self._last
        if last[0] != key:
            last = self._last = key, open_group()
        return last[1]
