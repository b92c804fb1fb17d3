"""Damage is an error, or is counted and logged once per file."""

import logging

import pytest

from zindex.errors import ConfigError, SourceError
from zindex.io.decompression import DamageError
from zindex.sources.damage_log import DamageLog, OnDamage


def test_an_error_by_default() -> None:
    log = DamageLog("whole", "error")
    with pytest.raises(
        SourceError,
        match=r"^a.tar must be whole, but at byte 1,536 it ends; restore the file, or leave out "
        "the rest with on_damage='skip' \\(--on-damage skip\\)$",
    ):
        log.report("a.tar", DamageError("it ends", 1536), "the rest")
    assert log.num_skipped == 0


def test_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    log = DamageLog("whole", "skip")
    with caplog.at_level(logging.WARNING, "zindex"):
        for url in ("a.tar", "b.tar", "a.tar"):
            log.report(url, DamageError("it ends", 1536), "the rest", what="good")
    assert log.num_skipped == 3
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "a.tar must be good, but at byte 1,536 it ends",
        "b.tar must be good, but at byte 1,536 it ends",
    ]


@pytest.mark.parametrize("value", ["ignore", None, "none"])
def test_other_policies(value: OnDamage) -> None:
    with pytest.raises(ConfigError, match=f"on_damage must be one of error, skip, got {value!r}"):
        DamageLog("whole", value)
