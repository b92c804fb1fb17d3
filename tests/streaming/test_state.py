"""States: what samples bring, what ranks' states make, and what is refused."""

import json
from itertools import islice
from typing import Any

import pytest

from tests.streaming.tiny_sources import Items
from zindex.errors import ConfigError, StateMismatchError
from zindex.streaming import MergedDataset, gather_states, merge_states, to_state
from zindex.streaming.resuming import reshard_states


def merge(rank: int = 0, ranks: int = 1, **settings: Any) -> MergedDataset:
    merged = MergedDataset([Items("a", 24), Items("b", 24)], cyclic=False, **settings)
    merged.set_data_parallel(ranks, rank)
    return merged


def states_of(ranks: int, number: int) -> list[dict[str, Any]]:
    return [to_state(list(islice(merge(rank, ranks), number))) for rank in range(ranks)]


def test_states_are_flat_json() -> None:
    (state,) = states_of(1, 5)
    assert json.loads(json.dumps(state)) == json.loads(json.dumps(json.loads(json.dumps(state))))
    kept = ["leaf a @0/1", "leaf b @0/1", "mix / @0/1", "origin", "own", "turn @0/1"]
    assert sorted(state) == kept


def test_only_the_first_sample_has_the_origin() -> None:
    first, second = islice(merge(), 2)
    assert "origin" in to_state(first)
    assert "origin" not in to_state(second)


def test_a_state_that_was_not_kept_from_the_first_sample_is_refused() -> None:
    _, second = islice(merge(), 2)
    with pytest.raises(StateMismatchError, match="must hold its origin, got the entries"):
        merge().set_dataloader_states(to_state(second))


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (json.dumps, "must be a dict, as to_state gives it, got str; read it with json.loads"),
        (lambda state: {"stream": state}, "got the entries stream; .* hand over that dict alone"),
        (lambda state: state | {"mix / @0/1": None}, "it is damaged: TypeError"),
        (lambda state: state | {"origin": {"version": 1}}, "it is damaged: StoreError"),
        (lambda state: state | {"leaf a": state["mix / @0/1"]}, "it is damaged: ValueError"),
    ],
)
def test_invalid_states_are_refused(damage: Any, text: str) -> None:
    (state,) = states_of(1, 3)
    with pytest.raises(StateMismatchError, match=text):
        merge().set_dataloader_states(damage(state))


def test_another_version_is_refused() -> None:
    (state,) = states_of(1, 3)
    state["origin"]["version"] = 99
    with pytest.raises(StateMismatchError, match="must be of version 1, got 99"):
        merge().set_dataloader_states(state)


def test_the_state_of_one_rank_is_not_enough_for_other_ranks() -> None:
    one, two = states_of(2, 5)
    other = merge(0, 3)
    other.set_dataloader_states(one)
    with pytest.raises(
        StateMismatchError, match="needs the states of all 2 ranks, got that of rank 0"
    ):
        next(iter(other))
    other.set_dataloader_states(merge_states([one, two]))
    next(iter(other))


def test_a_rank_does_not_resume_from_the_state_of_another() -> None:
    one, _ = states_of(2, 5)
    other = merge(1, 2)
    other.set_dataloader_states(one)
    with pytest.raises(
        StateMismatchError, match="rank 1 must go on from its own state or one of all"
    ):
        next(iter(other))


def test_states_of_all_ranks_are_asked_for() -> None:
    one, two, three = states_of(3, 5)
    for given in ([one, two], [one, two, two], [one, two, three, {}]):
        with pytest.raises(
            StateMismatchError, match="must be merged of all 3 ranks, each of them once"
        ):
            merge_states(given)
    merged = merge_states([three, one, two])
    assert "own" not in merged
    assert merge_states([merged]) == merged


def test_states_survive_the_conversion_of_tuples_by_loaders() -> None:
    def pin(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: pin(item) for key, item in value.items()}
        return [pin(item) for item in value] if isinstance(value, tuple | list) else value

    batch = list(islice(merge(), 5))
    stacked = {"__state__": [sample["__state__"] for sample in batch]}
    for given in (pin(batch), stacked, pin(stacked)):
        assert json.dumps(to_state(given)) == json.dumps(to_state(batch))


def test_states_of_two_runs_do_not_mix() -> None:
    one, two = states_of(2, 5)
    other = merge(1, 2, seed=5)
    two = to_state(next(iter(other)))
    with pytest.raises(StateMismatchError, match="must be of one run, got the origins"):
        merge_states([one, two])
    with pytest.raises(StateMismatchError, match="do not mix the states of several runs"):
        merge(0, 2).set_dataloader_states(
            {**two, **{k: v for k, v in one.items() if k != "origin"}, "origin": two["origin"]}
        )


def test_loaded_entries_of_other_ranks_are_not_taken_for_new() -> None:
    before = merge_states(states_of(2, 4))
    states = []
    for rank in range(2):
        merged, state = merge(rank, 2), dict(before)
        merged.set_dataloader_states(before)
        for sample in islice(merged, 3 + rank):
            state.update(to_state(sample))
        states.append(state)
    for given in (states, states[::-1]):
        rest = merge()
        rest.set_dataloader_states(merge_states(given))
        assert len(list(rest)) == 48 - 2 * 4 - 3 - 4


def test_gathering_without_ranks_is_merging() -> None:
    (state,) = states_of(1, 3)
    assert gather_states(state) == merge_states([state])


@pytest.mark.parametrize("sample", [3, "text", [3], {"id": 1}])
def test_samples_without_states_are_refused(sample: Any) -> None:
    with pytest.raises(ValueError, match=r"to_state takes a sample|must have __state__"):
        to_state(sample)


def test_cogdatas_form_needs_its_fields() -> None:
    with pytest.raises(ValueError, match="cogdata's state of a sample needs __datasetname__"):
        to_state({"id": 1}, form="cogdata")


@pytest.mark.parametrize(
    ("ranks", "workers", "text"), [(0, 1, "new_dpsize"), (1, -1, "new_num_work")]
)
def test_resharding_asks_for_real_numbers(ranks: int, workers: int, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        reshard_states({}, merge(), ranks, workers)


def test_resharded_states_resume_like_merged_ones() -> None:
    states = states_of(2, 5)
    for given in (states, merge_states(states)):
        resharded = reshard_states(given, merge(), 3, 2)
        seen = []
        for rank in range(3):
            rest = merge(rank, 3)
            rest.set_dataloader_states(resharded)
            seen += [sample["id"] for sample in rest]
        assert len(seen) == len(set(seen)) == 48 - 10
    assert reshard_states([], merge(), 1, 0) == {}
