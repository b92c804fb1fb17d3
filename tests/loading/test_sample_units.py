"""Samples of all files are mixed, shared equally and delivered once, for any number of workers."""

import gzip
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.streaming.simulated_ranks import Run
from zindex.loading.sample_units import UNIT_NBYTES, choose_units
from zindex.sources.sample_offsets import SampleCount
from zindex.streaming import JsonlIterableDataset, MergedDataset


def write_files(folder: Path, sizes: list[int], nbytes: int = 40) -> None:
    for number, size in enumerate(sizes):
        lines = [json.dumps({"id": f"{number}:{n}", "x": "y" * nbytes}) for n in range(size)]
        (folder / f"{number}.jsonl").write_text("\n".join(lines) + "\n")


def pack_files(folder: Path) -> Path:
    """Compress the files of a folder, into another one."""
    packed = folder / "packed"
    packed.mkdir()
    for path in folder.glob("*.jsonl"):
        (packed / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
    return packed


def make(folder: Path, *, cyclic: bool = False, **settings: Any) -> MergedDataset:
    source: Any = JsonlIterableDataset(folder, **settings)
    source.name, source.percent = "texts", 1
    return MergedDataset([source], cyclic=cyclic)


def entropy(labels: list[str]) -> float:
    counts = np.array([*Counter(labels).values()])
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


@pytest.mark.parametrize(("size", "is_packed"), [(1500, False), (20_000, False), (1500, True)])
def test_six_files_are_mixed(tmp_path: Path, caches: Path, size: int, is_packed: bool) -> None:
    write_files(tmp_path, [size] * 6)
    folder = pack_files(tmp_path) if is_packed else tmp_path
    run = Run(lambda: make(folder, cyclic=True), 1, 0)
    run.advance(2560)
    files = [sample["id"].partition(":")[0] for sample in run.samples()]
    entropies = [entropy(files[start : start + 256]) for start in range(0, 2560, 256)]
    assert float(np.mean(entropies)) > 2.5


@pytest.mark.parametrize(
    ("num_ranks", "num_workers", "is_packed"),
    [(8, 2, False), (3, 1, False), (5, 0, False), (8, 2, True)],
)
def test_nine_files_are_shared_equally(
    tmp_path: Path, caches: Path, num_ranks: int, num_workers: int, is_packed: bool
) -> None:
    sizes = [300, 500, 200, 900, 100, 700, 400, 600, 396]
    write_files(tmp_path, sizes, 0)
    folder = pack_files(tmp_path) if is_packed else tmp_path
    run = Run(lambda: make(folder), num_ranks, num_workers).drain()
    assert run.ids() == Counter(f"{i}:{n}" for i, size in enumerate(sizes) for n in range(size))
    counts = [len(rank.delivered) for rank in run.ranks]
    assert max(counts) - min(counts) <= 2 * max(1, num_workers)


@pytest.mark.parametrize(
    ("num_samples", "mean"),
    [(1, 9), (2047, 100), (70_000, 1000), (1_000_003, 1000), (50_000_001, 1000), (300_000, 10**5)],
)
def test_an_epoch_has_each_sample_once(num_samples: int, mean: int) -> None:
    units = choose_units(SampleCount(num_samples, num_samples * mean), 3840, shuffle=True)
    num_groups, order_of = units.num_groups, (3, "a", 1)
    most = 2048 if num_samples < 100_000 else 40
    chosen = np.linspace(0, num_groups - 1, min(num_groups, most)).astype(int).tolist()
    found, lengths = [], []
    for group in chosen:
        ranges, order = units.shuffled(group, order_of)
        samples = np.concatenate([np.arange(*one) for one in ranges])
        if order is not None:
            assert sorted(order.tolist()) == [*range(len(samples))]
        found.append(samples)
        first = group * units.share
        parts = [units.part_of(first + unit, order_of) for unit in range(units.share)]
        assert [0, *(stop for _, stop in parts)] == [*(start for start, _ in parts), len(samples)]
        lengths += [stop - start for start, stop in parts]
    every = np.concatenate(found)
    assert len(np.unique(every)) == len(every)
    assert len(every) * mean <= len(chosen) * 2 * UNIT_NBYTES
    assert 0 < min(lengths) <= max(lengths) <= units.max_unit
    counted = units.lengths(order_of).reshape(num_groups, -1)
    assert lengths == counted[chosen].ravel().tolist()
    if num_groups == len(chosen):
        assert len(every) == num_samples
        starts, stops = zip(*map(units.range_of, range(units.num_units)), strict=True)
        assert [0, *stops] == [*starts, num_samples]
        counted = units.lengths(None)
        assert np.subtract(stops, starts).tolist() == counted.tolist()


def test_units_in_object_stores_are_not_grouped() -> None:
    units = choose_units(SampleCount(100_000, 100_000_000, is_remote=True), 512, shuffle=True)
    assert units.share == 1
    assert units.num_units >= 512


def test_units_of_large_sources_are_spread_over_all_samples() -> None:
    units = choose_units(SampleCount(10**9, 10**12), 3840, shuffle=True)
    ranges, order = units.shuffled(12345, (1, "a", 0))
    assert order is not None
    starts = sorted(start for start, _ in ranges)
    assert max(np.diff(starts)) < 10**9 * math.log(len(starts)) * 3 / len(starts)
    tenths = Counter(start * 10 // 10**9 for start in starts)
    assert len(tenths) == 10


@pytest.mark.parametrize(
    ("num_ranks", "num_workers", "is_packed"), [(8, 2, False), (5, 0, False), (3, 4, True)]
)
def test_no_sample_is_repeated_before_all_were_seen(
    tmp_path: Path, caches: Path, num_ranks: int, num_workers: int, is_packed: bool
) -> None:
    size = 3103
    write_files(tmp_path, [340] * 8 + [383], 0)
    folder = pack_files(tmp_path) if is_packed else tmp_path
    run = Run(lambda: make(folder, cyclic=True), num_ranks, num_workers)
    slots = num_ranks * max(1, num_workers)
    for rank in run.ranks:
        for _ in range(-(-3 * size // slots) * max(1, num_workers)):
            rank.step()
    # Worker slots in turn: those of a rank are in turn already.
    lanes = [
        [sample["id"] for sample in rank.delivered[worker :: max(1, num_workers)]]
        for rank in run.ranks
        for worker in range(max(1, num_workers))
    ]
    ids = [name for step in zip(*lanes, strict=True) for name in step]
    for epoch in range(3):
        assert len({*ids[epoch * size : (epoch + 1) * size]}) == size


@pytest.mark.parametrize("num_samples", [1, 700, 8100, 100_003, 1_500_000])
def test_units_are_as_large_as_if_samples_were_dealt(num_samples: int) -> None:
    units = choose_units(SampleCount(num_samples, num_samples * 500), 3840, shuffle=True)
    dealt = np.zeros(units.share, np.int64)
    for epoch in range(4):
        lengths = units.lengths((3, "a", epoch)).reshape(-1, units.share)
        assert lengths.sum() == num_samples
        dealt += lengths.sum(0)
        assert dealt.max() - dealt.min() <= 1
        assert sorted(dealt, reverse=True) == dealt.tolist()


@pytest.mark.parametrize("least", [768, 3840])
@pytest.mark.parametrize("num_samples", [50_000, 640_001, 3_000_000])
def test_shares_differ_by_a_small_unit(num_samples: int, least: int) -> None:
    for mean in (200, 3000, 10**5):
        units = choose_units(SampleCount(num_samples, num_samples * mean), least, shuffle=True)
        lengths = units.lengths((3, "a", 0))
        for num_slots in (8, 16, 20, 64, 100):
            shares = np.bincount(np.arange(len(lengths)) % num_slots, lengths)
            assert shares.max() - shares.min() <= 96 + 0.01 * shares.mean()
