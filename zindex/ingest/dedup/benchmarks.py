"""The n-grams of benchmark texts, and the search for them in records."""

import hashlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from zindex.arrays import Int32Array, UInt64Array
from zindex.errors import ConfigError
from zindex.ingest.records.open_files import open_texts
from zindex.sources.sample_files import Paths
from zindex.text.ngrams import WordHashes, hash_ngrams, split_words


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One file of benchmark texts."""

    url: str
    #: Texts of the file, and those of fewer words than an n-gram, which cannot be found.
    num_texts: int
    num_short: int
    #: Different n-grams.
    num_ngrams: int


@dataclass(frozen=True, slots=True)
class Benchmarks:
    """The n-grams of all benchmarks."""

    files: tuple[Benchmark, ...]
    #: Words of an n-gram.
    length: int
    #: Shape (n-grams,), ascending, and the number of the first file with each.
    hashes: UInt64Array
    owners: Int32Array

    def find(self, words: UInt64Array) -> tuple[int, int] | None:
        """Return the file of the first n-gram that is shared with a benchmark, and its word.

        Parameters
        ----------
        words
            The hash of each word of a record.

        Returns
        -------
        found
            Number of the file, and of the first word of the n-gram; None if none is shared.
        """
        hashes = hash_ngrams(words, self.length)
        if not len(hashes) or not len(self.hashes):
            return None
        places = np.searchsorted(self.hashes, hashes)
        places[places == len(self.hashes)] = 0
        hits = np.flatnonzero(self.hashes[places] == hashes)
        if not len(hits):
            return None
        return int(self.owners[places[hits[0]]]), int(hits[0])

    def identity(self) -> str:
        """Return a digest of the n-grams and of the names of the files."""
        content = self.hashes.tobytes() + self.owners.tobytes()
        names = "\n".join(file.url for file in self.files)
        return hashlib.sha256(content + names.encode("utf-8", "surrogateescape")).hexdigest()


def read_benchmarks(source: Paths, length: int) -> Benchmarks:
    """Return the n-grams of files of benchmark texts.

    Parameters
    ----------
    source
        Jsonl or Parquet files, of which every string at any depth is a text of its own; or text
        files, each of which is one text.
    length
        Words of an n-gram.

    Raises
    ------
    ConfigError
        If no text has that many words.
    SourceError
        If a file is damaged or named twice.
    StoreNotFoundError
        If a file is missing.
    """
    opened, _ = open_texts(source, None, None, "error")
    known = WordHashes()
    files, found, owners = [], [], []
    for number, url in enumerate(opened.urls):
        num_texts, num_short, own = 0, 0, [np.empty(0, np.uint64)]
        for part in opened.url_parts(number):
            records: Any = opened.read_part(part)
            with closing(records):
                for record in records:
                    values = (value for name, value in record.items() if name[:2] != "__")
                    for text in _texts_of(list(values)):
                        hashes = hash_ngrams(known.read(split_words(text)), length)
                        num_texts += 1
                        num_short += not len(hashes)
                        own.append(hashes)
        unique = np.unique(np.concatenate(own))
        files.append(Benchmark(url, num_texts, num_short, len(unique)))
        found.append(unique)
        owners.append(np.full(len(unique), number, np.int32))
        if not len(unique):
            raise ConfigError(
                f"each file to decontaminate against (--decontaminate) must have a text of at "
                f"least {length} words, {url} has {num_texts:,} texts, all of them shorter; name "
                "another file, or shorten the n-grams with ngram (--ngram)"
            )
    hashes, first = np.unique(np.concatenate(found), return_index=True)
    return Benchmarks(tuple(files), length, hashes, np.concatenate(owners)[first])


def _texts_of(value: Any) -> Iterator[str]:
    """Yield all strings in a JSON value other than names."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts_of(item)
