"""A builder as a process of its own: ``python -m tests.cloud.build_process RUN.json [NUM_TASKS]``.

It says when it begins, waits for a line, and then builds; with a number it stops for ever before
that task.
"""

import json
import sys
import threading
from pathlib import Path
from typing import Any

import zindex
from zindex.config import RunConfig
from zindex.execution.executor import SerialExecutor


class StoppingExecutor(SerialExecutor):
    """Stands still before one of its tasks."""

    def __init__(self, num_tasks: int) -> None:
        super().__init__()
        self.left = num_tasks

    async def run(self, function: Any, *args: Any, **settings: Any) -> Any:
        if not self.left:
            print("midway", flush=True)
            threading.Event().wait()
        self.left -= 1
        return await super().run(function, *args, **settings)


def main(path: str, num_tasks: int = -1) -> None:
    config = RunConfig.from_json(json.loads(Path(path).read_text()))
    print("ready", flush=True)
    sys.stdin.readline()
    results = zindex.build(config, StoppingExecutor(num_tasks))
    print(json.dumps([result.num_written for result in results.values()]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
