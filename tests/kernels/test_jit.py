"""How kernels are compiled: a process may be forked at any moment."""

import os
import signal
import threading

import pytest
from numba import njit

from zindex.kernels import _jit


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_fork_while_another_thread_compiles() -> None:
    """The child compiles too; without a wait before the fork it would hang for ever."""
    started, stop = threading.Event(), threading.Event()

    def compile_on() -> None:
        while not stop.is_set():
            njit(lambda value: value + 1)(1)
            started.set()

    thread = threading.Thread(target=compile_on)
    thread.start()
    codes = []
    try:
        started.wait()
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    signal.alarm(60)
                    status = int(_jit.jit(lambda value: value * 3)(2) != 6)
                finally:
                    os._exit(status)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    finally:
        stop.set()
        thread.join()
    assert codes == [0] * 3
