"""An exactly uniform order of a whole run, computed by independent tasks in bounded memory.

The samples are divided into parts. One task per part scatters its samples to as many buckets as
there are parts; one task per bucket gathers and shuffles its samples. The concatenated buckets are
the order, uniform over all orders if the random words are. Both kinds of task write scratch files,
which readers verify by checksums.

A scratch file has blocks, each followed by its crc32c, and a footer: the lengths of the blocks,
int64, and its crc32c. The checksums are mixed with the identity of the content, so that a file of
another seed, split or size is rejected like a damaged one.
"""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zindex.arrays import Int64Array, IntegerArray, UInt64Array
from zindex.errors import PlanError, VerificationError, check_choice, check_whole
from zindex.io import files, local
from zindex.io.regular_files import regular
from zindex.kernels import scatter_shuffle as kernels
from zindex.kernels.scatter_shuffle import KEY_LENGTH, SCATTER_VERSION
from zindex.plan.keys import Stage, split_key
from zindex.plan.split import SPLIT_NAMES
from zindex.store.codecs import checksum

Samples = IntegerArray

#: Samples per part, for up to ``MAX_PARTS`` parts; part of the format.
MIN_PART_LENGTH = 2**22
#: Most parts, hence buckets; part of the format.
MAX_PARTS = 2**12
#: Maximum number of samples: a bucket, slightly longer than a part, is shuffled by 32-bit draws.
MAX_SAMPLES = 2**43

# Samples per block of a bucket's file, the unit of reading and verification.
_BLOCK_LENGTH = 2**16
_CRC_NBYTES = 4
_REMEDY = "remove the file and build again"


