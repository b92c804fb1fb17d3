"""Erase documents of corpora: new stores with 0 for their tokens, and proof that the rest is equal.

Lengths and document numbers stay, so every index of the corpus is valid for the new store.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray, Int64Array
from zindex.errors import ConfigError, VerificationError
from zindex.execution.executor import run_builds, run_together
from zindex.ingest.convert import convert_corpus
from zindex.ingest.corpora.corpus import Corpus, store_corpus
from zindex.ingest.corpora.pairs import open_corpus
from zindex.ingest.driver import Workers, open_workers
from zindex.io.objects import Place, place_of
from zindex.store.commit import fingerprint
from zindex.store.tokenizer_note import read_note
from zindex.text.kept_tokenizer import read_kept

# Tokens per task of the comparison, on average.
_BLOCK_LENGTH = 1 << 24


@dataclass(frozen=True, slots=True)
class ErasedCorpus:
    """A corpus that was written again without some documents."""

    #: Path of the original, and of the new store.
    path: str
    store: str
    #: Erased documents, and their tokens.
    num_documents: int
    num_tokens: int
    #: Number of all other documents, each equal to the original by its SHA-256.
    num_equal: int
    #: The SHA-256, in hex, of the SHA-256 of every other document, in order.
    digest: str

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

    def to_lines(self) -> list[str]:
        """Format the corpus for a terminal."""
        return [
            f"{self.path} without {self.num_tokens:,} tokens:",
            f"  {self.store}",
            f"  {self.num_equal:,} other documents are equal, digest {self.digest[:16]}",
        ]


def erase_documents(
    documents: Mapping[str, Int64Array],
    folder: str | os.PathLike[str],
    names: Mapping[str, str],
    *,
    client: Any = None,
) -> tuple[ErasedCorpus, ...]:
    """Write token stores with 0 for the tokens of some documents, and compare all others.

    Parameters
    ----------
    documents
        Numbers of documents, by path of their corpus; each sequence of a corpus is a document.
    folder
        Where the stores are written, as ``NAME.zarr``.
    names
        Name of each corpus, by path.
    client
        Where the tasks run, as of ``zindex.build``.

    Raises
    ------
    ConfigError
        If a store would replace its corpus.
    FingerprintMismatchError
        If the folder has another store of a name.
    VerificationError
        If another document differs, or an erased one has a token.

    Notes
    -----
    An interrupted call resumes from the finished shards. Memory: one shard per thread.
    """
    targets = {path: place_of(folder) / f"{names[path]}.zarr" for path in documents}
    for path, target in targets.items():
        if os.path.realpath(str(target)) == os.path.realpath(path):
            raise ConfigError(
                f"a corpus is written again as another store, got the folder of {path} itself; "
                "name another one with physically (--physically)"
            )

    async def main() -> list[ErasedCorpus]:
        return await run_together(
            _erase(open_corpus(path), np.unique(documents[path]), target, workers)
            for path, target in targets.items()
        )

    with open_workers(client, None, False) as workers:
        return tuple(run_builds(main()))


async def _erase(
    corpus: Corpus, documents: Int64Array, target: Place, workers: Workers
) -> ErasedCorpus:
    """Write one corpus without documents, and compare it with the original."""
    bounds = [corpus.read(schema.SEQUENCE_OFFSET.name, n, n + 2) for n in documents.tolist()]
    starts, stops = np.array(bounds, np.int64).T
    erased = replace(corpus, read=partial(_read_erased, corpus.read, starts, stops))
    place = place_of(corpus.prefix)
    kept = read_kept(place) if corpus.form == "zarr" and read_note(place) else None
    digest = fingerprint({"erased": documents.tolist()})
    store = await convert_corpus(
        erased,
        target,
        workers,
        None,
        verb=": erase",
        identity={"erased": digest},
        keep=None if kept is None else kept.write,
    )
    written = store_corpus(store)
    mean = max(1, corpus.num_tokens // max(1, corpus.num_sequences))
    step = max(1, _BLOCK_LENGTH // mean)
    digests = await run_together(
        workers.executor.run(
            compare_documents, corpus, written, documents, start, step, key=f"compare-{start}"
        )
        for start in range(0, corpus.num_sequences, step)
    )
    return ErasedCorpus(
        path=corpus.prefix,
        store=str(target),
        num_documents=len(documents),
        num_tokens=int((stops - starts).sum()),
        num_equal=corpus.num_sequences - len(documents),
        digest=hashlib.sha256(b"".join(digests)).hexdigest(),
    )


def _read_erased(
    read: Any, starts: Int64Array, stops: Int64Array, name: str, start: int, stop: int
) -> AnyArray:
    """Return rows of an array of a corpus, with 0 for tokens ``[starts[i], stops[i])``."""
    values: AnyArray = read(name, start, stop)
    if name != schema.TOKENS.name:
        return values
    values = values.copy()
    first, last = np.searchsorted(stops, start, side="right"), np.searchsorted(starts, stop)
    for low, high in zip(starts[first:last].tolist(), stops[first:last].tolist(), strict=True):
        values[max(low - start, 0) : max(high - start, 0)] = 0
    return values


def compare_documents(
    corpus: Corpus, written: Corpus, documents: Int64Array, start: int, count: int
) -> bytes:
    """Task: compare documents ``[start, start + count)``, and return the SHA-256 of each other one.

    Raises
    ------
    VerificationError
        If one of them differs, or an erased document has a token.
    """
    stop = min(start + count, corpus.num_sequences)
    bounds, same = (
        each.read(schema.SEQUENCE_OFFSET.name, start, stop + 1) for each in (corpus, written)
    )
    where = f"{written.prefix}, which is compared with {corpus.prefix},"
    if not np.array_equal(bounds, same):
        raise VerificationError(
            f"{where} must have documents of the same lengths, those of [{start:,}, {stop:,}) "
            "differ; remove the store and write it again"
        )
    offsets = (bounds - bounds[0]).tolist()
    span = int(bounds[0]), int(bounds[-1])
    old, new = (each.read(schema.TOKENS.name, *span) for each in (corpus, written))
    is_erased = np.isin(np.arange(start, stop), documents)
    digests = []
    for row, gone in enumerate(is_erased.tolist()):
        own = slice(offsets[row], offsets[row + 1])
        if gone:
            is_right = not new[own].any()
        else:
            pair = [hashlib.sha256(tokens[own].data).digest() for tokens in (old, new)]
            is_right = pair[0] == pair[1]
            digests.append(pair[1])
        if not is_right:
            raise VerificationError(
                f"{where} must have {'0 for' if gone else 'the same tokens in'} document "
                f"{start + row:,}, it has others; remove the store and write it again"
            )
    return b"".join(digests)
