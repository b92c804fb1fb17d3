"""Work in a fork that is killed."""

import os
import signal
import time
from collections.abc import Callable


def run_in_child(work: Callable[[], object], kill_after: float | None = None) -> tuple[float, int]:
    """Work in a fork; return the seconds it lived and its exit code, -9 if it was killed."""
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return time.monotonic() - start, os.waitstatus_to_exitcode(status)
