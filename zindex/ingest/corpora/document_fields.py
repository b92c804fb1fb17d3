"""Fields of a corpus's documents, such as their id and url: by document, and documents by id.

A document here is a sequence of the corpus, as in runs. It has the fields of the source document
that it is from, which is several sequences if it was split into sentences.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from zindex import schema
from zindex.arrays import Int64Array, UInt8Array
from zindex.errors import ConfigError, VerificationError, check_choice
from zindex.execution.executor import Executor, open_executor, run_builds, run_together
from zindex.ingest.corpora.corpus import Corpus
from zindex.ingest.corpora.pairs import open_corpus
from zindex.ingest.length_source import is_store
from zindex.io.objects import PlaceLike
from zindex.store.open import Store, open_store
from zindex.store.record_reader import RecordReader
from zindex.store.records import CORPUS_KIND, DocumentField

# Source documents per task of a search.
_TASK_LENGTH = 1 << 18


class DocumentFields:
    """The fields of a corpus's documents, read lazily.

    Parameters
    ----------
    store
        The corpus.
    """

    def __init__(self, store: Store) -> None:
        self._reader = RecordReader(store)
        self._offsets = store[schema.DOCUMENT_OFFSET.name]
        self._root = store.root

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields; the first one identifies documents."""
        return self._reader.fields

    def read(self, documents: Sequence[int] | Int64Array) -> list[dict[str, Any]]:
        """Return the fields of documents: texts, numbers and other JSON values.

        Raises
        ------
        VerificationError
            If the corpus holds values that zindex did not write.
        """
        wanted, places = np.unique(np.asarray(documents, np.int64), return_inverse=True)
        try:
            sources, again = np.unique(self.find_sources(wanted), return_inverse=True)
            found = self._reader.read_many(sources)
        except (IndexError, ValueError) as error:
            raise VerificationError(
                f"{self._root} must hold the fields of its documents as zindex writes them: "
                f"{error}; restore it, or tokenize it again"
            ) from error
        return [found[number] for number in again[places].tolist()]

    def find_sources(self, documents: Int64Array) -> Int64Array:
        """Return the number of the source document of each document, as int64."""
        low = np.zeros_like(documents)
        high = np.full_like(documents, len(self._offsets) - 1)
        # Usually each source document is one document, up to those without tokens.
        guess = np.minimum(documents, high - 1)
        while np.any(high - low > 1):
            is_right = self._offsets.take(guess) <= documents
            low, high = np.where(is_right, guess, low), np.where(is_right, high, guess)
            is_next = is_right & (self._offsets.take(low + 1) > documents)
            high = np.where(is_next, low + 1, high)
            guess = (low + high) // 2
        return low


def open_fields(path: str) -> DocumentFields | None:
    """Return the fields of a corpus's documents; None for a pair, or a corpus that keeps none."""
    if not is_store(path):
        return None
    store = open_store(path, kind=CORPUS_KIND)
    return DocumentFields(store) if store.spec.get("fields") else None


def find_documents(
    path: PlaceLike, ids: Iterable[str | int], *, field: str | None = None, client: Any = None
) -> dict[str, list[int]]:
    """Return the documents of a corpus with given source ids, in one pass over its ids.

    Parameters
    ----------
    path
        The corpus.
    ids
        The ids, texts or numbers.
    field
        Name of the field that holds them; None uses the first one that the corpus keeps.
    client
        Where tasks run; see ``zindex.build``.

    Returns
    -------
    documents
        For each id, as text, the numbers of its documents as runs count them, ascending: the
        sequences of the corpus. Empty if no document with tokens has the id.

    Raises
    ------
    ConfigError
        If the corpus keeps no fields, or not this one.
    """
    with open_executor(client) as executor:
        return run_builds(search_ids(path, ids, field, executor))


async def search_ids(
    path: PlaceLike, ids: Iterable[str | int], field: str | None, executor: Executor
) -> dict[str, list[int]]:
    """Return the documents with given source ids; see `find_documents`."""
    root = os.fspath(path) if isinstance(path, os.PathLike) else str(path)
    corpus = open_corpus(root)
    if not corpus.fields:
        raise ConfigError(
            f"{root} must keep the ids of its documents to be searched for them, it keeps none; "
            "tokenize it again with metadata (--metadata id)"
        )
    fields = {item.name: item for item in corpus.fields}
    if field is not None:
        check_choice(f"a field of the documents of {root}", field, list(fields))
    chosen = corpus.fields[0] if field is None else fields[field]
    texts = list(dict.fromkeys(map(str, ids)))
    wanted = defaultdict[int, list[bytes]](list)
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        wanted[len(content)].append(content)
    tables = {
        length: np.unique(np.array(same, f"S{length}")) for length, same in wanted.items() if length
    }
    name = os.path.basename(root.rstrip("/"))[:28]
    search = partial(find_ids, corpus, chosen, tables)
    pairs = await run_together(
        executor.run(search, start, key=f"ids-{name}-{start}")
        for start in range(0, corpus.num_documents, _TASK_LENGTH)
    )
    found: dict[str, list[int]] = {text: [] for text in texts}
    for content, source in (pair for many in pairs for pair in many):
        start, stop = corpus.read(schema.DOCUMENT_OFFSET.name, source, source + 2).tolist()
        found[content.decode("utf-8", "surrogatepass")] += range(start, stop)
    return found


def find_ids(
    corpus: Corpus, field: DocumentField, tables: dict[int, Any], start: int
) -> list[tuple[bytes, int]]:
    """Task: return which of some source documents have one of the ids.

    Parameters
    ----------
    corpus, field
        The corpus, and its field of ids.
    tables
        The sorted ids of each length in bytes, as arrays of dtype ``S<length>``.
    start
        First source document.
    """
    stop = min(start + _TASK_LENGTH, corpus.num_documents)
    try:
        bounds = corpus.read(field.offset.name, start, stop + 1)
        values = corpus.read(field.value.name, int(bounds[0]), int(bounds[-1]))
        return [
            (content, start + row)
            for length, table in tables.items()
            for content, row in _match(values, bounds - bounds[0], length, table)
        ]
    except IndexError as error:
        raise VerificationError(
            f"{corpus.prefix} must hold the ids of its documents as zindex writes them: {error}; "
            "restore it, or tokenize it again"
        ) from error


def _match(
    values: UInt8Array, bounds: Int64Array, length: int, table: Any
) -> list[tuple[bytes, int]]:
    """Return the ids of one length that occur, and their rows."""
    rows = np.flatnonzero(np.diff(bounds) == length)
    if not len(rows):
        return []
    windows = sliding_window_view(values, length)[bounds[rows]]
    texts = windows.view(table.dtype)[:, 0]
    places = np.flatnonzero(np.isin(texts, table))
    return [(windows[place].tobytes(), int(rows[place])) for place in places.tolist()]
