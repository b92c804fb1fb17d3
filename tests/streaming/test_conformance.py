"""Golden values of cogdata's streams, C1 to C13, in zindex's named modes; and a model of cogdata.

Where cogdata is wrong, the golden value is that of the mended order, and zindex's default has its
own check.
"""

from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest

from tests.streaming import upstream
from tests.streaming.simulated_ranks import Run, WorkerSlot
from tests.streaming.tiny_sources import Items, Parts, ids_of, late_pairs, pack_tokens
from zindex.loading.stream_orders import block_order
from zindex.streaming import MergedDataset, merge_states, mixed_collate, to_state

# C1 and C2: the order of map-style sets


def numbers(size: int, name: str = "m") -> Items:
    """Return a set whose items are whole numbers."""
    return Items(name, size, items=range(size))


def data_of(dataset: MergedDataset, count: int | None = None) -> list[int]:
    return [sample["data"] for sample in islice(dataset, count)]


@pytest.mark.parametrize(
    ("seed", "order"), [(0, [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]), (131, [7, 0, 6, 5, 9, 1, 8, 4, 3, 2])]
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
        [Parts("s", [7] * 4, shuffle_buffer=1000)], shuffle_streaming_subsets="cogdata_urlbuffer"
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
    sets = [Items(str(i), 9, percent) for i, percent in enumerate((0.7, 0.2, 0.1))]
    for mixing in ("exact", "cogdata_mix"):
        dataset = MergedDataset(sets, mixing=mixing)
        names = (int(sample["__datasetname__"]) for sample in dataset)
        assert Counter(islice(names, 10_000)) == expected


# C5 and C6: positions and files of ranks


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


# C8 and C9: resuming


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
        for samples in (theirs.read(states, reload_from_url_level=True), ours.__iter_from__(states))
    ]
    assert places[0] == places[1]


@pytest.mark.parametrize("cut", range(1, 9))
def test_ours_resumes_from_their_states_of_items(cut: int) -> None:
    theirs = upstream.Merged([upstream.MapSet("m", list(range(10)))])
    samples = list(islice(theirs.read(), 9))
    ours = MergedDataset([numbers(10)], **THEIR_MODES)
    rest = islice(ours.__iter_from__(upstream.to_state(samples[:cut])), 9 - cut)
    assert [sample["data"] for sample in rest] == [sample["data"] for sample in samples[cut:]]


# C10, tar and metadata: tests/sources/test_sidecar.py; C11, YAML: configuration/test_from_yaml.py


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
