"""Killed commands; see the module for many."""

from tests.harnesses.kills import trial
from tests.harnesses.running import run_trials


def test_nothing_half_is_seen_after_deaths() -> None:
    outcomes = run_trials(trial, 12, 0)
    assert outcomes["wrong"] == outcomes["hangs"] == 0
    assert outcomes["deaths 0"] < 6
