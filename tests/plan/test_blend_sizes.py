"""Sizes of blends: each rule by hand, each refusal, and Megatron Core's arithmetic as the judge."""

import math
import re
from dataclasses import replace
from string import ascii_letters
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.errors import PlanError
from zindex.plan.blend_plan import BlendPlan
from zindex.plan.blend_request import BlendRequest
from zindex.plan.blend_sizes import BlendSizes, resolve_blend
from zindex.plan.epochs import plan_epochs

# Samples of 4 tokens and one more: an epoch of 41 tokens gives 10 samples, one of 81 gives 20.
TOKENS = {"train": [81, 41], "valid": [9, 5], "test": [5, 5]}


def request(kind: Any, shares: tuple[float, ...], **changes: Any) -> BlendRequest:
    """Return a request of datasets a, b, ... for samples of 4 tokens and one more."""
    fields: dict[str, Any] = {
        "kind": kind,
        "datasets": tuple(ascii_letters[: len(shares)]),
        "shares": shares,
        "max_epochs": (None,) * len(shares),
        "samples": {},
        "sequence_length": 4,
        "extra_token": 1,
    }
    return BlendRequest(**(fields | changes))


def resolve(asked: BlendRequest, split: str = "train", tokens: Any = TOKENS) -> BlendSizes:
    sizes = resolve_blend(asked, split, tokens)
    assert sizes is not None
    return sizes


# Weights.


def test_weights_of_a_given_size() -> None:
    asked = request("weight", (3, 1), samples={"train": 10})
    expected = BlendSizes(
        members=(0, 1),
        weights=(0.75, 0.25),
        sizes=None,
        num_samples=11,  # 8 and 3: the ceilings of 7.5 and 2.5
        counts=(8, 3),  # 8.25 and 2.75
        requested=(9, 4),  # ceilings of 8.04 and 3.015
        epochs=None,
        capped=(False, False),
    )
    assert resolve_blend(asked, "train") == expected
    # 8 samples of 4 tokens of 81, 3 of 41.
    assert resolve(asked) == replace(expected, epochs=(32 / 81, 12 / 41))


def test_the_scalable_order_keeps_the_size() -> None:
    asked = request("weight", (3, 1), samples={"train": 10}, order="scalable")
    sizes = resolve(asked)
    assert (sizes.num_samples, sizes.counts) == (10, (8, 2))
    assert sizes.requested == (9, 4)  # of the ceilings 8 and 3, as in the other order


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=30), st.integers(1, 10**9))
def test_the_scalable_order_asks_for_what_it_draws(shares: list[float], size: int) -> None:
    samples = {"train": size}
    asked = request("weight", tuple(shares), samples=samples, order="scalable", surplus=0.0)
    sizes = resolve(asked, tokens=None)
    assert sizes.weights is not None
    plan = BlendPlan.weighted(sizes.weights, sizes.num_samples, split="train", order="scalable")
    assert tuple(plan.counts.tolist()) == sizes.counts
    assert all(
        asked is not None and asked >= count
        for asked, count in zip(sizes.requested, sizes.counts, strict=True)
    )


@given(
    st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=50),
    st.integers(1, 10**12),
    st.sampled_from([0.0, 0.005, 0.1]),
)
def test_sizes_are_those_of_megatron_core(shares: list[float], size: int, surplus: float) -> None:
    theirs = pytest.importorskip("megatron.core.datasets.blended_megatron_dataset_builder")
    weights = theirs.normalize(shares)
    target = theirs._get_size_per_split_per_dataset(weights, [size])
    buffer = theirs._get_size_per_split_per_dataset(weights, [size], surplus=surplus)
    asked = request("weight", tuple(shares), samples={"train": size}, surplus=surplus)
    sizes = resolve(asked, tokens=None)
    assert sizes.weights is not None
    assert list(sizes.weights) == weights
    assert sizes.num_samples == sum(count for (count,) in target)
    assert list(sizes.requested) == [count for (count,) in buffer]


