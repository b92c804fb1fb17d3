"""What the values of a key are: token ids from 0 on, floats that are finite, and their dtypes."""

from collections.abc import Sequence

import numpy as np

from zindex.arrays import AnyArray, Int64Array
from zindex.errors import SourceError


def dtype_by_name(key: str, *, has_fractions: bool) -> str:
    """Return the dtype of lists of numbers under a key, which have none of their own.

    Examples
    --------
    >>> dtype_by_name("loss_mask", has_fractions=False)
    'bool'
    """
    if "reward" in key or has_fractions:
        return "float32"
    return "bool" if "mask" in key else "int32"


def find_invalid(values: AnyArray, *, is_tokens: bool, num_ids: int | None = None) -> int | None:
    """Return the position of the first invalid value; None if all are valid.

    Parameters
    ----------
    values
        Flat, of any dtype.
    is_tokens
        Whether integers are token ids, which must be at least 0 and fit int64.
    num_ids
        Number of ids of the vocabulary; None if unknown.
    """
    if not values.size:
        return None
    if values.dtype.kind == "f":
        wrong = None if np.isfinite(values).all() else ~np.isfinite(values)
    elif is_tokens and values.dtype.kind in "iu":
        limit = np.iinfo(np.int64).max if num_ids is None else num_ids - 1
        if int(values.max()) <= limit and int(values.min()) >= 0:
            return None
        wrong = (values > min(limit, np.iinfo(values.dtype).max)) | (values < 0)
    else:
        return None
    return None if wrong is None else int(np.argmax(wrong))


def describe_invalid(key: str, value: object, where: str, num_ids: int | None = None) -> str:
    """Return the message for an invalid value of a key.

    Examples
    --------
    >>> describe_invalid("sequence", -5, "record 3 of a.zarr", 100)
    "token ids of 'sequence' must be from 0 to 99, got -5 in record 3 of a.zarr; fix the record"
    """
    if isinstance(value, float | np.floating):
        return f"numbers of {key!r} must be finite, got {value} in {where}; fix the record"
    most = np.iinfo(np.int64).max if num_ids is None else num_ids - 1
    return (
        f"token ids of {key!r} must be from 0 to {most:,}, got {value} in {where}; fix the record"
    )


def describe_first(
    key: str,
    values: AnyArray,
    offsets: Int64Array,
    where: str,
    *,
    is_tokens: bool,
    num_ids: int | None,
) -> str | None:
    """Return the message for the first invalid value of records, given their offsets, or None."""
    wrong = find_invalid(values, is_tokens=is_tokens, num_ids=num_ids)
    if wrong is None:
        return None
    place = f"record {int(np.searchsorted(offsets, wrong, 'right')) - 1:,} of {where}"
    return describe_invalid(key, values[wrong].item(), place, num_ids)


def check_values(
    key: str, values: AnyArray, where: str, *, is_tokens: bool, num_ids: int | None = None
) -> None:
    """Raise SourceError for the first invalid value of a record; see `find_invalid`."""
    wrong = find_invalid(values, is_tokens=is_tokens, num_ids=num_ids)
    if wrong is not None:
        raise SourceError(describe_invalid(key, values[wrong].item(), where, num_ids))


class InvalidValueError(SourceError):
    """An invalid value, by its key and its position among the values that a task reads."""

    def __init__(self, key: str, position: int, value: int | float) -> None:
        super().__init__(key, position, value)
        self.key, self.position, self.value = key, position, value


def check_records(
    key: str, records: Sequence[AnyArray | Sequence[AnyArray]], where: str, *, is_tokens: bool
) -> None:
    """Raise for the first invalid value of some records; groups are lists of items.

    Raises
    ------
    SourceError
        With the key, the record and the value.
    """
    for number, record in enumerate(records):
        for values in [record] if isinstance(record, np.ndarray) else record:
            place = f"record {number:,} of {where}"
            check_values(key, values.reshape(-1), place, is_tokens=is_tokens)
