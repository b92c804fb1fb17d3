"""Commands in any order with readers that stay open; see the module for many."""

import pytest

from tests.harnesses.state_machine import run_many
from zindex.store import reader


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "SPANS_BEFORE_KERNEL", reader.SPANS_BEFORE_KERNEL)


def test_readers_and_stores_are_as_modelled() -> None:
    outcomes = run_many(12, 0)
    assert not outcomes["wrong"]
    assert outcomes["read"] > 10
