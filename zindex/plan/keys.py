"""Keys of the scalable order, derived from seed, stage and position, never by adding seeds."""

import hashlib
from enum import IntEnum
from functools import lru_cache

import numpy as np

from zindex.arrays import UInt64Array
from zindex.kernels.bijection import KEY_DTYPE, NUM_ROUNDS
from zindex.plan.split import SPLIT_NAMES

RoundKeys = UInt64Array

# Cached keys: a process reads a few per dataset and epoch.
_NUM_CACHED = 1 << 14


class Stage(IntEnum):
    """The use of a key. The numbers are part of the format."""

    DOCUMENT = 1
    SAMPLE = 2
    BLEND = 3
    SCATTER = 4
    BUCKET = 5
    EDIT = 6
    PASS = 6
    CUT = 7
    STREAM_ORDER = 8
    STREAM_BUFFER = 9
    RECORD_SPLIT = 10
    FILL = 11
    TARGET = 12
    STREAM_SAMPLE = 13
    TOKEN_BATCH = 14


def round_keys(seed: int, stage: Stage, *, source_digest: str, split: str, epoch: int) -> RoundKeys:
    """Return the round keys of one permutation of a dataset's documents or samples.

    Parameters
    ----------
    seed
        The run's seed, >= 0.
    stage
        The use of the keys.
    source_digest
        SHA-256 of the dataset's sequence lengths, in hex: two datasets never share a permutation.
    split
        ``"train"``, ``"valid"`` or ``"test"``.
    epoch
        Number of the epoch, >= 0.

    Returns
    -------
    keys
        Shape (NUM_ROUNDS,), uint64.

    Notes
    -----
    Source: ``numpy.random.SeedSequence``, whose output numpy keeps stable (NEP 19).
    """
    words = [int(source_digest[8 * i : 8 * i + 8], 16) for i in range(4)]
    return _draw_keys(seed, int(stage), *words, SPLIT_NAMES.index(split), epoch)


def split_key(
    seed: int, stage: Stage, split: str, *numbers: int, num_words: int = NUM_ROUNDS
) -> RoundKeys:
    """Return the key of a split of a whole run, or of one of its parts.

    It does not depend on the datasets, so a blend is shuffled before any dataset is opened.

    Parameters
    ----------
    seed
        The run's seed, >= 0, or that of an edit.
    stage
        The use of the key: a blend, a part or a bucket of a uniform shuffle, or tokens that an edit
        cut into samples again.
    split
        ``"train"``, ``"valid"`` or ``"test"``.
    numbers
        Number of the part or the bucket; or of the source in the run, and of the range in it.
    num_words
        Words of the key.

    Returns
    -------
    key
        Shape (num_words,), uint64.
    """
    return _draw_keys(seed, int(stage), SPLIT_NAMES.index(split), *numbers, num_words=num_words)


def edit_seed(seed: int, split: str, number: int) -> int:
    """Return the seed of the samples that an edit adds to a run, below 2**32.

    Parameters
    ----------
    seed
        The run's seed, >= 0.
    split
        ``"train"``, ``"valid"`` or ``"test"``.
    number
        Number of the edit, from 1.
    """
    sequence = np.random.SeedSequence(
        seed, spawn_key=(int(Stage.EDIT), SPLIT_NAMES.index(split), number)
    )
    return int(sequence.generate_state(1, np.uint32)[0])


def stream_key(seed: int, stage: Stage, name: str, *numbers: int, num_words: int) -> RoundKeys:
    """Return the key of the order of a streamed source or partition.

    Parameters
    ----------
    seed
        The seed of the streaming dataset, >= 0.
    stage
        ``Stage.STREAM_ORDER``, ``Stage.STREAM_BUFFER``, ``Stage.STREAM_SAMPLE`` or
        ``Stage.TOKEN_BATCH``.
    name
        Name of the source: two sources never share an order.
    numbers
        Epoch, then the number of the partition, if any.
    num_words
        Words of the key.

    Returns
    -------
    key
        Shape (num_words,), uint64.
    """
    digest = hashlib.sha256(name.encode()).digest()
    words = [int.from_bytes(digest[4 * i : 4 * i + 4], "big") for i in range(4)]
    # Used once, so not cached.
    return _draw_keys.__wrapped__(seed, int(stage), *words, *numbers, num_words=num_words)


def record_split_key(seed: int) -> RoundKeys:
    """Return the key of the hash that assigns records to splits.

    Parameters
    ----------
    seed
        The seed of the split, >= 0.

    Returns
    -------
    key
        Shape (2,), uint64. Stores of the same records share it.
    """
    return _draw_keys(seed, int(Stage.RECORD_SPLIT), num_words=2)


def fill_key(seed: int, split: str, sample: int) -> RoundKeys:
    """Return the key of the fill-in-the-middle draws of one sample.

    Parameters
    ----------
    seed
        The run's seed, >= 0.
    split
        ``"train"``, ``"valid"`` or ``"test"``.
    sample
        Number of the sample in its dataset.

    Returns
    -------
    key
        Shape (2,), uint64.
    """
    # Used once, so not cached.
    where = SPLIT_NAMES.index(split), sample
    return _draw_keys.__wrapped__(seed, int(Stage.FILL), *where, num_words=2)


def mix_words(words: UInt64Array) -> UInt64Array:
    """Return the mixed bits of words, in which every bit depends on all bits of its word.

    Parameters
    ----------
    words
        Shape (words,), uint64.

    Returns
    -------
    mixed
        Shape (words,), uint64; different words stay different.

    Notes
    -----
    Source: the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


@lru_cache(maxsize=_NUM_CACHED)
def _draw_keys(seed: int, *spawn_key: int, num_words: int = NUM_ROUNDS) -> RoundKeys:
    """Return keys from a cache, since readers of single rows need the same ones repeatedly."""
    sequence = np.random.SeedSequence(seed, spawn_key=spawn_key)
    keys = sequence.generate_state(num_words, KEY_DTYPE).astype(np.uint64, copy=False)
    keys.flags.writeable = False
    return keys
