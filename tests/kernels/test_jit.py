"""How kernels are compiled."""

from typing import Any, cast

from numba.core.compiler_lock import global_compiler_lock

from tests.forked import run_fresh
from zindex.kernels._jit import jit

FORK = """
import os, signal, threading
from numba.core.compiler_lock import global_compiler_lock
from zindex.kernels._jit import jit

compiling, forking = threading.Event(), threading.Event()

def compile_until_a_fork_begins():
    with global_compiler_lock:
        compiling.set()
        forking.wait()

# Runs before the hook that is registered already.
os.register_at_fork(before=forking.set)
thread = threading.Thread(target=compile_until_a_fork_begins)
thread.start()
compiling.wait()
child = os.fork()
if child == 0:
    signal.alarm(100)
    os._exit(jit(lambda x: x + 1)(41))
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_process_that_is_forked_during_a_compilation_can_compile() -> None:
    done = run_fresh("-c", FORK)
    assert done.stdout == "42\n", done.stderr


def add_one(x: int) -> int:
    return x + 1


def test_all_of_a_first_call_is_done_under_the_lock() -> None:
    """Numba itself holds it during a part only, and threads have met in the rest."""
    kernel: Any = cast("Any", jit(add_one)).resolve()
    find_type, locked = kernel.typeof_pyval, []

    def find_type_and_look(value: Any) -> Any:
        locked.append(global_compiler_lock.is_locked())
        return find_type(value)

    kernel.typeof_pyval = find_type_and_look
    assert kernel(41) == 42
    assert locked
    assert all(locked)
    assert not global_compiler_lock.is_locked()
    assert kernel.py_func is add_one
