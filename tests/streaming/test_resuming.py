"""States in cogdata's form: written by samples, read once to go on."""

from typing import Any

import pytest

from tests.streaming.simulated_ranks import acting_as
from tests.streaming.tiny_sources import Items, Parts
from zindex.errors import StateMismatchError
from zindex.streaming import MergedDataset, to_state

COGDATA: dict[str, Any] = {
    "shuffle_unstreaming_subsets": "cogdata_block2m",
    "shuffle_streaming_subsets": "cogdata_urlbuffer",
    "mixing": "cogdata_mix",
}


def merge(**modes: Any) -> MergedDataset:
    parts = Parts("parts", [4, 3, 5, 2], percent=0.5)
    merged = MergedDataset([Items("items", 12, percent=0.5), parts], seed=9, **modes)
    merged.set_data_parallel(2, 1)
    return merged


def take(merged: MergedDataset, number: int, worker: int = 1) -> list[dict[str, Any]]:
    with acting_as(worker, 2, merged):
        samples = iter(merged)
        return [next(samples) for _ in range(number)]


def test_items_resume_exactly_and_files_from_their_start() -> None:
    whole = take(merge(**COGDATA), 30)
    for cut in range(1, 20):
        state = to_state(whole[:cut], form="cogdata")
        merged = merge(**COGDATA)
        merged.set_dataloader_states(state)
        found = take(merged, 8)
        rest = [s["id"] for s in whole[cut:] if "__index__" in s]
        got = [s["id"] for s in found if "__index__" in s]
        assert got == rest[: len(got)]
        # The file that was begun is read again.
        files = [s for s in whole if "__url__" in s]
        last = [s for s in whole[:cut] if "__url__" in s][-1:]
        first = files.index(next(s for s in files if not last or is_of_file(s, last[0])))
        got = [s["id"] for s in found if "__url__" in s]
        assert got == [s["id"] for s in files[first : first + len(got)]]


def is_of_file(sample: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(sample[key] == other[key] for key in ("__url__", "__seed__"))


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (
            {("items", 1, 1): (9, 12)},
            "got seed 9, index 12 of 12 for 'items' in worker 1 of rank 1",
        ),
        ({("items", 1, 1): (9, 2)}, "index 2 of 12"),
        ({("items", 1, 1): (8, 3)}, "seed 8, index 3"),
        ({("parts", 1, 1): (74, "elsewhere", "0")}, "got seed 74, elsewhere, key 0 for 'parts'"),
        ({("parts", 1, 1): (9, "parts/03", "0")}, "2 ranks and 2 loader workers"),
    ],
)
def test_states_of_something_else_are_refused(state: dict[Any, Any], text: str) -> None:
    merged = merge(**COGDATA)
    merged.set_dataloader_states(state)
    with pytest.raises(StateMismatchError, match=text):
        take(merged, 1)


def test_other_orders_cannot_resume_from_them() -> None:
    merged = merge()
    merged.set_dataloader_states({("items", 1, 1): (9, 3)})
    with pytest.raises(StateMismatchError, match="needs cogdata's orders, 'items' has another one"):
        take(merged, 1)
