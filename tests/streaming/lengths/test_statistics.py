"""Lengths of all sources are counted exactly, wherever they are counted."""

import json
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.sources.archives import write_jsonl
from tests.streaming.tiny_sources import Items, Parts
from zindex.errors import ConfigError, SourceError
from zindex.execution.executor import SerialExecutor, embedded_client
from zindex.streaming import JsonlIterableDataset, MergedDataset, TextLength, count_lengths
from zindex.streaming.lengths.statistics import Lengths, choose_processes


def texts(name: str, lengths: list[int]) -> Items:
    return Items(name, 0, items=[{"text": "x" * length} for length in lengths])


def count_words(text: str) -> list[int]:
    return [len(word) for word in text.split()]


def make_mix() -> MergedDataset:
    inner = MergedDataset([Parts("inner", [4, 0, 9, 2], tokens_per_sample=50)])
    inner.percent = 1.0
    return MergedDataset([texts("texts", [5, 70, 0, 900]), inner])


def count(dataset: Any, **settings: Any) -> Lengths:
    return count_lengths(dataset, client=SerialExecutor(), **settings)


def test_every_source_is_counted_exactly() -> None:
    lengths = count(make_mix())
    assert [source.name for source in lengths] == ["texts", "inner"]
    assert len(lengths) == 2
    source = lengths["texts"]
    assert (source.unit, source.kind, source.num_parts) == ("characters", "items", 4)
    assert (source.num_samples, source.num_tokens, source.mean_length) == (4, 975, 243.75)
    assert (source.histogram.shortest, source.histogram.longest) == (0, 900)
    inner = lengths["inner"]
    read = [len(sample["tokens"]) for sample in Parts("", [4, 0, 9, 2], tokens_per_sample=50)]
    assert (inner.unit, inner.kind) == ("tokens", "parts")
    assert (inner.num_samples, inner.num_tokens) == (15, sum(read))
    assert inner.quantile(0.5) == sorted(read)[7]
    assert (inner.nbytes, inner.nbytes_read) == (None, None)
    assert not inner.is_estimate


def test_all_executors_count_alike() -> None:
    mix = make_mix()
    expected = count(mix)
    with embedded_client(2) as client:
        assert count_lengths(mix, client=client) == expected
        some = count_lengths(mix, client=client, num_samples=3)
    assert some == count(mix, num_samples=3)
    assert count_lengths(mix) == expected


def test_processes_count_alike(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "x " * n} for n in range(100)])
    dataset = JsonlIterableDataset(path, part_nbytes=999)
    length_of = TextLength(count_words)
    expected = count(dataset, length_of=length_of)
    assert count_lengths(dataset, num_processes=1, length_of=length_of) == expected
    # A function without a name too.
    several = count_lengths(dataset, num_processes=2, length_of=lambda sample: length_of(sample))
    assert several == expected
    with pytest.raises(ConfigError, match="both say where the work is done; give one of them"):
        count(dataset, num_processes=2)


class Files(torch.utils.data.IterableDataset[Any]):
    """A source that can only be read file by file."""

    name, percent, shuffle_buffer, num_skipped = "files", 1.0, 0, 0
    urls = ("a", "b", "c")

    def read_url(self, number: int) -> Iterator[dict[str, Any]]:
        for key in range(number + 1):
            yield {"__url__": self.urls[number], "__key__": str(key), "tokens": [0] * 7}

    def fingerprint(self) -> str:
        return "files"

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.read_url(0)


def test_files_are_counted_where_there_are_no_parts() -> None:
    mix = MergedDataset([Files()], shuffle_streaming_subsets="cogdata_urlbuffer")
    found = count(mix)["files"]
    assert (found.num_parts, found.num_samples, found.num_tokens) == (3, 6, 42)


def test_json_gives_the_same_back() -> None:
    lengths = count(make_mix(), num_samples=2)
    fields = json.loads(json.dumps(lengths.to_json()))
    assert fields["sources"][0]["is_estimate"]
    assert Lengths.from_json(fields) == lengths
    with pytest.raises(ConfigError, match="must be of version 2, got 7; count them again"):
        Lengths.from_json({**fields, "version": 7})


