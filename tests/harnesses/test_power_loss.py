"""Power losses during small commands; see the module for many."""

import random

import pytest

from tests.harnesses.commands import COMMANDS
from tests.harnesses.power_loss import trial


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_power_losses(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("build", "edit run"):  # they compile kernels
        monkeypatch.delitem(COMMANDS, name)
    outcomes = {trial(random.Random(seed)) for seed in range(first, first + 50)}
    assert outcomes <= COMMANDS.keys()
