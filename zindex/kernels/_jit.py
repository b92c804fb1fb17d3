"""Compilation of kernels.

``nogil`` allows Dask's threads to run kernels concurrently. ``parallel`` is never used, because its
thread pool can crash a threaded worker, nor ``fastmath``, because contraction changes results.
"""

import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from numba import njit
from numba.core.compiler_lock import global_compiler_lock

from zindex.kernels._cache import KernelCache

# A process forked while another thread compiles would inherit a locked lock and hang at its first
# kernel, so forks wait for running compilations.
os.register_at_fork(
    before=global_compiler_lock.acquire,
    after_in_parent=global_compiler_lock.release,
    after_in_child=global_compiler_lock.release,
)

P = ParamSpec("P")
R = TypeVar("R")


def jit(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a kernel on first call; the Python original stays reachable as ``.py_func``."""
    dispatcher: Any = njit(nogil=True)(function)
    if function.__module__.startswith(f"{__package__}."):
        dispatcher._cache = KernelCache(function)
    # Extensions of numba's types, which other packages register, are of no use to kernels.
    dispatcher._compilation_chain_init_hook = lambda: None
    compile_for_args = dispatcher._compile_for_args

    def compile_alone(*args: Any, **kwargs: Any) -> Any:
        """Compile under a lock.

        Numba's own lock does not cover the work before and after a compilation, where two threads
        that call their first kernels have raced on a dictionary of its types.
        """
        with global_compiler_lock:
            return compile_for_args(*args, **kwargs)

    dispatcher._compile_for_args = compile_alone
    return cast("Callable[P, R]", dispatcher)


def inline(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a small helper that is inlined into its callers, so that their loops vectorise."""
    return cast("Callable[P, R]", njit(nogil=True, inline="always")(function))
