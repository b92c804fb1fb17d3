"""Split the records of a store into train, valid and test.

Records are split, not windows, so that no text occurs in two splits, as with overlapping windows.
The split is arithmetic on record numbers, without reads.
"""

import re
from dataclasses import dataclass

import numpy as np

from zindex.arrays import Int8Array, Int64Array, IntegerArray, UInt64Array
from zindex.errors import ConfigError, PlanError, check_choice, check_whole
from zindex.plan.keys import mix_words, record_split_key
from zindex.plan.split import SPLIT_NAMES, parse_and_normalize_split

_NUMBER = r"\s*(\d+\.?\d*|\.\d+)\s*"
_WEIGHTS = re.compile(rf"{_NUMBER}(,{_NUMBER}){{0,2}}")
# Records hashed at a time.
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class RecordSplit:
    """Assigns records to splits by a keyed hash of their numbers.

    Notes
    -----
    Law: the split of a record depends only on its number, the fractions and the seed. Appending
    records therefore does not change the split of earlier ones, and two stores of the same records,
    such as one for SFT and one for DPO, are split alike. Sizes of splits are approximate: of n
    records, within about ``sqrt(n)`` of their fractions. Raising the fraction of the last split
    only moves records into it.

    Examples
    --------
    >>> split = RecordSplit("80,20", seed=1)
    >>> split.find("valid", 20)
    array([ 4,  6, 11, 13])
    """

    #: Weights of train, valid and test, such as ``"99,1"``.
    split: str
    #: Seed of the hash, >= 0.
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.split, str) or not _WEIGHTS.fullmatch(self.split):
            raise ConfigError(
                "weights of a split (split_weights) must be one to three numbers from 0 on with "
                f"commas between, such as '99,1', got {self.split!r}"
            )
        parse_and_normalize_split(self.split)
        check_whole("seed", self.seed, 0)

    def assign(self, records: IntegerArray) -> Int8Array:
        """Return the splits of records.

        Parameters
        ----------
        records
            Shape (records,), any integer dtype: record numbers, >= 0.

        Returns
        -------
        splits
            Shape (records,), int8: 0 for train, 1 for valid, 2 for test.
        """
        fractions = parse_and_normalize_split(self.split)
        # In float64, the fractions before an empty split can sum to less than 1.
        bounds = [
            sum(fractions[:number]) if sum(fractions[number:]) else 2.0
            for number in range(1, len(fractions))
        ]
        hashes = _hash(records.astype(np.uint64), record_split_key(int(self.seed)))
        uniform = (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53
        found = np.zeros(len(records), np.int8)
        for bound in bounds:
            found += uniform >= bound
        return found

    def find(self, name: str, num_records: int) -> Int64Array:
        """Return the records of one split.

        Parameters
        ----------
        name
            ``"train"``, ``"valid"`` or ``"test"``.
        num_records
            Records of the store.

        Returns
        -------
        records
            Shape (records of the split,), int64, ascending.

        Raises
        ------
        ConfigError
            If there is no split of that name.
        PlanError
            If the split has no records.
        """
        check_choice("a split", name, SPLIT_NAMES)
        number = SPLIT_NAMES.index(name)
        starts = range(0, num_records, _BLOCK)
        blocks = (np.arange(start, min(start + _BLOCK, num_records)) for start in starts)
        parts = (records[self.assign(records) == number] for records in blocks)
        found = np.concatenate([np.empty(0, np.int64), *parts])
        if not len(found):
            raise PlanError(
                f"a split must have records, got none of {num_records:,} for {name!r} of "
                f"{self.split!r}; raise its weight, or choose another seed than {self.seed}"
            )
        return found


def _hash(values: UInt64Array, key: UInt64Array) -> UInt64Array:
    """Return a keyed hash of each value, mixed with each word of the key."""
    for word in key:
        values = mix_words(values ^ word)
    return values
