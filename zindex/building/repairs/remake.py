"""The values of single shards of a committed store, computed again from what they were made of."""

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.building.convert import Corpus, plan_corpus, read_corpus_rows
from zindex.building.documents import compute_documents, read_documents, shuffle_documents
from zindex.building.executor import SerialExecutor, run_builds
from zindex.building.held import drop_held, order_lengths
from zindex.building.repairs.remade_source import open_same_lengths
from zindex.building.repairs.remake_blend import RemadeBlend
from zindex.building.repairs.remake_keyed import RemadeKeyed
from zindex.building.repairs.remake_mapping import RemadeMapping
from zindex.building.repairs.remake_packing import RemadePacking
from zindex.building.repairs.remake_records import RemadeRecords
from zindex.building.samples import compute_boundaries
from zindex.building.shuffle import compute_shuffle, shuffle_samples
from zindex.building.source import LengthSource
from zindex.errors import ConfigError, FingerprintMismatchError, StoreError
from zindex.formats.bin_idx import read_index
from zindex.plan.blend_plan import BlendPlan
from zindex.plan.index_plan import IndexPlan
from zindex.store.commit import StorePlan
from zindex.store.layout import ArrayLayout, ChunkGrid
from zindex.store.records import KIND
from zindex.store.tokens import LINK
from zindex.store.verify import ShardId

AnyArray = npt.NDArray[Any]
Made = tuple[ArrayLayout, int, AnyArray]


class RemadeStore(Protocol):
    """A store whose shards can be made again."""

    def make(self, shards: set[ShardId]) -> Iterator[Made]:
        """Give layout, number and values of each shard.

        Each must be in its place before the next is asked for, which may be made from it.
        """
        ...

    def facts(self) -> dict[str, Any]:
        """Return the attributes of the commit that are not in the plan; all shards are sound."""
        ...

    def close(self) -> None:
        """Let go of what was kept."""
        ...


def open_remade(
    plan: StorePlan,
    facts: dict[str, Any] | None,
    source: str | LengthSource | None,
    blend: BlendPlan | None,
    damaged: set[ShardId],
) -> RemadeStore:
    """Return what makes the shards of a store again.

    Parameters
    ----------
    plan, facts
        The store's plan, and its attributes as far as they are known.
    source
        What it was made from, where the user or a run says so.
    blend
        The plan of a blend, where a run says it.
    damaged
        Shards that cannot be read.

    Raises
    ------
    StoreError
        If it is of a kind that cannot be made by shards.
    FingerprintMismatchError
        If what is given is not what the store was made from.
    """
    if plan.kind == "tokens":
        return _RemadeCorpus(plan, facts or {}, source)
    if plan.kind == KIND and "import" in plan.spec:
        return RemadeRecords(plan, source)
    if plan.kind == KIND and "convert" in plan.spec:
        return RemadeKeyed(plan, source)
    kind = plan.spec.get("kind")
    if kind == "gpt":
        return _RemadeIndex(plan, source)
    if kind == "packed":
        return RemadePacking(plan, source, damaged)
    if kind == "sentence_mapping":
        return RemadeMapping(plan, source, damaged)
    if kind == "blend":
        return RemadeBlend(plan, blend, damaged)
    raise StoreError(
        f"{plan.root} must hold tokens, records, an index or a blend to be repaired, it holds "
        f"{kind or plan.kind}; remove it and build it again"
    )


class _RemadeCorpus:
    """A token store, from the pair that it was converted from."""

    def __init__(
        self, plan: StorePlan, facts: dict[str, Any], source: str | LengthSource | None
    ) -> None:
        self.plan = plan
        link = facts.get(LINK)
        prefix = source if isinstance(source, str) else None
        if prefix is None and isinstance(link, dict):
            prefix = str(link["path"])
        self._prefix = prefix
        self._opened: Corpus | None = None

    @property
    def _corpus(self) -> Corpus:
        """The pair, after checking that it is the one."""
        if self._opened is None:
            if self._prefix is None:
                raise ConfigError(
                    f"{self.plan.root} was converted from a .bin/.idx pair, which must be named to "
                    "repair it; give --source PREFIX"
                )
            prefix = str(Path(self._prefix.removesuffix(".idx").removesuffix(".bin")).absolute())
            corpus = Corpus(prefix, read_index(prefix))
            link, root = bool(self.plan.spec["link"]), self.plan.root
            made = run_builds(plan_corpus(corpus, root, link, None, SerialExecutor()))
            _check_spec(self.plan, made.spec, prefix)
            self._opened = corpus
        return self._opened

    def make(self, shards: set[ShardId]) -> Iterator[Made]:
        """Read the rows of each shard."""
        for layout, shard in _in_order(self.plan.layouts, shards):
            rows = layout.shard_bounds(shard)
            yield layout, shard, read_corpus_rows(self._corpus, layout.name, *rows)

    def facts(self) -> dict[str, Any]:
        """Return the link to the ``.bin``, if there is one."""
        if not self.plan.spec["link"]:
            return {}
        corpus = self._corpus
        return {LINK: {"path": corpus.tokens.path, "nbytes": corpus.index.bin_nbytes}}

    def close(self) -> None:
        """Nothing is kept."""