@dataclass(frozen=True, slots=True)
class UniformShuffle:
    """Identity of an exactly uniform order."""

    #: Samples of the run, N: the order is a permutation of ``[0, N)``.
    num_samples: int
    #: The run's seed, >= 0.
    seed: int
    #: ``"train"``, ``"valid"`` or ``"test"``.
    split: str
    #: Shortest part, >= 1; other values give other orders, and are used by tests.
    min_part_length: int = MIN_PART_LENGTH

    def __post_init__(self) -> None:
        if not 0 <= self.num_samples <= MAX_SAMPLES:
            raise PlanError(
                f"a uniform shuffle must have 0 to 2**43 samples, got {self.num_samples}; "
                "use the keyed shuffle for more"
            )
        check_whole("seed", self.seed, 0)
        check_choice("split", self.split, SPLIT_NAMES)

    @property
    def part_length(self) -> int:
        """Samples per part, except in the last one."""
        length = self.min_part_length
        while self.num_samples > length * MAX_PARTS:
            length *= 2
        return length

    @property
    def num_parts(self) -> int:
        """Parts, >= 1; there are as many buckets."""
        return max(1, -(-self.num_samples // self.part_length))

    @property
    def dtype(self) -> np.dtype[np.integer]:
        """Dtype of sample ids."""
        return np.dtype(np.uint32 if self.num_samples <= 2**32 else np.uint64)

    def part_bounds(self, part: int) -> tuple[int, int]:
        """Return the samples ``[start, stop)`` of a part."""
        start = part * self.part_length
        return start, min(start + self.part_length, self.num_samples)

    def key(self, stage: Stage, part: int) -> UInt64Array:
        """Return the key of a part (``Stage.SCATTER``) or of a bucket (``Stage.BUCKET``)."""
        return split_key(self.seed, stage, self.split, part, num_words=KEY_LENGTH)

    def part_path(self, folder: Path, part: int) -> Path:
        """Return the file of the scattered samples of a part."""
        return folder / f"part-{part:04d}.scratch"

    def bucket_path(self, folder: Path, bucket: int) -> Path:
        """Return the file of the shuffled samples of a bucket."""
        return folder / f"bucket-{bucket:04d}.scratch"


def scatter_part(shuffle: UniformShuffle, folder: Path, part: int) -> Int64Array:
    """Task: scatter one part to the buckets; return the number of samples in each.

    Returns
    -------
    counts
        Shape (buckets,), int64.

    Notes
    -----
    Law: idempotent; a second call writes nothing. Cost: O(part), or one read of a footer if the
    file exists; memory of one and a half parts. Creates the folder.
    """
    path, salt = shuffle.part_path(folder, part), _salt(shuffle, Stage.SCATTER, part)
    start, stop = shuffle.part_bounds(part)
    found = _find_lengths(path, shuffle.num_parts, stop - start, shuffle.dtype, salt)
    if found is not None:
        return found
    samples, counts = _scatter(shuffle, part)
    _write(path, samples, counts, salt)
    return counts


def locate_pieces(part_counts: Int64Array, bucket: int) -> Int64Array:
    """Return the offsets and lengths of one bucket's spans in the files of the parts.

    Parameters
    ----------
    part_counts
        Shape (parts, buckets), int64: the results of `scatter_part`, in order of the parts.
    bucket
        Number of the bucket, ``[0, num_parts)``.

    Returns
    -------
    pieces
        Shape (parts, 2), int64: samples of earlier buckets, samples of this bucket.
    """
    before = part_counts[:, :bucket].sum(axis=1, dtype=np.int64)
    return np.stack([before, part_counts[:, bucket]], axis=1)


def shuffle_pieces(shuffle: UniformShuffle, folder: Path, bucket: int, pieces: Int64Array) -> None:
    """Task: gather and shuffle one bucket.

    Parameters
    ----------
    shuffle, folder
        The order, and the directory of the files of all parts.
    bucket
        Number of the bucket, ``[0, num_parts)``.
    pieces
        Shape (parts, 2), int64, from `locate_pieces`.

    Raises
    ------
    VerificationError
        If the file of a part is missing, or its span of this bucket is damaged.

    Notes
    -----
    Law: idempotent; a second call writes nothing. Cost: O(bucket + parts) time, one read per part;
    memory of one bucket.
    """
    size = int(pieces[:, 1].sum())
    path, salt = shuffle.bucket_path(folder, bucket), _salt(shuffle, Stage.BUCKET, bucket)
    blocks = _bucket_blocks(size)
    found = _find_lengths(path, len(blocks), size, shuffle.dtype, salt)
    if found is not None and np.array_equal(found, blocks):
        return
    samples = np.empty(size, shuffle.dtype)
    first = 0
    for part, (before, length) in enumerate(pieces.tolist()):
        _read_blocks(
            shuffle.part_path(folder, part),
            samples[first : first + length],
            [length],
            before * shuffle.dtype.itemsize + bucket * _CRC_NBYTES,
            _salt(shuffle, Stage.SCATTER, part),
        )
        first += length
    kernels.shuffle(samples, shuffle.key(Stage.BUCKET, bucket))
    _write(path, samples, blocks, salt)


def start_buckets(part_counts: Int64Array) -> Int64Array:
    """Return the first position of each bucket, then the end: shape (buckets + 1,)."""
    starts = np.zeros(part_counts.shape[1] + 1, np.int64)
    np.cumsum(part_counts.sum(axis=0, dtype=np.int64), out=starts[1:])
    return starts


def read_positions(
    shuffle: UniformShuffle, folder: Path, bucket_starts: Int64Array, start: int, stop: int
) -> Samples:
    """Return the samples at positions ``[start, stop)`` of the order.

    Parameters
    ----------
    shuffle, folder
        The order, and the directory of the files of all buckets.
    bucket_starts
        Shape (buckets + 1,), int64, from `start_buckets`.
    start, stop
        Positions, ``0 <= start <= stop <= num_samples``.

    Returns
    -------
    samples
        Shape (stop - start,), uint32 or uint64.

    Raises
    ------
    VerificationError
        If the file of a bucket is missing, or a block of it is damaged.

    Notes
    -----
    Law: equal to those of `permute_all`. Cost: O(positions), and up to two more blocks per bucket.
    """
    runs: list[Samples] = [np.empty(0, shuffle.dtype)]
    first, last = np.searchsorted(bucket_starts, [start, stop - 1], side="right").tolist()
    for bucket in range(first - 1, last if start < stop else 0):
        begin, end = bucket_starts[bucket : bucket + 2].tolist()
        upto = min(stop, end) - begin
        since = max(start, begin) - begin
        if since < upto:
            runs.append(_read_bucket(shuffle, folder, bucket, end - begin, since, upto))
    return np.concatenate(runs)


def permute_all(shuffle: UniformShuffle) -> Samples:
    """Return the whole order, without files.

    Returns
    -------
    samples
        Shape (num_samples,), uint32 or uint64.

    Notes
    -----
    Law: equal to the order in the files. Cost: O(num_samples) time, twice the memory of the result.

    Examples
    --------
    >>> permute_all(UniformShuffle(6, 1234, "train"))
    array([4, 1, 5, 3, 0, 2], dtype=uint32)
    """
    scattered = [_scatter(shuffle, part) for part in range(shuffle.num_parts)]
    counts = np.stack([counts for _, counts in scattered])
    starts = start_buckets(counts)
    order = np.empty(shuffle.num_samples, shuffle.dtype)
    for bucket in range(shuffle.num_parts):
        samples = order[starts[bucket] : starts[bucket + 1]]
        pieces = zip(scattered, locate_pieces(counts, bucket).tolist(), strict=True)
        np.concatenate(
            [part[before : before + length] for (part, _), (before, length) in pieces], out=samples
        )
        kernels.shuffle(samples, shuffle.key(Stage.BUCKET, bucket))
    return order


def remove_scratch(folder: Path) -> None:
    """Remove scratch files, including partly written ones, if possible; keep other files."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if ".scratch" in path.suffixes and path.name.startswith(("part-", "bucket-")):
                with contextlib.suppress(OSError):
                    path.unlink()
        folder.rmdir()


def _scatter(shuffle: UniformShuffle, part: int) -> tuple[Samples, Int64Array]:
    """Return the samples of a part grouped by bucket, and their counts."""
    start, stop = shuffle.part_bounds(part)
    samples = np.empty(stop - start, shuffle.dtype)
    key = shuffle.key(Stage.SCATTER, part)
    return samples, kernels.scatter(start, stop - start, shuffle.num_parts, key, samples)


def _salt(shuffle: UniformShuffle, stage: Stage, part: int) -> int:
    """Return the salt of a file's checksums: a checksum of its identity."""
    size = (shuffle.num_samples, shuffle.part_length)
    names = (SCATTER_VERSION, *size, shuffle.seed, int(stage), part, shuffle.split)
    return checksum(repr(names).encode())


def _bucket_blocks(size: int) -> Int64Array:
    """Return the lengths of the blocks of a bucket."""
    starts = np.arange(0, size, _BLOCK_LENGTH, dtype=np.int64)
    return np.minimum(size - starts, _BLOCK_LENGTH)


def _seal(buffer: bytes | memoryview, salt: int) -> bytes:
    """Return the salted checksum of a block or a footer, as stored."""
    return (checksum(buffer) ^ salt).to_bytes(_CRC_NBYTES, "little")


def _split(samples: Samples, lengths: Iterable[int]) -> Iterator[memoryview]:
    """Yield consecutive blocks of samples as bytes."""
    raw, start = samples.view(np.uint8).data, 0
    for length in lengths:
        stop = start + length * samples.dtype.itemsize
        yield raw[start:stop]
        start = stop


def _write(path: Path, samples: Samples, lengths: Int64Array, salt: int) -> None:
    """Write a scratch file, replacing a damaged one."""
    buffers: list[bytes | memoryview] = []
    for block in (*_split(samples, lengths.tolist()), lengths.astype("<i8").view(np.uint8).data):
        buffers += (block, _seal(block, salt))
    if not local.write_once(path, buffers):
        found = _find_lengths(path, len(lengths), samples.size, samples.dtype, salt)
        if found is None or not np.array_equal(found, lengths):
            local.write_once(path, buffers, replace=True)


def _find_lengths(
    path: Path, num_blocks: int, size: int, dtype: np.dtype[np.integer], salt: int
) -> Int64Array | None:
    """Return the lengths of the blocks of a file, or None if it is missing or damaged.

    Its size and footer are verified here, blocks when they are read.
    """
    footer_nbytes = num_blocks * 8 + _CRC_NBYTES
    nbytes = size * dtype.itemsize + num_blocks * _CRC_NBYTES + footer_nbytes
    if files.file_nbytes(path) != nbytes:
        return None
    stored = bytes(files.read_range(path, nbytes - footer_nbytes, nbytes))
    footer, seal = stored[:-_CRC_NBYTES], stored[-_CRC_NBYTES:]
    if seal != _seal(footer, salt):
        return None
    return np.frombuffer(footer, "<i8").astype(np.int64)


def _read_bucket(
    shuffle: UniformShuffle, folder: Path, bucket: int, size: int, start: int, stop: int
) -> Samples:
    """Return samples ``[start, stop)`` of a bucket by reading the blocks that hold them."""
    first, last = start // _BLOCK_LENGTH, -(-stop // _BLOCK_LENGTH)
    blocks = _bucket_blocks(size)[first:last]
    samples = np.empty(int(blocks.sum()), shuffle.dtype)
    offset = first * (_BLOCK_LENGTH * shuffle.dtype.itemsize + _CRC_NBYTES)
    path, salt = shuffle.bucket_path(folder, bucket), _salt(shuffle, Stage.BUCKET, bucket)
    _read_blocks(path, samples, blocks.tolist(), offset, salt)
    skipped = first * _BLOCK_LENGTH
    return samples[start - skipped : stop - skipped]


def _read_blocks(path: Path, samples: Samples, lengths: list[int], offset: int, salt: int) -> None:
    """Fill ``samples`` with consecutive blocks at a byte offset, and verify them."""
    try:
        with open(path, "rb", opener=regular) as file:
            file.seek(offset)
            for k, block in enumerate(_split(samples, lengths)):
                file.readinto(block)
                seal = file.read(_CRC_NBYTES)
                if len(seal) < _CRC_NBYTES:
                    raise VerificationError(
                        f"{path} must hold {samples.nbytes} bytes of samples from byte {offset} "
                        f"on, it is shorter; {_REMEDY}"
                    )
                if seal != _seal(block, salt):
                    raise VerificationError(
                        f"block {k} ({lengths[k]} samples) from byte {offset} on of {path} fails "
                        f"its checksum; {_REMEDY}"
                    )
    except FileNotFoundError as error:
        raise VerificationError(
            f"{path} must hold samples of a shuffle, it is missing; build again, with an index "
            "folder that all workers share"
        ) from error