def test_sizes_of_megatron_cores_own_test() -> None:
    asked = request("weight", (0.3, 0.7), samples={"train": 1000, "valid": 10, "test": 1})
    found = [resolve(asked, split, None).requested for split in ("train", "valid", "test")]
    assert found == [(302, 704), (4, 8), (2, 2)]
    asked = replace(asked, surplus=0.0)
    found = [resolve(asked, split, None).requested for split in ("train", "valid", "test")]
    assert found == [(300, 700), (3, 7), (1, 1)]


def test_no_samples_no_blend() -> None:
    for kind in ("weight", "tokens", "epochs", "sizes"):
        asked = request(kind, (1, 1), samples={"train": 0, "valid": 0})
        for tokens in (None, TOKENS):
            for split in ("train", "valid"):
                sizes = resolve(asked, split, tokens)
                assert (sizes.members, sizes.num_samples) == ((), 0)


def test_weights_need_samples_of_train() -> None:
    with pytest.raises(PlanError, match="a blend by weights needs samples of train, got none"):
        resolve_blend(request("weight", (1, 1)), "train")


def test_a_weight_that_vanishes_is_refused() -> None:
    asked = request("weight", (1e-320, 1e300), samples={"train": 10})
    with pytest.raises(PlanError, match=r"that of 'a' is 0 relative to the others; set it to 0"):
        resolve_blend(asked, "train")


def test_a_dataset_without_tokens_cannot_have_weight() -> None:
    asked = request("weight", (3, 1), samples={"train": 10, "valid": 8})
    message = (
        "valid of 'b' must hold tokens to give 2 samples to the blend, it has 0; give valid a "
        "larger share of the documents, or set the dataset's weight or samples.valid to 0"
    )
    assert resolve(asked, "valid", {"train": [1, 1]}).counts == (6, 2)  # not known yet
    with pytest.raises(PlanError, match=re.escape(message)):
        resolve_blend(asked, "valid", {"valid": [9, 0]})


# The limit of epochs.


def test_weights_within_the_epochs() -> None:
    # 2 epochs of b are 82 tokens: 20 samples; 80 * 0.25 are just these.
    asked = request("weight", (3, 1), samples={"train": 80}, max_epochs=(None, 2))
    assert resolve(asked).epochs == (60 * 4 / 81, 20 * 4 / 41)


def test_weights_beyond_the_epochs() -> None:
    asked = request("weight", (3, 1), samples={"train": 84}, max_epochs=(None, 2))
    assert resolve(asked, tokens=None).num_samples == 84  # only known from tokens
    message = (
        "blend needs 21 samples of train from 'b' but 2 epochs give 20; raise max_epochs to 2.08 "
        "or lower its weight to 0.93"  # 85 tokens of 41; 20 / 64 * 3
    )
    with pytest.raises(PlanError, match=re.escape(message)):
        resolve(asked)
    resolve(replace(asked, max_epochs=(None, 2.08)))
    resolve(replace(asked, shares=(3, 0.93)))


def test_other_splits_have_no_limit() -> None:
    asked = request("weight", (3, 1), samples={"train": 1, "valid": 84}, max_epochs=(2, 2))
    assert resolve(asked, "valid").num_samples == 84


def test_budgets_of_a_given_size_beyond_the_epochs() -> None:
    # 60 samples of a in 3 epochs, 20 of b in 2: 80 are all that there is.
    asked = request("epochs", (3, 2), samples={"train": 80}, max_epochs=(3, 2))
    assert resolve(asked).counts == (60, 20)
    message = (
        "blend needs 63 samples of train from 'a' but 3 epochs give 60; raise max_epochs to 3.13 "
        "or lower samples.train to 80; the same holds for 1 more"
    )
    with pytest.raises(PlanError, match=re.escape(message)):
        resolve(replace(asked, samples={"train": 84}))


# Token budgets.


def test_tokens_make_an_exhaustive_blend() -> None:
    asked = request("tokens", (101, 8))
    expected = BlendSizes(
        members=(0, 1),
        weights=None,
        sizes=(26, 2),  # 101 tokens take 26 samples of 4
        num_samples=28,
        counts=(26, 2),
        requested=(26, 2),
        epochs=None,
        capped=(False, False),
    )
    assert resolve_blend(asked, "train") == expected
    assert resolve(asked) == replace(expected, epochs=(104 / 81, 8 / 41))


