"""The token dtypes that a ``.bin/.idx`` pair can hold, and their one-byte codes."""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np

from zindex.arrays import DTypeLike
from zindex.errors import SourceError

AnyDType: TypeAlias = np.dtype[Any]


def highest_id(dtype: DTypeLike) -> float:
    """Return the highest id that a token dtype holds.

    Examples
    --------
    >>> highest_id(np.uint16)
    65535
    """
    kind = np.dtype(dtype)
    return int(np.iinfo(kind).max) if kind.kind in "iu" else float(np.finfo(kind).max)


class DType(Enum):
    """Token dtypes with Megatron Core's names and codes."""

    uint8 = 1
    int8 = 2
    int16 = 3
    int32 = 4
    int64 = 5
    float64 = 6
    float32 = 7
    uint16 = 8

    @classmethod
    def code_from_dtype(cls, value: DTypeLike) -> int:
        """Return the header code of a dtype; SourceError if it has none.

        Examples
        --------
        >>> DType.code_from_dtype(np.uint16)
        8
        """
        name = np.dtype(value).name
        if name not in cls.__members__:
            raise SourceError(
                f"a .bin/.idx pair holds tokens of dtype {', '.join(cls.__members__)}, not "
                f"{name}; convert the tokens to one of these"
            )
        code: int = cls[name].value
        return code

    @classmethod
    def dtype_from_code(cls, value: int) -> type[np.number[Any]]:
        """Return the numpy scalar type of a header code; SourceError if there is none."""
        if value not in TOKEN_DTYPES:
            raise SourceError(
                f"a token dtype code must be one of 1 to 8, not {value}; "
                "give a code from zindex.datasets.indexed_dataset.DType"
            )
        scalar_type: type[np.number[Any]] = TOKEN_DTYPES[value].type
        return scalar_type

    @staticmethod
    def size(key: int | type[np.number[Any]]) -> int:
        """Return the bytes of one token, by code or by dtype; ValueError for anything else."""
        if isinstance(key, int):
            return DType.dtype_from_code(key)().itemsize
        if isinstance(key, type) and issubclass(key, np.number):
            return key().itemsize
        raise SourceError(
            f"a token size is asked for by a code or by a numpy number type, not by {key!r}; "
            "give for example numpy.uint16 or 8"
        )

    @staticmethod
    def optimal_dtype(cardinality: int | None) -> type[np.number[Any]]:
        """Return uint16 for a vocabulary below 65,500, else int32."""
        if cardinality is not None and cardinality < 65500:
            return np.uint16
        return np.int32


#: By the code in the ``.idx`` header: the little-endian dtype of the tokens.
TOKEN_DTYPES: Final[Mapping[int, AnyDType]] = MappingProxyType(
    {item.value: np.dtype(item.name).newbyteorder("<") for item in DType}
)
