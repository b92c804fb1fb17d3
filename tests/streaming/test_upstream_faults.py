"""The 24 faults found in cogdata's streams, by number: zindex has none of them.

Other files prove it of 2, the block that is cut short (test_orders); 3, the end of one child
(test_conformance, C13); 5, 7, 10 and 12, resuming in packed text, after look-ahead, on other ranks
and in the turn of a worker (test_resume, test_state); 16 and 17, damaged tars and tars without a
folder (tests/sources); 18, 22 and 23, items that are written to, checks and lengths
(test_merged_dataset); 19 to 22, YAML within YAML, classes made again, names of anything and
unknown variables (configuration).
"""

import functools
import json
from collections import Counter
from collections.abc import Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import pytest

from tests.sources.archives import write_jsonl, write_tar
from tests.streaming.simulated_ranks import Run
from tests.streaming.tiny_sources import Items, Parts
from zindex.errors import SourceError, StateMismatchError
from zindex.streaming import (
    JsonlIterableDataset,
    MergedDataset,
    MetaDistributedWebDataset,
    merge_states,
    reshard_states,
    to_state,
)

Sample = dict[str, Any]


def run_of(*children: Any, ranks: int = 1, workers: int = 0, **settings: Any) -> Run:
    """Return a run of one epoch of the children."""
    make = functools.partial(MergedDataset, children, **{"cyclic": False, **settings})
    return Run(make, ranks, workers)


# 1: position 0


@pytest.mark.parametrize("order", [True, False, "cogdata_block2m"])
def test_01_reads_every_position(order: Any) -> None:
    for ranks, workers in ((1, 0), (2, 0), (1, 3)):
        run = run_of(
            Items("m", 10), ranks=ranks, workers=workers, shuffle_unstreaming_subsets=order
        )
        samples = run.drain().samples()
        assert sorted(sample["__index__"] for sample in samples) == list(range(10))
        assert run.ids() == Counter(f"m:{number}" for number in range(10))


# 4: streams that are not shuffled


def test_04_has_a_state_of_an_ordered_stream() -> None:
    make = functools.partial(
        MergedDataset, [Parts("s", [3, 3])], cyclic=False, shuffle_streaming_subsets=False
    )
    samples = list(make())
    assert [sample["id"] for sample in samples] == [f"s:{p}:{n}" for p in (0, 1) for n in range(3)]
    for cut in range(1, 6):
        rest = make().__iter_from__(to_state(samples[:cut]))
        assert [s["id"] for s in rest] == [sample["id"] for sample in samples[cut:]]


# 6: the number of the epoch


@pytest.mark.parametrize("order", [True, "cogdata_block2m"])
def test_06_continues_to_count_epochs(order: Any) -> None:
    make = functools.partial(MergedDataset, [Items("m", 10)], shuffle_unstreaming_subsets=order)
    samples = list(islice(make(), 50))
    resumed = list(islice(make().__iter_from__(to_state(samples[:21])), 29))
    places = [(s["__epoch__"], s["__seed__"], s["id"]) for s in samples[21:]]
    assert [(s["__epoch__"], s["__seed__"], s["id"]) for s in resumed] == places
    if order != "cogdata_block2m":
        return
    assert [seed for seed, _ in groupby(s["__seed__"] for s in resumed)] == [262, 393, 524]


# 8: the turn of a child that ends


@pytest.mark.parametrize("mixing", ["exact", "cogdata_mix"])
def test_08_gives_short_children_their_share(mixing: Any) -> None:
    children = [Items("a", 3, 0.5), Items("b", 1000, 0.5)]
    samples = islice(MergedDataset(children, mixing=mixing), 400)
    assert Counter(sample["__datasetname__"] for sample in samples) == {"a": 200, "b": 200}


# 9: children without a sample


def test_09_refuses_a_source_without_samples() -> None:
    for order in (True, False, "cogdata_urlbuffer"):
        dataset = MergedDataset(
            [Parts("a", [0, 0]), Items("b", 3)], shuffle_streaming_subsets=order
        )
        with pytest.raises(
            SourceError, match="'a' must give samples in every loader worker, all 2 parts"
        ):
            list(islice(dataset, 20))


def test_09_needs_no_sample_of_an_empty_part() -> None:
    for ranks, workers in ((1, 0), (2, 0), (3, 2)):
        make = functools.partial(MergedDataset, [Parts("a", [0, 2, 0, 0]), Items("b", 3)])
        run = Run(make, ranks, workers)
        assert run.advance(300) == 300


# 11: states for another size


def ahead_and_behind(order: Any) -> tuple[Any, Run]:
    """Return a run of two ranks, of which one is far ahead: ten files of five samples."""
    make = functools.partial(
        MergedDataset, [Parts("s", [5] * 10)], False, shuffle_streaming_subsets=order
    )
    run = Run(make, 2, 0)
    run.advance(23, lambda step, ranks: 0)
    run.advance(8, lambda step, ranks: 1)
    return make, run


