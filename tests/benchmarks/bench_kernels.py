"""Time the kernels against numpy's legacy shuffle and Megatron's helper, alternating the runs.

Run as ``python -m tests.benchmarks.bench_kernels [--size 1e8] [--runs 3] [--json PATH]``. Figures
are medians of wall time in nanoseconds per element on one core; compilation is not counted.
"""

import argparse
import gc
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from zindex.kernels.bijection import KEY_DTYPE, NUM_ROUNDS, permute_range
from zindex.kernels.legacy_shuffle import draw_only, legacy_shuffle
from zindex.kernels.mersenne import seed_state
from zindex.kernels.samples import fill_boundaries, gather_lengths, sum_lengths

Case = Callable[[int], float]


def timed(function: Callable[[], object]) -> float:
    """Return the seconds that one call takes, with the garbage collector out of the way."""
    gc.collect()
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def shuffle_numpy(size: int) -> float:
    """Time ``RandomState.shuffle``."""
    values, generator = np.arange(size, dtype=np.int32), np.random.RandomState(1234)
    return timed(lambda: generator.shuffle(values))


def shuffle_legacy(size: int) -> float:
    """Time the bit-equal shuffle."""
    values, state = np.arange(size, dtype=np.int32), seed_state(1234)
    return timed(lambda: legacy_shuffle(values, state))


def draw_legacy(size: int) -> float:
    """Time the draws of a shuffle alone."""
    state = seed_state(1234)
    return timed(lambda: draw_only(size, state))


def permute_keyed(size: int) -> float:
    """Time the keyed bijection."""
    keys = np.random.SeedSequence(1234).generate_state(NUM_ROUNDS, KEY_DTYPE)
    out = np.zeros(size, np.int32)
    return timed(lambda: permute_range(0, size, keys, 0, out))


SEQUENCE_LENGTH = 2048


def make_documents(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return lengths of 1 to 1,000 tokens and a shuffled order of that many documents."""
    lengths = np.random.default_rng(7).integers(1, 1000, size).astype(np.int32)
    documents = np.arange(size, dtype=np.int32)
    legacy_shuffle(documents, seed_state(7))
    return lengths, documents


def index_megatron(size: int) -> float:
    """Time Megatron's ``build_sample_idx``, whose row 0 to last we must equal."""
    from megatron.core.datasets import helpers

    lengths, documents = make_documents(size)
    tokens = int(lengths.sum())
    return timed(
        lambda: helpers.build_sample_idx(lengths, documents, SEQUENCE_LENGTH, 1, tokens, True, 1)
    )


def fill_all(lengths: np.ndarray, documents: np.ndarray, run: int = 2**16) -> np.ndarray:
    """Build the whole sample index the way tasks do: sum, then gather and fill run by run."""
    tokens = sum_lengths(lengths, documents, 0)
    boundaries = np.empty(((tokens - 1) // SEQUENCE_LENGTH + 1, 2), np.int32)
    gathered = np.empty(run, np.int32)
    boundary, token = 0, 0
    for first in range(0, documents.size, run):
        rows = documents[first : first + run]
        part = gathered[: rows.size]
        gather_lengths(lengths, rows, 0, part)
        boundary = fill_boundaries(part, first, token, SEQUENCE_LENGTH, 1, boundaries, 0, boundary)
        token += int(part.sum(dtype=np.int64))
    return boundaries


def index_chunks(size: int) -> float:
    """Time the token sum and the rows together."""
    lengths, documents = make_documents(size)
    return timed(lambda: fill_all(lengths, documents))


def sum_only(size: int) -> float:
    """Time the token sum of shuffled documents alone."""
    lengths, documents = make_documents(size)
    return timed(lambda: sum_lengths(lengths, documents, 0))


CASES: dict[str, tuple[Case, str | None]] = {
    "RandomState.shuffle": (shuffle_numpy, None),
    "legacy_shuffle": (shuffle_legacy, "RandomState.shuffle"),
    "draw_only": (draw_legacy, "RandomState.shuffle"),
    "permute_range": (permute_keyed, "RandomState.shuffle"),
    "build_sample_idx": (index_megatron, None),
    "sum + gather + fill": (index_chunks, "build_sample_idx"),
    "sum_lengths": (sum_only, "build_sample_idx"),
}


def measure(size: int, runs: int) -> dict[str, list[float]]:
    """Return the nanoseconds per element of each case, in rounds over all cases."""
    seconds: dict[str, list[float]] = {name: [] for name in CASES}
    for name, (case, _) in CASES.items():
        case(2**16)
        print(f"compiled {name}", flush=True)
    for _ in range(runs):
        for name, (case, _) in CASES.items():
            seconds[name].append(case(size) / size * 1e9)
    return seconds


def main() -> None:
    """Parse, measure, print one line per case and write the figures if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=float, default=1e8, help="elements (default 1e8)")
    parser.add_argument("--runs", type=int, default=3, help="rounds over all cases (default 3)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    size = int(arguments.size)
    figures = measure(size, arguments.runs)
    medians = {name: statistics.median(values) for name, values in figures.items()}
    print(f"{size:,} elements, median of {arguments.runs} runs, {platform.machine()}")
    for name, (_, baseline) in CASES.items():
        ratio = f"{medians[baseline] / medians[name]:6.1f}x" if baseline else " base"
        print(f"{name:22}{medians[name]:8.2f} ns per element {ratio}")
    if arguments.json:
        report = {"size": size, "ns_per_element": figures, "median": medians}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
