"""Compilation of kernels, at their first call, and the intrinsics that they use.

Numba is imported by the first call too, so importing kernels is cheap. ``nogil`` allows Dask's
threads to run kernels concurrently. ``parallel`` is never used, because its thread pool can crash a
threaded worker, nor ``fastmath``, because contraction changes results. Intrinsics are placeholders
until a kernel that uses them is compiled.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache, update_wrapper
from importlib import import_module
from types import CodeType, FunctionType
from typing import Any, ParamSpec, TypeVar, cast

# Always acquired before numba's own lock.
_lock = threading.RLock()
_held = ExitStack()


def _hold_locks() -> None:
    """Wait for running compilations, and prevent others.

    A process forked while another thread compiles or imports numba would inherit a locked lock and
    hang at its first kernel.
    """
    _held.enter_context(_lock)
    compiler_lock = sys.modules.get("numba.core.compiler_lock")
    if lock := getattr(compiler_lock, "global_compiler_lock", None):
        _held.enter_context(lock)


os.register_at_fork(before=_hold_locks, after_in_parent=_held.close, after_in_child=_held.close)


@dataclass(slots=True)
class KernelTimes:
    """Kernels that this process compiled, and loaded from the cache, with seconds of each."""

    num_compiled: int = 0
    num_loaded: int = 0
    seconds_compiling: float = 0.0
    #: Includes the import of numba.
    seconds_loading: float = 0.0

    def describe(self) -> str:
        """Return a line.

        Examples
        --------
        >>> KernelTimes(2, 5, 8.1, 0.4).describe()
        'kernels: 2 compiled in 8.1 s, 5 loaded in 0.4 s'
        """
        counts = (
            (self.num_compiled, "compiled", self.seconds_compiling),
            (self.num_loaded, "loaded", self.seconds_loading),
        )
        parts = [f"{count} {verb} in {seconds:.1f} s" for count, verb, seconds in counts if count]
        return f"kernels: {', '.join(parts)}"


times = KernelTimes()
_depth = 0


def take_times() -> KernelTimes:
    """Return the times since the last call."""
    global times
    taken, times = times, KernelTimes()
    return taken


@contextmanager
def _timed(dispatcher: Any) -> Iterator[None]:
    """Add the time of the block to `times`; kernels that others call are part of these."""
    global _depth
    start, before = time.perf_counter(), sum(dispatcher.stats.cache_misses.values())
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        seconds = time.perf_counter() - start if _depth == 0 else 0.0
        if sum(dispatcher.stats.cache_misses.values()) > before:
            times.num_compiled += 1
            times.seconds_compiling += seconds
        else:
            times.num_loaded += 1
            times.seconds_loading += seconds


P = ParamSpec("P")
R = TypeVar("R")


class Late:
    """A placeholder in the module of a kernel, replaced when a kernel that uses it is compiled.

    Parameters
    ----------
    resolve
        Returns the intrinsic that replaces it.
    """

    def __init__(self, resolve: Callable[[], Any]) -> None:
        self.resolve = resolve


class _Kernel(Late):
    """A function that is compiled at its first call.

    All other attributes are those of numba's dispatcher.
    """

    _dispatcher: Any = None

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        super().__init__(self._build)
        update_wrapper(self, function)
        self.py_func: Any = function
        self._options = options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self._dispatcher or self.resolve())(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"kernel {self.__name__} has no attribute {name!r}")
        return getattr(self.resolve(), name)

    def _build(self) -> Any:
        """Return the dispatcher; numba compiles the globals that exist at its first call."""
        with _lock:
            if self._dispatcher is None:
                names = self.py_func.__globals__
                _replace_names(names, [self.py_func.__code__])
                self._dispatcher = _make_dispatcher(self.py_func, self._options)
                if names.get(self.__name__) is self:
                    names[self.__name__] = self._dispatcher  # later calls skip this
            return self._dispatcher


def _replace_names(names: dict[str, Any], codes: list[CodeType]) -> None:
    """Replace the placeholders that functions use."""
    for code in codes:
        codes += [value for value in code.co_consts if isinstance(value, CodeType)]
        for name in code.co_names:
            if isinstance(value := names.get(name), Late):
                names[name] = value.resolve()


def _make_dispatcher(function: Any, options: dict[str, Any]) -> Any:
    """Return numba's dispatcher of a function, with the cache of compiled kernels."""
    start = time.perf_counter()
    from numba import njit
    from numba.core.compiler_lock import global_compiler_lock

    from zindex.kernels._cache import KernelCache, release_all

    times.seconds_loading += time.perf_counter() - start
    dispatcher: Any = njit(nogil=True, **options)(function)
    if function.__module__.startswith(f"{__package__}."):
        dispatcher._cache = KernelCache(function)
    # Kernels do not need the extension types that other packages register with numba.
    dispatcher._compilation_chain_init_hook = lambda: None
    compile_for_args = dispatcher._compile_for_args

    def compile_alone(*args: Any, **kwargs: Any) -> Any:
        """Compile under locks.

        Numba's own lock does not cover the work before and after a compilation, where two threads
        that called their first kernels raced on a dictionary of its types.
        """
        with _lock, global_compiler_lock, _timed(dispatcher):
            try:
                return compile_for_args(*args, **kwargs)
            finally:
                release_all()

    dispatcher._compile_for_args = compile_alone
    return dispatcher


def is_loaded(kernel: Callable[..., Any]) -> bool:
    """Return whether this process has called a kernel before."""
    return getattr(kernel, "_dispatcher", kernel) is not None


def is_compiled(kernel: Callable[..., Any]) -> bool:
    """Return whether this process or an earlier one has compiled a kernel."""
    from zindex.kernels import _cache_folders

    pattern = f"{_cache_folders.name_kernel(kernel)}-*"
    return is_loaded(kernel) or any(any(path.glob(pattern)) for path in _cache_folders.folders())


@lru_cache
def interpret(kernel: Callable[P, R]) -> Callable[P, R]:
    """Return the Python original of a kernel, which calls those of other kernels."""
    function = getattr(kernel, "py_func", kernel)
    names = dict(function.__globals__)
    for name in function.__code__.co_names:
        if hasattr(names.get(name), "py_func"):
            names[name] = interpret(names[name])
    return cast("Callable[P, R]", FunctionType(function.__code__, names, function.__name__))


def jit(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a kernel on first call; the Python original stays reachable as ``.py_func``."""
    return cast("Callable[P, R]", _Kernel(function, {}))


def inline(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a small helper that is inlined into its callers, so that their loops vectorise."""
    return cast("Callable[P, R]", _Kernel(function, {"inline": "always"}))


#: Values of one streaming store, and the alignment of target addresses.
LANES, ALIGNMENT = 8, 64

#: Lanes of a vector of float64, and of uint32; measured.
WIDTH, NUM_WORDS = 32, 128

_NAMES = {
    "_instructions": """
        call_checksum call_decompress carray claim count_bits fence find_bit lend load_int32
        load_int64 load_uint32 load_uint8 memcpy pointer pread prefetch store_int64 store_uint8
        stream_int32 stream_labels_int32 stream_labels_uint16 stream_uint16
    """,
    "_simd": """
        add_round draw_largest find_errors find_largest find_reaching load_lanes raise_lanes
        set_lane store_lanes
    """,
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return Late(lambda: getattr(import_module(f"{__package__}.{_HOMES[name]}"), name))
