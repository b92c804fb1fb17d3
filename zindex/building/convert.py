"""``.bin/.idx`` corpora to Zarr token stores: one task per shard, nothing lost."""

import asyncio
import glob
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.building.corpora.any_corpus import AnyCorpus, SequenceIndex
from zindex.building.corpora.remote_pair import RemotePair, open_remote_pair
from zindex.building.executor import Executor, open_executor, run_builds
from zindex.building.progress import open_progress
from zindex.building.source import digest_block, digest_rows, join_digests, num_blocks
from zindex.errors import ConfigError, SourceError, StoreNotFoundError
from zindex.formats.bin_idx import IdxFile, read_index
from zindex.formats.bin_reader import BinFile
from zindex.store.commit import StorePlan, begin_store, commit_store
from zindex.store.layout import ArrayLayout, ChunkGrid
from zindex.store.local import local_path
from zindex.store.objects import Place, PlaceLike, place_of
from zindex.store.open import Store, open_store
from zindex.store.shard_files import ShardResult, store_shard
from zindex.store.tokens import LINK, open_tokens

#: Default grid of the tokens: 16 Mi tokens are 32 or 64 MiB, enough to keep any disk busy.
TOKEN_GRID = ChunkGrid(shard_length=1 << 24)

# Of every block of the .bin so many bytes go into the corpus's identity: a build that goes on
# after the data was made anew is refused, and a petabyte need not be read twice.
_BIN_BLOCK_NBYTES, _BIN_SAMPLE_NBYTES = 1 << 26, 1 << 16


@dataclass(frozen=True, slots=True)
class Corpus:
    """A validated ``.bin/.idx`` pair."""

    prefix: str
    index: IdxFile

    @property
    def tokens(self) -> BinFile:
        """Reader of the ``.bin``."""
        return BinFile(f"{self.prefix}.bin", self.index.bin_nbytes)


def convert(
    prefix: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    store_url: PlaceLike,
    *,
    client: Any = None,
    link: bool = False,
    grid: ChunkGrid | None = None,
    multimodal: bool | None = None,
    progress: bool = False,
) -> list[Store]:
    """Convert tokenised corpora to Zarr token stores; what is finished already is kept.

    Parameters
    ----------
    prefix
        Path or URL of a ``.bin/.idx`` pair without its suffix, a glob of paths, or several of them.
    store_url
        The store of a corpus given by its path; of a glob or of several paths, however many they
        name, the directory of their stores, each named like its corpus with ``.zarr`` behind.
    client
        A ``distributed.Client`` or a scheduler's address; None as in ``zindex.build``.
    link
        Whether to leave the tokens where they lie: the store then holds the lengths and offsets
        and the path of the ``.bin``.
    grid
        Elements per chunk and shard of every array, and the codec; None takes the defaults.
    multimodal
        True demands a mode per sequence; None takes them where there are any.
    progress
        Whether to show bars on a terminal, or log lines elsewhere.

    Returns
    -------
    stores
        One opened store per corpus, in the order of the prefixes.

    Raises
    ------
    SourceError
        If a pair is missing or damaged, before anything is written; or if a finished store links
        to a ``.bin`` that is gone.
    ConfigError
        If a store is to link to object storage.
    FingerprintMismatchError
        If a store of other content is already there.

    Notes
    -----
    Law: ``zindex.export`` gives back the same bytes. Memory: one shard per thread.
    """
    # Workers may run in another directory.
    corpora = [open_pair(path, multimodal) for path in expand_prefixes(prefix)]
    prefixes = [corpus.prefix for corpus in corpora]
    if link and any(isinstance(corpus, RemotePair) for corpus in corpora):
        raise ConfigError(
            f"link must name a .bin on a file system, got {', '.join(prefixes)}; leave it out to "
            "copy the tokens"
        )
    root = place_of(store_url)
    is_one = isinstance(prefix, (str, os.PathLike)) and not _is_glob(os.fspath(prefix))
    roots = [root] if is_one else _name_stores(prefixes, root)

    async def main(executor: Executor) -> list[Store]:
        with open_progress(progress) as shown:

            async def one(corpus: AnyCorpus, root: Place) -> Store:
                plan = await plan_corpus(corpus, root, link, grid, executor)
                with shown.step(os.path.basename(corpus.prefix), plan.num_shards) as advance:
                    return await write_corpus(corpus, plan, executor, advance)

            pairs = zip(corpora, roots, strict=True)
            return list(await asyncio.gather(*(one(corpus, root) for corpus, root in pairs)))

    with open_executor(client) as executor:
        return run_builds(main(executor))


