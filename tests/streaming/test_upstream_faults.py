"""The 24 faults found in cogdata's streams: theirs by the model of it, and zindex without them."""

import functools
import json
import os
import pickle
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import IterableDataset

from tests.streaming import upstream
from tests.streaming.simulated_ranks import Run
from tests.streaming.tiny_sources import (
    Items,
    Parts,
    late_pairs,
    pack_tokens,
    tar_bytes,
    write_jsonl,
    write_tar,
)
from zindex.errors import ConfigError, SourceError, StateMismatchError, StoreNotFoundError
from zindex.streaming import (
    JsonlIterableDataset,
    MergedDataset,
    MetaDistributedWebDataset,
    instantiate_from_yaml,
    merge_states,
    reshard_states,
    to_state,
)
from zindex.streaming.orders import block_order

Sample = dict[str, Any]


def raw_files(*sizes: int) -> dict[str, list[Sample]]:
    """Return files u0, u1, ... of samples that know their place."""
    return {
        f"u{number}": [{"__key__": str(key), "id": f"u{number}:{key}"} for key in range(size)]
        for number, size in enumerate(sizes)
    }


def their_items(size: int, name: str = "m", percent: float = 1.0) -> upstream.MapSet:
    return upstream.MapSet(name, [{"id": number} for number in range(size)], percent)


def their_run(merged: upstream.Merged, count: int) -> tuple[list[Any], upstream.States]:
    """Return the ids of the next samples, and the states after them."""
    ids, states = [], {}
    for sample in islice(merged.read(), count):
        ids.append(sample["id"])
        states.update(upstream.to_state(sample))
    return ids, states


