"""How many tasks a cluster is given at a time."""

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count


class Window:
    """Lets a bounded number of tasks in, those of higher priority first, else in their order.

    A build of a hundred trillion tokens has tens of thousands of tasks. A scheduler that was given
    all of them would hold all their arguments, and take as long to cancel them.

    Parameters
    ----------
    size
        Returns how many tasks there may be now; workers join and leave.
    """

    def __init__(self, size: Callable[[], int]) -> None:
        self._size = size
        self._num_inside = 0
        self._order = count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def place(self, priority: int) -> AsyncIterator[None]:
        """Wait for a place, and keep it during the block."""
        if self._waiting or self._num_inside >= max(1, self._size()):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (-priority, next(self._order), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._leave()
                raise
        else:
            self._num_inside += 1
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        """Give up a place, and let in whoever may enter now."""
        self._num_inside -= 1
        while self._waiting and self._num_inside < max(1, self._size()):
            *_, turn = heapq.heappop(self._waiting)
            if not turn.done():  # cancelled while it waited
                self._num_inside += 1
                turn.set_result(None)