def open_pair(path: str, multimodal: bool | None = None) -> Corpus | RemotePair:
    """Return a validated pair by its path or URL without suffix.

    Parameters
    ----------
    path
        The path, or a URL of object storage.
    multimodal
        True demands a mode for each sequence; None takes them where there are any.

    Raises
    ------
    SourceError
        If a file is missing or damaged.
    """
    if "://" in path and not path.startswith("file://"):
        return open_remote_pair(path, multimodal=multimodal)
    prefix = str(local_path(path, "a .bin/.idx pair"))  # workers may run in another directory
    return Corpus(prefix, read_index(prefix, multimodal=multimodal))


def expand_prefixes(prefix: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return the prefixes that a path, a glob or several of them name; globs are sorted.

    Raises
    ------
    SourceError
        If a glob matches no ``.idx`` file, or there is no prefix at all.
    """
    given = [prefix] if isinstance(prefix, (str, os.PathLike)) else list(prefix)
    prefixes: list[str] = []
    for item in given:
        path = os.fspath(item)
        if _is_glob(path):
            pattern = path if path.endswith(".idx") else f"{path}.idx"
            matches = sorted(glob.glob(pattern))
            if not matches:
                raise SourceError(f"{path} must match at least one .idx file, it matches none")
            prefixes += [match.removesuffix(".idx") for match in matches]
        else:
            prefixes.append(path.removesuffix(".idx").removesuffix(".bin"))
    if not prefixes:
        raise SourceError("convert needs at least one prefix, got none")
    return prefixes


def _is_glob(path: str) -> bool:
    """Return whether a path is a pattern, and not a pair whose name looks like one."""
    return glob.has_magic(path) and not os.path.exists(f"{path}.idx")


def _name_stores(prefixes: Sequence[str], root: Place) -> list[Place]:
    """Return where each of several corpora goes."""
    roots = [root / f"{os.path.basename(prefix)}.zarr" for prefix in prefixes]
    for i, path in enumerate(roots):
        if path in roots[:i]:
            raise ConfigError(
                f"corpora converted together must have different names, got {prefixes[i]} and "
                f"{prefixes[roots.index(path)]}; convert one of them by itself"
            )
    return roots


async def plan_corpus(
    corpus: AnyCorpus, root: Place, link: bool, grid: ChunkGrid | None, executor: Executor
) -> StorePlan:
    """Return the plan of a corpus's store; its digests are computed by tasks."""
    index = corpus.index

    async def digest(function: Callable[..., bytes], source: Any, count: int) -> str:
        name = f"digest-{os.path.basename(corpus.prefix)}-{function.__name__}"
        parts = [executor.run(function, source, i, key=f"{name}-{i}") for i in range(count)]
        return join_digests(await asyncio.gather(*parts))

    num_bin_blocks = -(-index.bin_nbytes // _BIN_BLOCK_NBYTES)
    spec = {
        "token_dtype": index.dtype.name,
        "num_tokens": index.num_tokens,
        "num_sequences": index.num_sequences,
        "num_documents": index.num_documents,
        "length_digest": await digest(digest_block, index, num_blocks(index.num_sequences)),
        "document_digest": await digest(
            digest_documents, index, num_blocks(index.num_documents + 1)
        ),
        "token_sample_digest": await digest(sample_tokens, corpus, num_bin_blocks),
        "mode_digest": None,
        "link": link,
    }
    if index.has_modes:
        spec["mode_digest"] = await digest(digest_modes, index, num_blocks(index.num_sequences))
    return StorePlan(root, "tokens", spec, corpus_layouts(index, link, grid))


def corpus_layouts(
    index: SequenceIndex, link: bool, grid: ChunkGrid | None
) -> tuple[ArrayLayout, ...]:
    """Return the layouts of a corpus's arrays."""
    small = grid or ChunkGrid()
    layouts = [
        ArrayLayout.plan(schema.SEQUENCE_LENGTH, index.num_sequences, np.int32, small),
        ArrayLayout.plan(schema.SEQUENCE_OFFSET, index.num_sequences + 1, np.int64, small),
        ArrayLayout.plan(schema.DOCUMENT_OFFSET, index.num_documents + 1, np.int64, small),
    ]
    if index.has_modes:
        layouts.append(ArrayLayout.plan(schema.SEQUENCE_MODE, index.num_sequences, np.int8, small))
    if not link:
        tokens = grid or TOKEN_GRID
        layouts.insert(0, ArrayLayout.plan(schema.TOKENS, index.num_tokens, index.dtype, tokens))
    return tuple(layouts)


async def write_corpus(
    corpus: AnyCorpus,
    plan: StorePlan,
    executor: Executor,
    advance: Callable[[int], None],
    facts: Mapping[str, Any] | None = None,
) -> Store:
    """Write every shard of a corpus's store, and commit it with facts as its attributes."""
    try:
        store = open_store(plan.root, kind="tokens", expected=plan.fingerprint)
    except StoreNotFoundError:
        plan = await asyncio.to_thread(begin_store, plan)
    else:
        open_tokens(store)  # a link that leads nowhere any more is no finished conversion
        advance(plan.num_shards)
        return store

    async def one(layout: ArrayLayout, shard: int) -> ShardResult:
        key = f"convert-{os.path.basename(corpus.prefix)}-{layout.name}-{shard}"
        result = await executor.run(store_corpus_shard, corpus, plan.root, layout, shard, key=key)
        advance(1)
        return result

    results = await asyncio.gather(
        *(one(layout, shard) for layout in plan.layouts for shard in range(layout.num_shards))
    )
    attributes = dict(facts or {})
    if plan.spec["link"]:
        attributes[LINK] = {"path": corpus.tokens.path, "nbytes": corpus.index.bin_nbytes}
    receipts = [result.receipt for result in results]
    await asyncio.to_thread(commit_store, plan, receipts, attributes)
    return open_store(plan.root, kind="tokens", expected=plan.fingerprint)


def store_corpus_shard(
    corpus: AnyCorpus, root: Place, layout: ArrayLayout, shard: int
) -> ShardResult:
    """Task: one shard of one array of a corpus."""
    start, stop = layout.shard_bounds(shard)
    return store_shard(
        root, layout, shard, lambda: read_corpus_rows(corpus, layout.name, start, stop)
    )


def read_corpus_rows(corpus: AnyCorpus, name: str, start: int, stop: int) -> npt.NDArray[Any]:
    """Return rows ``[start, stop)`` of a store's array from the ``.bin/.idx`` pair."""
    index = corpus.index
    itemsize = index.dtype.itemsize
    if name == schema.TOKENS.name:
        return corpus.tokens.read(index.dtype, stop - start, start * itemsize)
    if name == schema.SEQUENCE_LENGTH.name:
        return index.sequence_lengths(start, stop)
    if name == schema.DOCUMENT_OFFSET.name:
        return index.document_indices(start, stop)
    if name == schema.SEQUENCE_MODE.name:
        return index.sequence_modes(start, stop)
    offsets = np.empty(stop - start, np.int64)
    num_starts = min(stop, index.num_sequences) - start
    offsets[:num_starts] = index.sequence_pointers(start, start + num_starts) // itemsize
    offsets[num_starts:] = index.num_tokens
    return offsets


def digest_documents(index: SequenceIndex, block: int) -> bytes:
    """Task: the SHA-256 of one block of document bounds as little-endian int64."""
    return digest_rows(index.document_indices, index.num_documents + 1, block)


def digest_modes(index: SequenceIndex, block: int) -> bytes:
    """Task: the SHA-256 of one block of modes."""
    return digest_rows(index.sequence_modes, index.num_sequences, block)


def sample_tokens(corpus: AnyCorpus, block: int) -> bytes:
    """Task: the SHA-256 of the first bytes of one block of the ``.bin``."""
    offset = block * _BIN_BLOCK_NBYTES
    count = min(_BIN_SAMPLE_NBYTES, corpus.index.bin_nbytes - offset)
    return hashlib.sha256(corpus.tokens.read(np.uint8, count, offset).data).digest()
