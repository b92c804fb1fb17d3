"""Progress from states, compared with the delivered samples."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.streaming.simulated_ranks import Run
from tests.streaming.tiny_sources import Items, Parts, pack_tokens, pairs
from zindex.errors import StateMismatchError
from zindex.streaming import MergedDataset, merge_states, progress, to_state

SIZE = 4


def make(cyclic: bool = False, **settings: object) -> MergedDataset:
    inner = MergedDataset([Items("items", 60, 2)], cyclic=cyclic)
    inner.percent = 1
    return MergedDataset([Parts("parts", [SIZE] * 18), inner], cyclic=cyclic, **settings)  # type: ignore[arg-type]


def test_progress_before_the_first_sample() -> None:
    found = progress(make(), {})
    assert [(one.epochs_begun, one.num_finished, one.num_items) for one in found] == [
        (0, 0, 18),
        (0, 0, 60),
    ]
    assert found.to_text() == (
        "parts: 0.00 epochs, 0 of 18 parts of epoch 0 finished\n"
        "items: 0.00 epochs, 0 of 60 items of epoch 0 finished"
    )


@pytest.mark.parametrize("places", [[(1, 0)], [(2, 0), (3, 2)], [(4, 1), (1, 3), (2, 2)]])
def test_progress_adds_up_to_the_delivered_samples(places: list[tuple[int, int]]) -> None:
    states, earlier = None, Counter[str]()
    for ranks, workers in places:
        run = Run(make, ranks, workers, states)
        for _ in range(4):
            run.advance(7)
            delivered = earlier + Counter(one["__datasetname__"] for one in run.samples())
            found = progress(make(), run.merged_states())
            parts, items = found["parts"], found["items"]
            assert parts.num_finished * SIZE + parts.num_delivered == delivered["parts"]
            assert items.num_finished == delivered["items"]
            assert items.num_delivered == items.num_begun == 0
            assert parts.epochs_begun == items.epochs_begun == 1
        states, earlier = run.merged_states(), delivered


def test_epochs_are_counted() -> None:
    run = Run(lambda: make(cyclic=True), 1, 0)
    run.advance(3 * 18 * SIZE)  # one epoch and a half of the parts: as many items
    parts, items = progress(make(cyclic=True), run.merged_states())
    # Half of all samples are parts'; the last one of a part is known as such with the next one.
    assert (parts.epochs_finished, parts.num_finished, parts.num_delivered) == (1, 8, SIZE)
    assert (items.epochs_finished, items.num_finished) == (1, 108 - 60)
    assert (parts.epochs_begun, items.epochs_begun) == (2, 2)
    assert items.num_epochs == 1.8


def test_worker_slots_may_be_in_several_epochs() -> None:
    def tiny() -> MergedDataset:
        return MergedDataset([Parts("parts", [2, 2])])

    run = Run(tiny, 1, 4)
    run.advance(4)
    [found] = progress(tiny(), run.merged_states())
    assert (found.epochs_begun, found.epochs_finished, found.num_begun) == (2, 0, 4)
    assert found.num_delivered == 4
    assert (
        "0.00 to 2.00 epochs, 0 of 2 parts of epoch 0 finished and 4 begun "
        "(4 samples of them so far), up to epoch 1"
        in progress(tiny(), run.merged_states()).to_text()
    )


def test_one_large_part_is_not_shown_as_nothing() -> None:
    def single() -> MergedDataset:
        return MergedDataset([Parts("a", [134])])

    run = Run(single, 1, 0)
    run.advance(1)
    assert progress(single(), run.merged_states()).to_text() == (
        "a: 0.00 to 1.00 epochs, 0 of 1 part of epoch 0 finished and 1 begun "
        "(1 sample of them so far)"
    )
    run.advance(109)
    [found] = progress(single(), run.merged_states())
    assert (found.num_epochs, found.most_epochs, found.num_delivered) == (0, 1, 110)


def test_files_of_the_order_of_cogdata() -> None:
    def urls() -> MergedDataset:
        return MergedDataset(
            [Parts("files", [2] * 6)], shuffle_streaming_subsets="cogdata_urlbuffer"
        )

    run = Run(urls, 2, 0)
    run.advance(7)  # four samples of rank 0, three of rank 1
    [found] = progress(urls(), run.merged_states())
    assert (found.kind, found.num_items, found.epochs_begun, found.epochs_finished) == (
        *("files", 6),
        *(1, 0),
    )
    assert found.num_finished * 2 + found.num_delivered == 7
    run.advance(9)
    [found] = progress(urls(), run.merged_states())
    assert (found.epochs_begun, found.epochs_finished) == (2, 1)


def test_yield_functions_are_counted_by_their_inputs() -> None:
    def paired() -> MergedDataset:
        return make(customized_yield_fn=pairs)

    run = Run(paired, 1, 0)
    run.advance(10)
    found = progress(paired(), run.merged_states())
    num_read = found["items"].num_finished
    num_read += found["parts"].num_finished * SIZE + found["parts"].num_delivered
    assert num_read == 20


def test_packed_parts_are_parts() -> None:
    packed = MergedDataset([Parts("a", [9] * 4, tokens_per_sample=5, process_fn=pack_tokens)])
    state: dict[str, object] = {}
    for _, sample in zip(range(8), packed, strict=False):
        state.update(to_state(sample))
    [found] = progress(packed, state)
    assert found.num_items == 4
    assert found.num_delivered


class Damaged(Parts):
    """Parts of which each lost a sample."""

    def read_part(self, part: int) -> Iterator[dict[str, Any]]:
        self.num_skipped += 1
        yield from super().read_part(part)


def test_damage_is_counted_over_restarts() -> None:
    def damaged() -> MergedDataset:
        return MergedDataset([Damaged("a", [2] * 6)], cyclic=False)

    run = Run(damaged, 1, 0, ahead=0)
    run.advance(5)
    run = Run(damaged, 2, 0, run.merged_states(), ahead=0).drain()
    [found] = progress(damaged(), run.merged_states())
    assert found.num_skipped >= 6
    assert (
        f"{found.num_skipped} damaged skipped" in progress(damaged(), run.merged_states()).to_text()
    )


def test_progress_as_json() -> None:
    run = Run(make, 2, 1)
    run.advance(11)
    found = progress(make(), run.merged_states())
    fields = json.loads(json.dumps(found.to_json()))
    assert fields["sources"][0]["num_epochs"] == found["parts"].num_epochs
    assert fields["sources"][0]["most_epochs"] == found["parts"].most_epochs
    assert fields["sources"][0]["name"] == found.sources[0].name


def test_one_rank_of_several_is_not_all() -> None:
    run = Run(make, 2, 0)
    run.advance(4)
    with pytest.raises(StateMismatchError, match="the states of all 2 ranks, got that of rank 1"):
        progress(make(), run.own_states()[1])
    alone = Run(make, 1, 0)
    alone.advance(4)
    [state] = alone.own_states()
    assert progress(make(), state) == progress(make(), merge_states([state]))


def test_other_datasets_are_refused() -> None:
    run = Run(make, 1, 0)
    run.advance(4)
    with pytest.raises(StateMismatchError, match=r"of the datasets \['a'\], got one of \['i"):
        progress(MergedDataset([Items("a", 3)]), run.merged_states())
