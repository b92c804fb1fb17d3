"""Golden values of cogdata's streams, C1 to C13: by the model of it, and by zindex's named modes.

Where cogdata is wrong, the golden value is that of the mended order, and zindex's default has its
own check.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.streaming import upstream
from tests.streaming.simulated_ranks import Run, WorkerSlot
from tests.streaming.tiny_sources import (
    Items,
    Parts,
    ids_of,
    late_pairs,
    pack_tokens,
    tar_bytes,
    write_jsonl,
)
from zindex.errors import ConfigError, SourceError
from zindex.streaming import (
    MergedDataset,
    MetaDistributedWebDataset,
    instantiate_from_yaml,
    merge_states,
    mixed_collate,
    to_state,
)
from zindex.streaming.orders import block_order


def raw_files(*sizes: int) -> dict[str, list[dict[str, Any]]]:
    """Return files u0, u1, ... of samples with the keys 0, 1, ..."""
    return {
        f"u{number}": [{"__key__": str(key)} for key in range(size)]
        for number, size in enumerate(sizes)
    }


def letters(order: Iterable[int], count: int = 29) -> str:
    return "".join("abc"[choice] for choice in islice(order, count))


# C1 and C2: the order of map-style sets


@pytest.mark.parametrize(
    ("seed", "order"),
    [(0, [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]), (131, [7, 0, 6, 5, 9, 1, 8, 4, 3, 2])],
)
def test_c01_torch_draws_the_order(seed: int, order: list[int]) -> None:
    assert torch.randperm(10, generator=torch.Generator().manual_seed(seed)).tolist() == order


def test_c01_theirs_loses_the_first_of_the_order() -> None:
    samples = list(upstream.read_map(list(range(10)), 0, 1))
    assert [sample["data"] for sample in samples] == [1, 7, 5, 3, 9, 0, 8, 6, 2]
    assert [sample["__index__"] for sample in samples] == list(range(1, 10))


def numbers(size: int, name: str = "m") -> Items:
    """Return a set whose items are whole numbers."""
    return Items(name, size, items=range(size))


def data_of(dataset: MergedDataset, count: int | None = None) -> list[int]:
    return [sample["data"] for sample in islice(dataset, count)]


@pytest.mark.parametrize(
    ("seed", "order"),
    [(0, [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]), (131, [7, 0, 6, 5, 9, 1, 8, 4, 3, 2])],
)
def test_c01_ours_keeps_the_first_of_the_order(seed: int, order: list[int]) -> None:
    mode = {"shuffle_unstreaming_subsets": "cogdata_block2m"}
    samples = list(MergedDataset([numbers(10)], cyclic=False, seed=seed, **mode))
    assert [sample["data"] for sample in samples] == order
    assert [sample["__index__"] for sample in samples] == list(range(10))
    assert {sample["__seed__"] for sample in samples} == {seed}


def test_c01_ours_takes_the_next_seed_in_the_next_epoch() -> None:
    dataset = MergedDataset([numbers(10)], shuffle_unstreaming_subsets="cogdata_block2m")
    assert data_of(dataset, 20) == [4, 1, 7, 5, 3, 9, 0, 8, 6, 2, 7, 0, 6, 5, 9, 1, 8, 4, 3, 2]


def test_c01_default_orders_differ_by_epoch_and_name() -> None:
    epochs = [data_of(MergedDataset([numbers(30)]), 60)[start : start + 30] for start in (0, 30)]
    other = data_of(MergedDataset([numbers(30, "n")]), 30)
    assert epochs[0] != epochs[1]
    assert epochs[0] != other
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(other) == list(range(30))


def test_c02_theirs_gives_each_block_the_same_order() -> None:
    samples = upstream.read_map(list(range(20)), 0, 1, block=10)
    assert [sample["data"] for sample in samples] == [
        *(1, 7, 5, 3, 9, 0, 8, 6, 2),
        *(14, 11, 17, 15, 13, 19, 10, 18, 16, 12),
    ]


def test_c02_ours_gives_each_block_the_same_order() -> None:
    assert block_order(np.arange(20), 20, seed=0, block=10).tolist() == [
        *(4, 1, 7, 5, 3, 9, 0, 8, 6, 2),
        *(14, 11, 17, 15, 13, 19, 10, 18, 16, 12),
    ]


def test_c02_ours_stays_within_the_last_block() -> None:
    order = block_order(np.arange(25), 25, seed=0, block=10).tolist()
    assert order[20:] == [24, 21, 23, 20, 22]
    assert sorted(order) == list(range(25))


# C3: the order within a file


IN_FILE_ORDERS = [
    pytest.param(0, 1000, "6350124", id="whole-file"),
    pytest.param(0, 3, "1203654", id="small-buffer"),
    pytest.param(65, 1000, "3251640", id="worker-1-of-rank-1"),
]


@pytest.mark.parametrize(("seed", "buffer", "keys"), IN_FILE_ORDERS)
def test_c03_theirs_shuffles_within_a_file(seed: int, buffer: int, keys: str) -> None:
    dataset = upstream.StreamSet("s", raw_files(7))
    samples = upstream.read_stream(dataset, seed=seed, buffer=buffer)
    assert "".join(sample["__key__"] for sample in samples) == keys


def test_c03_theirs_shuffles_each_file_alone() -> None:
    dataset = upstream.StreamSet("s", raw_files(7, 7))
    samples = [(s["__url__"], s["__key__"]) for s in upstream.read_stream(dataset)]
    assert samples == [(url, key) for url in ("u0", "u1") for key in "6350124"]


@pytest.mark.parametrize(("seed", "buffer", "keys"), IN_FILE_ORDERS)
def test_c03_ours_shuffles_within_a_file(seed: int, buffer: int, keys: str) -> None:
    dataset = MergedDataset(
        [Parts("s", [7, 7], shuffle_buffer=buffer)],
        cyclic=False,
        shuffle_streaming_subsets="cogdata_urlbuffer",
        seed=seed,
    )
    samples = [(sample["__url__"], sample["__key__"]) for sample in dataset]
    assert samples == [(url, key) for url in ("s/00", "s/01") for key in keys]


def test_c03_ours_has_the_seed_of_rank_and_worker() -> None:
    dataset = MergedDataset(
        [Parts("s", [7] * 4, shuffle_buffer=1000)],
        shuffle_streaming_subsets="cogdata_urlbuffer",
    )
    dataset.set_data_parallel(2, 1)
    [batch] = [WorkerSlot(dataset, 1, 2, 7, 0).next_batch()]
    assert batch is not None
    assert [(sample["__url__"], sample["__seed__"]) for sample in batch] == [("s/03", 65)] * 7
    assert "".join(sample["__key__"] for sample in batch) == "3251640"


# C4: the order of sets


MIXING_ORDERS = [
    pytest.param((0.25, 0.25, 0.5), 0, "abcc" * 7 + "a", id="quarters-and-half"),
    pytest.param((0.7, 0.2, 0.1), 0, "abcaaabaaabcaaaabaaabcaaaabaaa", id="seven-two-one"),
    pytest.param((1, 3), 0, "abbb" * 7 + "a", id="one-to-three"),
    pytest.param((0.6, 0.4), 0, "ababaabababaababaababaababaaba", id="six-to-four"),
    pytest.param((0.25, 0.25, 0.5), 1, "bacc" + "abcc" * 6 + "a", id="second-rank"),
]


@pytest.mark.parametrize(("percents", "rank", "order"), MIXING_ORDERS)
def test_c04_theirs_takes_the_lowest_weight_next(
    percents: tuple[float, ...], rank: int, order: str
) -> None:
    assert letters(upstream.mix(percents, rank % len(percents)), len(order)) == order


@pytest.mark.parametrize(("percents", "rank", "order"), MIXING_ORDERS)
def test_c04_ours_takes_the_lowest_weight_next(
    percents: tuple[float, ...], rank: int, order: str
) -> None:
    sets = [Items(name, 9, percent) for name, percent in zip("abc", percents, strict=False)]
    dataset = MergedDataset(sets, mixing="cogdata_mix")
    dataset.set_data_parallel(4, rank)
    names = (sample["__datasetname__"] for sample in dataset)
    assert "".join(islice(names, len(order))) == order


def test_c04_counts_are_exact() -> None:
    expected = Counter({0: 7000, 1: 2000, 2: 1000})
    assert Counter(islice(upstream.mix((0.7, 0.2, 0.1), 0), 10_000)) == expected
    sets = [Items(str(i), 9, percent) for i, percent in enumerate((0.7, 0.2, 0.1))]
    for mixing in ("exact", "cogdata_mix"):
        dataset = MergedDataset(sets, mixing=mixing)
        names = (int(sample["__datasetname__"]) for sample in dataset)
        assert Counter(islice(names, 10_000)) == expected


# C5 and C6: positions and files of ranks


def test_c05_positions_of_ranks() -> None:
    theirs = [
        [s["__index__"] for s in upstream.read_map(range(10), rank, 4, after=-1)]
        for rank in range(4)
    ]
    assert theirs == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]


@pytest.mark.parametrize(("ranks", "split"), [(2, "ac,b"), (5, "ac,b,c,a,b")])
def test_c06_theirs_deals_files_out_to_ranks(ranks: int, split: str) -> None:
    assert ",".join("".join(urls) for urls in upstream.split_urls(list("abc"), ranks)) == split


def test_c06_theirs_deals_files_out_to_workers() -> None:
    assert [upstream.worker_urls(list("abc"), worker, 2) for worker in range(2)] == [
        ["a", "c"],
        ["b"],
    ]
    assert [upstream.worker_urls(["a"], worker, 2) for worker in range(2)] == [["a"], ["a"]]


def our_rank(child: Any, rank: int, num_ranks: int, **settings: Any) -> list[dict[str, Any]]:
    dataset = MergedDataset([child], **{"cyclic": False, **settings})
    dataset.set_data_parallel(num_ranks, rank)
    return list(dataset)


@pytest.mark.parametrize("order", [False, "cogdata_block2m"])
def test_c05_ours_positions_of_ranks(order: Any) -> None:
    ranks = [our_rank(numbers(10), r, 4, shuffle_unstreaming_subsets=order) for r in range(4)]
    assert [[sample["__index__"] for sample in samples] for samples in ranks] == [
        [0, 4, 8],
        [1, 5, 9],
        [2, 6],
        [3, 7],
    ]


@pytest.mark.parametrize(("ranks", "split"), [(2, "ac,b"), (5, "ac,b,c,a,b")])
def test_c06_ours_deals_files_out_to_ranks(ranks: int, split: str) -> None:
    names = {"s/00": "a", "s/01": "b", "s/02": "c"}
    mode = {"shuffle_streaming_subsets": "cogdata_urlbuffer"}
    dealt = [our_rank(Parts("s", [1, 1, 1]), rank, ranks, **mode) for rank in range(ranks)]
    assert ",".join("".join(names[s["__url__"]] for s in samples) for samples in dealt) == split


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_c06_default_gives_every_file_to_one_rank(ranks: int) -> None:
    dealt = [our_rank(Parts("s", [2, 2, 2]), rank, ranks) for rank in range(ranks)]
    ids = Counter(sample["id"] for samples in dealt for sample in samples)
    assert ids == Counter(f"s:{part}:{number}" for part in range(3) for number in range(2))


# C7: what a sample carries


def test_c07_theirs_marks_samples() -> None:
    merged = upstream.Merged(
        [upstream.MapSet("m", ["x", "y"]), upstream.StreamSet("s", raw_files(1))], seed=3
    )
    item, streamed = islice(merged.read(), 2)
    assert item == {
        "data": item["data"],
        "__index__": 1,
        "__seed__": 3,
        "__datasetname__": "m",
        "__dprank__": 0,
        "__workerid__": 0,
    }
    assert streamed == {
        "__url__": "u0",
        "__key__": "0",
        "__seed__": 3,
        "__datasetname__": "s",
        "__dprank__": 0,
        "__workerid__": 0,
    }
    assert upstream.to_state(item) == {("m", 0, 0): (3, 1)}
    assert upstream.to_state([item, streamed]) == {("m", 0, 0): (3, 1), ("s", 0, 0): (3, "u0", "0")}
    assert upstream.to_state({"__states__": [{("m", 0, 0): (3, 0)}, {("m", 0, 0): (3, 1)}]}) == {
        ("m", 0, 0): (3, 1)
    }


PLACE = {"__datasetname__", "__dprank__", "__workerid__", "__seed__", "__epoch__", "__state__"}


def test_c07_ours_marks_samples() -> None:
    dataset = MergedDataset([numbers(2, "m"), Parts("s", [1])], seed=3)
    item, streamed = sorted(islice(dataset, 2), key=lambda sample: sample["__datasetname__"])
    assert set(item) == PLACE | {"data", "__index__"}
    assert set(streamed) == PLACE | {"id", "__url__", "__key__"}
    for sample in (item, streamed):
        place = [sample[name] for name in ("__dprank__", "__workerid__", "__seed__", "__epoch__")]
        assert place == [0, 0, 3, 0]
    assert (item["__datasetname__"], streamed["__datasetname__"]) == ("m", "s")
    assert item["__index__"] == item["data"]
    assert (streamed["__url__"], streamed["__key__"]) == ("s/00", "0")


def test_c07_ours_has_the_rank_and_worker() -> None:
    run = Run(lambda: MergedDataset([Items("m", 8)], cyclic=False), 2, 2).drain()
    places = Counter((s["__dprank__"], s["__workerid__"]) for s in run.samples())
    assert places == {(rank, worker): 2 for rank in (0, 1) for worker in (0, 1)}


def test_c07_ours_gives_states_in_their_shape() -> None:
    dataset = MergedDataset([numbers(2, "m"), Parts("s", [1])], seed=3)
    samples = list(islice(dataset, 2))
    last = {s["__datasetname__"]: s for s in samples}
    assert to_state(samples, form="cogdata") == {
        ("m", 0, 0): (3, last["m"]["__index__"]),
        ("s", 0, 0): (3, "s/00", "0"),
    }


def test_c07_a_batch_has_the_state_of_its_samples() -> None:
    samples = list(islice(MergedDataset([Items("m", 5), Parts("s", [2, 2])]), 7))
    state: dict[str, Any] = {}
    for sample in samples:
        state.update(to_state(sample))
    assert to_state(samples) == to_state(mixed_collate(samples)) == state
    outputs = list(islice(MergedDataset([Items("m", 5)], customized_yield_fn=late_pairs), 3))
    assert all(set(output) == {"ids", "__states__"} for output in outputs)
    assert to_state(outputs) == {k: v for one in outputs for k, v in to_state(one).items()}


@pytest.mark.parametrize("sample", [{"a": 1}, 7, [{"a": 1}]])
def test_c07_a_sample_without_a_state_is_an_error(sample: Any) -> None:
    with pytest.raises(ValueError, match=r"to_state|__state__"):
        to_state(sample)


def test_c07_collate_adds_missing_keys() -> None:
    samples = [{"a": 1}, {"b": 2}]
    assert mixed_collate(samples) == [{"a": 1}, {"b": 2}]
    filled = mixed_collate([{"a": 1}, {"b": 2}], possible_keys=["a", "b"])
    assert filled == [{"a": 1, "b": None}, {"a": None, "b": 2}]
    with pytest.raises((ConfigError, TypeError, ValueError), match="dict"):
        mixed_collate([7])


# C8 and C9: resuming


def theirs_resumed(make: Callable[[], upstream.Merged], cut: int, count: int) -> list[str]:
    """Return the keys of a run that stops after some samples and resumes."""
    states: upstream.States = {}
    keys = []
    for sample in islice(make().read(), cut):
        states.update(upstream.to_state(sample))
        keys.append(key_of(sample))
    return keys + [key_of(sample) for sample in islice(make().read(states), count - cut)]


def key_of(sample: dict[str, Any]) -> str:
    place = sample.get("__index__", (sample.get("__url__"), sample.get("__key__")))
    return f"{sample['__datasetname__']} {place}"


@pytest.mark.parametrize("cut", range(1, 20))
def test_c08_theirs_resumes_in_one_stream(cut: int) -> None:
    def make() -> upstream.Merged:
        return upstream.Merged([upstream.StreamSet("s", raw_files(7, 7, 7))])

    assert theirs_resumed(make, cut, 21) == theirs_resumed(make, 21, 21)


@pytest.mark.parametrize("cut", range(1, 9))
def test_c08_theirs_resumes_in_one_map(cut: int) -> None:
    def make() -> upstream.Merged:
        return upstream.Merged([upstream.MapSet("m", list(range(10)))])

    assert theirs_resumed(make, cut, 9) == theirs_resumed(make, 9, 9)


def test_c09_theirs_reads_the_file_again() -> None:
    def make() -> upstream.Merged:
        return upstream.Merged([upstream.StreamSet("s", raw_files(7, 7, 7))])

    read = list(islice(make().read(), 17))
    states = upstream.to_state(read)
    rest = list(islice(make().read(states, reload_from_url_level=True), 7))
    again = Counter(map(key_of, read + rest))
    assert len(again) == 21
    assert Counter(again.values()) == {1: 18, 2: 3}


def merged(*children: Any, **settings: Any) -> Callable[[], MergedDataset]:
    """Return a maker of a mixture; the children keep no place, so they may be shared."""
    return lambda: MergedDataset(children, **settings)


def inner(*children: Any) -> MergedDataset:
    dataset = MergedDataset(children, seed=1)
    dataset.percent = 2
    return dataset


THEIR_MODES = {
    "shuffle_unstreaming_subsets": "cogdata_block2m",
    "shuffle_streaming_subsets": "cogdata_urlbuffer",
    "mixing": "cogdata_mix",
}
TEXT = Parts("text", [4, 5, 3], process_fn=pack_tokens, tokens_per_sample=6)
RESUMED = {
    "map": merged(Items("m", 10)),
    "streaming": merged(Parts("s", [7, 7, 7])),
    "nested": merged(Items("m", 4), inner(Parts("s", [3, 2]), Items("n", 3))),
    "packed-text": merged(TEXT),
    "look-ahead": merged(Items("m", 9), customized_yield_fn=late_pairs, yield_segment=8),
    "cogdata-map": merged(Items("m", 10), **THEIR_MODES),
    "cogdata-streaming": merged(Parts("s", [7, 7, 7]), **THEIR_MODES),
    "cogdata-packed-text": merged(TEXT, **THEIR_MODES),
    "cogdata-mix": merged(Items("m", 4, 0.3), Parts("s", [3, 2], 0.7), **THEIR_MODES),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", RESUMED)
def test_c08_ours_resumes_after_every_sample_and_across_epochs(kind: str, workers: int) -> None:
    whole = Run(RESUMED[kind], 1, workers)
    whole.advance(50)
    [order] = whole.orders()
    run = Run(RESUMED[kind], 1, workers)
    for _ in range(45):
        run.advance(1)
        rest = Run(RESUMED[kind], 1, workers, run.own_states())
        rest.advance(10)
        together = run.orders()[0] + rest.orders()[0]
        assert together[: len(order)] == order[: len(together)]


@pytest.mark.parametrize("mode", [True, "cogdata_urlbuffer"])
def test_c09_ours_reads_the_file_again(mode: Any) -> None:
    def make() -> MergedDataset:
        return MergedDataset([Parts("s", [7, 7, 7])], False, True, mode)

    read = list(islice(make(), 17))
    rest = list(make().__iter_from__(to_state(read), reload_from_url_level=True))
    again = Counter(sample["id"] for sample in read + rest)
    assert len(again) == 21
    assert Counter(again.values()) == {1: 18, 2: 3}
    assert len({sample["__url__"] for sample in rest}) == 1


# Theirs and ours side by side


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("rank", [0, 1])
def test_ours_reads_the_same_as_theirs(rank: int, workers: int) -> None:
    """Two epochs of a stream, in cogdata's order."""
    sizes = [7, 5, 6, 4]
    files = {
        f"s/{part:02}": [{"__key__": str(key)} for key in range(size)]
        for part, size in enumerate(sizes)
    }
    for worker in range(workers):
        theirs = upstream.Merged([upstream.StreamSet("s", files)], seed=3)
        theirs.set_data_parallel(2, rank)
        ours = MergedDataset([Parts("s", sizes, shuffle_buffer=1000)], seed=3, **THEIR_MODES)
        ours.set_data_parallel(2, rank)
        num_samples = 2 * sum(sizes[rank::2][worker::workers])
        expected = list(islice(theirs.read(worker=worker, num_workers=workers), num_samples))
        worker_slot = WorkerSlot(ours, worker, workers if workers > 1 else 0, num_samples, 0)
        names = ("__datasetname__", "__dprank__", "__workerid__", "__seed__", "__url__", "__key__")
        assert [[sample[name] for name in names] for sample in worker_slot.next_batch() or ()] == [
            [sample[name] for name in names] for sample in expected
        ]


