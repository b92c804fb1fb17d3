"""Chains of jobs over streams; see the module for many."""

import random

import pytest

from tests.harnesses.stream_chains import trial


# With 10092, samples read before a change of percents arrive after it, as the first of a rank.
@pytest.mark.parametrize("seed", [*range(8), 10092, 60156])
def test_chains(seed: int) -> None:
    trial(random.Random(seed))
