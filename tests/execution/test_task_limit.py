"""TaskLimit admits a bounded number of tasks, by priority."""

import asyncio
from contextlib import suppress

import pytest

from zindex.execution.task_limit import TaskLimit


class Crowd:
    """Tasks that acquire slots, and which of them hold one."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.limit = TaskLimit(lambda: self.size)
        self.entered: list[str] = []
        self.most = self.inside = 0
        self.ends: dict[str, asyncio.Event] = {}

    async def stay(self, name: str, priority: int = 0) -> None:
        self.ends[name] = asyncio.Event()
        async with self.limit.slot(priority):
            self.entered.append(name)
            self.inside += 1
            self.most = max(self.most, self.inside)
            await self.ends[name].wait()
            self.inside -= 1


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_high_priorities_go_first_and_others_in_their_order() -> None:
    async def main() -> None:
        crowd = Crowd(2)
        async with asyncio.TaskGroup() as group:
            for name, priority in (("a", 0), ("b", 0), ("c", 0), ("d", 0), ("e", 1)):
                group.create_task(crowd.stay(name, priority))
            await settle()
            assert crowd.entered == ["a", "b"]
            for left, entered in (("b", "abe"), ("a", "abec"), ("e", "abecd")):
                crowd.ends[left].set()
                await settle()
                assert "".join(crowd.entered) == entered
            crowd.ends["c"].set()
            crowd.ends["d"].set()
        assert crowd.most == 2

    asyncio.run(main())


def test_a_window_grows_and_shrinks_with_its_workers() -> None:
    async def main() -> None:
        crowd = Crowd(1)
        async with asyncio.TaskGroup() as group:
            for name in "abcdef":
                group.create_task(crowd.stay(name))
            await settle()
            crowd.size = 3
            crowd.ends["a"].set()
            await settle()
            assert crowd.entered == [*"abcd"]
            crowd.size = 0  # all workers are gone for now: one task tells when one is back
            for name in "bcd":
                crowd.ends[name].set()
            await settle()
            assert crowd.entered == [*"abcde"]
            for name in "ef":
                crowd.ends[name].set()
        assert crowd.inside == 0

    asyncio.run(main())


@pytest.mark.parametrize("when", ["waiting", "let in"])
def test_a_cancelled_task_keeps_no_place(when: str) -> None:
    async def main() -> None:
        crowd = Crowd(1)
        first = asyncio.create_task(crowd.stay("a"))
        second = asyncio.create_task(crowd.stay("b"))
        third = asyncio.create_task(crowd.stay("c"))
        await settle()
        if when == "let in":
            crowd.ends["a"].set()
            await first  # the second is let in, and has not run yet
        second.cancel()
        with suppress(asyncio.CancelledError):
            await second
        crowd.ends["a"].set()
        await settle()
        assert crowd.entered[-1] == "c"
        crowd.ends["c"].set()
        await asyncio.gather(first, third)
        async with crowd.limit.slot(0):
            pass

    asyncio.run(main())
