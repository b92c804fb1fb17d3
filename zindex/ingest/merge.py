"""Merge corpora, pairs and token stores, to one pair or one store; export a store as a pair."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zindex.errors import ConfigError
from zindex.execution.executor import run_builds
from zindex.ingest.convert import convert_corpus
from zindex.ingest.corpora import write_pair
from zindex.ingest.corpora.corpus import COUNTS, Corpus, CorpusForm, join_corpora
from zindex.ingest.corpora.pairs import Paths, find_corpora, open_corpus
from zindex.ingest.driver import Claim, open_workers
from zindex.io.local import local_path
from zindex.io.objects import PlaceLike, place_of
from zindex.store.layout import ChunkGrid
from zindex.store.open import open_store
from zindex.store.tokens import open_tokens


@dataclass(frozen=True, slots=True)
class MergedCorpus:
    """The result of a merge."""

    #: Path of the pair without suffix, or place of the store.
    path: str
    #: Merged corpora.
    num_sources: int
    #: Documents of all.
    num_documents: int
    #: Sequences of all.
    num_sequences: int
    #: Tokens of all sequences together.
    num_tokens: int


def merge(
    sources: Paths,
    target: PlaceLike,
    *,
    to: CorpusForm | None = None,
    multimodal: bool | None = None,
    overwrite: bool = False,
    restart: bool = False,
    grid: ChunkGrid | None = None,
    client: Any = None,
    progress: bool = False,
) -> MergedCorpus:
    """Concatenate several corpora into one.

    Parameters
    ----------
    sources
        Pairs of ``.bin/.idx`` by their paths or URLs without suffix or by globs of paths, Zarr
        token stores, and folders: of a folder the pairs are merged by name, or its stores if it
        has no pairs.
    target
        Path of the pair to write, without suffix, or place of the store.
    to
        ``"bin"`` for a pair, ``"zarr"`` for a store; None for the form of the sources.
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
        The place and counts of the merged corpus.

    Raises
    ------
    SourceError
        If a source is missing or damaged, or the sources have not one dtype, before anything is
        written.
    ConfigError
        If the sources have several forms and ``to`` is None.
    StoreError
        If a pair is already there.
    FingerprintMismatchError
        If an unfinished merge of other sources, or another store, is there.

    Notes
    -----
    Law: the pair is byte for byte that of an ``IndexedDatasetBuilder`` to which all sources are
    added by ``add_index``. Each task writes one span of tokens; an interrupted merge resumes from
    its written spans. Memory: one span per thread.
    """
    parts = [open_corpus(path, multimodal or None) for path in find_corpora(sources)]
    has_modes = any(part.has_modes for part in parts) if multimodal is None else multimodal
    form = to or _common_form(parts)
    corpus = join_corpora(parts, os.path.basename(str(target).rstrip("/")), has_modes)
    base = str(local_path(str(target), "a .bin/.idx pair")) if form == "bin" else ""
    if base:
        write_pair.check_pair(base, overwrite=overwrite)

    async def main() -> None:
        if not base:
            await convert_corpus(corpus, place_of(target), workers, grid, verb=": merge")
            return
        identity = {"source": [[part.prefix, part.version] for part in parts], "modes": has_modes}
        claim = Claim(write_pair.work_folder(base), identity)
        await asyncio.to_thread(claim.take, restart=restart)
        # An earlier call may have been interrupted while it renamed the files.
        if await asyncio.to_thread(write_pair.finish_pair, base, replace=overwrite) is None:
            with write_pair.shared(base, replace=overwrite):
                await write_pair.write_pair(
                    corpus, "merge", base, workers, {}, verb="merge", replace=overwrite
                )

    with open_workers(client, None, progress) as workers:
        run_builds(main())
    counts = {name: getattr(corpus, name) for name in COUNTS}
    return MergedCorpus(base or str(place_of(target)), len(parts), **counts)


def _common_form(parts: Sequence[Corpus]) -> CorpusForm:
    """Return the form of all sources."""
    forms = {part.form for part in parts}
    if len(forms) > 1:
        raise ConfigError(
            "corpora that are merged must all be pairs or all be stores unless it is said what to "
            "write, got both; pass to='bin' or to='zarr' (--to)"
        )
    return forms.pop()


def export(
    store_url: PlaceLike,
    prefix: str | os.PathLike[str],
    *,
    client: Any = None,
    overwrite: bool = False,
    restart: bool = False,
) -> None:
    """Write a token store as the ``.bin/.idx`` pair that it was made from, byte for byte.

    Parameters
    ----------
    store_url
        Path or URL of the token store.
    prefix
        Path of the pair to write, without its suffix.
    client
        A ``distributed.Client`` or a scheduler's address; None as in ``zindex.build``.
    overwrite
        Whether an existing pair may be replaced.
    restart
        Whether an unfinished export to the same pair is removed first, also one of another store.

    Raises
    ------
    StoreError
        If a file is already there.
    SourceError
        If the store links to a ``.bin`` that is missing or of another size.
    FingerprintMismatchError
        If an unfinished export of another store is there.

    Notes
    -----
    An interrupted export resumes from its written spans, in ``PREFIX.work``; see `zindex.merge`.
    """
    store = open_store(store_url, kind="tokens")
    open_tokens(store)  # a dangling link is an error before anything is written
    merge(str(store.root), prefix, to="bin", overwrite=overwrite, restart=restart, client=client)