def test_a_single_source_needs_no_mix() -> None:
    assert count(texts("alone", [1, 2]))["alone"].num_tokens == 3
    nameless = Items("", 0, items=[{"tokens": [1, 2, 3]}])
    assert [source.name for source in count(nameless)] == ["Items"]


@pytest.mark.parametrize(
    ("sample", "length", "unit"),
    [
        ({"tokens": torch.arange(5), "text": "no"}, 5, "tokens"),
        ({"input_ids": np.arange(6).reshape(2, 3)}, 6, "tokens"),
        ({"token_ids": (1, 2)}, 2, "tokens"),
        ({"txt": torch.arange(8), "txt_mask": torch.arange(8) < 3}, 3, "tokens"),
        ({"txt": b"four", "caption": "no"}, 4, "bytes"),
        ({"tokens": None, "caption": "häuser"}, 6, "characters"),
        ({"text": "four", "caption": [1, 2]}, 2, "tokens"),
        ("a text by itself", 16, "characters"),
        (torch.arange(9), 9, "tokens"),
    ],
)
def test_lengths_are_found(sample: Any, length: int, unit: str) -> None:
    source = count(Items("a", 0, items=[sample]))["a"]
    assert (source.num_tokens, source.unit) == (length, unit)


def test_length_of_takes_precedence() -> None:
    found = count(texts("a", [3, 8]), length_of=lambda sample: len(sample["text"]) // 2)["a"]
    assert (found.num_tokens, found.unit) == (5, "tokens")


@pytest.mark.parametrize("length", [-1, 2.5, None, "7"])
def test_length_of_must_count(length: Any) -> None:
    with pytest.raises(SourceError, match="must return a whole number of tokens >= 0, got"):
        count(texts("a", [3]), length_of=lambda sample: length)


@pytest.mark.parametrize(
    "sample",
    [
        {"png": b"image", "json": {"id": 1}},
        {"text": torch.zeros(3, 8, 8)},
        (torch.zeros(3, 8, 8), 7),
        [torch.arange(5), 7],
        torch.zeros(4),
    ],
)
def test_samples_without_length_are_counted_themselves(sample: Any) -> None:
    images = Items("images", 0, items=[sample] * 5)
    lengths = count(MergedDataset([images, texts("texts", [3, 4])]))
    source = lengths["images"]
    assert (source.num_samples, source.num_tokens, source.unit) == (5, 0, "samples")
    assert (lengths["texts"].num_tokens, lengths["texts"].unit) == (7, "characters")
    assert Lengths.from_json(lengths.to_json()) == lengths


def test_samples_without_text_count_as_samples_among_tokens() -> None:
    (images,) = count(Items("a", 3), length_of=TextLength(count_words))
    assert (images.unit, images.num_samples, images.num_tokens) == ("samples", 3, 0)


def test_units_must_not_mix() -> None:
    mixed = Items("a", 0, items=[{"text": "x"}, {"tokens": [1]}])
    with pytest.raises(SourceError, match="in one unit, got characters and tokens; give length_of"):
        count(mixed)
    some = Items("a", 0, items=[{"text": "x"}, {"png": b"x"}])
    with pytest.raises(SourceError, match="in one unit, got characters and samples; give length_o"):
        count(some)


def test_some_parts_give_an_estimate() -> None:
    parts = Parts("a", [10] * 40, tokens_per_sample=9)
    found = count(parts, num_samples=75)["a"]
    assert found.is_estimate
    # Four parts first, then as many as their samples suggest.
    assert (found.num_parts_read, found.histogram.num_samples) == (8, 80)
    assert (found.fraction_read, found.num_samples) == (0.2, 400)
    assert count(parts, num_samples=75) == count(parts, num_samples=75)
    assert count(parts, num_samples=75, seed=1) != count(parts, num_samples=75)
    assert not count(parts, num_samples=400)["a"].is_estimate


def test_empty_parts_do_not_end_the_search() -> None:
    parts = Parts("a", [0] * 60 + [5] * 4, tokens_per_sample=9)
    assert count(parts, num_samples=20)["a"].num_samples == 20
    empty = count(Parts("b", [0, 0]), num_samples=3)["b"]
    assert (empty.num_samples, empty.unit, empty.mean_length) == (0, "", 0)


def test_some_items_give_an_estimate() -> None:
    found = count(texts("a", [7] * 50), num_samples=20)["a"]
    assert (found.num_parts_read, found.num_samples, found.num_tokens) == (20, 50, 350)
    assert found.is_estimate


class Batched(Items):
    """A map-style dataset that reads several items at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.batches = [*getattr(self, "batches", []), len(indices)]
        return [self.items[index] for index in indices]


def test_items_are_read_in_batches() -> None:
    dataset = Batched("a", 0, items=[{"tokens": [0] * n} for n in range(40)])
    assert count(dataset)["a"].num_tokens == 780
    assert max(dataset.batches) == 10  # four tasks


def test_bytes_and_damage_of_files(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "x" * n} for n in range(100)])
    with open(path, "a") as file:
        file.write("no json\n")
    dataset = JsonlIterableDataset(path, part_nbytes=500, on_damage="skip")
    dataset.name = "a"
    found = count(dataset)["a"]
    assert (found.num_samples, found.num_skipped) == (100, 1)
    assert found.nbytes == found.nbytes_read == Path(path).stat().st_size
    assert count(dataset) == Lengths((found,))  # counted again, not added up
    some = count(dataset, num_samples=20)["a"]
    assert some.nbytes is not None
    assert some.nbytes_read is not None
    assert some.fraction_read == some.nbytes_read / some.nbytes < 1
    # By bytes, not by parts: long lines fill more of these.
    assert some.num_samples == round(some.histogram.num_samples / some.fraction_read)


class Locked(Items):
    """A dataset that cannot be sent anywhere."""

    def __init__(self) -> None:
        super().__init__("locked", 0, items=[{"tokens": [1]}])
        self.lock = threading.Lock()


def test_a_dataset_that_does_not_pickle_is_counted_in_this_process() -> None:
    assert count(Locked())["locked"].num_tokens == 1
    with (
        embedded_client(1) as client,
        pytest.raises(ConfigError, match=r"dataset 'locked' \(Locked\) and length_of must pickle"),
    ):
        count_lengths(Locked(), client=client)


class Counting(Parts):
    """Parts that notice a second reader."""

    reading = False

    def read_part(self, part: int) -> Iterator[dict[str, Any]]:
        assert not self.reading
        self.reading = True
        yield from super().read_part(part)
        self.reading = False


def test_threads_share_no_dataset() -> None:
    parts = Counting("a", [300] * 16, tokens_per_sample=9)
    with embedded_client(4) as client:
        assert count_lengths(parts, client=client)["a"].num_samples == 4800
    assert not parts.num_raw_read


def test_numbers_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"num_samples \(--read\) must be at least 1, got 0"):
        count(make_mix(), num_samples=0)
    with pytest.raises(ConfigError, match="must have a length"):
        count(object())


def test_small_files_are_counted_in_one_process(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "x" * 90}] * 100)
    nbytes = Path(path).stat().st_size
    dataset: Any = JsonlIterableDataset(path, part_nbytes=999)
    assert choose_processes(dataset, most_nbytes=nbytes, num_cores=4) == 1
    assert choose_processes(dataset, most_nbytes=nbytes - 1, num_cores=4) == 4


def test_other_sources_count_by_their_items() -> None:
    choose = partial(choose_processes, num_cores=4)
    assert choose(MergedDataset([Parts("a", [5] * 3), Items("b", 9)])) == 1
    assert choose(Parts("a", [5] * 9)) == 4
    items = Items("b", 1025)
    assert choose(items) == 4
    assert choose(items, num_samples=100) == 1
    files = MergedDataset([Parts("a", [5] * 4)], shuffle_streaming_subsets="cogdata_urlbuffer")
    assert choose(files) == 1
