"""Sets of consumed samples: computed by an edit, stored as bits, and looked up.

A sample is consumed if a position before the edit has drawn it, whether it was trained on or
skipped. A set is a number below which all samples are consumed, and bits from there on. A greedy
blend draws the beginning of every dataset, so its sets have no bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray, Int64Array, UInt64Array
from zindex.io.objects import PlaceLike, place_of
from zindex.kernels import bitset
from zindex.kernels.bitset import BLOCK_WORDS
from zindex.plan.journal import ConsumedFacts
from zindex.store.commit import StorePlan, begin_store, commit_store
from zindex.store.layout import ArrayLayout, ChunkGrid
from zindex.store.open import open_store
from zindex.store.rows import RowReader
from zindex.store.shard_files import store_all_shards


@dataclass(frozen=True, eq=False, slots=True)
class ConsumedSet:
    """Numbers of one source: all below `first`, and ``first + i`` for every bit i that is set."""

    first: int = 0
    #: Number of valid bits; the words may have more, all 0.
    num_bits: int = 0
    words: UInt64Array = field(default_factory=lambda: np.empty(0, np.uint64))
    num_consumed: int = 0

    @property
    def stop(self) -> int:
        """All numbers from here on are unconsumed."""
        return self.first + self.num_bits

    @property
    def num_left(self) -> int:
        """Unconsumed numbers below `stop`."""
        return self.stop - self.num_consumed

    def facts(self, source: int) -> ConsumedFacts:
        """Return the journal entry of the set."""
        return ConsumedFacts(source, self.first, self.stop, self.num_consumed)

    def count_left_below(self, stop: int) -> int:
        """Return the unconsumed numbers below a number."""
        bits = min(max(stop - self.first, 0), self.num_bits)
        beyond = max(0, stop - self.stop)
        return beyond if not bits else _count_left(self.words, bits) + beyond

    def add_draws(self, draws: UInt64Array, start: int, num_draws: int) -> "ConsumedSet":
        """Return the set extended by unconsumed numbers that were drawn.

        Parameters
        ----------
        draws, start, num_draws
            Bit ``start + k`` of these words is set if the k-th unconsumed number was drawn.
        """
        _, drawn = bitset.find_ends(draws, start, num_draws)
        if not drawn:
            return self
        num_bits = self.num_bits + max(0, drawn - self.num_left)
        words = np.zeros(num_words(num_bits), np.uint64)
        bitset.deposit(draws, start, drawn, self.words, self.num_bits, words, num_bits)
        return set_of_bits(words, num_bits, first=self.first)


def num_words(num_bits: int) -> int:
    """Return the number of words for a number of bits."""
    return -(-num_bits // bitset.WORD_BITS)


def set_of_bits(words: UInt64Array, num_bits: int, *, first: int = 0) -> ConsumedSet:
    """Return the set for the bits of words, in its shortest form.

    Parameters
    ----------
    words, num_bits
        The bits.
    first
        Number of the first bit; all below are consumed.
    """
    lead, stop = bitset.find_ends(words, 0, num_bits)
    bits = stop - lead
    kept = np.zeros(num_words(bits), np.uint64)
    bitset.copy_bits(words, lead, bits, kept)
    return ConsumedSet(first + lead, bits, kept, first + lead + bits - _count_left(kept, bits))


def _count_left(words: UInt64Array, num_bits: int) -> int:
    """Return the zeros among the first bits."""
    whole, rest = divmod(num_bits, bitset.WORD_BITS)
    total = bitset.count_unused(words[:whole], whole * bitset.WORD_BITS, np.empty(0, np.int64))
    if rest:
        total += rest - (int(words[whole]) & ((1 << rest) - 1)).bit_count()
    return total


class ConsumedTable:
    """The sets of many sources, to find the k-th unconsumed number of each.

    Parameters
    ----------
    facts
        The journal entry of each set.
    words, counts
        Arrays of their store, or in memory; None if no set has bits.
    """

    def __init__(
        self,
        facts: Sequence[ConsumedFacts],
        words: RowReader | UInt64Array | None = None,
        counts: Int64Array | None = None,
    ) -> None:
        self.rows = {item.source: row for row, item in enumerate(facts)}
        self.first = np.array([item.first for item in facts], np.int64)
        self.stop = np.array([item.stop for item in facts], np.int64)
        self.num_consumed = np.array([item.num_consumed for item in facts], np.int64)
        self.num_left = self.stop - self.num_consumed
        self.starts = np.zeros(len(facts) + 1, np.int64)
        np.cumsum(-(-(self.stop - self.first) // bitset.BLOCK_BITS), out=self.starts[1:])
        self.words = np.empty(0, np.uint64) if words is None else words
        self.counts = np.empty(0, np.int64) if counts is None else counts

    def find(self, rows: AnyArray, numbers: AnyArray) -> Int64Array:
        """Return the k-th unconsumed number of sets.

        Parameters
        ----------
        rows, numbers
            Shape (numbers,): the row of each set, and k.

        Returns
        -------
        values
            Shape (numbers,), int64.
        """
        rest = np.array(numbers, np.int64)
        values, blocks = np.empty(len(rest), np.int64), np.empty(len(rest), np.int64)
        sets = (self.first, self.stop, self.num_left, self.starts, self.counts)
        bitset.find_blocks(rows, rest, *sets, values, blocks)
        inside = np.flatnonzero(blocks >= 0)
        if inside.size:
            wanted, inverse = np.unique(blocks[inside], return_inverse=True)
            found = values[inside]
            bitset.select_unused(self._blocks(wanted), inverse, rest[inside], found)
            values[inside] = found
        return values

    def rank(self, row: int, numbers: Int64Array) -> Int64Array:
        """Return how many unconsumed numbers of a set are below each of its numbers.

        The inverse of `find`: k for the k-th unconsumed number.

        Parameters
        ----------
        row, numbers
            The row of the set, and shape (numbers,), int64.

        Returns
        -------
        ranks
            Shape (numbers,), int64; -1 for a number that is consumed.
        """
        first, stop = int(self.first[row]), int(self.stop[row])
        ranks = np.where(numbers < first, -1, numbers - stop + int(self.num_left[row]))
        inside = np.flatnonzero((numbers >= first) & (numbers < stop))
        if inside.size:
            bits = numbers[inside] - first
            blocks = int(self.starts[row]) + bits // bitset.BLOCK_BITS
            wanted, inverse = np.unique(blocks, return_inverse=True)
            words = self._blocks(wanted).astype("<u8").view(np.uint8)
            is_consumed = np.unpackbits(words, axis=1, bitorder="little")
            before = np.cumsum(is_consumed == 0, axis=1, dtype=np.int64)
            places = inverse, bits % bitset.BLOCK_BITS
            found = self.counts[blocks] + before[places] - 1
            ranks[inside] = np.where(is_consumed[places] == 0, found, -1)
        return ranks

    def _blocks(self, blocks: Int64Array) -> UInt64Array:
        """Return blocks of words: shape (blocks, BLOCK_WORDS)."""
        if isinstance(self.words, RowReader):
            starts = blocks * BLOCK_WORDS
            return self.words.read_spans(starts, starts + BLOCK_WORDS).reshape(-1, BLOCK_WORDS)
        return self.words.reshape(-1, BLOCK_WORDS)[blocks]

    def load(self, source: int) -> ConsumedSet:
        """Return the set of a source, with all its bits."""
        row = self.rows[source]
        first, stop = int(self.first[row]), int(self.stop[row])
        start = int(self.starts[row]) * BLOCK_WORDS
        upto = start + num_words(stop - first)
        num_consumed = int(self.num_consumed[row])
        return ConsumedSet(first, stop - first, self.words[start:upto], num_consumed)


def pack_sets(sets: Sequence[ConsumedSet]) -> tuple[UInt64Array, Int64Array]:
    """Return the words of all sets, each starting a new block, and the zero bits before each block.

    Parameters
    ----------
    sets
        The sets, in the order of their rows in a `ConsumedTable`.
    """
    blocks = [-(-item.num_bits // bitset.BLOCK_BITS) for item in sets]
    words = np.zeros(sum(blocks) * BLOCK_WORDS, np.uint64)
    counts = np.zeros(sum(blocks), np.int64)
    start = 0
    for item, num_blocks in zip(sets, blocks, strict=True):
        part = words[start * BLOCK_WORDS : (start + num_blocks) * BLOCK_WORDS]
        part[: num_words(item.num_bits)] = item.words[: num_words(item.num_bits)]
        bitset.count_unused(part, item.num_bits, counts[start : start + num_blocks])
        start += num_blocks
    return words, counts


def store_sets(
    spec: dict[str, Any],
    sets: Sequence[ConsumedSet],
    grid: ChunkGrid,
    folder: PlaceLike,
    split: str,
) -> str:
    """Store and commit the bits of sets, unless already done; return the name of the store.

    Parameters
    ----------
    spec
        Everything that determines the sets.
    sets, grid
        What to store, and on which grid.
    folder, split
        Directory of the index stores, and the split of the run.
    """
    words, counts = pack_sets(sets)
    layouts = (
        ArrayLayout.plan(schema.USED_WORD, len(words), np.uint64, grid),
        ArrayLayout.plan(schema.UNUSED_COUNT, len(counts), np.int64, grid),
    )
    nameless = StorePlan(Path(), "index", {"kind": "edit"} | spec, layouts, grid)
    plan = begin_store(nameless.named(folder, f"edit-{split}"))
    results = []
    for layout, values in zip(plan.layouts, (words, counts), strict=True):
        results += store_all_shards(plan.root, layout, values)
    commit_store(plan, [result.receipt for result in results])
    return plan.root.name


def open_table(
    facts: Sequence[ConsumedFacts], folder: PlaceLike, store: str | None
) -> ConsumedTable:
    """Return the sets of a journal.

    Raises
    ------
    StoreNotFoundError
        If their store is missing.
    """
    if store is None:
        return ConsumedTable(facts)
    opened = open_store(str(place_of(folder) / store), kind="index")
    return ConsumedTable(facts, opened[schema.USED_WORD.name], opened[schema.UNUSED_COUNT.name][:])
