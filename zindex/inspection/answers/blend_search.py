"""Read scattered positions of a blend, and find the positions of its draws."""

import numpy as np

from zindex.arrays import AnyArray, Int64Array
from zindex.errors import PlanError
from zindex.indexing.blend_arrays import BlendArrays, locate_samples
from zindex.indexing.inverse import Inverse, look_up
from zindex.kernels.bijection import permute, unpermute
from zindex.maintenance.edits.index_search import search, take
from zindex.plan.blend_plan import BlendPlan
from zindex.plan.keys import Stage, split_key

# Minimum number of positions in the first read of a greedy blend search.
_MIN_WIDTH = 64


def compute_draws(plan: BlendPlan, positions: Int64Array) -> list[Int64Array]:
    """Return datasets and samples at scattered positions of a keyed blend, computed together."""
    keys = split_key(plan.seed, Stage.BLEND, plan.split)
    numbers = permute(positions, plan.num_samples, keys)
    return [column.astype(np.int64) for column in locate_samples(plan, numbers)]


def invert_blend(
    plan: BlendPlan,
    arrays: BlendArrays,
    dataset: int,
    numbers: Int64Array,
    inverse: Inverse | None = None,
) -> Int64Array:
    """Return the positions at which a blend draws given samples of one dataset.

    Parameters
    ----------
    plan, arrays, inverse
        The blend plan, its arrays, and their stored inverse, if any.
    dataset
        Index of the dataset in the blend.
    numbers
        Shape (numbers,), int64, ascending: sample numbers; those not drawn are skipped.

    Returns
    -------
    positions
        Shape (drawn,), int64.

    Notes
    -----
    Cost: a keyed blend is inverted. A greedy blend draws each dataset in order, so it is searched
    near the position that the dataset's weight predicts. A uniform blend without a stored inverse
    is read in full.
    """
    counts = np.asarray(arrays.dataset_count)
    numbers = numbers[numbers < int(counts[dataset])]
    if not numbers.size:
        return numbers
    if plan.order == "scalable" and (plan.shuffle == "keyed" or inverse is not None):
        entries = numbers + int(counts[:dataset].sum())
        if inverse is not None:
            order = (arrays.dataset_index, dataset), (arrays.dataset_sample_index, numbers)
            return look_up(inverse.sample_position, entries, *order)
        keys = split_key(plan.seed, Stage.BLEND, plan.split)
        return unpermute(entries, plan.num_samples, keys)
    if plan.order == "scalable":
        rows = search(arrays.dataset_index, np.array([dataset]))
        samples = take(arrays.dataset_sample_index, rows)
        return rows[np.isin(samples, numbers)]
    found = [_find_greedy(arrays, dataset, number, int(counts[dataset])) for number in numbers]
    return np.array(found, np.int64)


def _find_greedy(arrays: BlendArrays, dataset: int, number: int, count: int) -> int:
    """Return the position of one draw of a greedy blend, by interpolation search."""
    low, high = 0, len(arrays.dataset_index)
    distance = high / count  # mean distance between draws of the dataset
    guess, width = int((number + 0.5) * distance), int(4 * distance) + _MIN_WIDTH
    while low < high:
        start = min(max(guess - width // 2, low), high - 1)
        stop = min(start + width, high)
        rows = np.flatnonzero(arrays.dataset_index[start:stop] == dataset)
        if not rows.size:  # no draw of the dataset in this range
            if start == low:
                low = stop
            elif stop == high:
                high = start
            width *= 2
            continue
        first, last = (start + int(rows[place]) for place in (0, -1))
        samples: AnyArray = arrays.dataset_sample_index[first : last + 1][rows - rows[0]]
        place = int(np.searchsorted(samples, number))
        if place < len(samples) and samples[place] == number:
            return start + int(rows[place])
        if place == 0:
            high, guess = first, first - int((int(samples[0]) - number) * distance)
        else:
            low = last + 1
            guess = last + int((number - int(samples[-1])) * distance)
    raise PlanError(
        f"a blend must draw sample {number} of dataset {dataset} once, its index does not; look "
        "for damage with `zindex verify`"
    )
