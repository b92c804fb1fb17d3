"""What runs before SIGTERM ends a process, and what is left alone."""

import signal

import pytest

from tests.forked import Forked

BLOCK = r"""
import asyncio, ctypes, os, signal, sys, threading, time
from zindex.cluster.termination import before_termination
closed = threading.Event()
def say(line):
    # One write: two threads cannot mix their lines, as they can with print.
    os.write(1, f"{line}\n".encode())
def close():
    say("closed")
    closed.set()
def terminate(process=None):
    os.kill(process or os.getpid(), signal.SIGTERM)
"""

# A lock in C that no signal interrupts, as in a collective operation.
BLOCKED = """
lock = ctypes.create_string_buffer(64)
with before_termination(close, at_once=False):
    threading.Timer(0.1, terminate).start()
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(lock)
"""

# What the main thread would do next is not done: peers that ended would make it fail.
RUNNING = """
with before_termination(lambda: (time.sleep(0.1), close()), at_once=False):
    terminate()
    say("goes on")
"""

# A loop takes the wakeups of all signals.
LOOP = """
async def train():
    loop, heard = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, heard.set)
    with before_termination(close, at_once=False):
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.wait_for(heard.wait(), 60)
        terminate()
        await asyncio.sleep(60)
asyncio.run(train())
"""


@pytest.mark.parametrize("code", [BLOCKED, RUNNING, LOOP], ids=["blocked", "running", "loop"])
def test_a_process_is_ended_by_the_signal_after_the_call(code: str) -> None:
    with Forked("-c", BLOCK + code) as process:
        assert process.communicate() == ("closed\n", "")
        assert process.returncode == -signal.SIGTERM


CHILD = """
with before_termination(close, at_once=True):
    if (child := os.fork()) == 0:
        time.sleep(60)
        os._exit(0)
    terminate(child)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
print(signal.getsignal(signal.SIGTERM).name, signal.set_wakeup_fd(-1))
"""


def test_a_forked_process_ends_alone() -> None:
    with Forked("-c", BLOCK + CHILD) as process:
        assert process.communicate() == ("-15\nSIG_DFL -1\n", "")
        assert process.returncode == 0


HANDLED = """
def save(number, frame):
    say("saves")
signal.signal(signal.SIGTERM, save)
with before_termination(close, at_once={at_once}):
    terminate()
    {wait}
print(signal.getsignal(signal.SIGTERM) is save)
"""


@pytest.mark.parametrize(
    ("at_once", "wait", "expected"),
    [(True, "closed.wait()", ["True", "closed", "saves"]), (False, "pass", ["True", "saves"])],
)
def test_a_handler_of_the_job_decides_when_it_ends(
    at_once: bool, wait: str, expected: list[str]
) -> None:
    with Forked("-c", BLOCK + HANDLED.format(at_once=at_once, wait=wait)) as process:
        printed, errors = process.communicate()
        assert (sorted(printed.split()), errors) == (expected, "")
        assert process.returncode == 0


THREAD = """
def train():
    with before_termination(close, at_once=True):
        print(signal.getsignal(signal.SIGTERM).name)
thread = threading.Thread(target=train)
thread.start()
thread.join()
"""


def test_other_threads_cannot_wait_for_signals() -> None:
    with Forked("-c", BLOCK + THREAD) as process:
        assert process.communicate() == ("SIG_DFL\n", "")