@pytest.mark.parametrize("cut", range(1, 20))
def test_ours_resumes_from_their_states_with_the_partly_read_file(cut: int) -> None:
    files = {f"s/{part:02}": [{"__key__": str(key)} for key in range(7)] for part in range(3)}
    theirs = upstream.Merged([upstream.StreamSet("s", files)], seed=3)
    states = upstream.to_state(list(islice(theirs.read(), cut)))
    left = 21 - (cut - 1) // 7 * 7
    ours = MergedDataset([Parts("s", [7] * 3, shuffle_buffer=1000)], seed=3, **THEIR_MODES)
    places = [
        [(sample["__url__"], sample["__key__"]) for sample in islice(samples, left)]
        for samples in (
            theirs.read(states, reload_from_url_level=True),
            ours.__iter_from__(states),
        )
    ]
    assert places[0] == places[1]


@pytest.mark.parametrize("cut", range(1, 9))
def test_ours_resumes_from_their_states_of_items(cut: int) -> None:
    theirs = upstream.Merged([upstream.MapSet("m", list(range(10)))])
    samples = list(islice(theirs.read(), 9))
    ours = MergedDataset([numbers(10)], **THEIR_MODES)
    rest = islice(ours.__iter_from__(upstream.to_state(samples[:cut])), 9 - cut)
    assert [sample["data"] for sample in rest] == [sample["data"] for sample in samples[cut:]]