def test_tokens_are_capped() -> None:
    asked = request("tokens", (1000, 8), max_epochs=(2.5, 2.5))
    assert resolve_blend(asked, "train") is None
    assert resolve_blend(asked, "train", {"valid": [9, 5]}) is None
    sizes = resolve(asked)
    # 2.5 epochs of 81 tokens are 202 and a half: 50 samples and one token more.
    assert (sizes.sizes, sizes.requested, sizes.capped) == ((50, 2), (50, 2), (True, False))
    assert sizes.epochs == (200 / 81, 8 / 41)


def test_tokens_with_a_size_are_weights() -> None:
    asked = request("tokens", (300, 100), samples={"train": 10})
    weighted = request("weight", (75, 25), samples={"train": 10})
    assert resolve_blend(asked, "train") == resolve_blend(weighted, "train")
    # Capped first: 20 of the 75 samples.
    capped = resolve(replace(asked, max_epochs=(1, None)))
    assert capped.weights == (20 / 45, 25 / 45)
    assert capped.capped == (True, False)


def test_tokens_of_a_dataset_without_any() -> None:
    for limit in (None, 4):
        asked = request("tokens", (101, 8), max_epochs=(None, limit))
        with pytest.raises(PlanError, match=r"train of 'b' must hold tokens to give 2 samples to"):
            resolve(asked, tokens={"train": [81, 0]})
    asked = request("tokens", (101, 8), samples={"train": 10})
    with pytest.raises(PlanError, match=r"train of 'b' must hold tokens to give 1 samples to"):
        resolve(asked, tokens={"train": [81, 0]})
    asked = replace(asked, max_epochs=(None, 4))
    with pytest.raises(PlanError, match=r"'b' must give samples .* tokens 8 gives 0 of its 0"):
        resolve(asked, tokens={"train": [81, 0]})
    # A cap of nothing leaves it out.
    asked = request("tokens", (101, 8), max_epochs=(None, 0.05))
    assert resolve(asked).members == (0,)


# Epochs.


def test_epochs_make_an_exhaustive_blend() -> None:
    asked = request("epochs", (2.5, 1))
    assert resolve_blend(asked, "train") is None
    sizes = resolve(asked)
    assert (sizes.sizes, sizes.num_samples) == ((50, 10), 60)
    assert sizes.epochs == (200 / 81, 40 / 41)
    plan = plan_epochs(81, 50, sequence_length=4, extra_token=1)
    assert plan.num_epochs == 3


def test_epochs_are_capped() -> None:
    sizes = resolve(request("epochs", (3, 2), max_epochs=(2.5, 2)))
    assert sizes.sizes == (50, 20)
    assert sizes.capped == (True, False)  # b asks for what it may


def test_epochs_with_a_size_are_weights() -> None:
    asked = request("epochs", (2, 4), samples={"train": 8})  # 40 and 40 samples
    assert resolve_blend(asked, "train") is None
    assert resolve(asked).weights == (0.5, 0.5)


def test_epochs_of_a_dataset_without_samples() -> None:
    sizes = resolve(request("epochs", (2, 1)), tokens={"train": [81, 4]})
    assert (sizes.members, sizes.sizes) == ((0,), (40,))
    assert resolve(request("epochs", (2, 1)), tokens={"train": [0, 0]}).members == ()
    message = (
        "'b' must give samples to a blend of 8 samples of train, epochs 1 gives 0 of its 4 tokens "
        "per epoch; raise it, or set it to 0 to leave the dataset out"
    )
    with pytest.raises(PlanError, match=re.escape(message)):
        resolve(request("epochs", (2, 1), samples={"train": 8}), tokens={"train": [81, 4]})


