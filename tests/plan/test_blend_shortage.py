"""Blends that want more than their epochs give: the numbers by hand, and that the ways out work."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.errors import PlanError
from zindex.plan.blend_request import BlendRequest
from zindex.plan.blend_sizes import check_epochs

#: Epochs that a dataset may have, and tokens of one of them; None where there is no limit.
Limit = tuple[float, int] | None

# Four epochs of so many tokens, for samples of 4 tokens and one more.
TEN, FIVE, MANY = (4, 11), (4, 6), (4, 100)


def check(limits: list[Limit], shares: list[float], size: int, by_weight: bool = True) -> None:
    limits = [*limits, *[None] * (len(shares) - len(limits))]
    request = BlendRequest(
        kind="weight" if by_weight else "epochs",
        datasets=tuple(f"set{row}" for row in range(len(shares))),
        shares=tuple(shares),
        max_epochs=tuple(limit and limit[0] for limit in limits),
        samples={"train": size},
        sequence_length=4,
        extra_token=1,
    )
    tokens = [limit[1] if limit else 1 for limit in limits]
    check_epochs(request, range(len(shares)), shares, size, tokens)


def test_the_houses_example() -> None:
    # 800,001 tokens an epoch, 4 of them make 800,000 samples of 4, and one token more.
    message = (
        "blend needs 1,200,000 samples of train from 'set1' but 4 epochs give 800,000; raise "
        "max_epochs to 6 or lower its weight to 0.20"
    )
    with pytest.raises(PlanError) as caught:
        # 0.8 M of 4 M are a share of 0.2, and so is a weight of 0.2 next to 0.8.
        check([None, (4, 800_001)], [0.8, 0.3428571], 4_000_000)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("limits", "shares", "size", "by_weight", "message"),
    [
        # A share that is not configured cannot be lowered; 10 samples are 0.5 of 20.
        (
            [TEN],
            [5, 5],
            30,
            False,
            "needs 15 samples of train from 'set0' but 4 epochs give 10; raise max_epochs to 5.55 "
            "or lower samples.train to 20",
        ),
        # Nor does a lower weight help a blend of one.
        ([TEN], [0.5], 30, True, "or lower samples.train to 10"),
        # The dataset that lacks most epochs is named, and that it is not alone.
        (
            [TEN, FIVE, MANY],
            [1, 1, 1],
            60,
            True,
            "needs 20 samples of train from 'set1' but 4 epochs give 5; raise max_epochs to 13.5 "
            "or lower its weight to 0.18; the same holds for 1 more",  # 5 / 55 * 2
        ),
        # The smallest of what every limit allows: 20 and 10.
        ([TEN, FIVE], [0.5, 0.5], 60, False, "samples.train to 10; the same holds for 1 more"),
        # Less than a sample.
        (
            [(0.25, 3)],
            [1, 1],
            60,
            True,
            "needs 30 samples of train from 'set0' but 0.25 epochs give 0; raise max_epochs to "
            "40.34 or lower its weight to 0",
        ),
    ],
)
def test_ways_out(
    limits: list[Limit], shares: list[float], size: int, by_weight: bool, message: str
) -> None:
    with pytest.raises(PlanError, match=re.escape(message)):
        check(limits, shares, size, by_weight)


def test_the_one_sample_of_rounding_is_let_pass() -> None:
    check([(4, 4)], [1, 1], 7)  # 3.5 samples, of which 3 are there
    check([], [1, 1], 7)
    with pytest.raises(PlanError, match="needs 4 samples"):
        check([(4, 4)], [1, 1], 8)


@given(
    st.integers(1, 10**6),
    st.sampled_from([0.5, 1.0, 2.5, 4.0]),
    st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=5),
    st.integers(1, 10**6),
)
def test_each_way_out_is_one(
    tokens: int, max_epochs: float, shares: list[float], size: int
) -> None:
    def attempt(epochs: float, given: list[float], samples: int, by_weight: bool = True) -> str:
        try:
            check([(epochs, tokens)], given, samples, by_weight)
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
    assert not attempt(epochs, shares, size)
    assert weight == 0 or not attempt(max_epochs, [weight, *shares[1:]], size)
    found = re.search(r"samples.train to ([\d,]+)$", attempt(max_epochs, shares, size, False))
    assert found is not None
    assert not attempt(max_epochs, shares, int(found[1].replace(",", "")) or 1) or found[1] == "0"
