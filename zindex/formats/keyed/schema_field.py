"""One field of a declared kind of records: its values, axes, alignment, dtype and padding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from zindex.arrays import AnyArray
from zindex.errors import ConfigError, SourceError, check_choice, shorten
from zindex.formats.keyed.value_rules import find_invalid

#: What values are: ids of tokens; weights of the loss, which are booleans or stored floats; floats,
#: such as rewards; other numbers; or texts, bytes and JSON values.
Values = Literal["ids", "weights", "floats", "numbers", "text"]
#: What a sample is: a record, or a window over the values of all records.
Mode = Literal["records", "windows"]

#: The label that torch's losses ignore.
IGNORED = -100
#: Suffix of the stored field with the item lengths of a key whose records are groups of items.
LENGTH_SUFFIX = "_length"
#: Ends the name of a part of a JSON object that is a list of texts, one after the other. Values
#: ``like`` it are one for each text, and belong to its last token.
EACH = "[]"

# The default dtype of values in a store, and the kinds of dtypes that they may have.
_STORED: dict[Values, tuple[str, str]] = {
    "ids": ("int32", "iu"),
    "weights": ("bool", "bf"),
    "floats": ("float32", "f"),
    "numbers": ("int64", "biuf"),
    "text": ("uint8", "u"),
}
_NOUNS = {"b": "true and false", "i": "whole numbers", "u": "whole numbers", "f": "numbers"}


@dataclass(frozen=True, slots=True)
class Field:
    """One tensor of a sample, or its text.

    Raises
    ------
    ConfigError
        If a setting has a wrong type, or does not apply to the values.

    Examples
    --------
    >>> Field("rewards", values="floats", like="responses", axes="group").axes
    ('group',)
    """

    #: Name of the tensor.
    name: str
    #: Key of its values in the store; by default the name.
    key: str = ""
    values: Values = "ids"
    #: Axes along which a record varies in length: none for one value per record, one for a
    #: sequence, two for a group of sequences. Fields with a common axis are padded to one length.
    axes: str | tuple[str, ...] = ()
    #: Key whose lengths its own must equal, axis by axis; its axes are the default.
    like: str | None = None
    #: Dtype in new stores; None for int32 ids, bool weights, float32 floats and int64 numbers.
    dtype: str | None = None
    #: Dtype of the tensor; None for int64 ids, and for others according to the stored dtype.
    tensor_dtype: str | None = None
    #: Padding value; None for the dataset's padding id in ids, and 0 elsewhere.
    pad: float | None = None
    #: Whether padding is on the left.
    pads_left: bool = False
    #: Name of a tensor of batches that is True at values and False at padding.
    mask: str | None = None
    #: In windows, 1 if its values belong to targets, and 0 if to inputs.
    shift: int = 0
    #: Whether stores may lack the key.
    optional: bool = False
    #: Parts of a JSON object whose tokens or values it has, see `zindex.text.conversations`; by
    #: default the key, and for weights the trained tokens of ``like``. ``name[]`` is a list of
    #: texts.
    made_of: str | tuple[str, ...] = ()
    #: Value for JSON objects that lack it, of a field with one value per record.
    default: float | None = None

    def __post_init__(self) -> None:
        for name in ("axes", "made_of"):
            value = getattr(self, name)
            if isinstance(value, str | list):
                object.__setattr__(self, name, (value,) if isinstance(value, str) else (*value,))
        _check_types(self, f"field {self.name!r}")
        object.__setattr__(self, "key", self.key or self.name)
        if not self.name or len(self.axes) > 2 or self.shift not in (0, 1):
            raise ConfigError(
                f"field {self.name!r} must have a name, at most two axes and a shift of 0 or 1, "
                f"got the axes {list(self.axes)} and a shift of {self.shift}"
            )
        is_scalar = not self.axes and self.like is None
        wrong = [name for name in ("mask", "pads_left") if is_scalar and getattr(self, name)]
        wrong += ["default"] * (not is_scalar and self.default is not None)
        if self.values == "text":
            own = ("axes", "like", "dtype", "tensor_dtype", "pad", "shift", "default")
            wrong += [name for name in own if getattr(self, name) not in (None, (), 0)]
        if wrong:
            what = "texts" if self.values == "text" else "one value per record" * is_scalar
            raise ConfigError(
                f"field {self.name!r} of {what or 'several values per record'} must have no "
                f"{' and '.join(wrong)}; leave it out, or give the field other axes"
            )
        for name in ("dtype", "tensor_dtype"):
            kinds = {*(_STORED[self.values][1] if name == "dtype" else "biuf")}
            if getattr(self, name) is not None and _kind_of(getattr(self, name)) not in kinds:
                raise ConfigError(
                    f"{name} of field {self.name!r} must be one of {self.values}, such as "
                    f"{_STORED[self.values][0]}, got {getattr(self, name)!r}"
                )

    @property
    def stored_dtype(self) -> str:
        """Dtype of its values in new stores."""
        return self.dtype or _STORED[self.values][0]

    @property
    def is_group(self) -> bool:
        """Whether records are groups of items."""
        return len(self.axes) == 2

    def pad_of(self, pad_id: int) -> float:
        """Return the padding value, given the dataset's padding id."""
        if self.pad is not None:
            return self.pad
        return pad_id if self.values == "ids" else 0

    def convert(self, value: Any) -> AnyArray:
        """Return flat values in their stored dtype, after checking them.

        Parameters
        ----------
        value
            A flat array, tensor or list; of a field with one value per record also a number.

        Returns
        -------
        values
            Shape (values,).

        Raises
        ------
        SourceError
            If it is nothing of that, a number does not fit the dtype, a float is not finite, or a
            token id is negative.
        """
        dtype = np.dtype(self.stored_dtype)
        is_scalar = not self.axes
        try:
            given = np.asarray([value] if is_scalar and np.ndim(value) == 0 else value)
        except (TypeError, ValueError, OverflowError):  # lists of different lengths, for example
            given = np.empty(0, object)
        if given.ndim != 1 or given.dtype.kind not in "biuf" or (is_scalar and len(given) != 1):
            noun = "one number per record" if is_scalar else "flat numbers"
            raise SourceError(f"{self.key!r} must have {noun}, got {shorten(value)}")
        kinds = {"b": "b", "i": "biu", "u": "biu"}.get(dtype.kind, "biuf")
        if self.values == "ids":
            kinds = "iu"
        is_known = not given.size or given.dtype.kind in kinds
        if not is_known and dtype.kind == "b" and given.dtype.kind in "iu":
            is_known = {0, 1}.issuperset(given.tolist())
        if not is_known:
            raise SourceError(
                f"{self.key!r} must have {_NOUNS[dtype.kind]} ({dtype}), got {shorten(value)}; "
                "convert them, or declare another dtype"
            )
        wrong = find_invalid(given, is_tokens=self.values == "ids")
        if wrong is None and given.size and dtype.kind in "iuf":
            limits: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
            least, most = (x.item() if dtype.kind == "f" else x for x in (limits.min, limits.max))
            for number in (int(given.argmin()), int(given.argmax())):
                if not least <= given[number].item() <= most:
                    wrong = number
        if wrong is not None:
            noun = "token ids from 0 on" if self.values == "ids" else "finite numbers"
            raise SourceError(
                f"{self.key!r} must have {noun} that fit {dtype}, got {given[wrong].item()}"
            )
        return given.astype(dtype)

    def convert_group(self, value: Any) -> list[AnyArray]:
        """Return the items of a group in their stored dtype, each as of ``convert``."""
        if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__"):
            raise SourceError(
                f"{self.key!r} must be a list of lists of numbers, got {shorten(value)}"
            )
        return [self.convert(item) for item in value]

    def to_json(self) -> dict[str, Any]:
        """Return the settings other than the name that are not the default, as JSON values."""
        found = {item.name: getattr(self, item.name) for item in fields(self)[1:]}
        plain = Field(self.name)
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in found.items()
            if value != getattr(plain, name)
        }


