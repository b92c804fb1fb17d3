"""Equal digests, groups of candidates, and their comparison."""

import random
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from tests.sources.archives import write_jsonl
from zindex.ingest.dedup.duplicates import (
    Groups,
    Reason,
    Table,
    compare,
    connect,
    cut_shingles,
    find_exact,
    find_groups,
    plan_candidates,
    sort_equal,
)
from zindex.ingest.dedup.sketches import Sketcher, choose_bands, sketch_partition
from zindex.ingest.records.read_partitions import Partition
from zindex.sources.jsonl_files import JsonlFiles


def make_table(folder: Path, texts: list[str]) -> tuple[Sketcher, Table]:
    path = write_jsonl(folder / "a.jsonl", [{"text": text} for text in texts])
    sketcher = Sketcher(JsonlFiles(path), block_nbytes=400)
    found = sketch_partition(sketcher, folder / "work", Partition("p", 0, (0,)))
    return sketcher, Table(folder / "work", found.blocks)


@pytest.mark.parametrize("seed", range(5))
def test_exact_duplicates_equal_naive_ones(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    texts = [str(rng.randrange(20)) for _ in range(rng.randrange(60))]
    _, table = make_table(tmp_path, texts)
    found = find_exact(table)
    for number, text in enumerate(texts):
        first = texts.index(text)
        reason = Reason.NONE if first == number else Reason.EXACT
        assert found.reasons[number] == reason
        assert found.others[number] == (-1 if first == number else first)


def test_sorted_runs_begin_with_their_first_row() -> None:
    keys = np.random.default_rng(0).integers(0, 4, (200, 2)).astype(np.uint64)
    order, is_first = sort_equal(keys)
    assert sorted(order.tolist()) == list(range(200))
    for start in np.flatnonzero(is_first).tolist():
        equal = np.flatnonzero((keys == keys[order[start]]).all(axis=1)).tolist()
        assert order[start : start + len(equal)].tolist() == equal
    assert sort_equal(np.empty((0, 2), np.uint64))[0].tolist() == []


@pytest.mark.parametrize("seed", range(20))
def test_connected_nodes_equal_naive_search(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randrange(1, 60)
    edges = [(rng.randrange(count), rng.randrange(count)) for _ in range(rng.randrange(60))]
    labels = list(range(count))
    for _ in range(count):
        for one, two in edges:
            labels[one] = labels[two] = min(labels[one], labels[two])
    ends = np.array(edges, np.int64).reshape(-1, 2)
    assert connect(count, ends[:, 0], ends[:, 1]).tolist() == labels


def test_comparison_keeps_the_first_and_reports_its_similarity(tmp_path: Path) -> None:
    words = [f"w{number}" for number in range(24)]
    one_apart = [*words[:-1], "x"]  # 19 of 21 shingles are equal
    two_apart = ["y", *one_apart[1:]]  # 19 of 21 to the one before, 18 of 22 to the first
    other = [f"v{number}" for number in range(24)]
    texts = [" ".join(text) for text in (words, other, one_apart, two_apart)]
    sketcher, table = make_table(tmp_path, texts)
    assert len(table.blocks) == 2

    def found(tag: str, buckets: list[list[int]], threshold: float) -> list[list[float]]:
        pairs = [[record, one] for record, own in enumerate(buckets) for one in own]
        groups = Groups(np.array(pairs), np.array([0]))
        [task] = plan_candidates(table, groups, tag)
        return [list(near) for near in compare(sketcher, table.root, task, threshold)]

    near = found("a", [[0], [0], [0], [0]], 0.8)
    assert near == [[2, 0, 19 / 21], [3, 0, 18 / 22]]
    assert found("b", [[0], [0], [0], [0]], 0.85) == [[2, 0, 19 / 21]]
    assert found("c", [[0], [0], [0], [0]], 19 / 21) == [[2, 0, 19 / 21]]
    assert found("d", [[0], [0], [0], [0]], 0.91) == []
    # Only records that share a bucket are compared.
    assert found("e", [[0], [0, 1], [1], [1]], 0.8) == [[3, 2, 19 / 21]]
    # A finished comparison is kept.
    assert found("a", [[0], [1], [2], [3]], 1.0) == near


def test_short_texts_are_one_shingle() -> None:
    assert cut_shingles(["a", "b"]) == {("a", "b")}
    assert cut_shingles([]) == set()


def test_tasks_hold_whole_groups(tmp_path: Path) -> None:
    _, table = make_table(tmp_path, [f"text {number}" for number in range(30)])
    sizes = [5, 20_000, 3, 7, 16_384, 2]
    starts = np.cumsum([0, *sizes])
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, 30, (starts[-1], 2))
    tasks = list(plan_candidates(table, Groups(pairs, starts[:-1]), "t"))
    assert [len(task.pairs) for task in tasks] == [20_005, 16_394, 2]
    assert np.array_equal(np.concatenate([task.pairs for task in tasks]), pairs)
    assert [task.name for task in tasks] == [f"t-near-00000{number}" for number in range(3)]
    for task in tasks:
        assert task.records.tolist() == sorted(set(task.pairs[:, 0].tolist()))


def test_groups_equal_naive_ones(tmp_path: Path) -> None:
    pytest.importorskip("rensa")
    rng = random.Random(2)
    texts = [" ".join(rng.choice("abcdefgh") for _ in range(9)) for _ in range(60)] + ["", "!"]
    texts += [f"{text} x" for text in texts[:40]]
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": text} for text in texts])
    sketcher = Sketcher(JsonlFiles(path), bands=choose_bands(0.4), block_nbytes=900)
    found = sketch_partition(sketcher, tmp_path / "work", Partition("p", 0, (0,)))
    table = Table(tmp_path / "work", found.blocks)
    reasons = np.array([number % 9 == 0 for number in range(len(texts))], np.uint8)
    num_bands = choose_bands(0.4).num_bands
    groups = find_groups(table, reasons, num_bands)
    keys = [table.read_band(band).tolist() for band in range(num_bands)]
    naive = {
        (one, other)
        for one in range(len(texts))
        for other in range(one)
        if not reasons[one] and not reasons[other]
        and any(own[one] and own[one] == own[other] for own in keys)
    }  # fmt: skip
    buckets: dict[int, list[int]] = {}
    for record, bucket in groups.pairs.tolist():
        buckets.setdefault(bucket, []).append(record)
    pairs = {(b, a) for own in buckets.values() for a, b in combinations(sorted(own), 2)}
    assert pairs == naive
    assert len(naive) > 20
    ends = [*groups.starts.tolist()[1:], len(groups.pairs)]
    parts = [groups.pairs[i:j] for i, j in zip(groups.starts.tolist(), ends, strict=True)]
    members = [set(part[:, 0].tolist()) for part in parts]
    assert sum(map(len, members)) == len(set().union(*members))
    assert all(any({one, other} <= own for own in members) for one, other in naive)
    assert all(part[:, 0].tolist() == sorted(part[:, 0].tolist()) for part in parts)
