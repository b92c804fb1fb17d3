"""Changes of percents that the main process of a rank shares with its loader workers."""

import json
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from zindex.arrays import Int64Array
from zindex.errors import ConfigError
from zindex.samples.collectives import gather_objects, is_distributed

#: Iteration, and sample of the whole stream in it.
Place = tuple[int, int]
#: A call of ``set_percents``: iteration, sample, and all percents that were set until then.
Change = tuple[int, int, dict[str, float]]

# Of a place in the stream: iteration and sample as one number.
_SAMPLE_BITS = 44
# torch copies 32 KiB or more by threads, which a forked process must not do after its parent.
_TEXT_NBYTES = 24 << 10
_MAX_NBYTES = 4 * _TEXT_NBYTES
# A change is forgotten when the next one was so many picks ago, if it is not known what was
# delivered; no loader prefetches as many.
_KEPT_PICKS = 1 << 13
_WAIT_SECONDS = 0.001
_MAX_PROCESSES = 1023  # the main process and its workers
# Of the shared numbers: version (odd while changes are written), bytes of the changes, samples of a
# pick of all worker slots, and then the place that each process has reached: the main process, and
# each worker.
_VERSION, _NBYTES, _STEP, _PLACES = range(4)


class PercentBoard:
    """Changes of percents, which the main process shares with the loader workers.

    Each worker announces picks before it computes them, and then reads the changes. The main
    process first holds the board, so that workers wait, and then reads what they have announced:
    no worker computes a pick after a change without it, however they are scheduled.

    Parameters
    ----------
    changes
        Initial changes.
    """

    def __init__(self, changes: Sequence[Change] = ()) -> None:
        self._shared_numbers = torch.zeros(_PLACES + _MAX_PROCESSES, dtype=torch.int64)
        self._shared_texts = [
            torch.zeros(_TEXT_NBYTES, dtype=torch.uint8)
            for _ in range(0, _MAX_NBYTES, _TEXT_NBYTES)
        ]
        for shared in (self._shared_numbers, *self._shared_texts):
            shared.share_memory_()  # type: ignore[no-untyped-call]
        self._read: tuple[int, list[Change]] = (0, [])
        if changes:
            self.start(0, 0, changes)

    @property
    def _numbers(self) -> Int64Array:
        found: Int64Array = self._shared_numbers.numpy()
        return found

    @property
    def _texts(self) -> list[memoryview]:
        return [text.numpy().data for text in self._shared_texts]

    def start(self, iteration: int, sample: int, changes: Sequence[Change] | None = None) -> None:
        """Set what is reached, and the changes unless they are kept."""
        with self.hold():
            self._numbers[_PLACES:] = 0
            self._numbers[_PLACES] = (iteration << _SAMPLE_BITS) + sample
            if changes is not None:
                self.write(changes)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Let workers wait before their next picks."""
        self._numbers[_VERSION] += 1
        try:
            yield
        finally:
            self._numbers[_VERSION] += 1

    @property
    def reached(self) -> Place:
        """Iteration and sample up to which a process has announced its picks."""
        place = int(self._numbers[_PLACES:].max())
        return place >> _SAMPLE_BITS, place & ((1 << _SAMPLE_BITS) - 1)

    @property
    def changes(self) -> list[Change]:
        """All changes, ascending."""
        while True:
            version = int(self._numbers[_VERSION])
            if version % 2 == 0 and (found := self._parse(version)) is not None:
                return found
            time.sleep(_WAIT_SECONDS)

    def _parse(self, version: int) -> list[Change] | None:
        """Return the changes of a version; None if others are being written."""
        try:
            packed = b"".join(self._texts)[: int(self._numbers[_NBYTES])]
            text = zlib.decompress(packed) if packed else b"[]"
            found = [(i, sample, percents) for i, sample, percents in json.loads(text)]
        except (ValueError, zlib.error):
            found = None
        return found if int(self._numbers[_VERSION]) == version else None

    def held_changes(self) -> list[Change]:
        """Return all changes, in a `hold`."""
        return self._parse(int(self._numbers[_VERSION])) or []

    def write(self, changes: Sequence[Change]) -> None:
        """Replace the changes, in a `hold`."""
        text = zlib.compress(json.dumps(changes).encode())
        if len(text) > _MAX_NBYTES:
            raise ConfigError(
                f"changes of percents must have at most {_MAX_NBYTES:,} bytes as compressed JSON, "
                f"got {len(text):,} of {len(changes)} changes; set percents of fewer digits, or "
                "give set_percents the state of the rank, so that old ones are forgotten"
            )
        for number, target in enumerate(self._texts):
            some = text[number * _TEXT_NBYTES :][:_TEXT_NBYTES]
            target[: len(some)] = some
        self._numbers[_NBYTES] = len(text)

    def forget(
        self, changes: list[Change], reached: Place, delivered: Place | None = None
    ) -> list[Change]:
        """Return changes without those that no worker can need to resume.

        Parameters
        ----------
        changes
            All changes, ascending.
        reached
            What all ranks have announced.
        delivered
            What all worker slots of all ranks have delivered; None if it is not known.
        """
        if delivered is None:
            kept = _KEPT_PICKS * max(1, int(self._numbers[_STEP]))
            delivered = reached[0], reached[1] - kept
        old = [number for number, change in enumerate(changes) if change[:2] <= delivered]
        return changes[old[-1] :] if old else changes

    def reach(self, process: int, place: Place, step: int) -> list[Change]:
        """Announce picks, and return the changes that are known by then.

        Parameters
        ----------
        process
            0 for the main process, otherwise the number of the loader worker plus 1.
        place
            Iteration, and sample of the whole stream.
        step
            Samples of a pick of all worker slots together.
        """
        numbers = self._numbers
        numbers[_STEP] = step
        own, before = _PLACES + process, int(numbers[_PLACES + process])
        while True:
            # Segments of earlier jobs, which are finished first, may have got further.
            numbers[own] = max(before, (place[0] << _SAMPLE_BITS) + place[1])
            version = int(numbers[_VERSION])
            if version == self._read[0]:
                return self._read[1]
            if version % 2 == 0 and (changes := self._parse(version)) is not None:
                self._read = version, changes
                return changes
            numbers[own] = before
            time.sleep(_WAIT_SECONDS)


def gather_requests(own: Any, at: int | None, num_ranks: int, group: Any) -> list[Any]:
    """Return what all ranks ask for, in a collective call; without one, what this rank does."""
    if num_ranks > 1 and at is None and not is_distributed():
        raise ConfigError(
            f"{num_ranks} ranks without torch.distributed must be told when percents change, got "
            "no `at`; give the same number of samples on all ranks"
        )
    return gather_objects(own, group)
