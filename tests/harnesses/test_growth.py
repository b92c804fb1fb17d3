"""A growing store whose processes are killed; see the module for many."""

from tests.harnesses.growth import trial
from tests.harnesses.running import run_trials


def test_growth_survives_kills_with_equal_replays() -> None:
    outcomes = run_trials(trial, 3, 0)
    assert outcomes["wrong"] == outcomes["hangs"] == 0
    assert outcomes["deaths 0"] == 0
