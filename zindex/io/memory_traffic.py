"""Measure how much memory traffic the processors of this machine can cause."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import numpy as np

#: Bytes that a random read moves.
LINE_NBYTES = 64
# An array far larger than CPU caches, and what one call copies of it.
_LENGTH, _BLOCK_LENGTH = 1 << 25, 1 << 20


def measure_copies(num_threads: int, seconds: float) -> float:
    """Return bytes that threads copy per second, together; each byte is read and written."""
    source, target = np.ones((2, _LENGTH), np.int32).reshape(2, -1, _BLOCK_LENGTH)

    def copy(number: int) -> None:
        block = number % len(source)
        np.copyto(target[block], source[block])

    return measure_calls(copy, num_threads, seconds) * 4 * _BLOCK_LENGTH


def measure_gathers(num_threads: int, seconds: float) -> float:
    """Return random 4-byte reads of threads per second, together."""
    source = np.ones(_LENGTH, np.int32)
    # The golden ratio spreads them, without the time of random numbers.
    picks = np.arange(_BLOCK_LENGTH) * 20736667 % _LENGTH

    def gather(number: int) -> None:
        source.take(picks)

    return measure_calls(gather, num_threads, seconds) * len(picks)


def measure_calls(call: Callable[[int], object], num_threads: int, seconds: float) -> float:
    """Return the calls per second of threads together.

    Parameters
    ----------
    call
        Function to call, with the number of the call.
    num_threads
        Number of threads.
    seconds
        Approximate duration, after one call that warms up.
    """
    call(0)  # one thread alone compiles
    numbers, start = count(), time.perf_counter()

    def run(_: int) -> int:
        num_calls = 0
        while not num_calls or time.perf_counter() - start < seconds:
            call(next(numbers))
            num_calls += 1
        return num_calls

    with ThreadPoolExecutor(num_threads) as pool:
        num_calls = sum(pool.map(run, range(num_threads)))
    return num_calls / (time.perf_counter() - start)
