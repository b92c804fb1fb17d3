"""The entropy of files in the order of a stream is that of its samples."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.streaming.tiny_sources import Items
from zindex.execution.executor import SerialExecutor
from zindex.inspection.answers.file_mixing import measure_mixing
from zindex.inspection.tables.length_report import report_lengths
from zindex.streaming import JsonlIterableDataset, MergedDataset


def make(folder: Path, sizes: list[int], **settings: Any) -> MergedDataset:
    for number, size in enumerate(sizes):
        lines = [json.dumps({"file": number, "text": "x" * 99}) + "\n" for _ in range(size)]
        (folder / f"{number}.jsonl").write_text("".join(lines))
    source: Any = JsonlIterableDataset(folder)
    source.name, source.percent = "texts", 1
    return MergedDataset([source], cyclic=False, seed=4, **settings)


def entropy(labels: list[int]) -> float:
    shares = np.array([*Counter(labels).values()]) / len(labels)
    return float(-(shares * np.log2(shares)).sum())


@pytest.mark.parametrize("sizes", [[2000] * 6, [10, 100, 4000, 7000], [3, 4]])
def test_it_is_measured_without_reading(tmp_path: Path, sizes: list[int]) -> None:
    dataset = make(tmp_path, sizes)
    found = measure_mixing(dataset)["texts"]
    labels = [sample["file"] for sample in islice(dataset, 64 * 256)]
    windows = [labels[start : start + 256] for start in range(0, len(labels) - 255, 256)]
    expected = np.mean([entropy(window) for window in windows or [labels]])
    assert found.adjacent == pytest.approx(expected)
    if len(sizes) == 6:
        assert 2.5 < found.adjacent < np.log2(6)
        assert 2.55 < found.random < np.log2(6)


def test_files_in_order_are_not_mixed(tmp_path: Path) -> None:
    for order in (False, "cogdata_urlbuffer"):
        dataset = make(tmp_path, [512] * 4, shuffle_streaming_subsets=order)
        assert measure_mixing(dataset)["texts"].adjacent == 0


def test_the_report_has_sources_of_several_files(tmp_path: Path) -> None:
    dataset = make(tmp_path, [512] * 4)
    dataset.datasets.append(Items("items", 9))
    report = report_lengths(dataset, client=SerialExecutor())
    assert "items" not in report.mixing
    header, texts, items, _, note, *_ = report.to_text().splitlines()
    assert header.split()[-2:] == ["mixing", "source"]
    mixing = report.mixing["texts"]
    assert texts.endswith(f"{mixing.adjacent:.2f}/{mixing.random:.2f}  texts")
    assert items.endswith("  items")
    assert note == "mixing: entropy of the files of 256 adjacent samples / of random ones, in bits"
    assert report.to_json()["mixing"]["texts"]["adjacent"] == mixing.adjacent
