"""Which samples of its sources a run has used: computed by an edit, stored, and looked up.

A set is a first number below which all are used, and bits from there on. What a greedy blend
draws is the beginning of every dataset, so that its sets have no bits at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.building.index_store import name_store
from zindex.kernels.bitset import (
    BLOCK_BITS,
    BLOCK_WORDS,
    WORD_BITS,
    copy_bits,
    count_unused,
    deposit,
    find_blocks,
    find_ends,
    select_unused,
)
from zindex.plan.journal import UsedFacts
from zindex.store.commit import StorePlan, begin_store, commit_store
from zindex.store.layout import ArrayLayout, ChunkGrid
from zindex.store.objects import PlaceLike, place_of
from zindex.store.open import Store, open_store
from zindex.store.reader import RowReader
from zindex.store.shard_files import store_all_shards

Int64Array = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False, slots=True)
class UsedSet:
    """Numbers of one source: all below `first`, and ``first + i`` for every bit i that is set."""

    first: int
    #: Bits that count; the words may hold more, all 0.
    num_bits: int
    words: Words
    num_used: int

    @property
    def stop(self) -> int:
        """All numbers from here on are unused."""
        return self.first + self.num_bits

    @property
    def num_unused(self) -> int:
        """Unused numbers below `stop`."""
        return self.stop - self.num_used

    def facts(self, source: int) -> UsedFacts:
        """Return what a journal says of the set."""
        return UsedFacts(source, self.first, self.stop, self.num_used)


def empty_set() -> UsedSet:
    """Return the set of a source of which nothing is used."""
    return UsedSet(0, 0, np.empty(0, np.uint64), 0)


def num_words(num_bits: int) -> int:
    """Return the words that hold so many bits."""
    return -(-num_bits // WORD_BITS)


def set_of_bits(words: Words, num_bits: int, *, first: int = 0) -> UsedSet:
    """Return the set of the bits of words, kept as short as can be.

    Parameters
    ----------
    words, num_bits
        The bits.
    first
        Number that the first of them stands for; all below are used.
    """
    lead, stop = find_ends(words, 0, num_bits)
    bits = stop - lead
    kept = np.zeros(num_words(bits), np.uint64)
    copy_bits(words, lead, bits, kept)
    return UsedSet(first + lead, bits, kept, first + lead + bits - _count(kept, bits))


def add_draws(before: UsedSet, draws: Words, start: int, num_draws: int) -> UsedSet:
    """Return a set with those of its unused numbers that were drawn.

    Parameters
    ----------
    before
        The set.
    draws, start, num_draws
        Bit ``start + k`` of these words says whether the k-th unused number was drawn.
    """
    _, drawn = find_ends(draws, start, num_draws)
    if not drawn:
        return before
    num_bits = before.num_bits + max(0, drawn - before.num_unused)
    words = np.zeros(num_words(num_bits), np.uint64)
    deposit(draws, start, drawn, before.words, before.num_bits, words, num_bits)
    return set_of_bits(words, num_bits, first=before.first)


def count_unused_below(used: UsedSet, stop: int) -> int:
    """Return the unused numbers below a number."""
    bits = min(max(stop - used.first, 0), used.num_bits)
    if not bits:
        return max(0, stop - used.stop)
    return _count(used.words[: num_words(bits)], bits) + max(0, stop - used.stop)


def _count(words: Words, num_bits: int) -> int:
    """Return the unused bits among the first ones."""
    whole, rest = divmod(num_bits, WORD_BITS)
    total = count_unused(words[:whole], whole * WORD_BITS, np.empty(0, np.int64))
    if rest:
        total += rest - (int(words[whole]) & ((1 << rest) - 1)).bit_count()
    return total


class UsedTable:
    """The sets of many sources, by which the k-th unused number of each is found.

    Parameters
    ----------
    facts
        What the journal says of each set.
    words, counts
        Arrays of their store, or in memory; None if no set has bits.
    """

    def __init__(
        self,
        facts: Sequence[UsedFacts],
        words: RowReader | Words | None = None,
        counts: Int64Array | None = None,
    ) -> None:
        self.rows = {item.source: row for row, item in enumerate(facts)}
        self.first = np.array([item.first for item in facts], np.int64)
        self.stop = np.array([item.stop for item in facts], np.int64)
        self.num_used = np.array([item.num_used for item in facts], np.int64)
        self.num_unused = self.stop - self.num_used
        self.starts = np.zeros(len(facts) + 1, np.int64)
        np.cumsum(-(-(self.stop - self.first) // BLOCK_BITS), out=self.starts[1:])
        self.words = np.empty(0, np.uint64) if words is None else words
        self.counts = np.empty(0, np.int64) if counts is None else counts

    def find(self, rows: npt.NDArray[Any], numbers: npt.NDArray[Any]) -> Int64Array:
        """Return the k-th unused number of sets.

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
        find_blocks(
            rows,
            rest,
            self.first,
            self.stop,
            self.num_unused,
            self.starts,
            self.counts,
            values,
            blocks,
        )
        inside = np.flatnonzero(blocks >= 0)
        if inside.size:
            wanted, places = np.unique(blocks[inside], return_inverse=True)
            found = values[inside]
            select_unused(self._blocks(wanted), places, rest[inside], found)
            values[inside] = found
        return values

    def _blocks(self, blocks: Int64Array) -> Words:
        """Return blocks of words: shape (blocks, BLOCK_WORDS)."""
        if isinstance(self.words, RowReader):
            starts = blocks * BLOCK_WORDS
            return self.words.read_spans(starts, starts + BLOCK_WORDS).reshape(-1, BLOCK_WORDS)
        return self.words.reshape(-1, BLOCK_WORDS)[blocks]

    def load(self, source: int) -> UsedSet:
        """Return the set of a source, with all its bits."""
        row = self.rows[source]
        first, stop = int(self.first[row]), int(self.stop[row])
        start = int(self.starts[row]) * BLOCK_WORDS
        upto = start + num_words(stop - first)
        return UsedSet(first, stop - first, self.words[start:upto], int(self.num_used[row]))