@pytest.mark.parametrize("order", [True, False])
def test_11_skips_nothing_of_slow_ranks(order: Any) -> None:
    make, run = ahead_and_behind(order)
    states = reshard_states(run.own_states(), make(), 3, 1)
    rest = Run(make, 3, 0, json.loads(json.dumps(states))).drain()
    assert run.ids() + rest.ids() == Counter(f"s:{p}:{n}" for p in range(10) for n in range(5))


def test_11_repeats_only_partly_read_files_in_cogdatas_order() -> None:
    make, run = ahead_and_behind("cogdata_urlbuffer")
    with pytest.raises(StateMismatchError, match="reshard_states"):
        Run(make, 3, 0, run.merged_states()).drain()
    states = reshard_states(run.own_states(), make(), 3, 0)
    again = run.ids() + Run(make, 3, 0, states).drain().ids()
    assert set(again) == {f"s:{p}:{n}" for p in range(10) for n in range(5)}
    twice = {name.rpartition(":")[0] for name, count in again.items() if count > 1}
    assert len(twice) == 2  # the file that each rank was in


# 13: a file that is listed twice


def test_13_reads_each_copy_of_a_file_for_itself(tmp_path: Path) -> None:
    write_tar(tmp_path / "t" / "a.tar", [(f"{number}.txt", b"") for number in range(7)])
    source = MetaDistributedWebDataset("", include_dirs=f"{tmp_path / 't'}*2")
    source.name, source.percent = "s", 1
    for order in (True, False, "cogdata_urlbuffer"):
        make = functools.partial(MergedDataset, [source], False, shuffle_streaming_subsets=order)
        whole = [sample["__key__"] for sample in make()]
        assert sorted(whole) == sorted("0123456" * 2)
        if order == "cogdata_urlbuffer":
            assert "".join(whole) == "63501246350124"
        states: dict[str, Any] = {}
        for cut, sample in enumerate(make(), 1):
            states.update(to_state(sample))
            rest = make().__iter_from__(states)
            assert [sample["__key__"] for sample in rest] == whole[cut:]


# 14: what going on costs


def test_14_reads_again_a_part_at_most() -> None:
    parts = Parts("s", [100] * 20, shuffle_buffer=1000)
    samples = list(islice(MergedDataset([parts]), 950))
    parts.num_raw_read = 0
    next(MergedDataset([parts]).__iter_from__(to_state(samples)))
    assert parts.num_raw_read <= 100


def test_14_cuts_large_files_in_parts(tmp_path: Path) -> None:
    url = write_jsonl(tmp_path / "a.jsonl", ({"text": f"{n:03}"} for n in range(2000)))
    num_read = 0

    def count(samples: Iterator[Sample]) -> Iterator[Sample]:
        nonlocal num_read
        for sample in samples:
            num_read += 1
            yield sample

    source = JsonlIterableDataset(url, count, part_nbytes=2000)
    source.name, source.percent = "s", 1
    samples = list(islice(MergedDataset([source]), 900))
    num_read = 0
    next(MergedDataset([source]).__iter_from__(to_state(samples)))
    assert num_read < 130  # 17 bytes a line


# 15: how far samples are mixed


def test_15_has_another_order_of_files_and_samples_in_each_epoch() -> None:
    samples = list(islice(MergedDataset([Parts("s", [4] * 6)]), 72))
    epochs = [samples[start : start + 24] for start in (0, 24, 48)]
    urls = [[url for url, _ in groupby(s["__url__"] for s in epoch)] for epoch in epochs]
    assert len({tuple(order) for order in urls}) == 3
    assert all(sorted(order) == [f"s/{part:02}" for part in range(6)] for order in urls)
    within = [[s["__key__"] for s in epoch if s["__url__"] == "s/02"] for epoch in epochs]
    assert len({tuple(order) for order in within}) > 1


def test_15_has_another_order_in_each_stretch_of_items() -> None:
    order = [int(name.partition(":")[2]) for name in run_of(Items("m", 300)).drain().orders()[0]]
    assert max(abs(number - place) for place, number in enumerate(order)) > 200


def test_15_lists_files_by_name(tmp_path: Path) -> None:
    for name in ("b/2", "a/10", "c", "a/9", "b/1"):
        write_jsonl(tmp_path / f"{name}.jsonl", [{"id": name}])
    urls = JsonlIterableDataset(str(tmp_path)).urls
    assert urls == sorted(urls)
    assert len(urls) == 5


# 24: what states hold


def test_24_is_json_with_a_version_and_a_fingerprint(tmp_path: Path) -> None:
    for number in range(3):
        write_jsonl(tmp_path / f"{number}.jsonl", [{"id": f"{number}:{n}"} for n in range(4)])

    def make() -> MergedDataset:
        source = JsonlIterableDataset(str(tmp_path))
        source.name, source.percent = "s", 1
        return MergedDataset([source], cyclic=False)

    samples = list(make())
    states = merge_states([to_state(samples[:5])])
    assert states["origin"]["version"] == 1
    rest = make().__iter_from__(json.loads(json.dumps(states)))
    assert [sample["id"] for sample in rest] == [sample["id"] for sample in samples[5:]]

    write_jsonl(tmp_path / "2.jsonl", [{"id": f"2:{n}"} for n in "abcd"])
    with pytest.raises(StateMismatchError, match="'s' must be of the same files"):
        make().__iter_from__(states)
