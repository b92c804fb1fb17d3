"""Keys: distinct for every use, and frozen."""

import hashlib
from itertools import product

import numpy as np

from zindex.kernels.bijection import NUM_ROUNDS
from zindex.plan.keys import Stage, edit_seed, record_split_key, round_keys, split_key
from zindex.plan.split import SPLIT_NAMES

DIGESTS = [hashlib.sha256(name).hexdigest() for name in (b"a", b"b")]


def test_keys_are_distinct_over_every_input() -> None:
    """Among them the pairs that a sum of seed and epoch would confuse."""
    seeds = (0, 1, 2, 3, 2**32 - 1, 2**32, 2**32 + 1, 2**62)
    epochs = (0, 1, 2, 3, 1000)
    keys = {
        round_keys(seed, stage, source_digest=digest, split=split, epoch=epoch).tobytes()
        for seed, stage, digest, split, epoch in product(seeds, Stage, DIGESTS, SPLIT_NAMES, epochs)
    }
    assert len(keys) == len(seeds) * len(Stage) * len(DIGESTS) * len(SPLIT_NAMES) * len(epochs)


def test_every_half_of_the_digest_that_is_used_counts() -> None:
    base = "0" * 64
    keys = {
        round_keys(
            1, Stage.SAMPLE, source_digest=base[:i] + "1" + base[i + 1 :], split="train", epoch=0
        ).tobytes()
        for i in range(32)
    }
    assert len(keys) == 32


def test_keys_are_frozen() -> None:
    """They are part of the format: with other keys a stored seed would name another order."""
    assert (Stage.DOCUMENT, Stage.SAMPLE) == (1, 2)
    assert SPLIT_NAMES == ("train", "valid", "test")
    keys = round_keys(1234, Stage.SAMPLE, source_digest=DIGESTS[0], split="valid", epoch=2)
    assert (keys.shape, keys.dtype) == ((NUM_ROUNDS,), np.uint64)
    assert (
        hashlib.sha256(keys.astype("<u8").tobytes()).hexdigest()
        == "3a4ac4a98fa2f8bf2baaa94fe0096d3dde89502a242ed5ceb126de8ec2cd68b6"
    )


def test_seeds_and_keys_of_edits_are_their_own() -> None:
    seeds = {edit_seed(7, split, number) for split in ("train", "valid") for number in (1, 2, 3)}
    assert len(seeds) == 6
    assert all(0 <= seed < 2**32 for seed in seeds)
    keys = {
        split_key(7, Stage.CUT, "train", source, window).tobytes()
        for source in (0, 1)
        for window in (0, 1)
    }
    assert len(keys) == 4
    assert edit_seed(7, "train", 1) == edit_seed(7, "train", 1)


def test_the_key_of_a_split_of_records_depends_on_the_seed() -> None:
    assert len({record_split_key(seed).tobytes() for seed in (0, 1, 2**32)}) == 3
    assert (record_split_key(7).shape, record_split_key(7).dtype) == ((2,), np.uint64)
