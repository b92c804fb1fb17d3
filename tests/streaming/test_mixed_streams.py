"""Yield functions, and resuming within their segments."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import pytest

from tests.streaming.tiny_sources import Items, Parts
from zindex.errors import SourceError, StateMismatchError
from zindex.streaming import MergedDataset, merge_states, reshard_states, to_state

Sample = dict[str, Any]


def merge(function: Any, **settings: Any) -> MergedDataset:
    return MergedDataset(
        [Items("a", 20), Parts("b", [6, 3, 8])],
        cyclic=False,
        customized_yield_fn=function,
        **{"yield_segment": 8} | settings,
    )


def in_threes(samples: Iterable[Sample]) -> Iterator[Sample]:
    held: list[str] = []
    for sample in samples:
        held.append(sample["id"])
        if len(held) == 3:
            yield {"ids": held}
            held = []
    if held:
        yield {"ids": held}


def test_a_function_is_called_for_each_segment() -> None:
    sizes = [len(output["ids"]) for output in merge(in_threes)]
    # 37 samples: four segments of 8 and one of 5.
    assert sizes == [3, 3, 2] * 4 + [3, 2]


def test_a_function_that_leaves_stop_iteration_to_its_caller_is_refused() -> None:
    def pair(samples: Iterator[Sample]) -> Iterator[Sample]:
        while True:
            yield {"pair": (next(samples), next(samples))}

    with pytest.raises(
        SourceError, match="must end when its source does, after yielding what it holds"
    ):
        list(merge(pair, yield_segment=7))


def test_errors_of_a_function_come_out_as_they_are() -> None:
    def fail(samples: Iterator[Sample]) -> Iterator[Sample]:
        yield next(samples)
        raise RuntimeError("a fault of mine")

    with pytest.raises(RuntimeError, match="a fault of mine"):
        list(merge(fail))


def test_a_function_must_yield_dicts() -> None:
    with pytest.raises(SourceError, match=r"must yield dicts, .* gave str; wrap it"):
        list(merge(lambda samples: (sample["id"] for sample in samples)))


def test_a_function_must_read() -> None:
    with pytest.raises(SourceError, match=r"must read samples until its source ends, .* without"):
        list(merge(lambda samples: iter(())))


def test_a_function_may_leave_a_segment_early() -> None:
    found = [output["id"] for output in merge(lambda samples: islice(samples, 5))]
    assert len(found) == len(set(found)) == 37


def test_a_function_may_be_a_class_with_settings() -> None:
    class Repeat:
        def __call__(self, samples: Iterable[Sample]) -> Iterator[Sample]:
            for sample in samples:
                yield {"id": sample["id"]}
                yield {"id": sample["id"]}

    assert len(list(merge(Repeat()))) == 2 * 37


def test_parts_cannot_be_read_again_while_segments_of_other_worker_slots_are_left() -> None:
    merged = merge(in_threes)
    state = merge_states([to_state(list(islice(merged, 4)))])
    state = reshard_states(state, merged, 2, 1)
    assert state["origin"]["orphans"]
    merged.set_dataloader_states(state, reload_from_url_level=True)
    with pytest.raises(
        StateMismatchError, match="where no segment of a customized_yield_fn is left"
    ):
        next(iter(merged))


def test_cogdatas_order_of_files_is_tied_to_the_ranks() -> None:
    merged = merge(None, shuffle_streaming_subsets="cogdata_urlbuffer")
    seen = list(islice(merged, 10))
    state = merge_states([to_state(seen)])
    merged.set_data_parallel(2, 0)
    merged.set_dataloader_states(state)
    with pytest.raises(
        StateMismatchError, match="cogdata's order of files, which ties its state to 1"
    ):
        next(iter(merged))
    # Files are dispatched again: none is lost, and only partly read files are repeated.
    merged.set_data_parallel(1, 0)
    resharded = reshard_states(state, merged, 2, 0)
    found = [sample["id"] for sample in seen]
    for rank in range(2):
        merged.set_data_parallel(2, rank)
        merged.set_dataloader_states(resharded)
        found += [sample["id"] for sample in merged]
    assert set(found) == {sample["id"] for sample in merge(None)}
    twice = {name for name in found if found.count(name) > 1}
    begun = seen[-1]["__url__"] if "__url__" in seen[-1] else seen[-2]["__url__"]
    assert {int(name.split(":")[1]) for name in twice} <= {int(begun.split("/")[1])}


@pytest.mark.parametrize(("num_samples", "yield_segment"), [(20, 1024), (200, 2)])
def test_a_function_that_has_not_yielded_is_warned_of(
    num_samples: int, yield_segment: int, caplog: pytest.LogCaptureFixture
) -> None:
    def read(function: Any) -> list[Any]:
        caplog.clear()
        return list(
            MergedDataset(
                [Items("a", num_samples)],
                cyclic=False,
                customized_yield_fn=function,
                yield_segment=yield_segment,
            )
        )

    assert read(lambda samples: (sample for sample in samples if "b" in sample)) == []
    assert "must yield samples" in caplog.text
    assert "yields none of 20; correct it" in caplog.text
    assert len(read(iter)) == num_samples
    assert not caplog.text


def test_a_function_that_returns_no_iterator_is_found() -> None:
    stream = MergedDataset([Items("a", 20)], customized_yield_fn=lambda samples: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(SourceError, match="'NoneType' object is not iterable; write a generator"):
        next(iter(stream))


def test_a_function_that_never_yields_is_found() -> None:
    stream = MergedDataset(
        [Items("a", 20)],
        customized_yield_fn=lambda samples: (sample for sample in samples if "b" in sample),
        yield_segment=2,
    )
    with pytest.raises(SourceError, match=r"yielded none in 1,000 calls with 2 samples each"):
        next(iter(stream))


def test_a_function_may_yield_seldom() -> None:
    seen = 0

    def every_hundredth(samples: Iterator[Sample]) -> Iterator[Sample]:
        nonlocal seen
        for sample in samples:
            seen += 1
            if seen % 100 == 0:
                yield sample

    stream = MergedDataset([Items("a", 20)], customized_yield_fn=every_hundredth, yield_segment=1)
    assert len(list(islice(stream, 30))) == 30
