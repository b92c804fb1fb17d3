"""Convert the tokens of callers (arrays, lists, decimal strings) exactly to one array."""

from typing import Any

import numpy as np
import numpy.typing as npt

from zindex.arrays import AnyArray
from zindex.errors import SourceError, shorten
from zindex.formats.token_dtypes import AnyDType


def convert_tokens(values: Any, dtype: npt.DTypeLike, *, owner: str) -> AnyArray:
    """Return the values as a flat array of the dtype; values that would change are refused.

    Parameters
    ----------
    values
        An array, or a sequence of numbers or of decimal strings.
    dtype
        Token dtype of the result.
    owner
        Destination of the tokens, for error messages.

    Returns
    -------
    tokens
        One-dimensional, C order. Shares memory with ``values`` if nothing was converted.

    Raises
    ------
    SourceError
        If a value is not a number, or does not fit the dtype; only floats may be rounded.

    Examples
    --------
    >>> convert_tokens(["1", "22"], np.uint16, owner="example.bin")
    array([ 1, 22], dtype=uint16)
    """
    target = np.dtype(dtype)
    try:
        array = np.asarray(values)
        if array.size == 0:
            return np.empty(0, target)
        if array.dtype.kind in "US":
            array = array.astype(np.float64 if target.kind == "f" else np.int64)
    except (ValueError, TypeError, OverflowError) as error:
        raise SourceError(
            f"tokens for {owner} must be numbers or decimal strings in one flat row, but came as "
            f"{shorten(values)} ({error}); flatten or parse them first"
        ) from error
    if array.dtype.kind not in "biufO":
        raise SourceError(
            f"tokens for {owner} must be numbers or decimal strings, but came with dtype "
            f"{array.dtype}; parse them first"
        )
    # numpy calls int64 to float64 safe, but a float64 has 53 bits of precision.
    loses_digits = target.kind == "f" and array.dtype.kind in "iu" and array.itemsize == 8
    if loses_digits or not np.can_cast(array.dtype, target, "safe"):
        _check_values(array, target, owner)
    return np.ascontiguousarray(array, target).reshape(-1)


def _check_values(array: AnyArray, target: AnyDType, owner: str) -> None:
    """Refuse the first value that the target dtype cannot hold."""
    if array.dtype.kind in "iu" and target.kind in "iu":
        limits = np.iinfo(target)
        outside = (array < limits.min) | (array > limits.max)
    elif array.dtype.kind == "O":
        outside = np.array([not _fits(value, target) for value in array.reshape(-1)])
    else:
        with np.errstate(all="ignore"):
            cast = array.astype(target)
            if array.dtype.kind == "f" and target.kind == "f":
                outside = np.isfinite(array) & ~np.isfinite(cast)
            elif target.kind == "f":
                outside = _float_differs(array, cast)
            else:
                # 2**63 as a float is int64's first value outside, and casts to its last inside.
                outside = (cast.astype(array.dtype) != array) | (array >= 2.0**63)
    first = np.flatnonzero(outside)
    if first.size:
        raise SourceError(
            f"tokens for {owner} must fit {target.name}, but value {array.reshape(-1)[first[0]]} "
            f"at position {first[0]} does not; use a wider dtype or correct the tokenizer"
        )


def _float_differs(array: AnyArray, cast: AnyArray) -> npt.NDArray[np.bool_]:
    """Return where integers lost precision as floats."""
    exact = np.abs(cast.astype(np.float64)) < 2.0**63
    differs = ~exact
    differs[exact] = cast[exact].astype(np.int64) != array[exact]
    return differs


def _fits(value: Any, target: AnyDType) -> bool:
    """Return whether a dtype represents a Python number exactly."""
    try:
        with np.errstate(all="ignore"):
            return bool(np.array([value], target)[0].item() == value)
    except (OverflowError, ValueError, TypeError):
        return False
