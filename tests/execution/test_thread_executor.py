"""Tasks in threads of this process: by priority, to their end or never begun."""

import asyncio
import threading
from typing import Any

import pytest

from zindex.execution.executor import ThreadExecutor


@pytest.fixture
def executor() -> Any:
    made = ThreadExecutor(2)
    yield made
    made.close()


def test_results_and_errors_come_back(executor: ThreadExecutor) -> None:
    def divide(a: int, b: int) -> int:
        return a // b

    async def main() -> list[int]:
        jobs = [executor.run(divide, 9, b, key=f"divide-{b}") for b in (1, 2, 3)]
        return list(await asyncio.gather(*jobs))

    assert asyncio.run(main()) == [9, 4, 3]
    with pytest.raises(ZeroDivisionError) as caught:
        asyncio.run(executor.run(divide, 1, 0, key="divide-0"))
    assert caught.value.__notes__ == ["in task divide-0"]
    assert asyncio.run(executor.hold(divide, 8, 2, key="held")) == 4


def test_higher_priorities_start_first() -> None:
    executor = ThreadExecutor(1)
    begun, release = threading.Event(), threading.Event()
    order: list[int] = []

    def block() -> None:
        begun.set()
        release.wait(200)

    async def main() -> None:
        first = asyncio.create_task(executor.run(block, key="block"))
        await asyncio.to_thread(begun.wait, 200)
        jobs = [
            asyncio.create_task(executor.run(order.append, p, key=f"{p}", priority=p))
            for p in (0, -3, 5, 2)
        ]
        await asyncio.sleep(0)
        release.set()
        await asyncio.gather(first, *jobs)

    asyncio.run(main())
    executor.close()
    assert order == [5, 2, 0, -3]


def test_pending_tasks_never_start_after_closing() -> None:
    executor = ThreadExecutor(1)
    begun, release = threading.Event(), threading.Event()
    done: list[str] = []

    def work(name: str) -> None:
        begun.set()
        release.wait(200)
        done.append(name)

    async def main() -> None:
        jobs = [asyncio.create_task(executor.run(work, name, key=name)) for name in "abc"]
        await asyncio.to_thread(begun.wait, 200)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)

    asyncio.run(main())
    closing = threading.Thread(target=executor.close)
    closing.start()
    release.set()
    closing.join(200)
    assert done == ["a"]


def test_as_many_threads_as_tasks_up_to_two_more_than_cores() -> None:
    others = set(threading.enumerate())  # builds of other tests may have left some
    executor = ThreadExecutor()
    assert executor.num_threads > 2

    async def main(num_tasks: int) -> set[int]:
        meet = threading.Barrier(min(num_tasks, executor.num_threads))

        def work() -> int:
            meet.wait(200)
            return threading.get_ident()

        jobs = [executor.run(work, key=f"{i}") for i in range(num_tasks)]
        return set(await asyncio.gather(*jobs))

    assert len(asyncio.run(main(2))) == 2
    assert len(asyncio.run(main(2 * executor.num_threads))) == executor.num_threads
    executor.close()
    assert "zindex-task" not in {thread.name for thread in {*threading.enumerate()} - others}
