"""The second stage: which records are duplicates, of all blocks together.

Exact duplicates have equal digests. Texts that agree in a band of their signatures are candidates;
tasks compare those of a connected group by their shingles. Of similar texts the first is kept.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from zindex.arrays import AnyArray, BoolArray, Int64Array, UInt64Array
from zindex.ingest.dedup.sketches import SHINGLE_LENGTH, STREAMS, Block, Sketcher
from zindex.io.objects import Place
from zindex.store.scratch import read_note, write_note

# Texts that a task compares, unless one group has more, and shingles that it keeps.
_TASK_TEXTS, _CACHED_TEXTS = 1 << 11, 1 << 12


class Reason(IntEnum):
    """Why a record is dropped."""

    NONE = 0
    EXACT = 1
    NEAR = 2
    CONTAMINATED = 3


class Decisions(NamedTuple):
    """What is dropped: one element per record, in input order."""

    #: uint8, a `Reason`.
    reasons: AnyArray
    #: int64: the record that it duplicates; for contaminated ones the number of the benchmark.
    others: Int64Array
    #: float32: Jaccard similarity of near duplicates.
    similarities: AnyArray


class Table:
    """The blocks of all partitions, in input order.

    Parameters
    ----------
    root
        The work folder.
    blocks
        The blocks.
    """

    def __init__(self, root: Place, blocks: Sequence[Block]) -> None:
        self.root, self.blocks = root, blocks
        counts = [block.num_records for block in blocks]
        #: First record of each block, and the total.
        self.starts = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))

    @property
    def num_records(self) -> int:
        """Records of all blocks."""
        return int(self.starts[-1])

    def read(self, name: str) -> AnyArray:
        """Return one stream of all blocks."""
        at = [stream for stream, _, _ in STREAMS].index(name)
        _, dtype, width = STREAMS[at]
        return self._concatenate(at, dtype, width)

    def read_band(self, band: int) -> UInt64Array:
        """Return the keys of one band."""
        return self._concatenate(len(STREAMS) + band, "uint64", 1)

    def _concatenate(self, stream: int, dtype: str, width: int) -> AnyArray:
        found = np.empty(width * self.num_records, dtype)
        for block, start in zip(self.blocks, width * self.starts[:-1], strict=True):
            count = width * block.num_records
            found[start : start + count] = block.read(self.root, stream, dtype, 0, count)
        return found

    def locate_urls(self, records: Int64Array) -> Int64Array:
        """Return the number of the file of each record."""
        runs = [run for block in self.blocks for run in block.urls]
        stops = np.cumsum([count for _, count in runs])
        numbers = np.array([number for number, _ in runs], np.int64)
        found: Int64Array = numbers[np.searchsorted(stops, records, side="right")]
        return found


def find_exact(table: Table) -> Decisions:
    """Return the contaminated records, and the duplicates of earlier ones among the others.

    Notes
    -----
    Memory: about 60 bytes per record.
    """
    benchmarks = table.read("benchmark")
    is_contaminated = benchmarks >= 0
    reasons = np.where(is_contaminated, Reason.CONTAMINATED, Reason.NONE).astype(np.uint8)
    others = benchmarks.astype(np.int64)
    rows = np.flatnonzero(~is_contaminated)
    order, is_first = sort_equal(table.read("digest").reshape(-1, 2)[rows])
    if len(order):
        firsts = order[is_first][np.cumsum(is_first) - 1]
        repeated = rows[order[~is_first]]
        reasons[repeated] = Reason.EXACT
        others[repeated] = rows[firsts[~is_first]]
    return Decisions(reasons, others, np.zeros(len(reasons), np.float32))


def sort_equal(keys: UInt64Array) -> tuple[Int64Array, BoolArray]:
    """Return the order that sorts rows of keys, equal ones by number, and which begin a run.

    Examples
    --------
    >>> order, is_first = sort_equal(np.array([[7], [2], [7], [7]], np.uint64))
    >>> order.tolist(), is_first.tolist()
    ([1, 0, 2, 3], [True, True, False, False])
    """
    order = np.lexsort(keys.T[::-1])
    ordered = keys[order]
    is_first = np.ones(len(keys), bool)
    is_first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return order, is_first


class Group(NamedTuple):
    """Records that may be similar, ascending, each with the buckets that it is in."""

    records: list[int]
    buckets: list[list[int]]


def find_groups(table: Table, reasons: AnyArray, num_bands: int) -> list[Group]:
    """Return the groups of records that are connected by equal keys of a band.

    Parameters
    ----------
    table
        The blocks.
    reasons
        Shape (records,): dropped records are left out.
    num_bands
        Bands of a signature.

    Notes
    -----
    Memory: about 40 bytes per record, and 24 per record in a bucket.
    """
    rows = np.flatnonzero(reasons == Reason.NONE)
    members, buckets, heads, count = [], [], [], 0
    for band in range(num_bands):
        keys = table.read_band(band)[rows]
        order, is_first = sort_equal(keys[:, None])
        numbers = np.cumsum(is_first) - 1
        sizes = np.bincount(numbers) if len(numbers) else np.empty(0, np.int64)
        shared = (sizes > 1)[numbers] & (keys[order] != 0)
        members.append(rows[order[shared]])
        heads.append(rows[order[is_first][numbers[shared]]])
        _, own = np.unique(numbers[shared], return_inverse=True)
        buckets.append(own + count)
        count += int(own.max(initial=-1)) + 1
    every, bucket = np.concatenate(members), np.concatenate(buckets)
    known, places = np.unique(every, return_inverse=True)
    labels = connect(len(known), places, np.searchsorted(known, np.concatenate(heads)))
    order = np.lexsort((bucket, every, labels[places]))
    return list(_cut_groups(every[order], bucket[order], labels[places][order]))


def _cut_groups(records: Int64Array, buckets: Int64Array, labels: Int64Array) -> Iterator[Group]:
    """Yield groups from rows sorted by label, record and bucket."""
    group, last_label = Group([], []), -1
    for record, bucket, label in zip(
        records.tolist(), buckets.tolist(), labels.tolist(), strict=True
    ):
        if label != last_label:
            if group.records:
                yield group
            group, last_label = Group([], []), label
        if not group.records or group.records[-1] != record:
            group.records.append(record)
            group.buckets.append([])
        group.buckets[-1].append(bucket)
    if group.records:
        yield group


def connect(count: int, first: Int64Array, second: Int64Array) -> Int64Array:
    """Return the lowest node that each node is connected to.

    Parameters
    ----------
    count
        Nodes.
    first, second
        The ends of each edge.

    Examples
    --------
    >>> connect(5, np.array([1, 4, 2]), np.array([4, 3, 2])).tolist()
    [0, 1, 2, 1, 1]
    """
    labels = np.arange(count)
    while True:
        lowest = np.minimum(labels[first], labels[second])
        found = labels.copy()
        np.minimum.at(found, labels[first], lowest)
        np.minimum.at(found, labels[second], lowest)
        while not np.array_equal(found, found[found]):
            found = found[found]
        if np.array_equal(found, labels):
            return labels
        labels = found


class Candidates(NamedTuple):
    """Groups that one task compares, and the lines of their records."""

    name: str
    groups: list[Group]
    #: By record: its block, and the bytes of its line there.
    lines: dict[int, tuple[Block, int, int]]


def plan_candidates(table: Table, groups: Sequence[Group], tag: str) -> Iterator[Candidates]:
    """Yield tasks of consecutive groups; see `compare`.

    Parameters
    ----------
    table
        The blocks.
    groups
        Of `find_groups`.
    tag
        Prefix of the names of their notes.
    """
    if not groups:
        return
    ends = np.concatenate(([0], np.cumsum(table.read("length"))))

    def place(records: list[int]) -> dict[int, tuple[Block, int, int]]:
        rows = np.array(records)
        numbers = np.searchsorted(table.starts, rows, side="right") - 1
        bases = ends[table.starts[numbers]]
        spans = zip(numbers, (ends[rows] - bases), (ends[rows + 1] - bases), strict=True)
        return {
            record: (table.blocks[number], int(start), int(stop))
            for record, (number, start, stop) in zip(records, spans, strict=True)
        }

    batch: list[Group] = []
    size = number = 0
    for group in [*groups, None]:
        if batch and (group is None or size + len(group.records) > _TASK_TEXTS):
            records = [record for each in batch for record in each.records]
            yield Candidates(f"{tag}-near-{number:06d}", batch, place(records))
            batch, size, number = [], 0, number + 1
        if group is not None:
            batch.append(group)
            size += len(group.records)


#: A record, the earlier one that it is similar to, and their Jaccard similarity.
Near = tuple[int, int, float]


def compare(
    sketcher: Sketcher, root: Place, candidates: Candidates, threshold: float
) -> list[Near]:
    """Task: return the near duplicates in groups, unless already done.

    Parameters
    ----------
    sketcher
        What is compared.
    root
        The work folder.
    candidates
        The groups.
    threshold
        Least Jaccard similarity of the sets of shingles.

    Notes
    -----
    Law: a record is dropped only if its exact similarity to an earlier kept one that shares a
    bucket reaches the threshold; it is reported with the first of these.
    """
    note = read_note(root, candidates.name)
    if note is not None:
        return [(record, other, similarity) for record, other, similarity in note["near"]]

    @lru_cache(_CACHED_TEXTS)
    def read(record: int) -> frozenset[tuple[str, ...]]:
        block, start, stop = candidates.lines[record]
        line = block.read(root, 0, "uint8", start, stop).tobytes()
        return cut_shingles(sketcher.read(line).words())

    found: list[Near] = []
    for group in candidates.groups:
        kept: dict[int, list[int]] = {}
        for record, buckets in zip(group.records, group.buckets, strict=True):
            earlier = sorted({one for bucket in buckets for one in kept.get(bucket, ())})
            near = _first_near(read, record, earlier, threshold)
            if near is not None:
                found.append(near)
                continue
            for bucket in buckets:
                kept.setdefault(bucket, []).append(record)
    write_note(root, candidates.name, {"near": found})
    return found


def _first_near(read: Any, record: int, earlier: Sequence[int], threshold: float) -> Near | None:
    """Return the first of some earlier records that a record is similar to."""
    for other in earlier:
        one, two = read(record), read(other)
        small, large = sorted((len(one), len(two)))
        if small / large < threshold:  # the most that they can share
            continue
        num_shared = len(one & two)
        similarity = num_shared / (small + large - num_shared)
        if similarity >= threshold:
            return record, other, similarity
    return None


def cut_shingles(words: Sequence[str]) -> frozenset[tuple[str, ...]]:
    """Return the set of n-grams of words; one of all words if there are fewer.

    Examples
    --------
    >>> sorted(cut_shingles("a b c d e f".split()))
    [('a', 'b', 'c', 'd', 'e'), ('b', 'c', 'd', 'e', 'f')]
    """
    length = max(1, min(SHINGLE_LENGTH, len(words)))
    return frozenset(zip(*(words[start:] for start in range(length)), strict=False))
