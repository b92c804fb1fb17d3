"""Whole files in the place of others, in short."""

from collections.abc import Iterator

import pytest

from tests.harnesses.cross_files import trial
from tests.harnesses.running import run_trials
from zindex.store import reader
from zindex.store.reader import forget_all_files


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(reader, "SPANS_BEFORE_KERNEL", 0)
    yield
    forget_all_files()


# Links that lead to themselves, foreign files under an open pair, and a pipe.
@pytest.mark.parametrize("seed", [132, 265, 376, 413, 477, 850, 5227])
def test_what_failed_once(seed: int) -> None:
    assert not run_trials(trial, 1, seed).keys() & {"wrong", "hangs"}


def test_other_files_are_seen_or_change_no_value() -> None:
    outcomes = run_trials(trial, 80, 0)
    assert outcomes["wrong"] == outcomes["hangs"] == 0
    assert min(outcomes["seen"], outcomes["harmless"]) > 10
