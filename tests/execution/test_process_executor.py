"""Tasks in processes: their results, their errors and their ends."""

import asyncio
import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.forked import run_fresh, spawn_interpreter
from zindex.errors import ClusterLostError, ConfigError, SourceError
from zindex.execution.executor import run_together
from zindex.execution.process_executor import ProcessExecutor


def double(value: int) -> tuple[int, int]:
    return 2 * value, os.getpid()


def refuse(value: int) -> None:
    raise SourceError(f"no {value}")


def crash() -> None:
    raise ZeroDivisionError("0")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run(function: Any, *args: Any) -> Any:
    with closing(ProcessExecutor(1)) as executor:
        return asyncio.run(executor.run(function, *args, key="a-task"))


def test_tasks_run_elsewhere_and_results_come_back() -> None:
    async def main(executor: ProcessExecutor) -> list[tuple[int, int]]:
        tasks = [executor.run(double, 21 + i, key=f"double-{i}") for i in range(6)]
        return await run_together(tasks)

    with closing(ProcessExecutor(2)) as executor:
        assert executor.num_threads == 2
        found = asyncio.run(main(executor))
    assert [value for value, _ in found] == [42, 44, 46, 48, 50, 52]
    assert os.getpid() not in {process for _, process in found}


class Told:
    """Counts how often it was unpickled in a process."""

    num_loads = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __setstate__(self, state: dict[str, Any]) -> None:
        type(self).num_loads += 1
        if state["number"] < 0:
            raise SourceError("it cannot be loaded here")
        self.__dict__.update(state)


def look(told: Told, plus: int) -> tuple[int, int]:
    return told.number + plus, Told.num_loads


def test_a_held_value_is_unpickled_once_per_process() -> None:
    async def main(executor: ProcessExecutor) -> list[tuple[int, int]]:
        found = []
        for number in range(6):
            held = await executor.hold(Told, number, key=f"held-{number}")
            tasks = [executor.run(look, held, i, key=f"look-{number}-{i}") for i in range(3)]
            found += await run_together(tasks)
        return found

    with closing(ProcessExecutor(1, look)) as executor:
        found = asyncio.run(main(executor))
    assert found == [(number + i, number + 1) for number in range(6) for i in range(3)]
    assert Told.num_loads == 0


def test_an_argument_that_cannot_be_unpickled_fails_the_task() -> None:
    async def main(executor: ProcessExecutor) -> None:
        held = await executor.hold(Told, -1, key="held")
        await executor.run(look, held, 0, key="a-task")

    with (
        closing(ProcessExecutor(1)) as executor,
        pytest.raises(SourceError, match="be loaded here") as error,
    ):
        asyncio.run(main(executor))
    assert "in task a-task" in error.value.__notes__


def test_all_processes_start_with_the_first_task(monkeypatch: pytest.MonkeyPatch) -> None:
    # A fork may be idle before the pool starts the next process.
    monkeypatch.setattr("multiprocessing.util.spawnv_passfds", spawn_interpreter)
    with closing(ProcessExecutor(3)) as executor:
        asyncio.run(executor.run(double, 1, key="a-task"))
        assert len(executor._pool._processes) == 3


def test_errors_come_back_with_the_name_of_the_task() -> None:
    with pytest.raises(SourceError, match="no 5") as error:
        run(refuse, 5)
    assert "in task a-task" in error.value.__notes__
    with pytest.raises(ZeroDivisionError):
        run(crash)


def test_a_process_that_dies_is_told_of() -> None:
    with pytest.raises(ClusterLostError, match="a process of this machine ended during its task"):
        run(die)


def test_there_must_be_a_process() -> None:
    with pytest.raises(ConfigError, match="there must be at least one process, got 0"):
        ProcessExecutor(0)


def test_processes_do_not_outlive_the_one_that_started_them(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(
        "import asyncio, os, signal, time\n"
        "from tests.execution.test_process_executor import double\n"
        "from zindex.execution.process_executor import ProcessExecutor\n"
        "if __name__ == '__main__':\n"
        "    executor = ProcessExecutor(1)\n"
        "    _, process = asyncio.run(executor.run(double, 1, key='a'))\n"
        "    print(process, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = run_fresh(str(script))
    assert done.returncode == -signal.SIGKILL
    # Its output has ended, so all that held it are gone; some system may not have cleared them up.
    status = Path(f"/proc/{int(done.stdout)}/stat")
    assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] in "ZX"


def test_an_interrupt_ends_tasks_not_processes_that_start(tmp_path: Path) -> None:
    """Ctrl-C reaches all processes of a terminal; those that import would print a traceback."""
    script = tmp_path / "main.py"
    script.write_text(
        "import asyncio, os, signal\n"
        "from tests.execution.test_process_executor import double\n"
        "from zindex.execution.process_executor import ProcessExecutor\n"
        "if __name__ == '__main__':\n"
        "    os.setpgrp()\n"
        "    signal.signal(signal.SIGINT, lambda *_: None)\n"
        "    executor = ProcessExecutor(1, double)\n"
        "    executor._start()\n"
        "    os.killpg(0, signal.SIGINT)\n"
        "    try:\n"
        "        asyncio.run(executor.run(double, 1, key='a'))\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted', asyncio.run(executor.run(double, 2, key='b'))[0])\n"
        "    executor.close()\n"
    )
    done = run_fresh(str(script))
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "interrupted 4\n")


def test_a_script_without_a_guard_is_told_what_to_do(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(
        "import asyncio\n"
        "from zindex.execution.process_executor import ProcessExecutor\n"
        "executor = ProcessExecutor(1)\n"
        "asyncio.run(executor.run(int, '1', key='a'))\n"
    )
    done = run_fresh(str(script))
    assert 'put that below `if __name__ == "__main__":`' in done.stderr
