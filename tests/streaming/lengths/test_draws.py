"""Samples and epochs that a run draws of each source, and the printed table of lengths."""

import io
from collections import Counter
from itertools import islice
from typing import Any

import pytest

from tests.streaming.tiny_sources import Items, Parts
from zindex.errors import ConfigError
from zindex.execution.executor import SerialExecutor
from zindex.streaming import MergedDataset, count_lengths, epochs_of, print_dataset_length_stats
from zindex.streaming.lengths.draws import SourceDraws, distribute
from zindex.streaming.lengths.statistics import Lengths


def items(name: str, size: int, percent: float, length: int = 1) -> Items:
    return Items(name, 0, percent, items=[{"tokens": [0] * length}] * size)


def merge(datasets: list[Any], percent: float = 1.0, **settings: Any) -> MergedDataset:
    merged = MergedDataset(datasets, **settings)
    merged.percent = percent
    return merged


def count(dataset: Any) -> Lengths:
    return count_lengths(dataset, client=SerialExecutor())


def drawn(dataset: Any, **run: int) -> dict[str, SourceDraws]:
    return {part.name: part for part in epochs_of(count(dataset), dataset, **run)}


def test_nested_percents_multiply() -> None:
    inner = merge([items("b", 10, 3), items("c", 100, 1)], 0.2)
    found = drawn(merge([items("a", 50, 0.8), inner]), num_samples=1000)
    assert {name: part.num_samples for name, part in found.items()} == {"a": 800, "b": 150, "c": 50}
    assert [round(part.share, 12) for part in found.values()] == [0.8, 0.15, 0.05]
    assert [part.num_epochs for part in found.values()] == pytest.approx([16, 15, 0.5])


def test_draws_are_those_of_the_stream() -> None:
    inner = merge([items("b", 10, 3), items("c", 100, 1)], 0.2)
    mix = merge([items("a", 50, 0.8), inner])
    counts = Counter(sample["__datasetname__"] for sample in islice(mix, 1000))
    assert counts == {name: part.num_samples for name, part in drawn(mix, num_samples=1000).items()}


def test_tokens_are_turned_into_samples() -> None:
    mix = merge([items("a", 10, 1, length=100), items("b", 10, 3, length=20)])
    found = drawn(mix, num_tokens=16_000)  # 160 tokens in four samples
    assert {name: part.num_samples for name, part in found.items()} == {"a": 100, "b": 300}
    assert {name: part.num_tokens for name, part in found.items()} == {"a": 10_000, "b": 6000}


def test_a_dataset_that_is_not_cyclic_gives_one_epoch() -> None:
    mix = merge([items("a", 30, 0.5), items("b", 1000, 0.5)], cyclic=False)
    assert [part.num_samples for part in drawn(mix, num_samples=100).values()] == [30, 70]
    assert [part.num_samples for part in drawn(mix, num_samples=9999).values()] == [30, 1000]
    assert [part.num_samples for part in drawn(mix, num_tokens=500).values()] == [30, 470]
    counts = Counter(sample["__datasetname__"] for sample in islice(mix, 100))
    assert counts == {"a": 30, "b": 70}


@pytest.mark.parametrize("stop_on_first", [True, False])
def test_a_dataset_of_percent_0_is_not_drawn(stop_on_first: bool) -> None:
    mix = merge([items("a", 30, 0), items("b", 50, 0.5)], cyclic=False, stop_on_first=stop_on_first)
    assert [part.num_samples for part in drawn(mix, num_samples=99).values()] == [0, 50]


def test_an_end_with_the_first() -> None:
    mix = merge([items("a", 30, 0.25), items("b", 1000, 0.75)], cyclic=False, stop_on_first=True)
    assert [part.num_samples for part in drawn(mix, num_samples=9999).values()] == [30, 90]


def test_an_ended_set_within_an_endless_one() -> None:
    inner = merge([items("b", 10, 1)], 0.5, cyclic=False)
    found = drawn(merge([items("a", 5, 0.5), inner]), num_samples=100)
    assert {name: part.num_samples for name, part in found.items()} == {"a": 90, "b": 10}


def test_a_single_source() -> None:
    [found] = epochs_of(count(items("a", 8, 1)), items("a", 8, 1), num_samples=20)
    assert found == SourceDraws("a", 1.0, 20, 20, 2.5)


@pytest.mark.parametrize("run", [{}, {"num_samples": 1, "num_tokens": 1}, {"num_samples": 0}])
def test_a_run_is_given_by_one_number(run: dict[str, int]) -> None:
    mix = items("a", 8, 1)
    with pytest.raises(ConfigError, match=r"by num_samples .* or by num_tokens .*, at least 1"):
        epochs_of(count(mix), mix, **run)


def test_lengths_must_be_of_the_dataset() -> None:
    with pytest.raises(ConfigError, match=r"of the sources \['b'\], got those of \['a'\]; count"):
        epochs_of(count(items("a", 8, 1)), items("b", 8, 1), num_samples=20)


def test_tokens_need_tokens() -> None:
    texts = Items("a", 0, items=[{"text": "abc"}])
    with pytest.raises(ConfigError, match="those of 'a' are in characters; count them"):
        epochs_of(count(texts), texts, num_tokens=20)
    empty = Parts("a", [0])
    with pytest.raises(ConfigError, match="those of 'a' are in nothing, as it is empty; count"):
        epochs_of(count(empty), empty, num_tokens=20)
    hollow = items("a", 8, 1, length=0)
    with pytest.raises(ConfigError, match="needs samples that have tokens"):
        epochs_of(count(hollow), hollow, num_tokens=20)


def test_filling_keeps_to_the_limits() -> None:
    assert distribute(100, [1, 1, 2], [10, 20, 1000]) == [10, 20, 70]
    assert distribute(100, [1, 1], [10, 20]) == [10, 20]
    assert distribute(90, [1, 2], [float("inf")] * 2) == [30, 60]
    assert distribute(10, [1, 1], [0, 100]) == [0, 10]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(info: Any, terminal: bool = False) -> list[str]:
    file = Terminal() if terminal else io.StringIO()
    print_dataset_length_stats(info, file)
    return file.getvalue().splitlines()


def test_nested_lists_as_check_length_gives_them() -> None:
    inner = MergedDataset([Items("b", 40, 1), Parts("c", [1, 2], 3)])
    inner.percent = 0.5
    packed = Items("packed", 1, 1.5)
    packed.length, packed.length_multiplier, packed.length_divisor = 6000, 2, 5  # type: ignore[attr-defined]
    mix = MergedDataset([packed, inner])
    assert printed(mix.check_length(2000)) == [
        "dataset  samples  required  percent",
        "packed     2,400     1,500    75.0%",
        "  b           40       125     6.2%",
        "  c            ?       375    18.8%",
    ]


@pytest.mark.parametrize(
    ("length", "color"), [(24, "\033[31m"), (25, ""), (200, ""), (201, "\033[32m"), (None, "")]
)
def test_colors_say_too_few_and_plenty(length: int | None, color: str) -> None:
    line = printed([("a", length, 100)], terminal=True)[1]
    assert line.startswith(f"{color}a ")
    assert line.endswith("\033[0m") == bool(color)


def test_files_get_no_colors(capsys: pytest.CaptureFixture[str]) -> None:
    print_dataset_length_stats([("a", 1, 100)])
    assert capsys.readouterr().out == (
        "dataset  samples  required  percent\na              1       100   100.0%\n"
    )


def test_nothing_required() -> None:
    assert printed([("a", 1, 0)])[1].endswith("0.0%")
