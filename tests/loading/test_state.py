"""States of loaders: what they hold, and that every wrong one is refused."""

import json
from typing import Any

import pytest

from zindex.errors import StateMismatchError
from zindex.loading.state import LoaderState, dataset_fingerprint, parse_state

GOOD = {"version": 1, "fingerprint": "ab", "consumed_samples": 23, "epoch": 2}


def parse(state: Any, *, num_samples: int | None = 30) -> LoaderState:
    return parse_state(state, fingerprint="ab", num_positions=10, num_samples=num_samples)


def test_state_comes_back_through_json() -> None:
    state = LoaderState("ab", 23, 2)
    assert state.to_dict() == GOOD
    assert parse(json.loads(json.dumps(state.to_dict()))) == state


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"version": 2}, "must be of version 1, got 2; read it with the zindex that wrote it"),
        ({"version": 2, "more": 1}, "must be of version 1, got 2"),
        ({"version": True}, "version of a loader state must be int, got True"),
        ({"version": "1"}, "version of a loader state must be int, got '1'"),
        ({"fingerprint": None}, "fingerprint of a loader state must be str, got None"),
        ({"fingerprint": "cd"}, "to these samples, which are ab, got one of cd; load it with"),
        ({"consumed_samples": 23.0}, "consumed_samples of a loader state must be int, got 23.0"),
        ({"consumed_samples": -1}, "must be at least 0, at most 30, got -1"),
        ({"consumed_samples": 31, "epoch": 3}, "at least 0, at most 30, got 31; raise num_samples"),
        ({"epoch": 1}, "must be 2 after 23 samples of a dataset of 10, got 1"),
        ({"epoch": False}, "epoch of a loader state must be int, got False"),
        ({"seed": 1}, r"the keys \['consumed_samples', 'epoch', .*'seed', 'version'\]; give what"),
    ],
)
def test_wrong_states_are_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(StateMismatchError, match=said):
        parse(GOOD | changed)


def test_invalid_states() -> None:
    with pytest.raises(StateMismatchError, match="must be a mapping, got list"):
        parse([23])
    with pytest.raises(StateMismatchError, match=r"got \['epoch'\]; give what"):
        parse({"epoch": 2})


def test_a_stream_without_an_end_may_have_consumed_anything() -> None:
    state = GOOD | {"consumed_samples": 10**15, "epoch": 10**14}
    assert parse(state, num_samples=None).consumed_samples == 10**15
    with pytest.raises(StateMismatchError, match=r"must be at least 0, got -1; "):
        parse(GOOD | {"consumed_samples": -1}, num_samples=None)


def test_a_dataset_is_known_by_its_fingerprint_or_by_class_and_length() -> None:
    class Known(list[int]):
        fingerprint = "ab"

    assert dataset_fingerprint(Known()) == "ab"
    assert dataset_fingerprint([1, 2]) == dataset_fingerprint([3, 4])
    assert dataset_fingerprint([1, 2]) != dataset_fingerprint([1, 2, 3])
    assert dataset_fingerprint([1, 2]) != dataset_fingerprint((1, 2))
    assert len(dataset_fingerprint([1])) == 64


def parse_after_edits(consumed_samples: int, fingerprint: str = "old", epoch: int = 0) -> Any:
    state = {
        "version": 1,
        "fingerprint": fingerprint,
        "consumed_samples": consumed_samples,
        "epoch": epoch,
    }
    ancestors = (("old", 4), ("older", 6))
    return parse_state(
        state, fingerprint="ab", num_positions=10, num_samples=10, ancestors=ancestors
    )


def test_a_state_from_before_an_edit_is_one_of_the_edited_run() -> None:
    assert parse_after_edits(4) == LoaderState("ab", 4, 0)
    assert parse_after_edits(6, "older") == LoaderState("ab", 6, 0)
    # The run ended there, and an edit made it longer.
    assert parse_after_edits(6, "older", epoch=1) == LoaderState("ab", 6, 0)


def test_a_state_from_beyond_an_edit_is_refused() -> None:
    with pytest.raises(StateMismatchError, match="at position 4, got 5 consumed samples"):
        parse_after_edits(5)
    with pytest.raises(StateMismatchError, match="got one of other"):
        parse_after_edits(0, "other")
