"""Races in the order of a seed; see the module for many."""

import random

import pytest

from tests.harnesses.schedules import trial

#: Two edits under one name, a lost reply, and a pair that two processes finish: each was lost once.
#: Then the empty claim of a killed writer, a pair that is finished while its spans are checked, a
#: note that was taken for damaged while it was claimed, and the lost reply to a replacement.
FAILED = (51, 90, 22, 91, 24, 29, 38, 3537, 3588, 4256, 6084, 6471, 20606, 21784)


@pytest.mark.parametrize("seed", [*FAILED, *range(8)])
def test_races(seed: int) -> None:
    trial(random.Random(seed))
