"""The one way in which kernels are compiled here.

``nogil`` lets Dask's threads run kernels side by side. ``parallel`` is never used (its thread pool
can end a threaded worker) and neither is ``fastmath`` (contraction would change results).
"""

import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from numba import njit
from numba.core.compiler_lock import global_compiler_lock

# Compiled code is kept only where the user names a place: a shared home directory would make
# thousands of processes write and load the same files.
_CACHE = bool(os.environ.get("NUMBA_CACHE_DIR"))

# A process that is forked while another thread compiles would inherit a lock that nobody releases,
# and hang at its first kernel. So forks wait for the end of a compilation.
os.register_at_fork(
    before=global_compiler_lock.acquire,
    after_in_parent=global_compiler_lock.release,
    after_in_child=global_compiler_lock.release,
)

P = ParamSpec("P")
R = TypeVar("R")


def jit(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a kernel on first call; the Python original stays reachable as ``.py_func``."""
    dispatcher: Any = njit(nogil=True, cache=_CACHE)(function)
    compile_for_args = dispatcher._compile_for_args

    def compile_alone(*args: Any, **kwargs: Any) -> Any:
        """Compile while no other thread does.

        Numba's own lock leaves out the work before and after a compilation, in which two threads
        that call their first kernels have met in a dictionary of its types.
        """
        with global_compiler_lock:
            return compile_for_args(*args, **kwargs)

    dispatcher._compile_for_args = compile_alone
    return cast("Callable[P, R]", dispatcher)


def inline(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a small helper that its callers absorb, so that their loops can vectorise."""
    return cast("Callable[P, R]", njit(nogil=True, inline="always", cache=_CACHE)(function))
