"""Several corpora to one: pairs of ``.bin/.idx`` to a pair, Zarr stores to a store, or across."""

import asyncio
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from zindex.building.convert import open_pair, plan_corpus, write_corpus
from zindex.building.corpora.any_corpus import AnyCorpus
from zindex.building.corpora.find_sources import find_sources
from zindex.building.corpora.joined_corpus import JoinedCorpus, StoreCorpus
from zindex.building.corpora.remote_pair import RemotePair
from zindex.building.corpora.write_pair import (
    SPAN_TOKENS,
    check_pair,
    finish_pair,
    work_folder,
    write_pair,
)
from zindex.building.executor import Executor, open_executor, run_builds
from zindex.building.progress import Progress, open_progress
from zindex.building.records.unfinished import check_unfinished
from zindex.building.source import is_store
from zindex.errors import ConfigError
from zindex.store.identity import fingerprint
from zindex.store.layout import ChunkGrid
from zindex.store.local import local_path
from zindex.store.objects import PlaceLike, place_of
from zindex.store.open import open_store
from zindex.store.remote_files import MSC_PREFIX
from zindex.store.scratch import begin_import

Form: TypeAlias = Literal["bin", "zarr"]


@dataclass(frozen=True, slots=True)
class MergedCorpus:
    """What a merge has made."""

    path: str
    """Path of the pair without suffix, or place of the store."""
    num_sources: int
    """Corpora that it is made of."""
    num_documents: int
    """Documents of all."""
    num_sequences: int
    """Stored runs of tokens."""
    num_tokens: int
    """Tokens of all sequences together."""


class _Pair(JoinedCorpus):
    """A joined corpus on its way to a pair, with the folder that keeps what is done.

    Parameters
    ----------
    parts, prefix, has_modes
        As of `JoinedCorpus`.
    root
        The folder.
    """

    tag = "merge"

    def __init__(
        self, parts: Sequence[AnyCorpus], prefix: str, root: Path, *, has_modes: bool
    ) -> None:
        super().__init__(parts, prefix, has_modes=has_modes)
        self.root = root

    def __reduce__(self) -> tuple[Any, ...]:
        return _pair_again, (self.parts, self.prefix, self.root, self.has_modes)


def _pair_again(parts: Sequence[AnyCorpus], prefix: str, root: Path, has_modes: bool) -> _Pair:
    """Return a corpus that arrives in another process."""
    return _Pair(parts, prefix, root, has_modes=has_modes)


def merge(
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    target: PlaceLike,
    *,
    to: Form | None = None,
    multimodal: bool | None = None,
    overwrite: bool = False,
    restart: bool = False,
    grid: ChunkGrid | None = None,
    client: Any = None,
    progress: bool = False,
) -> MergedCorpus:
    """Write several corpora, one after the other, as one.

    Parameters
    ----------
    sources
        Pairs of ``.bin/.idx`` by their paths or URLs without suffix or by globs of paths, Zarr
        token stores, and folders, which stand for the pairs in them by name, or for the stores if
        there are none.
    target
        Path of the pair to write, without suffix, or place of the store.
    to
        ``"bin"`` for a pair, ``"zarr"`` for a store; None for what all the sources are.
    multimodal
        True demands a mode for each sequence, False leaves modes out; None keeps them where all
        sources have them, and refuses to lose those that only some have.
    overwrite
        Whether an existing pair may be replaced.
    restart
        Whether an unfinished merge to the same pair is removed first, also one of other sources. No
        other merge may be running there.
    grid
        Of a store: elements per chunk and shard of every array, and the codec.
    client
        A ``distributed.Client`` or a scheduler's address; None as in ``zindex.build``.
    progress
        Whether to show bars on a terminal, or log lines elsewhere.

    Returns
    -------
    merged
        What was made.

    Raises
    ------
    SourceError
        If a source is missing or damaged, or the sources have not one dtype, before anything is
        written.
    ConfigError
        If it is not clear what to write.
    StoreError
        If a pair is already there.
    FingerprintMismatchError
        If an unfinished merge of other sources, or another store, is there.

    Notes
    -----
    Law: the pair is byte for byte that of an ``IndexedDatasetBuilder`` to which all sources are
    added by ``add_index``. Tasks write spans of the tokens of their own; what is written stays
    when a merge that was ended is called again. Memory: one span per thread.
    """
    paths = find_sources(sources)
    parts = [_open(path, multimodal) for path in paths]
    has_modes = _keeps_modes(parts, multimodal)
    form = to or _common_form(parts)
    name = os.path.basename(str(target).rstrip("/"))
    base = str(local_path(str(target), "a .bin/.idx pair")) if form == "bin" else ""
    corpus = JoinedCorpus(parts, name, has_modes=has_modes)
    if form == "bin":
        check_pair(base, overwrite=overwrite)
        os.makedirs(os.path.dirname(base), exist_ok=True)

    async def main(executor: Executor, shown: Progress) -> None:
        if form == "bin":
            await asyncio.to_thread(_claim, corpus, base, restart)
            await _merge_to_pair(corpus, base, overwrite, executor, shown)
            return
        plan = await plan_corpus(corpus, place_of(target), False, grid, executor)
        with shown.step(f"{name}: merge", plan.num_shards) as advance:
            await write_corpus(corpus, plan, executor, advance)

    with open_executor(client) as executor, open_progress(progress) as shown:
        run_builds(main(executor, shown))
    return MergedCorpus(
        base or str(place_of(target)),
        len(parts),
        corpus.num_documents,
        corpus.num_sequences,
        corpus.num_tokens,
    )


