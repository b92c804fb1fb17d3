"""The greedy blend in numpy, for blends that are computed faster than a kernel is loaded.

Positions are divided into spans, and each step draws one position of every span. The counts before
a span are guessed and then advanced over some positions, in which greedy draws correct nearly every
guess. Each span must start from the counts at the end of the one before; others are drawn again.
"""

from math import isqrt

import numpy as np

from zindex.arrays import Float64Array, Int64Array, IntegerArray
from zindex.kernels.blend import Shares, blend_range

_MAX_SPANS = 1 << 10
#: Errors that cost as much as the calls of one step, per position of the warm-up; measured.
_SPAN_ERRORS = 30


def blend_in_numpy(
    shares: Shares,
    weights: Float64Array,
    counts: Int64Array,
    dataset_index: IntegerArray,
    dataset_sample_index: IntegerArray,
    *,
    block_length: int = 1 << 20,
    warm_up: int = 32,
    max_rounds: int = 64,
) -> None:
    """Write the draws of the first positions of a blend, and count them.

    Parameters
    ----------
    shares
        As of `zindex.kernels.blend.blend_range`.
    weights
        Shape (datasets,), float64: the shares, or sizes over their sum.
    counts
        Shape (datasets,), int64; filled.
    dataset_index, dataset_sample_index
        As of `zindex.kernels.blend.blend_range`; filled.
    block_length
        Positions that are divided into spans at a time.
    warm_up
        Positions over which guessed counts are advanced.
    max_rounds
        Number of times that spans are drawn again before a kernel takes over.

    Notes
    -----
    Law: the draws of `zindex.kernels.blend.blend_range`. Cost: 0.1 us per position for ten
    datasets, 1 ns per position and dataset for a thousand. Weights whose guesses stay wrong load a
    kernel.
    """
    sizes = None if shares is weights else shares
    counts[:] = 0
    for start in range(0, len(dataset_index), block_length):
        rest = dataset_index[start:], dataset_sample_index[start:]
        length = min(len(rest[0]), block_length)
        datasets, samples = _draw_spans(
            weights, sizes, counts, start, length, warm_up=warm_up, max_rounds=max_rounds
        )
        rest[0][: len(datasets)], rest[1][: len(samples)] = datasets, samples
        counts += np.bincount(datasets, minlength=counts.size)
        if len(datasets) < length:
            stop = start + len(datasets)
            return blend_range(
                shares, counts, stop, dataset_index[stop:], dataset_sample_index[stop:]
            )
    return None


def _draw_spans(
    weights: Float64Array,
    sizes: Int64Array | None,
    counts: Int64Array,
    start: int,
    length: int,
    *,
    warm_up: int,
    max_rounds: int,
) -> tuple[IntegerArray, Float64Array]:
    """Return the draws of positions from ``start`` on, as many as are certain.

    Returns
    -------
    datasets, samples
        Shape (positions,) each.
    """
    num_spans = min(isqrt(_SPAN_ERRORS * length // weights.size), _MAX_SPANS) + 1
    # The first span includes the warm-up of the others.
    span = -(-max(length - warm_up, 1) // num_spans)
    starts = start + span * np.arange(num_spans)
    states = _guess(weights, starts)
    states[0] = counts
    if sizes is not None:
        states[states >= sizes] = np.inf
    head = _draw(weights, sizes, states, starts, warm_up)
    origins = states.copy()
    body = _draw(weights, sizes, states, starts + warm_up, span)
    certain = num_spans
    for attempt in range(max_rounds + 1):
        wrong = 1 + np.flatnonzero((origins[1:] != states[:-1]).any(axis=1))
        if not wrong.size:
            break
        if attempt == max_rounds:
            certain = int(wrong[0])
            break
        origins[wrong] = again = states[wrong - 1]
        drawn = _draw(weights, sizes, again, starts[wrong] + warm_up, span)
        for rows, values in zip(body, drawn, strict=True):
            rows[:, wrong] = values
        states[wrong] = again
    datasets, samples = (
        np.concatenate([first[:, 0], rows[:, :certain].T.ravel()])[:length]
        for first, rows in zip(head, body, strict=True)
    )
    return datasets, samples


def _guess(weights: Float64Array, positions: Int64Array) -> Float64Array:
    """Return counts by largest remainders before each position, shape (positions, datasets)."""
    targets = np.multiply.outer(positions.astype(np.float64), weights)
    counts = np.floor(targets)
    missing = positions - counts.sum(axis=1)
    order = np.argsort(counts - targets, axis=1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(weights.size)[np.newaxis], axis=1)
    counts += ranks < missing[:, np.newaxis]
    return counts


def _draw(
    weights: Float64Array,
    sizes: Int64Array | None,
    states: Float64Array,
    starts: Int64Array,
    num_steps: int,
) -> tuple[IntegerArray, Float64Array]:
    """Draw positions of several spans, and advance their counts in place.

    Parameters
    ----------
    states
        Shape (spans, datasets): counts, infinite for datasets whose samples are all drawn.
    starts
        Shape (spans,): the first position of each.

    Returns
    -------
    datasets, samples
        Shape (steps, spans) each.
    """
    datasets = np.empty((num_steps, len(starts)), np.intp)
    samples = np.empty((num_steps, len(starts)))
    rows = np.arange(len(starts)) * weights.size
    factors = starts[:, np.newaxis].astype(np.float64)
    one, errors, counts = np.ones_like(factors), np.empty_like(states), states.reshape(-1)
    first: Float64Array | None = np.maximum(factors, one)  # position 0 has the errors of position 1
    for drawn, numbers in zip(datasets, samples, strict=True):
        # Rounded twice, as `blend_range` defines it.
        np.multiply(factors if first is None else first, weights, errors)
        first = None
        np.subtract(errors, states, errors)
        errors.argmax(axis=1, out=drawn)
        places = drawn + rows
        counts.take(places, out=numbers, mode="clip")
        after = numbers + 1
        if sizes is not None:
            after[after == sizes[drawn]] = np.inf
        counts[places] = after
        factors += one
    return datasets, samples
