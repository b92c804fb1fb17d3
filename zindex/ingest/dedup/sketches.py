"""The first stage: read a partition once, and keep its lines with what is compared of each.

::

    TARGET.work/_zindex/scratch/<partition>-<number>    the streams of one block of lines
    TARGET.work/_zindex/scratch/<partition>.json        its blocks, written when all are

The streams of a block: its lines, their lengths and numbers, digests, benchmarks, places of shared
n-grams, and one stream of keys for each band of MinHash.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import numpy as np

from zindex.arrays import AnyArray, UInt64Array
from zindex.errors import SourceError
from zindex.formats.json_lines import parse_object
from zindex.ingest.dedup.benchmarks import Benchmarks
from zindex.ingest.dedup.compared_text import ComparedText, read_compared
from zindex.ingest.records.read_partitions import Partition, own_copy
from zindex.io.objects import Place
from zindex.lazy import need
from zindex.sources.jsonl_files import JsonlFiles
from zindex.store.scratch import (
    is_whole,
    read_note,
    read_stream,
    stored_nbytes,
    write_note,
    write_streams,
)
from zindex.text.ngrams import WordHashes, hash_ngrams

#: Words of a shingle, by which the similarity of two texts is measured.
SHINGLE_LENGTH = 5
#: Hashes of a MinHash signature, and the least share of pairs at the threshold to be found.
NUM_HASHES, LEAST_RECALL = 128, 0.99
#: Streams before those of the bands: name, dtype and values of a record.
STREAMS: tuple[tuple[str, str, int], ...] = (
    *(("line", "uint8", 0), ("length", "int64", 1), ("number", "int64", 1)),
    *(("digest", "uint64", 2), ("benchmark", "int32", 1), ("place", "int32", 1)),
)
# Texts whose signatures are computed together, which bounds their memory.
_MAX_TEXTS = 1 << 12
# Bytes that a record takes in a block besides its line.
_RECORD_NBYTES = 64
_SEED = 1
_FACTOR, _SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(29)


class Bands(NamedTuple):
    """Locality-sensitive hashing of MinHash signatures."""

    num_bands: int
    #: Hashes of a band; texts that agree in all hashes of some band are compared.
    num_rows: int

    def recall(self, similarity: float) -> float:
        """Return the probability that texts of a similarity are compared."""
        return 1.0 - (1.0 - similarity**self.num_rows) ** self.num_bands


def choose_bands(threshold: float) -> Bands:
    """Return the widest bands that find pairs at a threshold with `LEAST_RECALL`.

    Examples
    --------
    >>> choose_bands(0.8), round(choose_bands(0.8).recall(0.8), 3)
    (Bands(num_bands=21, num_rows=6), 0.998)
    """
    rows = range(NUM_HASHES, 1, -1)
    every = (Bands(NUM_HASHES // num_rows, num_rows) for num_rows in rows)
    fitting = (bands for bands in every if bands.recall(threshold) >= LEAST_RECALL)
    return next(fitting, Bands(NUM_HASHES, 1))


class Block(NamedTuple):
    """Consecutive records in one scratch file."""

    name: str
    num_records: int
    #: Bytes of each stream.
    sizes: tuple[int, ...]
    #: The number of each source file and how many consecutive records it has.
    urls: tuple[tuple[int, int], ...]

    def read(self, root: Place, stream: int, dtype: str, start: int, stop: int) -> AnyArray:
        """Return elements ``[start, stop)`` of a stream."""
        out = np.empty(stop - start, dtype)
        base = sum(map(stored_nbytes, self.sizes[:stream]))
        first, nbytes = start * out.itemsize, self.sizes[stream]
        read_stream(root, self.name, base, nbytes, first, out.view(np.uint8))
        return out


class Sketched(NamedTuple):
    """The blocks of one partition."""

    blocks: tuple[Block, ...]
    num_skipped: int


@dataclass(frozen=True, slots=True)
class Sketcher:
    """The source, and what is compared of its records."""

    source: JsonlFiles
    #: The only field to compare; None compares texts and conversations.
    field: str | None = None
    bands: Bands | None = None
    benchmarks: Benchmarks | None = None
    skip_damaged: bool = False
    #: Bytes of a block.
    block_nbytes: int = 1 << 25

    def read(self, line: bytes) -> ComparedText:
        """Return what is compared of a line; SourceError without a location if it is damaged."""
        return read_compared(parse_object(line), self.field)

    def locate(self, error: SourceError, url: int, number: int) -> SourceError:
        """Return the error for a damaged line."""
        return SourceError(
            f"{self.source.urls[url]}, line {number + 1:,}: {error}; or leave out such lines with "
            "on_damage='skip' (--on-damage skip)"
        )


def sketch_partition(sketcher: Sketcher, root: Place, partition: Partition) -> Sketched:
    """Task: read a partition into blocks, unless already done.

    Parameters
    ----------
    sketcher
        The source, and what is compared.
    root
        The work folder.
    partition
        The parts to read.

    Raises
    ------
    SourceError
        If a line is damaged and damage is not skipped.
    """
    note = read_note(root, partition.name)
    if note is not None:
        blocks = tuple(
            Block(name, count, tuple(sizes), tuple(map(tuple, urls)))
            for name, count, sizes, urls in note["blocks"]
        )
        if all(is_whole(root, block.name, block.sizes) for block in blocks):
            return Sketched(blocks, note["num_skipped"])
    source = own_copy(sketcher.source)
    writer = _BlockWriter(sketcher, root, partition.name)
    before = source.num_skipped
    for part, url in enumerate(partition.urls, partition.start):
        for number, line in source.read_part_lines(part):
            try:
                text = sketcher.read(line)
            except SourceError as error:
                if not sketcher.skip_damaged:
                    raise sketcher.locate(error, url, number) from error
                writer.num_skipped += 1
                continue
            writer.add(text, line, url, number)
    writer.flush()
    found = Sketched(tuple(writer.blocks), writer.num_skipped + source.num_skipped - before)
    write_note(root, partition.name, found._asdict())
    return found


class _BlockWriter:
    """Buffers records and writes them as a block when there are enough."""

    def __init__(self, sketcher: Sketcher, root: Place, name: str) -> None:
        self.sketcher, self.root, self.name = sketcher, root, name
        self.words = WordHashes()
        self.blocks: list[Block] = []
        self.num_skipped = 0
        self._clear()

    def _clear(self) -> None:
        self.lines: list[bytes] = []
        self.nbytes = 0
        self.urls, self.numbers = array("q"), array("q")
        self.digests = bytearray()
        self.found, self.places = array("i"), array("i")
        self.shingles: list[UInt64Array] = []
        self.keys: list[UInt64Array] = []

    def add(self, text: ComparedText, line: bytes, url: int, number: int) -> None:
        """Buffer one record."""
        canonical = text.canonical.encode("utf-8", "surrogatepass")
        self.digests += blake2b(canonical, digest_size=16).digest()
        hit = None
        bands, benchmarks = self.sketcher.bands, self.sketcher.benchmarks
        if bands is not None or benchmarks is not None:
            words = self.words.read(text.words())
            if benchmarks is not None:
                hit = benchmarks.find(words)
            if bands is not None:
                length = max(1, min(SHINGLE_LENGTH, len(words)))
                self.shingles.append(hash_ngrams(words, length))
                if len(self.shingles) >= _MAX_TEXTS:
                    self._hash_shingles(bands)
        benchmark, place = (-1, 0) if hit is None else hit
        self.found.append(benchmark)
        self.places.append(place)
        self.urls.append(url)
        self.numbers.append(number)
        self.lines.append(line)
        self.nbytes += len(line) + _RECORD_NBYTES
        if self.nbytes >= self.sketcher.block_nbytes:
            self.flush()

    def flush(self) -> None:
        """Write the buffered records, if there are any."""
        if not self.lines:
            return
        lengths = array("q", map(len, self.lines))
        streams: list[Any] = [b"".join(self.lines), lengths, self.numbers, self.digests]
        streams += [self.found, self.places]
        if self.sketcher.bands is not None:
            self._hash_shingles(self.sketcher.bands)
            streams += list(np.concatenate(self.keys, axis=1))
        name = f"{self.name}-{len(self.blocks):06d}"
        views = [memoryview(stream).cast("B") for stream in streams]
        write_streams(self.root, name, views)
        urls = tuple((url, len(list(same))) for url, same in groupby(self.urls))
        self.blocks.append(Block(name, len(lengths), tuple(map(len, views)), urls))
        self._clear()

    def _hash_shingles(self, bands: Bands) -> None:
        """Reduce the shingles of buffered records to the keys of their bands."""
        if self.shingles:
            self.keys.append(hash_bands(self.shingles, bands))
            self.shingles = []


def load_minhash() -> Any:
    """Return the class of MinHash signatures; ConfigError if its library is missing."""
    return need("rensa", "near-duplicate removal (near, --near)", "zindex[dedup]").RMinHash


def hash_bands(shingles: Sequence[UInt64Array], bands: Bands) -> UInt64Array:
    """Return the key of each band of each text.

    Parameters
    ----------
    shingles
        Hashes of the shingles of each text.
    bands
        The bands.

    Returns
    -------
    keys
        Shape (bands, texts), uint64. Texts without shingles have keys 0, others odd ones.
    """
    offsets = np.array([*accumulate(map(len, shingles), initial=0)], np.uint64)
    signatures = load_minhash().digest_matrix_from_flat_token_hashes(
        np.concatenate(shingles), offsets, NUM_HASHES, _SEED
    )
    hashes = np.array(signatures.to_rows(), np.uint64)
    used = hashes[:, : bands.num_bands * bands.num_rows]
    used = used.reshape(len(shingles), bands.num_bands, bands.num_rows)
    keys = np.zeros(used.shape[:2], np.uint64)
    for row in range(bands.num_rows):
        keys ^= used[:, :, row]
        keys *= _FACTOR
        keys ^= keys >> _SHIFT
    keys |= np.uint64(1)
    keys[offsets[1:] == offsets[:-1]] = 0
    return np.ascontiguousarray(keys.T)
