"""Commands whose process is killed, at a random moment or before one of their system calls.

``python -m tests.harnesses.kills --trials 10000 --seed 0``

Up to three processes die one after the other. After each death nothing half may be seen, and the
command, run again, must succeed.
"""

import itertools
import random
import shutil
import signal
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tests.harnesses.commands import COMMANDS, Command, check_seen, prepare, read_out
from tests.harnesses.interception import CLIENT, intercepted
from tests.harnesses.running import main
from tests.killing import kill_process, run_in_child
from zindex.errors import StoreError
from zindex.store.open_files import table


def _run(command: Command, folder: Path, number: int = -1) -> int:
    """Run a command that dies before its system call of a number; return how many it makes."""
    numbers = itertools.count()

    def count(name: str, call: Callable[[], Any], *args: Any, **settings: Any) -> Any:
        if next(numbers) == number:
            kill_process()
        return call()

    CLIENT.set(0)
    try:
        with intercepted(count, f"{folder}/out"):
            command.run(folder)
    finally:
        CLIENT.set(None)
    return next(numbers)


@cache
def _measure(name: str) -> tuple[int, float]:
    """Return the calls of a command and the seconds that it lasts in a fork."""
    with tempfile.TemporaryDirectory() as work:
        copies = [shutil.copytree(prepare(name)[0], f"{work}/{i}") for i in range(2)]
        num_calls = _run(COMMANDS[name], Path(copies[0]))
        seconds, code = run_in_child(lambda: COMMANDS[name].run(Path(copies[1])))
        assert code == 0
        return num_calls, seconds


def trial(rng: random.Random) -> str:
    """Kill one command up to three times."""
    name = rng.choice(list(COMMANDS))
    source, old, new = prepare(name)
    command, (num_calls, seconds) = COMMANDS[name], _measure(name)
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        shutil.copytree(source, folder, dirs_exist_ok=True)
        num_deaths = 0
        for _ in range(rng.choice((1, 1, 2, 3))):
            if rng.random() < 0.5:
                number, kill_after = rng.randrange(num_calls), None
            else:
                number, kill_after = -1, rng.uniform(0, 1.1) * seconds
            _, code = run_in_child(lambda n=number: _run(command, folder, n), kill_after)
            seen = check_seen(command, read_out(folder), old, new)
            num_deaths += code == -signal.SIGKILL
            if seen == "new":
                break
            assert code == -signal.SIGKILL, f"{name} ended with {code}, and {seen} is seen"
        table.forget_all()
        try:
            command.run(folder)
        except StoreError:  # a finished pair is refused
            if seen != "new":
                raise
        found = check_seen(command, read_out(folder), old, new)
        assert found == "new", f"{name}: after {num_deaths} deaths and a second run: {found}"
    return f"deaths {num_deaths}"


if __name__ == "__main__":
    raise SystemExit(main(trial))
