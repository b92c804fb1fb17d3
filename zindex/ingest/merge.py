"""Merge corpora, pairs and token stores, into one pair or store; export a store as a pair."""

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
from zindex.ingest.length_source import warn_of_duplicates
from zindex.io.local import local_path
from zindex.io.objects import PlaceLike, place_of
from zindex.store.layout import ChunkGrid
from zindex.store.open import open_store
from zindex.store.tokenizer_note import read_note
from zindex.store.tokens import open_tokens
from zindex.text.kept_tokenizer import KeptTokenizer, check_blend, read_kept


@dataclass(frozen=True, slots=True)
class MergedCorpus:
    """The result of a merge."""

    #: Path of the pair without suffix, or location of the store.
    path: str
    #: Number of merged corpora.
    num_sources: int
    #: Documents in total.
    num_documents: int
    #: Sequences in total.
    num_sequences: int
    #: Tokens in total.
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
        Paths or URLs of ``.bin/.idx`` pairs without suffix, globs of paths, Zarr token stores, and
        folders: the pairs of a folder are merged by name, or its stores if it has no pairs.
    target
        Path of the pair to write, without suffix, or location of the store.
    to
        ``"bin"`` for a pair, ``"zarr"`` for a store; None for a store if ``target`` ends with
        ``.zarr``, otherwise for the format of the sources.
    multimodal
        True requires a mode for each sequence, False drops modes; None keeps them if all sources
        have them, and is an error if only some have.
    overwrite
        Whether to replace an existing pair.
    restart
        Whether to first remove an unfinished merge to the same pair, also one of other sources. No
        other merge to it may be running.
    grid
        For a store: elements per chunk and shard of every array, and the codec.
    client
        A ``distributed.Client`` or a scheduler's address; None as in ``zindex.build``.
    progress
        Whether to show progress bars on a terminal, or log lines otherwise.

    Returns
    -------
    merged
        The location and counts of the merged corpus.

    Raises
    ------
    SourceError
        If a source is missing or damaged, or the dtypes of the sources differ, before anything is
        written.
    ConfigError
        If the formats of the sources differ and ``to`` is None, or their tokenizers differ.
    StoreError
        If a pair already exists.
    FingerprintMismatchError
        If an unfinished merge of other sources, or another store, exists.

    Notes
    -----
    Law: the pair is byte for byte that of an ``IndexedDatasetBuilder`` to which all sources are
    added by ``add_index``. Each task writes one span of tokens; an interrupted merge resumes from
    its written spans. Memory: one span per thread.
    """
    paths = find_corpora(sources)
    warn_of_duplicates(paths)
    parts = [open_corpus(path, multimodal or None) for path in paths]
    has_modes = any(part.has_modes for part in parts) if multimodal is None else multimodal
    is_store = str(target).rstrip("/").endswith(".zarr")
    form = to or ("zarr" if is_store else _common_form(parts))
    kept = _common_tokenizer(parts)
    corpus = join_corpora(parts, os.path.basename(str(target).rstrip("/")), has_modes)
    base = str(local_path(str(target), "a .bin/.idx pair")) if form == "bin" else ""
    if base:
        write_pair.check_pair(base, overwrite=overwrite)

    async def main() -> None:
        if not base:
            keep = None if kept is None else kept.write
            place = place_of(target)
            own: dict[str, Any] = {"sources": paths, "keep": keep}
            await convert_corpus(corpus, place, workers, grid, verb=": merge", **own)
            return
        identity = {"source": [[part.prefix, part.version] for part in parts], "modes": has_modes}
        claim = Claim(write_pair.work_folder(base), identity)
        await asyncio.to_thread(claim.take, restart=restart)
        # An earlier call may have been interrupted while renaming the files.
        if await asyncio.to_thread(write_pair.finish_pair, base, replace=overwrite) is None:
            with write_pair.shared(base, replace=overwrite):
                await write_pair.write_pair(
                    corpus, "merge", base, workers, {}, verb="merge", replace=overwrite
                )

    with open_workers(client, None, progress) as workers:
        run_builds(main())
    counts = {name: getattr(corpus, name) for name in COUNTS}
    return MergedCorpus(base or str(place_of(target)), len(parts), **counts)


def _common_tokenizer(parts: Sequence[Corpus]) -> KeptTokenizer | None:
    """Return the tokenizer of all sources; None if one does not keep its own."""
    places = {part.prefix: place_of(part.prefix) for part in parts if part.form == "zarr"}
    notes = {path: read_note(place) for path, place in places.items()}
    check_blend(notes)
    known = {path: note for path, note in notes.items() if note is not None}
    if len(known) < len({part.prefix for part in parts}):
        return None
    largest = max(known, key=lambda path: known[path].vocab_size or 0)
    return read_kept(places[largest])


def _common_form(parts: Sequence[Corpus]) -> CorpusForm:
    """Return the format of all sources."""
    forms = {part.form for part in parts}
    if len(forms) > 1:
        raise ConfigError(
            "corpora that are merged must all be pairs or all be stores unless it is said what to "
            "write, got both; pass to='bin' (--to bin) or to='zarr' (--to zarr)"
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
    """Write a token store as the ``.bin/.idx`` pair that it was created from, byte for byte.

    Parameters
    ----------
    store_url
        Path or URL of the token store.
    prefix
        Path of the pair to write, without suffix.
    client
        A ``distributed.Client`` or a scheduler's address; None as in ``zindex.build``.
    overwrite
        Whether to replace an existing pair.
    restart
        Whether to first remove an unfinished export to the same pair, also one of another store.

    Raises
    ------
    StoreError
        If a file already exists.
    SourceError
        If the store links to a ``.bin`` that is missing or of another size.
    FingerprintMismatchError
        If an unfinished export of another store exists.

    Notes
    -----
    An interrupted export resumes from its written spans, in ``PREFIX.work``; see `zindex.merge`.
    """
    store = open_store(store_url, kind="tokens")
    open_tokens(store)  # a dangling link is an error before anything is written
    merge(str(store.root), prefix, to="bin", overwrite=overwrite, restart=restart, client=client)