def _lay_out(sets: Sequence[UsedSet]) -> tuple[Words, Int64Array]:
    """Return the words of all sets, each from a new block on, and the unused bits by block."""
    blocks = [-(-item.num_bits // BLOCK_BITS) for item in sets]
    words = np.zeros(sum(blocks) * BLOCK_WORDS, np.uint64)
    counts = np.zeros(sum(blocks), np.int64)
    start = 0
    for item, num_blocks in zip(sets, blocks, strict=True):
        part = words[start * BLOCK_WORDS : (start + num_blocks) * BLOCK_WORDS]
        part[: num_words(item.num_bits)] = item.words[: num_words(item.num_bits)]
        count_unused(part, item.num_bits, counts[start : start + num_blocks])
        start += num_blocks
    return words, counts


def used_store_plan(
    spec: dict[str, Any], sets: Sequence[UsedSet], grid: ChunkGrid, folder: PlaceLike, split: str
) -> StorePlan:
    """Return the store that the bits of sets go to; ``spec`` says what decides them."""
    num_blocks = sum(-(-item.num_bits // BLOCK_BITS) for item in sets)
    layouts = (
        ArrayLayout.plan(schema.USED_WORD, num_blocks * BLOCK_WORDS, np.uint64, grid),
        ArrayLayout.plan(schema.UNUSED_COUNT, num_blocks, np.int64, grid),
    )
    return name_store(f"edit-{split}", {"kind": "edit"} | spec, layouts, grid, folder)


def store_sets(plan: StorePlan, sets: Sequence[UsedSet]) -> None:
    """Write the bits of sets to their store and commit it, unless it is there."""
    plan = begin_store(plan)
    results = []
    for layout, values in zip(plan.layouts, _lay_out(sets), strict=True):
        results += store_all_shards(plan.root, layout, values)
    commit_store(plan, [result.receipt for result in results])


def open_table(facts: Sequence[UsedFacts], folder: PlaceLike, store: str | None) -> UsedTable:
    """Return the sets that a journal names.

    Raises
    ------
    StoreNotFoundError
        If their store is gone.
    """
    if store is None:
        return UsedTable(facts)
    opened: Store = open_store(str(place_of(folder) / store), kind="index")
    return UsedTable(facts, opened[schema.USED_WORD.name], opened[schema.UNUSED_COUNT.name][:])
