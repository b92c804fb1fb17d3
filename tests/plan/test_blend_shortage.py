"""Blends that want more than their epochs give: the numbers by hand, and that the ways out work."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.errors import PlanError
from zindex.plan.blend_shortage import EpochLimit, check_limits


def limit(row: int, num_samples: int, *, max_epochs: float = 4.0, tokens: int = 0) -> EpochLimit:
    tokens = tokens or (num_samples * 4 + 1) // 4
    return EpochLimit(f"set{row}", row, max_epochs, tokens, num_samples)


def check(limits: list[EpochLimit], shares: list[float], size: int, by_weight: bool = True) -> None:
    check_limits(limits, shares, size, sequence_length=4, extra_token=1, by_weight=by_weight)


def test_the_houses_example() -> None:
    # 800,001 tokens an epoch, 4 of them make 800,000 samples of 4, and one token more.
    short = EpochLimit("code", 1, 4.0, 800_001, 800_000)
    message = (
        "blend needs 1,200,000 samples of train from 'code' but 4 epochs give 800,000; raise "
        "max_epochs to 6 or lower its weight to 0.20"
    )
    with pytest.raises(PlanError) as caught:
        # 0.8 M of 4 M are a share of 0.2, and so is a weight of 0.2 next to 0.8.
        check([short], [0.8, 0.3428571], 4_000_000)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("limits", "shares", "size", "by_weight", "message"),
    [
        # A share that is not configured cannot be lowered; 10 samples are 0.5 of 20.
        (
            [limit(0, 10, tokens=41)],
            [5, 5],
            30,
            False,
            "needs 15 samples of train from 'set0' but 4 epochs give 10; raise max_epochs to 1.49 "
            "or lower samples.train to 20",
        ),
        # Nor does a lower weight help a blend of one.
        ([limit(0, 10, tokens=41)], [0.5], 30, True, "or lower samples.train to 10"),
        # The dataset that lacks most epochs is named, and that it is not alone.
        (
            [limit(0, 10, tokens=41), limit(1, 5, tokens=21), limit(2, 99, tokens=999)],
            [1, 1, 1],
            60,
            True,
            "needs 20 samples of train from 'set1' but 4 epochs give 5; raise max_epochs to 3.86 "
            "or lower its weight to 0.18; so it is with 1 more",  # 5 / 55 * 2
        ),
        # The smallest of what every limit allows: 20 and 5.
        (
            [limit(0, 10, tokens=41), limit(1, 5, tokens=1)],
            [0.5, 0.5],
            60,
            False,
            "lower samples.train to 10; so it is with 1 more",
        ),
        # Less than a sample.
        (
            [limit(0, 0, max_epochs=0.25, tokens=3)],
            [1, 1],
            60,
            True,
            "needs 30 samples of train from 'set0' but 0.25 epochs give 0; raise max_epochs to "
            "40.34 or lower its weight to 0",
        ),
    ],
)
def test_ways_out(
    limits: list[EpochLimit], shares: list[float], size: int, by_weight: bool, message: str
) -> None:
    with pytest.raises(PlanError, match=re.escape(message)):
        check(limits, shares, size, by_weight)


def test_the_one_sample_of_rounding_is_let_pass() -> None:
    check([limit(0, 3)], [1, 1], 7)  # 3.5 samples, of which 3 are there
    check([], [1, 1], 7)
    with pytest.raises(PlanError, match="needs 4 samples"):
        check([limit(0, 3, tokens=5)], [1, 1], 8)


@given(
    st.integers(1, 10**6),
    st.sampled_from([0.5, 1.0, 2.5, 4.0]),
    st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=5),
    st.integers(1, 10**6),
)
def test_each_way_out_is_one(
    tokens: int, max_epochs: float, shares: list[float], size: int
) -> None:
    def count(epochs: float) -> int:
        return max(0, (int(epochs * 100) * tokens // 100 - 1) // 4)

    def attempt(epochs: float, given: list[float], samples: int, by_weight: bool = True) -> str:
        try:
            check([EpochLimit("a", 0, epochs, tokens, count(epochs))], given, samples, by_weight)
        except PlanError as error:
            return str(error)
        return ""

    message = attempt(max_epochs, shares, size)
    if not message:
        return
    found = re.search(r"raise max_epochs to ([\d.]+) or lower its weight to ([\d.e+-]+)$", message)
    assert found is not None, message
    epochs, weight = map(float, found.groups())
    assert epochs > max_epochs
    assert weight < shares[0]
    assert not attempt(round(epochs, 2) + 1e-9, shares, size)
    assert weight == 0 or not attempt(max_epochs, [weight, *shares[1:]], size)
    found = re.search(r"samples.train to ([\d,]+)$", attempt(max_epochs, shares, size, False))
    assert found is not None
    assert not attempt(max_epochs, shares, int(found[1].replace(",", "")) or 1) or found[1] == "0"
