"""Keys of the scalable order: one for each use, none of them a sum of two numbers."""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from zindex.kernels.bijection import KEY_DTYPE, NUM_ROUNDS
from zindex.plan.split import SPLIT_NAMES


class Stage(IntEnum):
    """What a key permutes. The numbers are part of the format."""

    DOCUMENT = 1
    SAMPLE = 2


def round_keys(
    seed: int, stage: Stage, *, source_digest: str, split: str, epoch: int
) -> npt.NDArray[np.uint64]:
    """Return the round keys of one permutation.

    Parameters
    ----------
    seed
        The run's seed, >= 0.
    stage
        What is permuted.
    source_digest
        SHA-256 of the dataset's sequence lengths, in hex: two datasets never share a permutation.
    split
        ``"train"``, ``"valid"`` or ``"test"``.
    epoch
        Number of the pass, >= 0.

    Returns
    -------
    keys
        Shape (NUM_ROUNDS,), uint64.

    Notes
    -----
    Source: ``numpy.random.SeedSequence``, whose output numpy keeps stable (NEP 19).
    """
    words = [int(source_digest[8 * i : 8 * i + 8], 16) for i in range(4)]
    spawn_key = (int(stage), *words, SPLIT_NAMES.index(split), epoch)
    sequence = np.random.SeedSequence(seed, spawn_key=spawn_key)
    return sequence.generate_state(NUM_ROUNDS, KEY_DTYPE).astype(np.uint64, copy=False)
