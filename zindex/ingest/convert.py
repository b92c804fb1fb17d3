"""Convert ``.bin/.idx`` corpora to Zarr token stores: lossless, one task per shard."""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from zindex import schema
from zindex.errors import ConfigError
from zindex.execution.executor import Executor, run_builds, run_together
from zindex.formats.bin_idx import bin_path
from zindex.formats.token_dtypes import highest_id
from zindex.ingest.corpora.corpus import COUNTS, Corpus
from zindex.ingest.corpora.pairs import expand_prefixes, is_glob, is_url, open_pair
from zindex.ingest.driver import Workers, open_workers, write_store
from zindex.ingest.length_source import digest_rows, is_store, join_digests, num_blocks
from zindex.io.objects import Place, PlaceLike, place_of
from zindex.store.commit import StorePlan
from zindex.store.layout import ArrayLayout, ChunkGrid, fit_chunks
from zindex.store.open import Store
from zindex.store.records import plan_array
from zindex.store.shard_files import ShardResult, store_shard
from zindex.store.tokens import LINK, open_tokens
from zindex.text.kept_tokenizer import describe_tokenizer
from zindex.text.text_encoder import TokenizerLike

#: Default grid of the tokens: 16 Mi tokens are 32 or 64 MiB, enough to saturate a disk.
TOKEN_GRID = ChunkGrid(shard_length=1 << 24)
#: Grid of the fields of documents, in bytes: they are read a few at a time, and never by training.
FIELD_GRID = ChunkGrid(chunk_length=1 << 14, shard_length=1 << 26, codec="zstd")

# The identity of a corpus includes the first bytes of every block of its .bin: a build cannot be
# resumed with other data, and a petabyte need not be read twice.
_BIN_BLOCK_NBYTES, _BIN_SAMPLE_NBYTES = 1 << 26, 1 << 16
# Tokens per task of the comparison with a tokenizer.
_BLOCK_LENGTH = 1 << 24


def convert(
    prefix: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    store_url: PlaceLike,
    *,
    client: Any = None,
    link: bool = False,
    grid: ChunkGrid | None = None,
    multimodal: bool | None = None,
    tokenizer: TokenizerLike | None = None,
    keep_tokenizer: bool = True,
    progress: bool = False,
) -> list[Store]:
    """Convert tokenised corpora to Zarr token stores; finished stores and shards are kept.

    Parameters
    ----------
    prefix
        Path or URL of a ``.bin/.idx`` pair without its suffix, a glob of paths, or several of them.
    store_url
        The store of a single corpus given by its path. For a glob or several paths, even if they
        match only one corpus, the directory of the stores, each named after its corpus with
        ``.zarr``.
    client
        A ``distributed.Client`` or a scheduler's address; None as in ``zindex.build``.
    link
        Whether to leave the tokens in the ``.bin``: the store then holds the lengths and offsets,
        and the path of the ``.bin``.
    grid
        Elements per chunk and shard of every array, and the codec; None uses the defaults.
    multimodal
        True requires a mode for each sequence; None keeps modes if present.
    tokenizer
        The tokenizer of the corpora, a path or an object, to keep in the stores, including those
        that already exist; all tokens are read once to check it. None keeps none.
    keep_tokenizer
        Whether the stores also keep the files of the tokenizer, or only its identity, its number of
        ids and the digest of its vocabulary.
    progress
        Whether to show progress bars on a terminal, or log lines otherwise.

    Returns
    -------
    stores
        One opened store per corpus, in the order of the prefixes.

    Raises
    ------
    SourceError
        If a pair is missing or damaged, before anything is written; or if a finished store links to
        a missing ``.bin``.
    ConfigError
        If a store would link to object storage, or the tokenizer lacks a token of a corpus; nothing
        is written then.
    FingerprintMismatchError
        If a store with other content, or with another tokenizer, already exists.

    Notes
    -----
    Law: ``zindex.export`` restores the same bytes. Memory: one shard per thread.
    """
    corpora = [open_pair(path, multimodal) for path in expand_prefixes(prefix)]
    prefixes = [corpus.prefix for corpus in corpora]
    if link and any(map(is_url, prefixes)):
        raise ConfigError(
            f"link must name a .bin on a file system, got {', '.join(prefixes)}; leave it out to "
            "copy the tokens"
        )
    root = place_of(store_url)
    is_one = isinstance(prefix, (str, os.PathLike)) and not is_glob(os.fspath(prefix))
    roots = [root] if is_one else _name_stores(prefixes, root)
    kept = None
    if tokenizer is not None:
        kept = describe_tokenizer(tokenizer, keep_files=keep_tokenizer)
        for root in roots:
            kept.check(root)

    async def main() -> list[Store]:
        if kept is not None and (num_ids := kept.note.vocab_size) is not None:
            await run_together(_check_ids(corpus, num_ids, workers.executor) for corpus in corpora)
        keep = None if kept is None else kept.write
        return await run_together(
            convert_corpus(corpus, root, workers, grid, link=link, keep=keep)
            for corpus, root in zip(corpora, roots, strict=True)
        )

    with open_workers(client, None, progress) as workers:
        return run_builds(main())


