"""Plans of sentence mappings: what they refuse, how they are cut, and what they become as JSON."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from zindex.errors import ConfigError, PlanError
from zindex.plan.build_plan import SourceFacts
from zindex.plan.sentence_mapping import MappingPlan, SentenceFacts

# Tokens decide nothing.
LENGTHS = SourceFacts("ab" * 32, 100, -1)
TITLES = SentenceFacts(LENGTHS, "cd" * 32, 20, "ef" * 32)


def make_plan(**settings: Any) -> MappingPlan:
    values: dict[str, Any] = {
        "source": SentenceFacts(LENGTHS, "cd" * 32, 20),
        "split": "train",
        "start": 0,
        "stop": 16,
        "first_sentence": 0,
        "stop_sentence": 80,
        "max_sequence_length": 30,
        "seed": 7,
    }
    return MappingPlan(**(values | settings))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"order": "random"}, ConfigError, "order must be .* got 'random'"),
        ({"stored": "some"}, ConfigError, "store must be .* got 'some'"),
        ({"stored": "minimal"}, ConfigError, "store='minimal' needs order='scalable'"),
        ({"split": "dev"}, ConfigError, "split must be one of .* got 'dev'"),
        ({"stop": 21}, PlanError, r"documents of \[0, 20\), got \[0, 21\)"),
        ({"start": 16}, PlanError, r"got \[16, 16\)"),
        ({"max_sequence_length": 1}, ConfigError, "at least 2 tokens, got 1"),
        ({"short_sequence_probability": 1.5}, ConfigError, r"in \[0, 1\], got 1\.5"),
        ({"seed": 2**31}, ConfigError, r"seed must be in \[0, 2147483648\), got 2147483648"),
        ({"num_requested": 0}, ConfigError, "num_requested must be at least 1, got 0; give None"),
        ({"kind": "words"}, ConfigError, "kind must be one of sentences, blocks, got 'words'"),
        ({"kind": "blocks"}, ConfigError, "blocks leave room for the titles .* got no titles"),
        (
            {"kind": "blocks", "source": TITLES, "min_num_sentences": 3},
            ConfigError,
            "blocks have 1 or 2 sentences at least .* got 3 and 0",
        ),
    ],
)
def test_invalid_arguments(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make_plan(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_requested": 50, "short_sequence_probability": 0.1, "min_num_sentences": 2},
        {"order": "scalable", "stored": "minimal", "seed": 2**40},
        {"kind": "blocks", "source": TITLES, "partition_length": 3},
    ],
)
def test_a_plan_round_trips_through_its_spec(settings: dict[str, Any]) -> None:
    plan = make_plan(**settings)
    assert MappingPlan.from_spec(plan.spec | {"store": plan.stored}) == plan


def test_only_what_decides_a_mapping_is_in_its_spec() -> None:
    other = SentenceFacts(LENGTHS, "00" * 32, 20)
    assert make_plan(source=other).spec != make_plan().spec
    assert make_plan(source=other).round_keys(2, 0)[0] != make_plan().round_keys(2, 0)[0]
    assert make_plan(short_sequence_probability=0.1).spec != make_plan().spec


def test_partitions_tile_the_documents_of_each_epoch() -> None:
    plan = make_plan(partition_length=16, start=2, stop=13)
    assert plan.partitions_per_epoch == 5
    bounds = [plan.partition_bounds(partition) for partition in range(5, 10)]
    assert [epoch for epoch, _, _ in bounds] == [1] * 5
    assert (bounds[0][1], bounds[-1][2]) == (0, 11)
    assert all(one[2] == two[1] for one, two in pairwise(bounds))
    assert make_plan(partition_length=1).partitions_per_epoch == 16


def test_draws_decide_what_repeats_and_what_is_a_chain() -> None:
    short = {"short_sequence_probability": 0.5}
    assert make_plan().repeats
    assert not make_plan().is_chained
    assert make_plan(**short).is_chained
    assert not make_plan(order="scalable", **short).is_chained
    assert not make_plan(order="scalable", **short).repeats


def test_many_sentences_need_64_bits() -> None:
    large = SentenceFacts(SourceFacts("ab" * 32, 2**32, 2**40), "cd" * 32, 20)
    assert make_plan().row_dtype is np.uint32
    assert make_plan(source=large).row_dtype is np.uint64