def _claim(corpus: JoinedCorpus, base: str, restart: bool) -> None:
    """Say what is being merged to a pair, unless that is said already."""
    work = work_folder(base)
    identity = {"source": [_identify(part) for part in corpus.parts], "modes": corpus.has_modes}
    check_unfinished(work, identity, restart=restart)
    begin_import(work, identity)


async def _merge_to_pair(
    corpus: JoinedCorpus, base: str, overwrite: bool, executor: Executor, shown: Progress
) -> None:
    """Write a joined corpus as a pair."""
    if await asyncio.to_thread(finish_pair, base, replace=overwrite) is not None:
        return  # a call before died over the renaming
    pair = _Pair(corpus.parts, corpus.prefix, work_folder(base), has_modes=corpus.has_modes)
    with shown.step(f"{corpus.prefix}: merge", -(-corpus.num_tokens // SPAN_TOKENS)) as advance:
        await write_pair(pair, base, executor, advance, {})
    await asyncio.to_thread(finish_pair, base, replace=overwrite)


def _open(path: str, multimodal: bool | None) -> AnyCorpus:
    """Return the corpus at a path, checked."""
    if not path.startswith(MSC_PREFIX) and is_store(path):
        return StoreCorpus(open_store(path, kind="tokens"))
    return open_pair(path, multimodal or None)


def _keeps_modes(parts: Sequence[AnyCorpus], multimodal: bool | None) -> bool:
    """Return whether the modes of the sources go into what is made."""
    if multimodal is not None:
        return multimodal
    return any(part.index.has_modes for part in parts)


def _common_form(parts: Sequence[AnyCorpus]) -> Form:
    """Return what all sources are."""
    are_stores = {isinstance(part, StoreCorpus) for part in parts}
    if len(are_stores) > 1:
        raise ConfigError(
            "corpora that are merged must all be pairs or all be stores unless it is said what to "
            "write, got both; pass to='bin' or to='zarr' (--to)"
        )
    return "zarr" if are_stores == {True} else "bin"


def _identify(part: AnyCorpus) -> list[Any]:
    """Return what tells a source from another one, or from itself after a change."""
    if isinstance(part, StoreCorpus):
        return [part.prefix, part.store.fingerprint]
    if isinstance(part, RemotePair):
        return [part.prefix, fingerprint({"versions": list(part.versions)})]
    files = [os.stat(f"{part.prefix}.{suffix}") for suffix in ("bin", "idx")]
    return [
        part.prefix,
        fingerprint({"files": [[file.st_size, file.st_mtime_ns] for file in files]}),
    ]