def _name_stores(prefixes: Sequence[str], root: Place) -> list[Place]:
    """Return the locations of several stores."""
    if is_store(str(root)):
        raise ConfigError(
            f"several corpora need a directory for their stores, {root} is a store; give another"
        )
    roots = [root / f"{os.path.basename(prefix)}.zarr" for prefix in prefixes]
    for i, path in enumerate(roots):
        if path in roots[:i]:
            raise ConfigError(
                f"corpora converted together must have different names, got {prefixes[i]} and "
                f"{prefixes[roots.index(path)]}; convert one of them by itself"
            )
    return roots


async def convert_corpus(
    corpus: Corpus,
    root: Place,
    workers: Workers,
    grid: ChunkGrid | None,
    *,
    link: bool = False,
    verb: str = "",
    sources: Sequence[str] = (),
    facts: Mapping[str, Any] | None = None,
    identity: Mapping[str, Any] | None = None,
    keep: Callable[[Place], None] | None = None,
) -> Store:
    """Write a corpus as a token store.

    Parameters
    ----------
    corpus, root, grid
        The corpus, the location of the store, and its grid; None for the default grids.
    workers, verb
        Where tasks run and progress is shown, and the last word of the name of the step.
    link
        Whether to store the path of the ``.bin`` instead of the tokens.
    sources, facts
        What it is made of if not the corpus at its path, and additional attributes of the store.
    identity
        What else determines its content.
    keep
        Keeps the tokenizer in the store; None for none.
    """
    plan = await plan_corpus(corpus, root, link, grid, workers.executor)
    plan = replace(plan, spec=plan.spec | dict(identity or {}))
    name = os.path.basename(corpus.prefix)

    def task(layout: ArrayLayout, shard: int) -> tuple[Any, ...]:
        return store_corpus_shard, corpus, root, layout, shard

    attributes = dict(facts or {})
    if link:
        nbytes = corpus.num_tokens * corpus.dtype.itemsize
        attributes[LINK] = {"path": bin_path(corpus.prefix), "nbytes": nbytes}
    own: dict[str, Any] = {"facts": attributes, "sources": sources or [corpus.prefix]}
    store = await write_store(plan, workers, f"{name}{verb}", task, keep=keep, **own)
    open_tokens(store)  # a dangling link of a finished store is an error
    return store


