"""Chains of jobs over streams; see the module for many."""

import random

import pytest

from tests.harnesses.stream_chains import trial


@pytest.mark.parametrize("seed", range(8))
def test_chains(seed: int) -> None:
    trial(random.Random(seed))
