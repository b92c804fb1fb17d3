"""The number of the next iteration over a dataset, shared with its loader workers."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import get_worker_info

from zindex.errors import ConfigError

_MAX_WORKERS = 1022
# Of the shared numbers: the number of the next iteration, that of the start, whether a state was
# loaded for it, and then how many iterations the main process and each worker have begun since.
_NUMBER, _START, _RESUMES, _BEGUN = range(4)


class IterationCounter:
    """Counts the iterations of the main process and of each loader worker from a start on.

    A start is a loaded state, or a number that was set. Persistent workers have the state that was
    loaded before they were started, which is for no later start.
    """

    def __init__(self) -> None:
        self._numbers = torch.zeros(_BEGUN + 1 + _MAX_WORKERS, dtype=torch.int64)
        self._numbers.share_memory_()  # type: ignore[no-untyped-call]
        # The start that the state of this process is for.
        self._own_start = 0

    @property
    def _place(self) -> int:
        worker = get_worker_info()
        return _BEGUN if worker is None else _BEGUN + 1 + worker.id

    def start(self, number: int, *, resumes: bool) -> None:
        """Set the number of the next iteration, and whether a state was loaded for it."""
        self._numbers[_BEGUN:] = 0
        self._numbers[_NUMBER], self._numbers[_RESUMES] = number, resumes
        self._numbers[_START] += 1
        self._own_start = int(self._numbers[_START])

    def start_worker(self, number: int) -> None:
        """Set the same in a loader worker that has loaded a state of its own."""
        # Other workers load theirs at their own times.
        self._numbers[_NUMBER], self._numbers[self._place] = number, 0
        self._numbers[_RESUMES] = True
        self._own_start = int(self._numbers[_START])

    def begin(self) -> tuple[int, bool]:
        """Begin an iteration in this process.

        Returns
        -------
        number, resumes
            Its number, and whether it resumes from the state that was loaded.

        Raises
        ------
        ConfigError
            If that was loaded after this worker was started.
        """
        number, begun = int(self._numbers[_NUMBER]), int(self._numbers[self._place])
        resumes = not begun and self.resumes
        if resumes and self._own_start != int(self._numbers[_START]):
            raise ConfigError(
                "a state must be loaded before loader workers are started, got one for persistent "
                "workers that have run; make a new DataLoader, or use zindex.stream_loader"
            )
        self._numbers[self._place] += 1
        return number + begun, resumes

    @property
    def resumes(self) -> bool:
        """Whether a state was loaded for the first iteration since the start."""
        return bool(self._numbers[_RESUMES])

    @property
    def has_begun(self) -> bool:
        """Whether any process has begun an iteration since the start."""
        return bool(self._numbers[_BEGUN:].any())

    @property
    def next_number(self) -> int:
        """Number of the next iteration."""
        return int(self._numbers[_NUMBER] + self._numbers[_BEGUN:].max())


def fail_at_first(error: Exception) -> Iterator[Any]:
    """Raise an error as the first item is read: torch loses earlier ones of persistent workers."""
    yield from ()
    raise error
