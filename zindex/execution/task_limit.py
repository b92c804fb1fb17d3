"""Limit the number of tasks submitted to a cluster."""

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count


class TaskLimit:
    """A semaphore with priorities, and a limit that follows the size of the cluster.

    A build of a hundred trillion tokens has tens of thousands of tasks. If all were submitted at
    once, they would fill the scheduler with their arguments and take long to cancel.

    Parameters
    ----------
    size
        Returns the current limit; workers join and leave.
    """

    def __init__(self, size: Callable[[], int]) -> None:
        self._size = size
        self._num_running = 0
        self._order = count()
        self._queue: list[tuple[int, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def slot(self, priority: int) -> AsyncIterator[None]:
        """Acquire a slot, by priority and then in order of arrival; release it after the block."""
        if self._queue or self._num_running >= max(1, self._size()):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._queue, (-priority, next(self._order), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._release()
                raise
        else:
            self._num_running += 1
        try:
            yield
        finally:
            self._release()

    def _release(self) -> None:
        """Release a slot, and wake the tasks that fit now."""
        self._num_running -= 1
        while self._queue and self._num_running < max(1, self._size()):
            *_, turn = heapq.heappop(self._queue)
            if not turn.done():  # cancelled while it waited
                self._num_running += 1
                turn.set_result(None)
