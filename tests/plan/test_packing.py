"""Plans of packed indices: partitions, least samples, epochs, identity, sizes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.errors import ConfigError, PlanError
from zindex.kernels.packing import SPLIT, FitRules, count_samples
from zindex.plan.build_plan import SourceFacts, count_epochs
from zindex.plan.packing import PackingPlan, PackingRules, count_packed
from zindex.store.commit import canonical_json, parse_json

DIGEST = "0123456789abcdef" * 4


def make_plan(num_documents: int = 100, num_tokens: int = 1000, **values: Any) -> PackingPlan:
    settings: dict[str, Any] = {"sequence_length": 9, "extra_token": 1, "seed": 1}
    return PackingPlan(
        source=SourceFacts(DIGEST, num_documents, num_tokens),
        split=values.pop("split", "train"),
        start=0,
        stop=num_documents,
        tokens_per_epoch=num_tokens,
        **(settings | values),
    )


@given(
    num_documents=st.integers(1, 10**7),
    partition_length=st.integers(1, 10**5),
    epoch=st.integers(0, 9),
)
def test_partitions_tile_every_epoch(num_documents: int, partition_length: int, epoch: int) -> None:
    plan = make_plan(num_documents, partition_length=partition_length)
    count = plan.partitions_per_epoch
    for place in {0, count // 2, count - 1}:
        found, start, stop = plan.partition_bounds(epoch * count + place)
        assert found == epoch
        # Equally long, and no shorter than they must be unless the epoch is.
        assert min(num_documents, partition_length) <= stop - start < 2 * partition_length + 1
        after = plan.partition_bounds(epoch * count + place + 1)
        assert (after[0], after[1]) == ((epoch, stop) if place < count - 1 else (epoch + 1, 0))


@pytest.mark.parametrize(
    ("num_requested", "rules", "wanted"),
    [
        (None, PackingRules(), None),
        (100, PackingRules(), None),  # 1,000 tokens fill 100 samples of 10 at least
        (101, PackingRules(), 101),
        (100, PackingRules(4, "drop"), 100),  # any of them may be dropped
        (1, PackingRules(4, "truncate"), None),
    ],
)
def test_wanted_is_what_one_epoch_may_not_give(
    num_requested: int | None, rules: PackingRules, wanted: int | None
) -> None:
    assert make_plan(num_requested=num_requested, rules=rules).num_wanted == wanted


@pytest.mark.parametrize(
    ("starts", "wanted", "epochs"),
    [
        ([0, 5], None, 1),
        ([0, 5], 5, 1),
        ([0, 5], 6, None),
        ([0, 5, 11, 16], 11, 2),
        ([0, 5, 11, 16], 12, 3),
        ([0, 5], 0, 1),
    ],
)
def test_epochs(starts: list[int], wanted: int | None, epochs: int | None) -> None:
    assert count_epochs(np.array(starts), wanted) == epochs


def test_a_plan_round_trips_through_its_spec() -> None:
    plan = make_plan(num_requested=200, rules=PackingRules(7, "truncate"), partition_length=30)
    spec = parse_json(canonical_json(plan.spec).encode(), "spec")
    again = PackingPlan.from_spec(spec | {"store": "all"})
    assert again.spec == plan.spec
    assert replace(again, source=plan.source) == plan


def test_layouts_are_cut_by_their_sizes() -> None:
    layouts = make_plan().layouts_of(3, 50, 120)
    assert [(layout.name, layout.shape, layout.dtype) for layout in layouts] == [
        ("partition_offset", (4, 3), "int64"),
        ("part_index", (120, 2), "int32"),
        ("sample_offset", (51,), "int32"),
        ("shuffle_index", (50,), "uint32"),
    ]
    minimal = make_plan(stored="minimal").layouts_of(3, 50, 2**31)
    assert [layout.name for layout in minimal][-1] == "sample_offset"
    assert minimal[2].dtype == "int64"
    many = make_plan(2**31 + 1).layouts_of(3, 2**32, 120)
    assert many[1].dtype == "int64"
    assert many[-1].dtype == "int64"


def test_estimates_suppose_no_padding() -> None:
    layouts = make_plan(num_requested=250).layouts
    assert [layout.length for layout in layouts] == [4, 300, 301, 300]


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        ({"stored": "some"}, ConfigError, "store must be one of all, minimal, got 'some'"),
        ({"sequence_length": 0}, PlanError, "sequence_length must be at least 1, got 0"),
        ({"split": "dev"}, ConfigError, "split must be one of .* got 'dev'"),
        ({"seed": -1}, ConfigError, r"seed must be in \[0, 9223372036854775808\), got -1"),
        ({"num_tokens": 0}, PlanError, r"must hold tokens to be packed, documents \[0, 100\) hold"),
        ({"num_documents": 0}, PlanError, r"must hold documents of \[0, 0\), got \[0, 0\)"),
    ],
)
def test_wrong_values(values: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make_plan(**values)


@given(st.lists(st.integers(1, 200), max_size=300), st.integers(1, 90), st.integers(1, 12))
def test_as_many_sequences_as_a_build_packs(
    lengths: list[int], sequence_length: int, max_samples: int
) -> None:
    documents = np.array(lengths, np.int64)
    expected, _, _ = count_samples(documents, FitRules(sequence_length, 0, max_samples, SPLIT))
    assert count_packed(documents, sequence_length, max_samples) == expected


def test_lengths_of_one_kind_are_packed_together() -> None:
    lengths = np.repeat(np.arange(1, 400), 100)
    expected, _, _ = count_samples(lengths, FitRules(512, 0, 7, SPLIT))
    assert count_packed(lengths, 512, 7) == expected
