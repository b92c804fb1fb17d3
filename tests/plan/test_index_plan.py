"""The plan of one index: sizes, dtypes, borders of epochs, and what makes its identity."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.errors import ConfigError, PlanError, ZindexError
from zindex.plan.build_plan import SourceFacts
from zindex.plan.epochs import EpochPlan, plan_epochs
from zindex.plan.index_plan import ALGORITHM_VERSIONS, IndexPlan
from zindex.store.layout import ChunkGrid

SOURCE = SourceFacts("ab" * 32, num_sequences=6, num_tokens=27)


def make_plan(num_samples: int | None = 9, **changes: Any) -> IndexPlan:
    """Return a plan of six documents with 27 tokens, samples of 4 + 1."""
    extra_token = changes.get("extra_token", 1)
    sequence_length = changes.get("sequence_length", 4)
    fields: dict[str, Any] = {
        "source": SOURCE,
        "split": "train",
        "start": 0,
        "stop": 6,
        "epochs": plan_epochs(
            27,
            num_samples,
            sequence_length=sequence_length,
            extra_token=extra_token,
            drop_last=changes.get("drop_last", True),
        ),
        "sequence_length": sequence_length,
        "extra_token": extra_token,
        "seed": 1234,
    }
    return IndexPlan(**(fields | changes))


def make_large_plan(*, num_documents: int, num_epochs: int, num_samples: int) -> IndexPlan:
    """Return a plan with numbers that no test could build."""
    return make_plan(
        source=SourceFacts("ab" * 32, num_sequences=num_documents, num_tokens=10**15),
        stop=num_documents,
        epochs=EpochPlan(num_epochs, False, num_samples, tokens_per_epoch=10**15),
    )


def test_sizes() -> None:
    plan = make_plan()
    assert (plan.num_documents, plan.num_rows) == (6, 12)  # two epochs of six documents
    assert (plan.num_samples, plan.num_full_samples) == (13, 13)  # (54 - 1) // 4
    assert [layout.name for layout in plan.layouts] == [
        "document_index",
        "sample_index",
        "shuffle_index",
    ]
    assert [layout.length for layout in plan.layouts] == [12, 14, 13]
    assert [layout.dtype for layout in plan.layouts] == ["int32", "int32", "uint32"]
    assert plan.nbytes == 12 * 4 + 14 * 8 + 13 * 4


def test_a_partial_sample_is_one_more() -> None:
    plan = make_plan(None, extra_token=0, drop_last=False, split="valid")
    assert (plan.num_samples, plan.num_full_samples) == (7, 6)
    assert plan.sample_layout.shape == (8, 2)


def test_minimal_stores_what_cannot_be_computed_on_read() -> None:
    plan = make_plan(order="scalable", stored="minimal")
    assert plan.layouts == (plan.sample_layout,)
    assert plan.document_layout == make_plan(order="scalable").document_layout


@pytest.mark.parametrize(
    ("num_documents", "num_epochs", "num_samples", "dtypes"),
    [
        # document ids end at 2^31 - 1, which int32 holds
        (2**31, 1, 1, ("int32", "int64", "uint32")),  # but 2^31 rows it does not
        (2**31 + 1, 1, 1, ("int64", "int64", "uint32")),  # the last id is 2^31
        (2**31 - 1, 1, 1, ("int32", "int32", "uint32")),  # as in Megatron Core: rows <= 2^31 - 1
        (2**30, 2, 1, ("int32", "int64", "uint32")),  # the rows of all epochs count
        (6, 1, 2**32 - 3, ("int32", "int32", "uint32")),
        (6, 1, 2**32 - 2, ("int32", "int32", "int64")),  # Megatron Core's border: 2^32 - 2
        (6, 1, 2**32 - 1, ("int32", "int32", "int64")),
        (10**12, 3, 10**12, ("int64", "int64", "int64")),
    ],
)
def test_dtypes_at_their_borders(
    num_documents: int, num_epochs: int, num_samples: int, dtypes: tuple[str, ...]
) -> None:
    plan = make_large_plan(
        num_documents=num_documents, num_epochs=num_epochs, num_samples=num_samples
    )
    assert tuple(layout.dtype for layout in plan.layouts) == dtypes
    assert np.iinfo(plan.document_layout.dtype).max >= num_documents - 1
    assert np.iinfo(plan.sample_layout.dtype).max >= plan.num_rows
    assert np.iinfo(plan.shuffle_layout.dtype).max >= num_samples


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"order": "random"}, ConfigError, "order must be one of megatron, scalable, got 'random'"),
        ({"stored": "none"}, ConfigError, "store must be one of all, minimal, got 'none'"),
        ({"stored": "minimal"}, ConfigError, "needs order='scalable', got order='megatron'"),
        ({"split": "dev"}, ConfigError, "one of train, valid, test, got 'dev'"),
        ({"start": 3, "stop": 3}, PlanError, "must hold documents of [0, 6), got [3, 3)"),
        ({"start": 4, "stop": 3}, PlanError, "must hold documents of [0, 6), got [4, 3)"),
        ({"start": -1}, PlanError, "must hold documents of [0, 6), got [-1, 6)"),
        ({"stop": 7}, PlanError, "must hold documents of [0, 6), got [0, 7)"),
        ({"seed": -1}, ConfigError, "seed must be in [0, 4294967296), got -1"),
        ({"seed": 2**32}, ConfigError, "seed must be in [0, 4294967296), got 4294967296"),
        (
            {"seed": 2**63, "order": "scalable"},
            ConfigError,
            f"seed must be in [0, {2**63}), got {2**63}; choose another",
        ),
    ],
)
def test_impossible_plans_are_refused(
    changes: dict[str, Any], error: type[ZindexError], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        make_plan(**changes)


@pytest.mark.parametrize(("order", "seed"), [("megatron", 2**32 - 1), ("scalable", 2**63 - 1)])
def test_largest_seeds(order: Any, seed: int) -> None:
    assert make_plan(order=order, seed=seed).seed == seed


@st.composite
def plans(draw: st.DrawFn) -> IndexPlan:
    tokens = draw(st.integers(1, 300))
    sequence_length = draw(st.integers(1, 50))
    extra_token = draw(st.integers(0, 1))
    drop_last = draw(st.booleans())
    num_sequences = draw(st.integers(1, 50))
    start = draw(st.integers(0, num_sequences - 1))
    return IndexPlan(
        source=SourceFacts("cd" * 32, num_sequences, tokens),
        split=draw(st.sampled_from(["train", "valid", "test"])),
        start=start,
        stop=draw(st.integers(start + 1, num_sequences)),
        epochs=plan_epochs(
            tokens,
            draw(st.none() | st.integers(0, 100)),
            sequence_length=sequence_length,
            extra_token=extra_token,
            drop_last=drop_last,
        ),
        sequence_length=sequence_length,
        extra_token=extra_token,
        seed=draw(st.integers(0, 2**32 - 1)),
        drop_last=drop_last,
        order=draw(st.sampled_from(["megatron", "scalable"])),
    )


@given(plans())
def test_a_plan_round_trips_through_its_spec(plan: IndexPlan) -> None:
    read = IndexPlan.from_spec(plan.spec | {"store": plan.stored})
    assert read.spec == plan.spec
    assert read.epochs == plan.epochs
    assert (read.num_rows, read.num_samples) == (plan.num_rows, plan.num_samples)
    for epoch in range(plan.epochs.num_epochs):
        assert read.samples_of_epoch(epoch) == plan.samples_of_epoch(epoch)
    assert [layout.dtype for layout in read.layouts] == [item.dtype for item in plan.layouts]
    assert [layout.shape for layout in read.layouts] == [item.shape for item in plan.layouts]
    source = replace(read.source, num_tokens=plan.source.num_tokens)
    assert replace(read, source=source, grid=plan.grid) == plan


@given(plans())
def test_epochs_share_the_samples_that_start_in_them(plan: IndexPlan) -> None:
    bounds = [plan.samples_of_epoch(epoch) for epoch in range(plan.epochs.num_epochs)]
    assert [0, *(stop for _, stop in bounds)] == [*(start for start, _ in bounds), plan.num_samples]
    for epoch, (start, stop) in enumerate(bounds):
        assert start <= stop
        assert all(plan.epoch_of_sample(sample) == epoch for sample in range(start, stop))
    tokens = plan.epochs.tokens_per_epoch
    for sample in range(plan.num_samples):
        epoch = plan.epoch_of_sample(sample)
        assert epoch * tokens <= sample * plan.sequence_length < (epoch + 1) * tokens


# --- identity -------------------------------------------------------------------------------


def fingerprint(plan: IndexPlan, folder: str = "/index") -> str:
    """Return the fingerprint of the store of an index."""

    return plan.store_plan(folder).fingerprint


CHANGES: list[dict[str, Any]] = [
    {"source": replace(SOURCE, length_digest="ac" * 32)},
    {"source": replace(SOURCE, num_sequences=7)},
    {"split": "valid"},
    {"start": 1},
    {"stop": 5},
    {"sequence_length": 5},
    {"extra_token": 0},
    {"seed": 1235},
    {"drop_last": False},
    {"order": "scalable"},
    {"order": "scalable", "stored": "minimal"},
    {"epochs": plan_epochs(27, 15, sequence_length=4, extra_token=1)},  # more epochs
    {"epochs": plan_epochs(27, 13, sequence_length=4, extra_token=1)},  # mixed, not separate
    {"epochs": plan_epochs(28, 9, sequence_length=4, extra_token=1)},  # other tokens
]


def test_any_one_input_changes_the_fingerprint() -> None:
    prints = [fingerprint(make_plan())]
    prints += [fingerprint(make_plan(**change)) for change in CHANGES]
    assert len(set(prints)) == len(prints)


def test_the_fingerprint_ignores_what_changes_no_value() -> None:
    """Nine samples or eight of thirteen: the same two epochs, the last one shuffled apart."""
    others = [fingerprint(make_plan(8)), fingerprint(make_plan(), "/another/place")]
    grids = (ChunkGrid(8, 8), ChunkGrid(4, 8), ChunkGrid(8, 8, "zstd"))
    others += [fingerprint(make_plan(grid=grid)) for grid in grids]
    assert set(others) == {fingerprint(make_plan(9))}


def test_the_version_of_an_algorithm_changes_the_fingerprint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = {order: fingerprint(make_plan(order=order)) for order in ALGORITHM_VERSIONS}
    for order in ALGORITHM_VERSIONS:
        monkeypatch.setitem(ALGORITHM_VERSIONS, order, 2)
        assert fingerprint(make_plan(order=order)) != before[order]


def test_the_description_is_frozen() -> None:
    """It names the index on disk: another one means that every index is built again."""
    assert make_plan().spec == {
        "algorithm": "megatron",
        "algorithm_version": 1,
        "kind": "gpt",
        "length_digest": "ab" * 32,
        "num_sequences": 6,
        "tokens_per_epoch": 27,
        "split": "train",
        "start": 0,
        "stop": 6,
        "num_epochs": 2,
        "separate_final_epoch": True,
        "sequence_length": 4,
        "extra_token": 1,
        "drop_last": True,
        "num_samples": 13,
        "seed": 1234,
    }