# C10: tar and metadata


@pytest.fixture
def tar_of(tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Write a tar and its metadata, and return the samples that come out."""

    def read(members: Any, lines: Any = None, **settings: Any) -> list[dict[str, Any]]:
        data = members if isinstance(members, bytes) else tar_bytes(members)
        (tmp_path / "a.b.tar").write_bytes(data)
        if isinstance(lines, str):
            (tmp_path / "a.meta.jsonl").write_text(lines)
        elif lines is not None:
            write_jsonl(tmp_path / "a.meta.jsonl", lines)
        dataset = MetaDistributedWebDataset(str(tmp_path / "a.b.tar"), **settings)
        return [sample for part in range(dataset.num_parts) for sample in dataset.read_part(part)]

    return read


TarOf = Callable[..., list[dict[str, Any]]]
MEMBERS = [("x.id", b"?"), ("x.txt", b"X"), ("sub/y.id", b"?"), ("z.txt", b"Z"), ("w.id", b"?")]
LINES = [
    {"key": "x", "Caption": "old", "more": 1, "unasked": 0},
    {"key": "x", "Caption": "new"},
    {"key": "sub/y", "Caption": "why"},
    {"key": "z", "Caption": "zed"},
]


def test_c10_metadata_is_joined_by_the_name_of_the_id(tar_of: TarOf, tmp_path: Path) -> None:
    samples = tar_of(MEMBERS, LINES, meta_names=["Caption", "more"])
    assert {sample.pop("__url__") for sample in samples} == {str(tmp_path / "a.b.tar")}
    with_id, in_folder, without_id, without_line = samples
    # Of several lines the later wins; field names are in small letters.
    assert with_id == {"__key__": "x", "id": b"?", "txt": b"X", "caption": "new", "more": 1}
    assert in_folder == {"__key__": "sub/y", "id": b"?", "caption": "why", "more": None}
    assert without_id == {"__key__": "z", "txt": b"Z"}
    assert without_line == {"__key__": "w", "id": b"?", "caption": None, "more": None}


def test_c10_without_a_sidecar_values_are_none(tar_of: TarOf) -> None:
    [sample] = tar_of([("x.id", b"?")], meta_names=["caption"])
    assert sample["caption"] is None


def test_c10_field_names_are_in_small_letters(tar_of: TarOf) -> None:
    [sample] = tar_of([("x.TXT", b"X"), ("x.Seg.PNG", b"S")])
    assert (sample["txt"], sample["seg.png"]) == (b"X", b"S")


def test_c10_a_clashing_field_is_an_error(tar_of: TarOf) -> None:
    lines = [{"key": "x", "txt": "?"}]
    with pytest.raises((SourceError, ConfigError), match=r"'txt'.*'x'"):
        tar_of([("x.id", b"?"), ("x.txt", b"X")], lines, meta_names=["txt"])


@pytest.mark.parametrize("line", ['{"Caption": "no key"}', "{bad", "", "7"])
def test_c10_a_bad_line_is_an_error_or_counted(tar_of: TarOf, line: str) -> None:
    text = f'{line}\n{{"key": "x", "Caption": "good"}}\n'
    with pytest.raises(SourceError, match=r"a\.meta\.jsonl .* at byte 0 "):
        tar_of([("x.id", b"?")], text, meta_names=["Caption"])
    [sample] = tar_of([("x.id", b"?")], text, meta_names=["Caption"], on_damage="skip")
    assert sample["caption"] == "good"


def test_c10_a_cut_tar_is_an_error_or_counted(tar_of: TarOf) -> None:
    whole = tar_bytes((f"{number}.txt", b"text") for number in range(4))
    with pytest.raises(SourceError, match=r"a\.b\.tar must be a whole tar archive"):
        tar_of(whole[: 3 * 1024 + 514])
    samples = tar_of(whole[: 3 * 1024 + 514], on_damage="skip")
    # Whether the third has more members is not known.
    assert [sample["__key__"] for sample in samples] == ["0", "1"]


# C11: YAML


class StreamSource:
    """What the files of these tests make."""

    def __init__(self, size: int = 0, folder: str = "", reader: Any = None) -> None:
        self.size, self.folder, self.reader = size, folder, reader


def read_yaml(folder: Path, text: str, **settings: Any) -> Any:
    path = folder / "mix.yaml"
    path.write_text(text)
    return instantiate_from_yaml(path, targets={"Leaf": StreamSource}, **settings)


@pytest.mark.parametrize("params", ["null", "{}"])
def test_c11_a_target_with_params_is_called_and_given_the_other_keys(
    tmp_path: Path, params: str
) -> None:
    made = read_yaml(tmp_path, f"{{target: Leaf, params: {params}, name: one, percent: .5}}")
    assert type(made) is StreamSource
    assert vars(made) == {"size": 0, "folder": "", "reader": None, "name": "one", "percent": 0.5}


def test_c11_a_target_alone_is_itself_and_stays_as_it_is(tmp_path: Path) -> None:
    assert read_yaml(tmp_path, "[{target: Leaf}]") == [StreamSource]
    with pytest.raises(ConfigError, match=r"line 2, column 1: .*'Leaf' comes with 'percent'"):
        read_yaml(tmp_path, "target: Leaf\npercent: 1")
    assert not hasattr(StreamSource, "percent")


def test_c11_variables_keep_their_type_and_may_be_inserted_in_text(tmp_path: Path) -> None:
    text = "a: ${variables:size}\nb: ['x${variables:size}y']\nc: ${variables:row}"
    made = read_yaml(tmp_path, text, variables={"size": 4, "row": [1, None, {"k": 2.5}]})
    assert made == {"a": 4, "b": ["x4y"], "c": [1, None, {"k": 2.5}]}


def test_c11_an_unknown_variable_is_an_error_with_its_place(tmp_path: Path) -> None:
    place = re.escape(f"{tmp_path / 'mix.yaml'}, line 3, column 7")
    with pytest.raises(ConfigError, match=f"{place}: .*image_siez"):
        read_yaml(tmp_path, "a: 1\nb:\n  c:  ${variables:image_siez}", variables={"image_size": 4})


def test_c11_objects_are_no_variables(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="object"):
        read_yaml(tmp_path, "a: ${variables:x}", variables={"x": object()})


def test_c11_dynamic_objects_are_whole_values(tmp_path: Path) -> None:
    thing = object()
    text = "{target: Leaf, params: {reader: '${dynamic_objs:thing}'}}"
    assert read_yaml(tmp_path, text, dynamic_objs={"thing": thing}).reader is thing
    with pytest.raises(ConfigError, match="dynamic_objs"):
        read_yaml(tmp_path, "a: x${dynamic_objs:thing}", dynamic_objs={"thing": thing})
    with pytest.raises(ConfigError, match="thing"):
        read_yaml(tmp_path, "a: ${dynamic_objs:thing}")


def test_c11_included_files_take_variables_and_are_overridden(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    text = "{target: Leaf, params: {size: '${variables:n}', folder: a}, name: inner, percent: 1}"
    (tmp_path / "sub" / "leaf.yaml").write_text(text)
    made = read_yaml(tmp_path, "include: sub/leaf.yaml\npercent: 3", variables={"n": 7})
    assert (made.size, made.folder, made.name, made.percent) == (7, "a", "inner", 3)
    # Theirs cannot override arguments.
    text = "include: sub/leaf.yaml\nparams: {folder: b}"
    assert read_yaml(tmp_path, text, variables={"n": 7}).folder == "b"


def test_c11_files_that_include_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("[{include: mix.yaml}]")
    with pytest.raises(ConfigError, match=r"include"):
        read_yaml(tmp_path, "[{include: other.yaml}]")


def test_c11_lists_and_mappings_are_unchanged(tmp_path: Path) -> None:
    made = read_yaml(tmp_path, "{rows: [{target: Leaf, params: {size: 1}}, {k: [2]}], n: null}")
    assert isinstance(made["rows"][0], StreamSource)
    assert made["rows"][1:] == [{"k": [2]}]
    assert made["n"] is None


@pytest.mark.parametrize("text", ["${oc.env:HOME}", "x${other.key}", "${now:%Y}"])
def test_c11_other_interpolations_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"line 1, column 4"):
        read_yaml(tmp_path, f"a: {text}")


# C12: shares


@pytest.mark.parametrize(
    "percents", [(0.5, 0.5), (0.7, 0.2, 0.1), (3, 1e-3, 7), (1, 2, 3, 4, 5, 6), (1 / 3, 0.123457)]
)
@pytest.mark.parametrize("sizes", [(1000, 1000), (3, 1), (1, 1)])
def test_c12_every_count_is_within_one_of_its_share(
    percents: tuple[float, ...], sizes: tuple[int, int]
) -> None:
    children = [
        (Items(str(i), sizes[0], p) if i % 2 else Parts(str(i), [sizes[1]] * 2, p))
        for i, p in enumerate(percents)
    ]
    counts = np.zeros(len(percents))
    shares = np.array(percents) / sum(percents)
    for drawn, sample in enumerate(islice(MergedDataset(children), 1500), 1):
        counts[int(sample["__datasetname__"])] += 1
        assert np.abs(counts - drawn * shares).max() < 1 + 1e-6 * drawn


def test_c12_every_worker_slot_keeps_the_shares() -> None:
    make = merged(Items("a", 5, 0.7), Items("b", 50, 0.2), Parts("c", [1, 2], 0.1))
    run = Run(make, 3, 2)
    run.advance(1200)
    for rank in run.ranks:
        counts = Counter(sample["__datasetname__"] for sample in rank.delivered)
        assert abs(counts["a"] - 280) <= 4
        assert abs(counts["b"] - 80) <= 4
        assert abs(counts["c"] - 40) <= 4


# C13: the end


@pytest.mark.parametrize("modes", [{}, THEIR_MODES])
def test_c13_the_stream_ends_with_the_last_set_or_the_first(modes: dict[str, Any]) -> None:
    children = [Items("a", 3), Items("b", 9)]
    drained = MergedDataset(children, cyclic=False, **modes)
    assert Counter(ids_of(s)[0] for s in drained) == Counter(
        [*(f"a:{n}" for n in range(3)), *(f"b:{n}" for n in range(9))]
    )
    stopped = list(MergedDataset(children, cyclic=False, stop_on_first=True, **modes))
    counts = Counter(sample["__datasetname__"] for sample in stopped)
    assert counts["a"] == 3
    assert 3 <= counts["b"] <= 4
    assert merge_states([to_state(stopped)])