@pytest.mark.parametrize(
    ("num_epochs", "tokens", "count"),
    [
        (1, 81, 20),
        (2, 81, 40),  # 162 tokens, one of them the extra one
        (0.7, 30, 5),  # 21 tokens: 0.7 is seven tenths and not a little less
        (0.05, 81, 0),
        (1e-9, 81, 0),
        (1e6, 10**15, 10**21 // 4 - 1),  # 10^21 tokens, one short of the last sample
    ],
)
def test_samples_of_epochs(num_epochs: float, tokens: int, count: int) -> None:
    assert request("epochs", (1,)).count_samples(num_epochs, tokens) == count


@given(st.integers(1, 10**9), st.integers(1, 20))
def test_whole_epochs_are_those_of_the_plan(tokens: int, num_epochs: int) -> None:
    count = request("epochs", (1,)).count_samples(float(num_epochs), tokens)
    if count:
        plan = plan_epochs(tokens, count, sequence_length=4, extra_token=1)
        assert plan.num_epochs <= num_epochs
        more = plan_epochs(tokens, count + 1, sequence_length=4, extra_token=1)
        assert more.num_epochs > num_epochs


# The other splits.


def test_other_splits_are_one_epoch_of_everything() -> None:
    for kind in ("weight", "tokens", "epochs"):
        asked = request(kind, (3, 1), samples={"train": 10}, max_epochs=(0.5, 0.5))
        assert resolve_blend(asked, "valid", {"train": [81, 41]}) is None
        sizes = resolve(asked, "valid")
        assert (sizes.sizes, sizes.requested) == ((2, 1), (None, None))
        assert sizes.epochs == (8 / 9, 4 / 5)
        assert sizes.capped == (False, False)


def test_members_without_samples_are_left_out_of_what_is_exhaustive() -> None:
    asked = request("weight", (3, 1, 1), samples={"train": 10})
    sizes = resolve(asked, "valid", {"valid": [0, 4, 9]})
    assert (sizes.members, sizes.sizes, sizes.epochs) == ((2,), (2,), (8 / 9,))
    assert resolve(asked, "valid", {"valid": [0, 0, 0]}).members == ()


def test_the_partial_sample_of_valid() -> None:
    asked = request("epochs", (1, 1), drop_last_partial_validation_sequence=False)
    tokens = {"train": [83, 41], "valid": [83, 1], "test": [83, 4]}
    assert resolve(asked, "train", tokens).sizes == (20, 10)
    assert resolve(asked, "valid", tokens).sizes == (21,)  # 82 tokens and one more
    assert resolve(asked, "test", tokens).sizes == (20,)


def test_samples_of_other_splits_are_shared_out_like_train() -> None:
    asked = request("tokens", (300, 100), samples={"train": 0, "valid": 8})
    sizes = resolve(asked, "valid", None)
    assert (sizes.weights, sizes.counts, sizes.num_samples) == ((0.75, 0.25), (6, 2), 8)
    by_epochs = request("epochs", (2, 1), samples={"test": 10})  # 40 and 10 samples of train
    assert resolve_blend(by_epochs, "test", {"test": [5, 5]}) is None
    assert resolve(by_epochs, "test", {"train": [81, 41]}).counts == (8, 2)
    # A dataset of which train sees nothing gives nothing.
    assert resolve(by_epochs, "test", {"train": [81, 4]}).members == (0,)
    capped = replace(asked, max_epochs=(1, None))
    sizes = resolve(capped, "valid")
    assert sizes.weights == (20 / 45, 25 / 45)
    assert sizes.capped == (False, False)  # of train it says something, of valid nothing
    message = "10 samples of test are shared out like those of train, of which no dataset gives any"
    with pytest.raises(PlanError, match=message):
        resolve(by_epochs, "test", {"train": [0, 0]})


# Sizes.


def test_sizes_are_one_epoch_of_everything() -> None:
    asked = request("sizes", (1, 1, 1))
    assert resolve_blend(asked, "train", {"valid": [9, 9, 9]}) is None
    sizes = resolve(asked, "train", {"train": [81, 0, 41]})
    assert sizes == BlendSizes(
        members=(0, 2),
        weights=None,
        sizes=(20, 10),
        num_samples=30,
        counts=(20, 10),
        requested=(None, None),
        epochs=(80 / 81, 40 / 41),
        capped=(False, False),
    )


@pytest.mark.parametrize(
    ("size", "counts"), [(3, (2, 1)), (29, (19, 10)), (30, (20, 10)), (10**9, (20, 10))]
)
def test_sizes_up_to_a_number_of_samples(size: int, counts: tuple[int, int]) -> None:
    asked = request("sizes", (1, 1), samples={"train": size})
    assert resolve_blend(asked, "train") is None
    sizes = resolve(asked)
    assert (sizes.weights, sizes.sizes) == ((20.0, 10.0), None)
    assert sizes.num_samples == min(size, 30)
    assert sizes.counts == counts
    assert sizes.requested == (None, None)


def test_sizes_of_nothing() -> None:
    tokens = {"train": [4, 0]}
    assert resolve(request("sizes", (1, 1)), "train", tokens).members == ()
    message = (
        "train must hold samples to give 7 of them, its 2 datasets have none; give it a larger"
    )
    with pytest.raises(PlanError, match=message):
        resolve(request("sizes", (1, 1), samples={"train": 7}), "train", tokens)


# Bounds and laws.


def test_blends_are_bounded() -> None:
    asked = request("weight", (3, 1), samples={"train": 2**62 + 1})
    with pytest.raises(PlanError, match=r"of train must be at most 4,611,.*, got 4,611,.*905; low"):
        resolve_blend(asked, "train")
    with pytest.raises(PlanError, match=r"got 4,999,999.* of all datasets; lower their epochs"):
        resolve(request("epochs", (10**6, 10**6)), tokens={"train": [10**13, 10**13]})


kinds = st.sampled_from(["weight", "tokens", "epochs"])
splits = st.sampled_from(["train", "valid", "test"])


@given(
    kinds,
    st.lists(st.integers(1, 1000), min_size=1, max_size=8),
    splits,
    st.dictionaries(splits, st.none() | st.integers(0, 1000)),
    st.none() | st.integers(1, 1000),
    st.integers(0, 2**32),
    st.sampled_from(["megatron", "scalable"]),
)
def test_sizes_known_in_advance_do_not_change(
    kind: str,
    shares: list[int],
    split: str,
    samples: dict[str, int | None],
    limit: int | None,
    seed: int,
    order: str,
) -> None:
    if kind == "weight" and samples.get("train") is None:
        samples["train"] = 10
    limits = (limit,) * len(shares)
    asked = request(kind, tuple(shares), samples=samples, max_epochs=limits, order=order)
    tokens = {
        name: [(seed * (d + 7)) % 1009 + 5 for d in range(len(shares))]
        for name in ("train", "valid", "test")
    }
    ahead = resolve_blend(asked, split)
    try:
        sizes = resolve(asked, split, tokens)
    except PlanError as error:
        if "raise max_epochs" not in str(error) and "must give samples" not in str(error):
            raise
        return
    assert ahead is None or ahead == replace(sizes, epochs=None)
    lengths = {len(value) for value in (sizes.counts, sizes.requested, sizes.epochs or ())}
    assert lengths == {len(sizes.members)}
    if not sizes.members:
        return
    assert sum(sizes.counts) == sizes.num_samples
    weights, wholes = sizes.weights, sizes.sizes
    plan = (
        BlendPlan.weighted(weights, sizes.num_samples, split=split)
        if weights is not None
        else BlendPlan.exhaustive(wholes or (), split=split)
    )
    assert tuple(plan.counts.tolist()) == sizes.counts
    assert plan.num_samples == sizes.num_samples
    assert sizes.epochs is not None
    for d, count, epochs in zip(sizes.members, sizes.counts, sizes.epochs, strict=True):
        assert math.isclose(epochs * tokens[split][d], count * 4)
        if limit is not None and split == "train":
            # Rounding to whole samples, as Megatron does, may add one or two.
            assert count <= asked.count_samples(limit, tokens[split][d]) + 2 + len(shares)
