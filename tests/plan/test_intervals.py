"""Sets of intervals against sets of numbers."""

import random

import numpy as np
import pytest

from zindex.plan import intervals


def draw(rng: random.Random) -> tuple[np.ndarray, set[int]]:
    pairs = [sorted((rng.randrange(30), rng.randrange(30))) for _ in range(rng.randrange(6))]
    return intervals.merge(pairs), {n for start, stop in pairs for n in range(start, stop)}


@pytest.mark.parametrize("seed", range(60))
def test_intervals_are_sets(seed: int) -> None:
    rng = random.Random(seed)
    (one, numbers), (other, more) = draw(rng), draw(rng)
    assert intervals.expand(one).tolist() == sorted(numbers)
    assert (one[1:, 0] > one[:-1, 1]).all()  # apart
    assert intervals.count(one) == len(numbers)
    assert intervals.expand(intervals.subtract(one, other)).tolist() == sorted(numbers - more)
    assert intervals.expand(intervals.intersect(one, other)).tolist() == sorted(numbers & more)
    for size in range(len(numbers) + 2):
        first = intervals.expand(intervals.take(one, size, last=False)).tolist()
        last = intervals.expand(intervals.take(one, size, last=True)).tolist()
        assert first == sorted(numbers)[:size]
        assert last == sorted(numbers)[len(numbers) - size if size < len(numbers) else 0 :]
