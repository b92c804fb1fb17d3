"""Golden values of cogdata's streams, C1 to C13: by the model of it, and by zindex's named modes.

Where cogdata is wrong, the golden value is that of the mended order, and zindex's default has its
own check.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import pytest
import torch

from tests.streaming import upstream


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


def test_c02_theirs_gives_each_block_the_same_order() -> None:
    samples = upstream.read_map(list(range(20)), 0, 1, block=10)
    assert [sample["data"] for sample in samples] == [
        *(1, 7, 5, 3, 9, 0, 8, 6, 2),
        *(14, 11, 17, 15, 13, 19, 10, 18, 16, 12),
    ]


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


# C8 and C9: resuming


def theirs_resumed(make: Callable[[], upstream.Merged], cut: int, count: int) -> list[str]:
    """Return the keys that a run delivers which is stopped after some samples and goes on."""
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
def test_c08_theirs_goes_on_in_one_stream(cut: int) -> None:
    def make() -> upstream.Merged:
        return upstream.Merged([upstream.StreamSet("s", raw_files(7, 7, 7))])

    assert theirs_resumed(make, cut, 21) == theirs_resumed(make, 21, 21)


@pytest.mark.parametrize("cut", range(1, 9))
def test_c08_theirs_goes_on_in_one_map(cut: int) -> None:
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
