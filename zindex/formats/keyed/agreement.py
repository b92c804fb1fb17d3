"""Whether the shards of keyed files fit together: the same keys, dtypes and records everywhere."""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from zindex.errors import SourceError
from zindex.formats.keyed.shards import KeyedArray, KeyedShard

logger = logging.getLogger(__name__)

_NUMBERED = re.compile("(.*_)([0-9]{1,18})")
_LOOSELY = "give strict=False (--loose) to cut all keys to the shortest instead"


def check_shards(shards: Sequence[KeyedShard], strict: bool = True) -> list[KeyedShard]:
    """Return shards that fit together, each key of one dtype in all of them.

    Keys without values have the dtype that the key has elsewhere. Where records cannot be matched
    over the keys of a shard, they are left out, so that only its values can be read.

    Parameters
    ----------
    shards
        As `read_bin_shards` and `read_h5_shards` return them.
    strict
        Whether all shards must have the same keys, and the keys of a shard the same number of
        values or else of records, numbered without a gap where they are numbered from 0. If not,
        what is wrong is only logged: each key has its values in the shards that have it, so that
        values after a gap no longer match those of other keys.

    Raises
    ------
    SourceError
        If they do not fit together; the message names the shard, the key and the numbers.
    """
    if not shards:
        return []
    faults = [fault for fault in (_find_fault(shard, shards[0]) for shard in shards) if fault]
    if faults and strict:
        raise SourceError(f"{faults[0]}; restore the shard, or {_LOOSELY}")
    for fault in faults[:1]:
        logger.warning(
            "keys do not match in %s of %s shards: %s; they are cut to the shortest, and values "
            "after that place may belong to other records",
            f"{len(faults):,}",
            f"{len(shards):,}",
            fault,
        )
    gaps = [gap for gap in map(_find_gap, shards) if gap]
    if gaps and strict:
        raise SourceError(
            f"{gaps[0]}; restore the shard, or give strict=False (--loose) to take what is there"
        )
    for gap in gaps[:1]:
        logger.warning("records are missing in %s of %s shards: %s", len(gaps), len(shards), gap)
    dtypes = _find_dtypes(shards)
    return [_fit(shard, dtypes, has_faults=bool(faults)) for shard in shards]


def _find_fault(shard: KeyedShard, first: KeyedShard) -> str:
    """Return what is wrong with the keys of a shard, or nothing."""
    if shard.arrays.keys() != first.arrays.keys():
        missing = sorted(first.arrays.keys() - shard.arrays.keys())
        surplus = sorted(shard.arrays.keys() - first.arrays.keys())
        parts = [f"lacks {', '.join(map(repr, missing))}"] if missing else []
        parts += [f"has {', '.join(map(repr, surplus))}"] if surplus else []
        return (
            f"all shards must have the same keys, but shard {shard.name!r} "
            f"{' and '.join(parts)} unlike shard {first.name!r}"
        )
    arrays = list(shard.arrays.values())
    if _is_same([array.num_records for array in arrays]) and arrays[0].num_records is not None:
        return _find_other_record(shard.name, arrays)
    if _is_same([array.length for array in arrays]):
        return ""
    return (
        "all keys of a shard must have the same number of values, or of records, but shard "
        f"{shard.name!r} has {_count(arrays)}"
    )


def _is_same(counts: Sequence[int | None]) -> bool:
    """Return whether all of these are equal."""
    return len(set(counts)) == 1


def _count(arrays: Sequence[KeyedArray]) -> str:
    """Return values and records of the keys for a message."""
    return ", ".join(
        f"{array.key!r} with {array.length:,} values"
        + ("" if array.num_records is None else f" in {array.num_records:,} records")
        for array in arrays
    )


def _find_other_record(shard: str, arrays: Sequence[KeyedArray]) -> str:
    """Return where records of two keys of a shard have other names, or nothing."""
    named = [(array.key, _record_names(array)) for array in arrays if array.names is not None]
    for (first_key, first_names), (key, names) in pairwise(named):
        for i, (one, other) in enumerate(zip(first_names, names, strict=True)):
            if one and other and one != other:
                return (
                    f"all keys of a shard must have the same records, but record {i:,} of shard "
                    f"{shard!r} is {one!r} in {first_key!r} and {other!r} in {key!r}"
                )
    return ""


def _find_gap(shard: KeyedShard) -> str:
    """Return where a number is missing between those of a key's records, or nothing."""
    for array in shard.arrays.values():
        names = [] if array.names is None else _record_names(array)
        first, last = (_NUMBERED.fullmatch(names[i]) if names else None for i in (0, -1))
        # They are in natural order, so that the first and the last one nearly always tell.
        if first is None or last is None or int(first[2]) or int(last[2]) < len(names):
            continue
        found = [_NUMBERED.fullmatch(name) for name in names]
        if any(match is None or match[1] != first[1] for match in found):
            continue
        numbers = [int(match[2]) for match in found if match]
        if len(set(numbers)) < len(numbers):
            continue
        missing = next(i for i, number in enumerate(numbers) if i != number)
        return (
            f"the records of a key must be numbered without a gap, but {array.key!r} of shard "
            f"{shard.name!r} has {names[missing - 1]!r} and {names[missing]!r} next to each other"
        )
    return ""


def _record_names(array: KeyedArray) -> list[str]:
    """Return the names of the records of a key, or nothing for groups without items."""
    names = array.names or ()
    if array.group_offset is None:
        return [name.split("/")[1] for name in names]
    return [
        names[start].split("/")[1] if start < stop else ""
        for start, stop in pairwise(array.group_offset.tolist())
    ]


def _find_dtypes(shards: Sequence[KeyedShard]) -> dict[str, str]:
    """Return the dtype of each key; SourceError if it has two."""
    found: dict[str, tuple[str, str]] = {}
    for shard in shards:
        for key, array in shard.arrays.items():
            if array.length == 0:
                continue
            dtype, elsewhere = found.setdefault(key, (array.dtype, shard.name))
            if array.dtype != dtype:
                raise SourceError(
                    f"a key must have one dtype in all shards, but {key!r} has {array.dtype} in "
                    f"shard {shard.name!r} and {dtype} in shard {elsewhere!r}; convert one of them"
                )
    return {key: dtype for key, (dtype, _) in found.items()}


def _fit(shard: KeyedShard, dtypes: Mapping[str, str], *, has_faults: bool) -> KeyedShard:
    """Return a shard with these dtypes, and without records where they cannot be matched."""
    counts = [array.num_records for array in shard.arrays.values()]
    is_matched = not has_faults and _is_same(counts)
    if not is_matched and not has_faults and any(count is not None for count in counts):
        logger.warning(
            "the keys of shard %r are cut into records at other places (%s), so that only its "
            "values can be read, not its records",
            shard.name,
            _count(list(shard.arrays.values())),
        )
    arrays = {}
    for key, array in shard.arrays.items():
        fitted = replace(array, dtype=dtypes.get(key, array.dtype))
        if not is_matched:
            fitted = replace(fitted, item_offset=None, group_offset=None)
        arrays[key] = fitted
    return KeyedShard(shard.name, arrays)