def until_their_end(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Yield the samples before the error that ends a run without cycles."""
    try:
        yield from samples
    except RuntimeError as error:
        if "StopIteration" not in str(error):
            raise


def run_of(*children: Any, ranks: int = 1, workers: int = 0, **settings: Any) -> Run:
    """Return a run of one epoch of the children."""
    make = functools.partial(MergedDataset, children, **{"cyclic": False, **settings})
    return Run(make, ranks, workers)


def ids_in_order(*children: Any, **settings: Any) -> list[str]:
    return run_of(*children, **settings).drain().orders()[0]


# 1: position 0


def test_01_theirs_never_reads_position_0() -> None:
    for num_worker_slots in (1, 2, 3):
        read = [
            sample["__index__"]
            for worker_slot in range(num_worker_slots)
            for sample in upstream.read_map(their_items(10), worker_slot, num_worker_slots)
        ]
        assert sorted(read) == list(range(1, 10))


@pytest.mark.parametrize("order", [True, False, "cogdata_block2m"])
def test_01_ours_reads_every_position(order: Any) -> None:
    for ranks, workers in ((1, 0), (2, 0), (1, 3)):
        run = run_of(
            Items("m", 10), ranks=ranks, workers=workers, shuffle_unstreaming_subsets=order
        )
        samples = run.drain().samples()
        assert sorted(sample["__index__"] for sample in samples) == list(range(10))
        assert run.ids() == Counter(f"m:{number}" for number in range(10))


# 2: the block that is cut short


def test_02_theirs_reads_past_the_end() -> None:
    samples = upstream.read_map(list(range(25)), 0, 1, block=10)
    with pytest.raises(IndexError, match="out of range"):
        list(samples)


@pytest.mark.parametrize("size", [1, 9, 10, 11, 25, 29, 30])
def test_02_ours_reads_all_of_the_last_block(size: int) -> None:
    order = block_order(np.arange(size), size, seed=0, block=10)
    assert sorted(order) == list(range(size))


# 3: the end of one child


def test_03_theirs_ends_with_an_error_at_the_first_end_of_a_child() -> None:
    merged = upstream.Merged([their_items(3, "a"), their_items(9, "b")], cyclic=False)
    with pytest.raises(RuntimeError, match="generator raised StopIteration"):
        list(merged.read())
    names = [sample["__datasetname__"] for sample in until_their_end(merged.read())]
    assert names == list("abab")


def test_03_ours_drains_all_children_and_ends() -> None:
    children = Items("a", 3), Items("b", 9)
    names = Counter(s["__datasetname__"] for s in run_of(*children).drain().samples())
    assert names == {"a": 3, "b": 9}
    names = Counter(
        s["__datasetname__"] for s in MergedDataset(children, False, stop_on_first=True)
    )
    assert names["a"] == 3
    assert names["b"] < 5


# 4: streams that are not shuffled


def test_04_theirs_has_no_state_of_an_ordered_stream() -> None:
    merged = upstream.Merged(
        [upstream.StreamSet("s", raw_files(3))], shuffle_streaming_subsets=False
    )
    with pytest.raises(KeyError, match="__seed__"):
        upstream.to_state(next(merged.read()))


def test_04_theirs_skips_all_for_a_missing_key() -> None:
    stream = upstream.StreamSet("s", raw_files(3, 3))
    assert not list(upstream.read_stream(stream, url="u0", key="gone", shuffle=False))


def test_04_ours_has_a_state_of_an_ordered_stream() -> None:
    make = functools.partial(
        MergedDataset, [Parts("s", [3, 3])], cyclic=False, shuffle_streaming_subsets=False
    )
    samples = list(make())
    assert [sample["id"] for sample in samples] == [f"s:{p}:{n}" for p in (0, 1) for n in range(3)]
    for cut in range(1, 6):
        rest = make().__iter_from__(to_state(samples[:cut]))
        assert [s["id"] for s in rest] == [sample["id"] for sample in samples[cut:]]


def test_04_ours_refuses_other_files() -> None:
    read = list(MergedDataset([Parts("s", [3, 3])], False, shuffle_streaming_subsets=False))
    other = MergedDataset([Parts("s", [2, 3])], False, shuffle_streaming_subsets=False)
    with pytest.raises(StateMismatchError, match="'s' must be of the same files"):
        other.__iter_from__(to_state(read[:2]))


# 5: packed text


def their_texts() -> upstream.Merged:
    files = {
        f"u{url}": [
            {
                "__key__": str(key),
                "text": [f"{url}:{key}:{t}" for t in range(1 + (key * 5 + url) % 9)],
            }
            for key in range(28)
        ]
        for url in range(4)
    }
    stream = upstream.StreamSet("t", files, process_fn=upstream.pack_text(4))
    return upstream.Merged([stream], cyclic=False)


def their_blocks(states: upstream.States | None = None) -> list[list[str]] | None:
    """Return the blocks up to the end of the texts; None if the place is not found."""
    try:
        return [sample["block"] for sample in until_their_end(their_texts().read(states))]
    except RuntimeError as error:
        return None if "Error found in url skipping" in str(error) else ["another error"]


def test_05_theirs_resumes_with_other_blocks_of_packed_text() -> None:
    whole = list(until_their_end(their_texts().read()))
    blocks = [sample["block"] for sample in whole]
    outcomes: Counter[str] = Counter()
    for cut in range(1, len(whole)):
        rest = their_blocks(upstream.to_state(whole[cut - 1]))
        if rest is None:
            outcomes["error"] += 1
        else:
            outcomes["same" if rest == blocks[cut:] else "silently different"] += 1
    assert outcomes == {"same": 27, "silently different": 63, "error": 19}


@pytest.mark.parametrize("order", [True, False, "cogdata_urlbuffer"])
def test_05_ours_resumes_with_the_same_blocks_after_every_sample(order: Any) -> None:
    text = Parts("t", [28] * 4, process_fn=pack_tokens, tokens_per_sample=9)
    make = functools.partial(MergedDataset, [text], False, shuffle_streaming_subsets=order)
    whole = list(make())
    states: dict[str, Any] = {}
    for cut, block in enumerate(whole, 1):
        states.update(to_state(block))
        rest = make().__iter_from__(json.loads(json.dumps(states)))
        assert [block["ids"] for block in rest] == [block["ids"] for block in whole[cut:]]


# 6: the number of the epoch


def test_06_theirs_repeats_an_epoch_after_a_restart() -> None:
    merged = upstream.Merged([upstream.MapSet("m", list(range(10)))])
    samples = list(islice(merged.read(), 40))
    seeds = [sample["__seed__"] for sample in samples]
    assert sorted(set(seeds)) == [0, 131, 262, 393, 524]
    cut = seeds.index(262) + 1
    resumed = list(islice(merged.read(upstream.to_state(samples[cut - 1])), 20))
    seeds = [sample["__seed__"] for sample in resumed]
    assert [seed for seed, _ in groupby(seeds)] == [262, 131, 262]


@pytest.mark.parametrize("order", [True, "cogdata_block2m"])
def test_06_ours_continues_to_count_epochs(order: Any) -> None:
    make = functools.partial(MergedDataset, [Items("m", 10)], shuffle_unstreaming_subsets=order)
    samples = list(islice(make(), 50))
    resumed = list(islice(make().__iter_from__(to_state(samples[:21])), 29))
    places = [(s["__epoch__"], s["__seed__"], s["id"]) for s in samples[21:]]
    assert [(s["__epoch__"], s["__seed__"], s["id"]) for s in resumed] == places
    if order != "cogdata_block2m":
        return
    assert [seed for seed, _ in groupby(s["__seed__"] for s in resumed)] == [262, 393, 524]


# 7: outputs that come after the next samples were read


def test_07_theirs_loses_prefetched_samples() -> None:
    def make() -> upstream.Merged:
        return upstream.Merged([their_items(100)], False, False, customized_yield_fn=late_pairs)

    states: upstream.States = {}
    delivered = []
    for output in islice(make().read(), 5):
        states.update(upstream.to_state(output))
        delivered += output["ids"]
    delivered += next(make().read(states))["ids"]
    assert delivered == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 14]


@pytest.mark.parametrize("segment", [4, 7, 1024])
def test_07_ours_loses_nothing_that_was_read_ahead(segment: int) -> None:
    make = functools.partial(
        MergedDataset,
        [Items("m", 30)],
        False,
        False,
        customized_yield_fn=late_pairs,
        yield_segment=segment,
    )
    whole = [output["ids"] for output in make()]
    states: dict[str, Any] = {}
    for cut, output in enumerate(make(), 1):
        states.update(to_state(output))
        assert [rest["ids"] for rest in make().__iter_from__(states)] == whole[cut:]


# 8: the turn of a child that ends


def test_08_theirs_gives_short_children_less_than_their_share() -> None:
    merged = upstream.Merged([their_items(3, "a", 0.5), their_items(1000, "b", 0.5)])
    names = Counter(sample["__datasetname__"] for sample in islice(merged.read(), 400))
    assert names == {"a": 160, "b": 240}


@pytest.mark.parametrize("mixing", ["exact", "cogdata_mix"])
def test_08_ours_gives_short_children_their_share(mixing: Any) -> None:
    children = [Items("a", 3, 0.5), Items("b", 1000, 0.5)]
    samples = islice(MergedDataset(children, mixing=mixing), 400)
    assert Counter(sample["__datasetname__"] for sample in samples) == {"a": 200, "b": 200}


# 9: children without a sample


class NeverAnything(upstream.MapSet):
    """An empty set that ends the test when it has been opened too often."""

    num_opened = 0

    def __len__(self) -> int:
        self.num_opened += 1
        if self.num_opened > 5000:
            raise TimeoutError("still no sample")
        return 0


def test_09_theirs_looks_for_a_sample_for_ever() -> None:
    merged = upstream.Merged([NeverAnything("a", []), NeverAnything("b", [])])
    with pytest.raises(TimeoutError, match="still no sample"):
        next(merged.read())


def test_09_ours_refuses_a_source_without_samples() -> None:
    with pytest.raises(ConfigError, match="'a' must have samples, it is empty"):
        MergedDataset([Items("a", 0, items=()), Items("b", 3)])
    for order in (True, False, "cogdata_urlbuffer"):
        dataset = MergedDataset(
            [Parts("a", [0, 0]), Items("b", 3)], shuffle_streaming_subsets=order
        )
        with pytest.raises(SourceError, match="'a' must give samples in every loader worker"):
            list(islice(dataset, 20))


def test_09_ours_needs_no_sample_of_an_empty_part() -> None:
    for ranks, workers in ((1, 0), (2, 0), (3, 2)):
        make = functools.partial(MergedDataset, [Parts("a", [0, 2, 0, 0]), Items("b", 3)])
        run = Run(make, ranks, workers)
        assert run.advance(300) == 300


# 10: another number of ranks


def test_10_theirs_repeats_samples_on_more_ranks() -> None:
    def rank_of(size: int, rank: int, cyclic: bool) -> upstream.Merged:
        merged = upstream.Merged([their_items(240)], cyclic)
        merged.set_data_parallel(size, rank)
        return merged

    states: upstream.States = {}
    delivered: list[int] = []
    for rank in range(4):
        for sample in islice(rank_of(4, rank, cyclic=True).read(), 10):
            states.update(upstream.to_state(sample))
            delivered.append(sample["__index__"])
    for rank in range(6):
        rest = until_their_end(rank_of(6, rank, cyclic=False).read(states))
        delivered += [sample["__index__"] for sample in rest]
    counts = Counter(delivered)
    assert sum(count - 1 for count in counts.values()) == 13
    assert set(range(240)) - set(counts) == {0}


def test_10_ours_repeats_nothing_on_more_ranks() -> None:
    make = functools.partial(MergedDataset, [Items("m", 240)], cyclic=False)
    run = Run(make, 4, 0)
    run.advance(40)
    rest = Run(make, 6, 0, run.merged_states()).drain()
    assert run.ids() + rest.ids() == Counter(f"m:{number}" for number in range(240))


def test_10_ours_refuses_the_state_of_one_rank_for_others() -> None:
    make = functools.partial(MergedDataset, [Items("m", 240)], cyclic=False)
    run = Run(make, 4, 0)
    run.advance(40)
    with pytest.raises(StateMismatchError, match=r"needs the states of all 4 ranks"):
        Run(make, 6, 0, run.ranks[1].states).drain()
    with pytest.raises(StateMismatchError, match=r"got that of rank 1"):
        Run(make, 4, 0, run.ranks[1].states).drain()


# 11: states for another size


def test_11_theirs_skips_files_of_slow_ranks() -> None:
    stream = upstream.StreamSet("s", raw_files(*[5] * 10))
    # Two ranks: the fast one is within u8, its fifth file; the slow one within u3, its second.
    states = {("s", 0, 0): (0, "u8", "2"), ("s", 1, 0): (64, "u3", "2")}
    made = upstream.reshard_states(states, [stream], 2, 1)
    assert made == {("s", 0, 0): (None, "u8", None), ("s", 1, 0): (None, "u9", None)}
    read: set[str] = set()
    for rank in range(2):
        merged = upstream.Merged([upstream.StreamSet("s", raw_files(*[5] * 10))], cyclic=False)
        merged.set_data_parallel(2, rank)
        read |= {sample["__url__"] for sample in until_their_end(merged.read(made))}
    assert read == {"u8", "u9"}  # u8 is read again; of u3 a part, and u5 and u7 never come


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
def test_11_ours_skips_nothing_of_slow_ranks(order: Any) -> None:
    make, run = ahead_and_behind(order)
    states = reshard_states(run.own_states(), make(), 3, 1)
    rest = Run(make, 3, 0, json.loads(json.dumps(states))).drain()
    assert run.ids() + rest.ids() == Counter(f"s:{p}:{n}" for p in range(10) for n in range(5))


def test_11_ours_repeats_only_partly_read_files_in_cogdatas_order() -> None:
    make, run = ahead_and_behind("cogdata_urlbuffer")
    with pytest.raises(StateMismatchError, match="reshard_states"):
        Run(make, 3, 0, run.merged_states()).drain()
    states = reshard_states(run.own_states(), make(), 3, 0)
    again = run.ids() + Run(make, 3, 0, states).drain().ids()
    assert set(again) == {f"s:{p}:{n}" for p in range(10) for n in range(5)}
    twice = {name.rpartition(":")[0] for name, count in again.items() if count > 1}
    assert len(twice) == 2  # the file that each rank was in


# 12: the turns of loader workers


def test_12_theirs_begins_with_worker_0_again() -> None:
    def batches(states: upstream.States) -> Iterator[list[int]]:
        merged = upstream.Merged([their_items(100)], True, False)
        workers = [merged.read(states, worker=worker, num_workers=2) for worker in range(2)]
        return ([s["__index__"] for s in batch] for batch in upstream.rotate(workers, 1))

    assert list(islice(batches({}), 6)) == [[2], [1], [4], [3], [6], [5]]
    states: upstream.States = {("m", 0, 0): (0, 4), ("m", 0, 1): (0, 1)}  # after three batches
    assert list(islice(batches(states), 3)) == [[6], [3], [8]]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_12_ours_begins_with_the_worker_whose_turn_it_is(batch_size: int) -> None:
    def batches(states: Any, count: int) -> tuple[list[list[str]], Any]:
        make = functools.partial(MergedDataset, [Items("m", 100)], True, False)
        run = Run(make, 1, 3, states, batch_size=batch_size)
        run.advance(count * batch_size)
        [order] = run.orders()
        return [order[i : i + batch_size] for i in range(0, len(order), batch_size)], run

    whole, _ = batches(None, 12)
    for cut in range(1, 8):
        before, run = batches(None, cut)
        after, _ = batches(run.own_states()[0], 12 - cut)
        assert before + after == whole


# 13: a file that is listed twice


def test_13_theirs_takes_copies_of_a_file_for_one() -> None:
    stream = upstream.StreamSet("s", raw_files(7), urls=["u0", "u0"])
    whole = [sample["__key__"] for sample in upstream.read_stream(stream)]
    assert "".join(whole[:7]) != "6350124"  # the copies are mixed as one file
    resumed = upstream.read_stream(stream, url="u0", key=whole[12])
    assert len(list(resumed)) > 1  # one sample was left; the first copy is read again


def test_13_ours_reads_each_copy_of_a_file_for_itself(tmp_path: Path) -> None:
    write_tar(tmp_path / "t" / "a.tar", [(f"{number}.txt", b"") for number in range(7)])
    source = MetaDistributedWebDataset("", include_dirs=f"{tmp_path / 't'}*2")
    source.name, source.percent = "s", 1
    for order in (True, False, "cogdata_urlbuffer"):
        make = functools.partial(MergedDataset, [source], False, shuffle_streaming_subsets=order)
        whole = [sample["__key__"] for sample in make()]
        assert sorted(whole[:7]) == sorted(whole[7:]) == list("0123456")
        if order == "cogdata_urlbuffer":
            assert "".join(whole) == "63501246350124"
        states: dict[str, Any] = {}
        for cut, sample in enumerate(make(), 1):
            states.update(to_state(sample))
            rest = make().__iter_from__(states)
            assert [sample["__key__"] for sample in rest] == whole[cut:]


# 14: what going on costs


def test_14_theirs_reads_the_file_again_up_to_the_place() -> None:
    num_read = 0

    def count(samples: Iterator[Sample]) -> Iterator[Sample]:
        nonlocal num_read
        for sample in samples:
            num_read += 1
            yield sample

    stream = upstream.StreamSet("s", raw_files(2000), process_fn=count)
    *_, last = islice(upstream.read_stream(stream), 900)
    num_read = 0
    next(upstream.read_stream(stream, url="u0", key=last["__key__"]))
    assert num_read == 1901  # the 900 delivered ones, the next one, and the buffer of 1000


def test_14_ours_reads_again_a_part_at_most() -> None:
    parts = Parts("s", [100] * 20, shuffle_buffer=1000)
    samples = list(islice(MergedDataset([parts]), 950))
    parts.num_raw_read = 0
    next(MergedDataset([parts]).__iter_from__(to_state(samples)))
    assert parts.num_raw_read <= 100


def test_14_ours_cuts_large_files_in_parts(tmp_path: Path) -> None:
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


def test_15_theirs_keeps_the_order_of_files_in_all_epochs() -> None:
    merged = upstream.Merged([upstream.StreamSet("s", raw_files(2, 2, 2, 2))])
    urls = [sample["__url__"] for sample in islice(merged.read(), 24)]
    assert urls == ["u0", "u0", "u1", "u1", "u2", "u2", "u3", "u3"] * 3


def test_15_theirs_has_one_order_for_all_blocks() -> None:
    order = [s["data"] for s in upstream.read_map(list(range(30)), 0, 1, after=-1, block=10)]
    assert [n - 10 for n in order[10:20]] == order[:10] == [n - 20 for n in order[20:]]


def test_15_ours_has_another_order_of_files_and_samples_in_each_epoch() -> None:
    samples = list(islice(MergedDataset([Parts("s", [4] * 6)]), 72))
    epochs = [samples[start : start + 24] for start in (0, 24, 48)]
    urls = [[url for url, _ in groupby(s["__url__"] for s in epoch)] for epoch in epochs]
    assert len({tuple(order) for order in urls}) == 3
    assert all(sorted(order) == [f"s/{part:02}" for part in range(6)] for order in urls)
    within = [[s["__key__"] for s in epoch if s["__url__"] == "s/02"] for epoch in epochs]
    assert len({tuple(order) for order in within}) > 1


def test_15_ours_has_another_order_in_each_stretch_of_items() -> None:
    order = [int(name.partition(":")[2]) for name in ids_in_order(Items("m", 300))]
    assert max(abs(number - place) for place, number in enumerate(order)) > 200


def test_15_ours_lists_files_by_name(tmp_path: Path) -> None:
    for name in ("b/2", "a/10", "c", "a/9", "b/1"):
        write_jsonl(tmp_path / f"{name}.jsonl", [{"id": name}])
    urls = JsonlIterableDataset(str(tmp_path)).urls
    assert urls == sorted(urls)
    assert len(urls) == 5


# 16: damaged tars


def damaged_tar() -> bytes:
    """Return a tar of 40 samples that is cut short within the 24th."""
    data = tar_bytes((f"{n:04}.txt", b"text %d" % n) for n in range(40))
    return data[: 23 * 1024 + 512 + 3]


def test_16_theirs_drops_the_rest_of_a_damaged_tar(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(list(upstream.read_tar(damaged_tar()))) == 23  # 17 of 40 are gone
    assert capsys.readouterr().out == "unexpected end of data\n"


def test_16_ours_refuses_a_damaged_tar_or_counts_it(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(damaged_tar())
    with pytest.raises(SourceError, match=r"a\.tar must be a whole tar archive"):
        list(MetaDistributedWebDataset(str(tmp_path / "a.tar")))
    source = MetaDistributedWebDataset(str(tmp_path / "a.tar"), on_damage="skip")
    assert len(list(source)) >= 22
    assert source.num_skipped == 1


# 17: tars without a folder


def test_17_theirs_refuses_a_tar_without_a_folder() -> None:
    assert upstream.sidecar_of("some/a.b.tar") == "some/a.meta.jsonl"
    with pytest.raises(ValueError, match="substring not found"):
        upstream.sidecar_of("a.tar")


def test_17_ours_reads_a_tar_without_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tar(Path("a.b.tar"), [("x.id", b"")])
    write_jsonl(Path("a.meta.jsonl"), [{"key": "x", "caption": "found"}])
    [sample] = MetaDistributedWebDataset("a.b.tar", meta_names=["caption"])
    assert sample["caption"] == "found"


@pytest.mark.parametrize("url", ["rclone://a/b.tar", "pipe:cat a.tar", "pipe:touch made|"])
def test_17_ours_refuses_shell_schemes(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ConfigError, StoreNotFoundError), match=url.partition(":")[0]):
        MetaDistributedWebDataset(url)
    assert not list(tmp_path.iterdir())


# 18: items of the dataset itself


def test_18_theirs_writes_into_the_items_of_the_dataset() -> None:
    dataset = their_items(4)
    list(upstream.read_map(dataset, 0, 1))
    written = [item for item in dataset.items if "__index__" in item and "__seed__" in item]
    assert len(written) == 3


def test_18_ours_leaves_items_as_they_are() -> None:
    dataset = Items("m", 4)
    list(MergedDataset([dataset], cyclic=False))
    assert all(set(item) == {"id"} for item in dataset.items)


# 19: YAML within YAML


@pytest.fixture
def _empty_table() -> Iterator[None]:
    upstream.RESOLVERS.clear()
    yield
    upstream.RESOLVERS.clear()


def make_within(text: str) -> Any:
    """Read a YAML text while another one is read."""
    return upstream.instantiate(text)


@pytest.mark.usefixtures("_empty_table")
def test_19_theirs_is_not_reentrant_and_forgets_the_users_resolvers() -> None:
    upstream.RESOLVERS.register("mine", str.upper)
    upstream.instantiate("a: 1")
    assert "mine" not in upstream.RESOLVERS.table
    nested = f"target: {__name__}.make_within\nparams: {{text: 'a: 1'}}"
    with pytest.raises(AssertionError, match="already registered"):
        upstream.instantiate(nested)


def read_ours(folder: Path, text: str, **settings: Any) -> Any:
    path = folder / "mix.yaml"
    path.write_text(text)
    return instantiate_from_yaml(path, **settings)


def test_19_ours_reads_a_file_within_a_file_and_in_threads(tmp_path: Path) -> None:
    (tmp_path / "inner.yaml").write_text("value: ${variables:number}")

    def make_within(number: int) -> Any:
        return instantiate_from_yaml(tmp_path / "inner.yaml", {"number": number})

    def read(number: int) -> Any:
        folder = tmp_path / str(number)
        folder.mkdir()
        text = "[{target: within, params: {number: 5}}, '${variables:number}']"
        return read_ours(
            folder, text, variables={"number": number}, targets={"within": make_within}
        )

    with ThreadPoolExecutor(4) as unread:
        made = list(unread.map(read, range(12)))
    assert made == [[{"value": 5}, number] for number in range(12)]


# 20: classes that are created again


@pytest.mark.usefixtures("_empty_table")
def test_20_theirs_makes_two_classes_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_module_20.py").write_text("class Leaf:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    first, second = upstream.instantiate("[&a {target: users_module_20.Leaf, params: null}, *a]")
    assert type(first) is not type(second)
    assert not isinstance(first, type(second))
    with pytest.raises(pickle.PicklingError, match="not the same object"):
        pickle.dumps(first)
    del sys.modules["users_module_20"]


class StreamSource:
    """What files name."""


def test_20_ours_has_one_class(tmp_path: Path) -> None:
    text = "[{target: Leaf, params: null}, {target: Leaf, params: null}]"
    first, second = read_ours(tmp_path, text, targets={"Leaf": StreamSource})
    assert type(first) is type(second) is StreamSource
    assert first is not second
    assert type(pickle.loads(pickle.dumps(first))) is StreamSource


# 21: names of anything


@pytest.mark.usefixtures("_empty_table")
def test_21_theirs_calls_anything_that_a_file_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    upstream.instantiate("{target: posix.mkdir, params: {path: made, mode: 448}}")
    assert os.path.isdir("made")


@pytest.mark.parametrize(
    "target",
    ["posix.mkdir", "os.mkdir", "builtins.eval", "subprocess.run", "importlib.reload", "open"],
)
def test_21_ours_calls_only_allowed_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"open to files, got '{target}'"):
        read_ours(tmp_path, f"{{target: {target}, params: {{path: made, mode: 448}}}}")
    assert not (tmp_path / "made").exists()


def test_21_ours_reveals_nothing_of_the_environment(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"oc\.env"):
        read_ours(tmp_path, "a: ${oc.env:HOME}")


# 22: checks


@pytest.mark.usefixtures("_empty_table")
def test_22_theirs_takes_an_unknown_variable_for_its_name() -> None:
    assert upstream.instantiate("size: ${variables:image_siez}") == {"size": "image_siez"}


def test_22_theirs_mixes_states_of_one_name() -> None:
    merged = upstream.Merged([their_items(10), their_items(100)])
    states = upstream.to_state(list(islice(merged.read(), 20)))
    assert len(states) == 1


def test_22_ours_refuses_an_unknown_variable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mix.yaml, line 1, column 7: .*image_siez"):
        read_ours(tmp_path, "size: ${variables:image_siez}", variables={"image_size": 4})


@pytest.mark.parametrize("percent", [0, -1, None, "1", float("nan"), float("inf"), True])
def test_22_ours_refuses_percents_that_are_none(percent: Any) -> None:
    child = Items("a", 3)
    child.percent = percent
    with pytest.raises(ConfigError, match=r"must have a percent > 0, got"):
        MergedDataset([child])


def test_22_ours_refuses_names_that_are_used_twice_or_missing() -> None:
    inner = MergedDataset([Items("b", 3), Items("a", 2)])
    inner.percent = 1
    with pytest.raises(ConfigError, match="'a' came 2 times"):
        MergedDataset([Items("a", 3), inner])
    nameless = Items("", 3)
    with pytest.raises(ConfigError, match="must have a name"):
        MergedDataset([nameless])


class Unpartitioned(IterableDataset[int]):
    """A stream that cannot go on from a place."""

    name, percent = "s", 1

    def __iter__(self) -> Iterator[int]:
        yield from range(3)


def test_22_ours_refuses_a_child_that_cannot_resume() -> None:
    with pytest.raises(
        ConfigError, match=r"'s' \(Unpartitioned\) must be map-style or partitioned"
    ):
        MergedDataset([Unpartitioned()])


# 23: how long it is, and how far


def test_23_theirs_has_no_length() -> None:
    with pytest.raises(TypeError, match="has no len"):
        len(upstream.Merged([their_items(10)]))  # type: ignore[arg-type]


def test_23_ours_reports_its_length_and_progress() -> None:
    text = Parts("text", [5, 5])
    text.length, text.length_multiplier, text.length_divisor = 1000, 3, 4
    nested = MergedDataset([Items("a", 10, 3), Parts("b", [4], 1)])
    nested.percent = 1
    dataset = MergedDataset([Items("c", 30, 0.5), nested, text])
    assert dataset.check_length(1000) == [
        ("c", 30, 200),
        [("a", 10, 300), ("b", None, 100)],
        ("text", 750, 400),
    ]
    for sample in islice(dataset, 200):
        assert sample["__epoch__"] >= 0


# 24: what states hold


def test_24_theirs_has_tuples_for_keys_and_no_fingerprint() -> None:
    merged = upstream.Merged([upstream.StreamSet("s", raw_files(3, 3))])
    states = upstream.to_state(next(merged.read()))
    with pytest.raises(TypeError, match="keys must be str"):
        json.dumps(states)
    changed = upstream.Merged([upstream.StreamSet("s", {"other": []})])
    with pytest.raises(ValueError, match="not in list"):
        next(changed.read(states))


def test_24_ours_is_json_with_a_version_and_a_fingerprint(tmp_path: Path) -> None:
    for number in range(3):
        write_jsonl(tmp_path / f"{number}.jsonl", [{"id": f"{number}:{n}"} for n in range(4)])

    def make() -> MergedDataset:
        source = JsonlIterableDataset(str(tmp_path))
        source.name, source.percent = "s", 1
        return MergedDataset([source], cyclic=False)

    samples = list(make())
    states = merge_states([to_state(samples[:5])])
    assert json.loads(json.dumps(states)) == json.loads(json.dumps(states))
    assert states["origin"]["version"] == 1
    rest = make().__iter_from__(json.loads(json.dumps(states)))
    assert [sample["id"] for sample in rest] == [sample["id"] for sample in samples[5:]]

    write_jsonl(tmp_path / "3.jsonl", [{"id": "more"}])
    with pytest.raises(StateMismatchError, match="'s' must be of the same files"):
        make().__iter_from__(states)
    (tmp_path / "3.jsonl").unlink()
    newer = {**states, "origin": {**states["origin"], "version": 99}}
    with pytest.raises(StateMismatchError, match="must be of version 1, got 99"):
        make().__iter_from__(newer)
    with pytest.raises(StateMismatchError, match=r"datasets \['s', 't'\], got one of \['s'\]"):
        MergedDataset([*make().datasets, Items("t", 3)], False).__iter_from__(states)
