"""Splits, blend lists and logging."""

import logging
from typing import Any

import pytest
import torch

from zindex.datasets.utils import (
    Split,
    compile_helpers,
    current_rank,
    get_blend_from_list,
    log_single_rank,
    normalize,
)
from zindex.errors import ConfigError


def test_splits_are_numbered() -> None:
    assert [(split.name, split.value) for split in Split] == [
        ("train", 0),
        ("valid", 1),
        ("test", 2),
    ]


def test_compile_helpers_does_nothing() -> None:
    compile_helpers()


def test_normalize() -> None:
    assert normalize([30, 70]) == [0.3, 0.7]


@pytest.mark.parametrize(
    ("given", "blend"),
    [
        (None, None),
        (["a"], (["a"], None)),
        (["a", " b", "c "], (["a", "b", "c"], None)),
        # weights and prefixes in turn
        (["30", "a", "70", " b "], (["a", "b"], [30.0, 70.0])),
        ([30, "a", 0.5, "b "], (["a", "b"], [30.0, 0.5])),
        # no weight is a number
        (["a", "b"], (["a", "b"], None)),
        # prefixes that are numbers are taken for weights
        (["1", "2"], (["2"], [1.0])),
    ],
)
def test_blend_lists(given: list[Any] | None, blend: Any) -> None:
    assert get_blend_from_list(given) == blend


@pytest.mark.parametrize("blend", [["0.5", "a", "b", "c"], ["a", "b", "0.5", "c"]])
def test_one_bad_weight_is_refused(blend: list[str]) -> None:
    with pytest.raises(ConfigError, match="in each place of a weight or in none, got 1 in 2"):
        get_blend_from_list(blend)


def test_empty_blend_list() -> None:
    with pytest.raises(ConfigError, match=r"got \[\]; pass None instead"):
        get_blend_from_list([])


@pytest.mark.parametrize(("rank", "logged"), [(0, False), (3, True)])
def test_log_on_one_rank(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, rank: int, logged: bool
) -> None:
    logger = logging.getLogger("zindex.test")
    log_single_rank(logger, logging.WARNING, "alone %d", 1)
    assert current_rank() == 0
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 3)
    log_single_rank(logger, logging.WARNING, "together %d", 2, rank=rank)
    assert current_rank() == 3
    assert [record.getMessage() for record in caplog.records] == [
        "alone 1",
        *(["together 2"] if logged else []),
    ]
