"""Commands on a file system with faults; see the module for many."""

import random

import pytest

from tests.harnesses.faulty_files import trial

#: Stale files that a command has just replaced, and a work folder whose old name was remembered.
FAILED = (91, 203, 404, 695, 1055)


@pytest.mark.parametrize("seed", [*FAILED, *range(6)])
def test_late_never_wrong(seed: int) -> None:
    trial(random.Random(seed))
