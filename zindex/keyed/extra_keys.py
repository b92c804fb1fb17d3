"""Keys of a store beyond those of its schema, and what their values are aligned with.

A key with the lengths of a declared one is aligned with it, such as one log-probability per token;
a key with one value per record is a scalar; others are sequences of their own.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch

from zindex.arrays import AnyArray
from zindex.formats.keyed.schema_field import Field
from zindex.formats.keyed.schema_presets import KNOWN_KEYS
from zindex.keyed.columns import Column
from zindex.keyed.packed_batches import BOUNDS, DOCUMENTS, LONGEST
from zindex.keyed.packed_records import FIELDS, INPUTS, RECORDS
from zindex.keyed.store import KeyedStore

logger = logging.getLogger(__name__)

# Records or items compared at a time.
_BLOCK = 1 << 20
# Names of tensors that datasets add themselves.
_COMPUTED = frozenset((BOUNDS, DOCUMENTS, FIELDS, INPUTS, LONGEST, RECORDS))


def find_record_extras(
    store: KeyedStore, declared: Sequence[Field], texts: Sequence[str] = ()
) -> list[Field]:
    """Return the fields of extra keys in samples that are records.

    Parameters
    ----------
    store
        The store.
    declared
        The fields of its schema, all of which are in the store.
    texts
        Names of the texts of a sample.
    """
    anchors = [field for field in declared if field.like is None]
    count = store.column(anchors[0].key).num_records
    extras = []
    for key in _find_extra_keys(store, declared, texts):
        column = store.column(key)
        if column.num_records != count:
            _leave_out(store, key, "its records do not match those of the other keys")
            continue

        def is_aligned(anchor: Field, column: Column = column) -> bool:
            return _has_equal_lengths(column, store.column(anchor.key))

        num_axes = 1 if column.lengths is None else 2
        is_scalar = num_axes == 1 and has_one_per_record(column)
        extras.append(_align(key, num_axes, is_scalar, anchors, is_aligned))
    return extras


def infer_extras(items: Sequence[Mapping[str, Any]], declared: Sequence[Field]) -> list[Field]:
    """Return the fields of extra tensors in samples that are records."""
    anchors = [field for field in declared if field.like is None]
    known = {field.name for field in declared}
    extras = []
    for name, value in items[0].items() if items else ():
        if name in known or not isinstance(value, torch.Tensor | list):
            continue
        if isinstance(value, torch.Tensor) and value.ndim == 0:
            extras.append(Field(name, values="numbers"))
            continue
        num_axes = 2 if isinstance(value, list) else 1

        def is_aligned(anchor: Field, name: str = name, num_axes: int = num_axes) -> bool:
            def lengths(one: Any) -> Any:
                return list(map(len, one)) if num_axes == 2 else len(one)

            return all(lengths(item[name]) == lengths(item[anchor.name]) for item in items)

        extras.append(_align(name, num_axes, False, anchors, is_aligned))
    return extras


def find_window_extras(
    store: KeyedStore, declared: Sequence[Field]
) -> tuple[list[Field], list[Field]]:
    """Return the fields of extra keys in windows: with one value per token, and per record.

    Floats and booleans belong to targets, as a loss mask does; integers to inputs, as positions.
    """
    first = store.column(declared[0].key)
    of_tokens, of_records = [], []
    for key in _find_extra_keys(store, declared):
        column = store.column(key)
        shift = 0 if column.dtype.kind in "iu" else 1
        field = Field(key, values="numbers", shift=shift)
        known = column.num_records is not None and first.num_records is not None
        if column.length == first.length and (not known or _has_equal_lengths(column, first)):
            of_tokens.append(field)
        elif known and column.num_records == first.num_records and has_one_per_record(column):
            of_records.append(field)
        else:
            reason = f"it has neither one value per token of {first.key!r} nor one per record"
            _leave_out(store, key, reason)
    return of_tokens, of_records


def _find_extra_keys(
    store: KeyedStore, declared: Sequence[Field], texts: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the keys that no schema of AstrAI names, and that no other tensor is called."""
    taken = {name for field in declared for name in (field.name, field.mask)} | {*texts}
    known = KNOWN_KEYS | {field.key for field in declared}
    for key in store.keys:
        if key in known:
            continue
        if key in taken | _COMPUTED:
            _leave_out(store, key, "samples have another tensor of that name; rename the key")
        else:
            yield key


def _align(
    key: str,
    num_axes: int,
    is_scalar: bool,
    anchors: Sequence[Field],
    is_aligned: Callable[[Field], bool],
) -> Field:
    """Return the field of a key, along the axes of the first anchor whose lengths it has."""
    for anchor in anchors:  # one value per item of a group
        if len(anchor.axes) > num_axes and is_aligned(anchor):
            return Field(key, values="numbers", axes=anchor.axes[:num_axes], like=anchor.key)
    if is_scalar:
        return Field(key, values="numbers")
    for anchor in anchors:
        if len(anchor.axes) == num_axes and is_aligned(anchor):
            axes, pads_left = anchor.axes, anchor.pads_left
            return Field(key, values="numbers", axes=axes, like=anchor.key, pads_left=pads_left)
    return Field(key, values="numbers", axes=(key, f"{key} item")[:num_axes])


def _leave_out(store: KeyedStore, key: str, reason: str) -> None:
    """Warn that samples lack a key of their store."""
    logger.warning("samples of %s do not have the key %r: %s", store.path, key, reason)


def has_one_per_record(column: Column) -> bool:
    """Return whether each record is a single value."""
    count = column.num_records
    if count is None or column.length != count:
        return False
    blocks = _split_range(count)
    return all(bool((np.diff(column.record_offset(a, b)) == 1).all()) for a, b in blocks)


def _has_equal_lengths(one: Column, other: Column) -> bool:
    """Return whether records have equal lengths: their items, or items and values of a group."""
    if one.lengths is None and other.lengths is not None:  # one value per item
        return _has_equal_lengths(one, other.lengths)
    count = one.num_records
    if (
        count is None
        or count != other.num_records
        or (one.lengths is None) != (other.lengths is None)
    ):
        return False
    if one.offsets is not other.offsets:
        for start, stop in _split_range(count):
            found, wanted = (item.record_offset(start, stop) for item in (one, other))
            if not np.array_equal(np.diff(found), np.diff(wanted)):
                return False
    if one.lengths is None or other.lengths is None:
        return True
    if not _has_equal_lengths(one.lengths, other.lengths):
        return False
    # Readers of Zarr are sliced like arrays.
    found, wanted = (cast("AnyArray", item.values) for item in (one.lengths, other.lengths))
    blocks = _split_range(one.lengths.length)
    return all(np.array_equal(found[start:stop], wanted[start:stop]) for start, stop in blocks)


def _split_range(count: int) -> Iterator[tuple[int, int]]:
    """Yield ranges that cover ``[0, count)``."""
    for start in range(0, count, _BLOCK):
        yield start, min(start + _BLOCK, count)