def _check_types(given: Field, where: str) -> None:
    """Check the settings of a field against their annotations."""
    for name, kind in _read_hints().items():
        value = getattr(given, name)
        if get_origin(kind) is Literal:
            check_choice(f"{name} of {where}", value, get_args(kind))
            continue
        kinds = [get_origin(one) or one for one in get_args(kind) or (kind,)]
        kinds += [int] * (float in kinds)
        items = value if isinstance(value, tuple) else ()
        is_known = isinstance(value, tuple(kinds)) and all(isinstance(x, str) for x in items)
        if not is_known or (isinstance(value, bool) and bool not in kinds):
            nouns = {"NoneType": "none", "tuple": "a list of names", "str": "a text"}
            shown = [nouns.get(one.__name__, one.__name__) for one in dict.fromkeys(kinds)]
            raise ConfigError(f"{name} of {where} must be {' or '.join(shown)}, got {value!r}")


@cache
def _read_hints() -> dict[str, Any]:
    """Return the types of the settings of a field."""
    return get_type_hints(Field)


def _kind_of(dtype: str) -> str:
    """Return the kind of a dtype by name; empty if there is none."""
    try:
        return np.dtype(dtype).kind
    except TypeError:
        return ""


def join_items(field: Field, items: Sequence[AnyArray]) -> dict[str, AnyArray]:
    """Return the stored fields of a group: its values, and the lengths of its items."""
    values = np.concatenate(items) if items else np.empty(0, field.stored_dtype)
    lengths = np.array([*map(len, items)], np.int64)
    return {field.key: values, f"{field.key}{LENGTH_SUFFIX}": lengths}