class _RemadeIndex:
    """A GPT index: documents, samples from the documents and their lengths, and the shuffle."""

    def __init__(self, plan: StorePlan, source: str | LengthSource | None) -> None:
        self.store_plan = plan
        spec = dict(plan.spec)
        self.plan = IndexPlan.from_spec(spec, stored=spec.pop("store"))
        object.__setattr__(self.plan, "grid", plan.grid or ChunkGrid())
        _check_layouts(plan, self.plan.layouts)
        self._source = source
        self._opened: LengthSource | None = None

    @property
    def _lengths(self) -> LengthSource:
        """The dataset, after checking that it is the one."""
        if self._opened is None:
            root, what = self.store_plan.root, "the sample index"
            self._opened = open_same_lengths(self._source, self.plan.source, root, what)
        return self._opened

    def make(self, shards: set[ShardId]) -> Iterator[Made]:
        """Compute the shards; Megatron's shuffles are computed whole and written by shards."""
        by_array: dict[str, list[tuple[ArrayLayout, int]]] = {}
        for layout, shard in _in_order(self.plan.layouts, shards):
            by_array.setdefault(layout.name, []).append((layout, shard))
        documents = by_array.get(schema.DOCUMENT_INDEX.name, [])
        samples = by_array.get(schema.SAMPLE_INDEX.name, [])
        shuffled = by_array.get(schema.SHUFFLE_INDEX.name, [])
        if self.plan.order == "scalable":
            for layout, shard in documents:
                yield layout, shard, compute_documents(self.plan, *layout.shard_bounds(shard))
            for layout, shard in shuffled:
                yield layout, shard, compute_shuffle(self.plan, *layout.shard_bounds(shard))
        elif documents or shuffled:
            values, state = shuffle_documents(self.plan)
            yield from _cut(documents, values)
            if shuffled:
                yield from _cut(shuffled, shuffle_samples(self.plan, state))
        # Last, for they are made from the documents on disk.
        token_starts = self._token_starts() if samples else []
        for layout, shard in samples:
            start, stop = layout.shard_bounds(shard)
            root, source = self.store_plan.root, self._lengths
            rows = compute_boundaries(self.plan, root, source, token_starts, start, stop)
            yield layout, shard, rows

    def _token_starts(self) -> list[int]:
        """Return the stream position of each document shard's first token."""
        layout, sums = self.plan.document_layout, [0]
        for shard in range(layout.num_shards):
            rows = layout.shard_bounds(shard)
            documents = read_documents(self.plan, self.store_plan.root, *rows)
            sums.append(int(order_lengths(self.plan, self._lengths, documents).sum(dtype=np.int64)))
        return list(accumulate(sums))[:-1]

    def facts(self) -> dict[str, Any]:
        """Return the totals."""
        return {"num_samples": self.plan.num_samples, "num_documents": self.plan.num_documents}

    def close(self) -> None:
        """Let go of the lengths."""
        if self._opened is not None:
            drop_held(self._opened, self.store_plan.root)


def _cut(shards: list[tuple[ArrayLayout, int]], values: AnyArray) -> Iterator[Made]:
    """Give the shards of an array that is in memory."""
    for layout, shard in shards:
        yield layout, shard, values[slice(*layout.shard_bounds(shard))]


def _in_order(
    layouts: tuple[ArrayLayout, ...], shards: set[ShardId]
) -> Iterator[tuple[ArrayLayout, int]]:
    """Give the wanted shards, array by array."""
    for layout in layouts:
        for shard in range(layout.num_shards):
            if (layout.name, shard) in shards:
                yield layout, shard


def _check_spec(plan: StorePlan, made: dict[str, Any], source: str) -> None:
    """Check that a source gives the spec of the store."""
    wrong = sorted(name for name in plan.spec if made.get(name) != plan.spec[name])
    if wrong or made.keys() != plan.spec.keys():
        name = wrong[0] if wrong else sorted(made.keys() ^ plan.spec.keys())[0]
        raise FingerprintMismatchError(
            f"{source} must be what {plan.root} was converted from, its {name} is "
            f"{made.get(name)!r} and not {plan.spec.get(name)!r}; name the right source"
        )


def _check_layouts(plan: StorePlan, layouts: tuple[ArrayLayout, ...]) -> None:
    """Check that this package cuts the arrays as the store has them."""
    if layouts != plan.layouts:
        raise StoreError(
            f"{plan.root} must have the arrays that this zindex plans for it, it has others; "
            "remove it and build it again"
        )
