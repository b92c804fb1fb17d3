"""The second stage: which records are duplicates, of all blocks together.

Exact duplicates have equal digests. Texts that agree in a band of their signatures are candidates;
tasks compare those of a connected group by their shingles. Of similar texts the first is kept.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from zindex.arrays import AnyArray, BoolArray, Int64Array, UInt64Array
from zindex.ingest.dedup.sketches import SHINGLE_LENGTH, STREAMS, Block, Sketcher
from zindex.io.objects import Place
from zindex.store.scratch import read_note, write_note

# Rows of groups that a task compares, unless one group has more, and texts that it keeps.
_TASK_ROWS, _CACHED_TEXTS = 1 << 14, 1 << 12


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
    Memory: about 80 bytes per record.
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


class Groups(NamedTuple):
    """Records that may be similar, in groups that share no bucket."""

    #: Shape (rows, 2), int64: a record and one of its buckets, group after group, each ascending.
    pairs: Int64Array
    #: First row of each group.
    starts: Int64Array


def find_groups(table: Table, reasons: AnyArray, num_bands: int) -> Groups:
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
    Memory: about 80 bytes per record, and per record in a bucket.
    """
    rows = np.flatnonzero(reasons == Reason.NONE)
    found, heads, count = [np.empty((0, 2), np.int64)], [np.empty(0, np.int64)], 0
    for band in range(num_bands):
        keys = table.read_band(band)[rows]
        order, is_first = sort_equal(keys[:, None])
        numbers = np.cumsum(is_first) - 1
        is_shared = (np.bincount(numbers) > 1)[numbers] & (keys[order] != 0)
        members, buckets = rows[order[is_shared]], numbers[is_shared]
        found.append(np.stack([members, buckets + count], axis=1))
        heads.append(rows[order[is_first][buckets]])
        count += len(rows)
    pairs = np.concatenate(found)
    known, places = np.unique(pairs[:, 0], return_inverse=True)
    labels = connect(len(known), places, np.searchsorted(known, np.concatenate(heads)))[places]
    order = np.lexsort((pairs[:, 1], pairs[:, 0], labels))
    return Groups(pairs[order], np.unique(labels[order], return_index=True)[1])


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
    #: As of `Groups`.
    pairs: Int64Array
    #: Shape (records,), ascending.
    records: Int64Array
    #: Shape (records, 3): number of the block, and the bytes of the line in it.
    spans: Int64Array
    blocks: tuple[Block, ...]


def plan_candidates(table: Table, groups: Groups, tag: str) -> Iterator[Candidates]:
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
    if not len(groups.pairs):
        return
    ends = np.concatenate(([0], np.cumsum(table.read("length"))))
    _, firsts = np.unique(groups.starts // _TASK_ROWS, return_index=True)
    bounds = [*groups.starts[firsts].tolist(), len(groups.pairs)]
    for number, (start, stop) in enumerate(pairwise(bounds)):
        pairs = groups.pairs[start:stop]
        records = np.unique(pairs[:, 0])
        owners = np.searchsorted(table.starts, records, side="right") - 1
        used, numbers = np.unique(owners, return_inverse=True)
        bases = ends[table.starts[owners]]
        spans = np.stack([numbers, ends[records] - bases, ends[records + 1] - bases], axis=1)
        blocks = tuple(table.blocks[owner] for owner in used.tolist())
        yield Candidates(f"{tag}-near-{number:06d}", pairs, records, spans, blocks)


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
    lines = dict(zip(candidates.records.tolist(), candidates.spans.tolist(), strict=True))

    @lru_cache(_CACHED_TEXTS)
    def read(record: int) -> frozenset[tuple[str, ...]]:
        number, start, stop = lines[record]
        line = candidates.blocks[number].read(root, 0, "uint8", start, stop).tobytes()
        return cut_shingles(sketcher.read(line).words())

    found: list[Near] = []
    kept: dict[int, list[int]] = {}
    for record, rows in groupby(candidates.pairs.tolist(), key=itemgetter(0)):
        buckets = [bucket for _, bucket in rows]
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
