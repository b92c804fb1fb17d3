"""The end of a worker: what it holds moves, or is said to be lost."""

import asyncio
from typing import Any

import pytest
from distributed import Client, Scheduler, Status, Worker

from zindex.cluster import member
from zindex.execution.executor import without_pages


async def retire_one(num_others: int) -> dict[str, int]:
    """Retire a worker that holds a result; return what the others hold."""
    async with without_pages(Scheduler)(host="127.0.0.1", port=0, dashboard=False) as scheduler:

        def make_worker(name: str) -> Any:
            return without_pages(Worker)(
                scheduler.address, nthreads=1, name=name, host="127.0.0.1", memory_limit=0
            )

        async with (
            make_worker("first") as worker,
            Client(scheduler.address, asynchronous=True) as client,
        ):
            others = [await make_worker(f"other-{number}") for number in range(num_others)]
            held = client.submit(int, 5, key="five", workers="first")
            assert await held == 5
            close = worker.close

            async def set_back_and_close(**settings: Any) -> None:
                worker.close = close
                closing = asyncio.create_task(close(**settings))
                while worker.status is not Status.closing:
                    await asyncio.sleep(0)
                # As the scheduler may, which cannot retire it.
                worker.stream_handlers["worker-status-change"](status="running", stimulus_id="test")
                assert worker.status is Status.closing
                await closing

            worker.close = set_back_and_close
            await member.retire(worker)
            assert worker.status is Status.closed
            found = {name: value for other in others for name, value in other.data.items()}
            for other in others:
                await other.close()
    return found


@pytest.mark.parametrize(("num_others", "expected"), [(0, {}), (1, {"five": 5})])
def test_a_worker_retires_once(
    capsys: pytest.CaptureFixture[str], num_others: int, expected: dict[str, int]
) -> None:
    """Where Dask closes it twice, both may wait for the end of its threads for 30 seconds."""
    assert asyncio.run(retire_one(num_others)) == expected
    lost = "results of worker first are lost: RuntimeError('no other worker can take them')"
    assert (lost in capsys.readouterr().out) == (num_others == 0)