async def _check_ids(corpus: Corpus, num_ids: int, executor: Executor) -> None:
    """Check that a tokenizer has every token of a corpus; tasks read the tokens."""
    if highest_id(corpus.dtype) < num_ids:
        return
    name = os.path.basename(corpus.prefix)
    num_blocks = -(-corpus.num_tokens // _BLOCK_LENGTH)
    highest = await run_together(
        executor.run(find_highest, corpus, block, key=f"ids-{name}-{block}")
        for block in range(num_blocks)
    )
    if (found := max(highest, default=-1)) >= num_ids:
        raise ConfigError(
            f"a tokenizer must have every token of {corpus.prefix}, which has {found:,}, got one "
            f"of {num_ids:,} ids; give the tokenizer that the corpus was made with"
        )


def find_highest(corpus: Corpus, block: int) -> int:
    """Task: the highest id of one block of the tokens."""
    start = block * _BLOCK_LENGTH
    stop = min(start + _BLOCK_LENGTH, corpus.num_tokens)
    return int(corpus.read(schema.TOKENS.name, start, stop).max())


async def plan_corpus(
    corpus: Corpus, root: Place, link: bool, grid: ChunkGrid | None, executor: Executor
) -> StorePlan:
    """Return the plan of a corpus's store; tasks compute its digests."""

    async def digest(name: str, count: int, task: Callable[..., bytes], *args: Any) -> str:
        key = f"digest-{os.path.basename(corpus.prefix)}-{name}"
        blocks = (executor.run(task, corpus, i, *args, key=f"{key}-{i}") for i in range(count))
        return join_digests(await run_together(blocks))

    async def digest_array(array: schema.ArraySpec) -> str:
        num_rows, _ = corpus.shape_of(array.name)
        return await digest(array.name, num_blocks(num_rows), digest_block, array.name, num_rows)

    num_samples = -(-corpus.num_tokens * corpus.dtype.itemsize // _BIN_BLOCK_NBYTES)
    spec = {
        "token_dtype": corpus.dtype.name,
        **{name: getattr(corpus, name) for name in COUNTS},
        "length_digest": await digest_array(schema.SEQUENCE_LENGTH),
        "document_digest": await digest_array(schema.DOCUMENT_OFFSET),
        "token_sample_digest": await digest("tokens", num_samples, sample_tokens),
        "mode_digest": await digest_array(schema.SEQUENCE_MODE) if corpus.has_modes else None,
        "link": link,
    }
    if corpus.fields:
        arrays = [array for array, *_ in corpus.field_arrays()]
        digests = await run_together(map(digest_array, arrays))
        spec["fields"] = [field.to_json() for field in corpus.fields]
        spec["field_digests"] = dict(zip((array.name for array in arrays), digests, strict=True))
    return StorePlan(root, "tokens", spec, corpus_layouts(corpus, link, grid))


def corpus_layouts(corpus: Corpus, link: bool, grid: ChunkGrid | None) -> tuple[ArrayLayout, ...]:
    """Return the layouts of a corpus's arrays."""
    arrays = [schema.SEQUENCE_LENGTH, schema.SEQUENCE_OFFSET, schema.DOCUMENT_OFFSET]
    if not link:
        arrays.insert(0, schema.TOKENS)
    if corpus.has_modes:
        arrays.append(schema.SEQUENCE_MODE)

    def plan(array: schema.ArraySpec) -> ArrayLayout:
        is_tokens = array is schema.TOKENS
        rows, dtype = corpus.shape_of(array.name)
        span_length = rows // max(1, corpus.num_sequences) if is_tokens else 1
        chosen = grid or (TOKEN_GRID if is_tokens else ChunkGrid())
        return ArrayLayout.plan(array, rows, dtype, fit_chunks(chosen, rows, span_length))

    own = [plan_array(*array, FIELD_GRID) for array in corpus.field_arrays()]
    return (*map(plan, arrays), *own)


def store_corpus_shard(corpus: Corpus, root: Place, layout: ArrayLayout, shard: int) -> ShardResult:
    """Task: one shard of one array of a corpus."""
    bounds = layout.shard_bounds(shard)
    return store_shard(root, layout, shard, lambda: corpus.read(layout.name, *bounds))


def digest_block(corpus: Corpus, block: int, name: str, num_rows: int) -> bytes:
    """Task: the SHA-256 of one block of an array's rows."""
    return digest_rows(partial(corpus.read, name), num_rows, block)


def sample_tokens(corpus: Corpus, block: int) -> bytes:
    """Task: the SHA-256 of the first bytes of one block of the ``.bin``."""
    itemsize = corpus.dtype.itemsize
    start = block * _BIN_BLOCK_NBYTES // itemsize
    stop = min(start + _BIN_SAMPLE_NBYTES // itemsize, corpus.num_tokens)
    return hashlib.sha256(corpus.read(schema.TOKENS.name, start, stop).data).digest()
