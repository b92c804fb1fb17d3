"""Declared kinds of records: a field for each tensor of a sample, its values, axes and alignment.

A `RecordSchema` decides the keys and dtypes of a store, what is checked, how samples are padded
into batches, and what of a JSON object becomes tokens. `zindex.formats.keyed.schema_presets` has
those of the usual kinds of training.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

import numpy as np

from zindex.arrays import AnyArray
from zindex.errors import ConfigError, SourceError, check_choice, shorten, suggest
from zindex.formats.keyed.value_rules import find_invalid
from zindex.formats.yaml_file import located, read_yaml

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
    #: Whether padding goes on the left.
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


@dataclass(frozen=True)
class RecordSchema:
    """One kind of record.

    Raises
    ------
    ConfigError
        If two tensors have one name, or a field is ``like`` one that does not exist or has other
        axes.

    Examples
    --------
    >>> schema = RecordSchema(
    ...     "scored",
    ...     [Field("prompt", axes="prompt"), Field("score", values="floats")],
    ... )
    >>> schema.layout
    {'prompt': 'int32', 'score': 'float32'}
    >>> schema.flatten({"prompt": [1, 2], "score": 0.5})
    {'prompt': array([1, 2], dtype=int32), 'score': array([0.5], dtype=float32)}
    """

    #: Its name, such as ``"dpo"``.
    name: str
    #: The tensors and texts of a sample, in the order of the keys of a store.
    fields: Sequence[Field]
    #: What a sample can be; the first one is the default.
    modes: Sequence[Mode] = ("records",)
    #: Whether all other fields of JSON objects are kept in stores, and are texts of samples.
    keeps_fields: bool = False

    def __post_init__(self) -> None:
        where = f"the kind {self.name!r}"
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"a kind of records must have a name, got {self.name!r}; name it")
        if not self.fields or not all(isinstance(item, Field) for item in self.fields):
            raise ConfigError(f"{where} must have fields, got {shorten(self.fields)}; declare one")
        for mode in self.modes:
            check_choice(f"modes of {where}", mode, get_args(Mode))
        anchors = {item.key: item for item in reversed(self.fields)}
        object.__setattr__(self, "fields", tuple(_align(item, anchors) for item in self.fields))
        object.__setattr__(self, "modes", tuple(self.modes) or ("records",))
        names = [item.name for item in self.fields]
        names += [item.mask for item in self.fields if item.mask is not None]
        names += [f"{item.key}{LENGTH_SUFFIX}" for item in self.by_key.values() if item.is_group]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(
                f"the fields, masks and lengths of groups of {where} must have names of their own, "
                f"got {', '.join(twice)} twice; rename one"
            )
        if not self.tensors or (self.texts and "windows" in self.modes):
            raise ConfigError(
                f"{where} must have a field of numbers, and windows none of texts, got "
                f"{', '.join(item.name for item in self.fields)}; declare one, or leave out windows"
            )
        shifted = [item.name for item in self.fields if item.shift]
        if shifted and "records" in self.modes:
            raise ConfigError(
                f"{where} must have windows as its only mode to shift {', '.join(shifted)}, got "
                f"{', '.join(self.modes)}; leave out records, or the shift"
            )

    @cached_property
    def by_key(self) -> dict[str, Field]:
        """The first field of each key of a store, in their order."""
        found: dict[str, Field] = {}
        for item in self.fields:
            found.setdefault(item.key, item)
        return found

    @cached_property
    def tensors(self) -> tuple[Field, ...]:
        """The fields of numbers."""
        return tuple(item for item in self.fields if item.values != "text")

    @cached_property
    def texts(self) -> tuple[Field, ...]:
        """The fields of texts."""
        return tuple(item for item in self.fields if item.values == "text")

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Required keys of a store."""
        return tuple(key for key, item in self.by_key.items() if not item.optional)

    @cached_property
    def token_keys(self) -> frozenset[str]:
        """Keys of token ids."""
        return frozenset(key for key, item in self.by_key.items() if item.values == "ids")

    @cached_property
    def layout(self) -> dict[str, str | None]:
        """Fields of a new store in order, with their dtypes; None for texts."""
        found: dict[str, str | None] = {}
        for key, item in self.by_key.items():
            found[key] = None if item.values == "text" else item.stored_dtype
            if item.is_group:
                found[f"{key}{LENGTH_SUFFIX}"] = "int64"
        return found

    def flatten(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return the stored fields of a record, after checking it.

        Parameters
        ----------
        record
            By key: flat arrays, tensors or lists of numbers; lists of these for groups; numbers for
            fields with one value per record; texts, bytes or JSON values. Names in ``__`` are
            ignored.

        Returns
        -------
        fields
            In the order of ``layout``, without optional keys that the record lacks: shape
            (values,), in the stored dtype; the lengths of the items of groups; texts as they are.

        Raises
        ------
        SourceError
            If it lacks a key or has another one, a number does not fit its dtype, a float is not
            finite, a token id is negative, or keys that belong together differ in length. The
            caller adds where the record is.
        """
        others = sorted(name for name in record if name not in self.by_key and name[:2] != "__")
        if others:
            remedy = suggest(others[0], list(self.by_key)) or "; leave it out, or declare it"
            raise SourceError(
                f"a record of {self.name!r} must have the keys {', '.join(self.by_key)}, got "
                f"{others[0]!r}{remedy}"
            )
        found: dict[str, Any] = {}
        lengths: dict[str, list[Sequence[int]]] = {}
        for key, item in self.by_key.items():
            value = record.get(key)
            value = item.default if value is None else value
            if value is None:
                if item.optional:
                    continue
                raise SourceError(
                    f"a record of {self.name!r} must have the key {key!r}, it has "
                    f"{', '.join(map(str, record)) or 'none'}; add it"
                )
            if item.values == "text":
                found[key] = value
                continue
            if not item.is_group:
                found[key] = item.convert(value)
                lengths[key] = [[len(found[key])]]
                continue
            items = item.convert_group(value)
            found |= join_items(item, items)
            lengths[key] = [[len(items)], [*map(len, items)]]
        for key, own in lengths.items():
            like = self.by_key[key].like
            if like is not None and like in lengths:
                _compare(key, own, like, lengths[like])
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the schema as JSON values, as ``from_json`` and YAML files have it."""
        # A list, because the objects of a store's description have no order.
        declared = [{"name": item.name} | item.to_json() for item in self.fields]
        found: dict[str, Any] = {"name": self.name, "fields": declared}
        found |= {} if self.modes == ("records",) else {"modes": list(self.modes)}
        return found | ({"keeps_fields": True} if self.keeps_fields else {})

    @classmethod
    def from_json(cls, content: Mapping[str, Any], where: str = "a kind of records") -> Self:
        """Return the schema of JSON or YAML values.

        Parameters
        ----------
        content
            ``name``; ``fields``: the settings of each `Field` by its name, or a list of them; and
            optionally ``modes`` and ``keeps_fields``.
        where
            Its source, for messages.

        Raises
        ------
        ConfigError
            If a setting is unknown, missing or invalid.
        """
        own = _check_names(content, cls, where)
        declared = own.get("fields")
        if isinstance(declared, list):
            declared = {x.get("name") if isinstance(x, Mapping) else x: x for x in declared}
        if not isinstance(declared, Mapping):
            raise ConfigError(
                f"fields of {where} must be a mapping from names to settings, got "
                f"{shorten(declared)}"
            )
        made = []
        for name, settings in declared.items():
            with located(settings):
                given = {} if settings is None else settings
                given = _check_names(given, Field, f"field {name!r} of {where}")
                made.append(Field(**{"name": name} | given))
        modes: Any = own.get("modes", ("records",))
        modes = (modes,) if isinstance(modes, str) else modes
        return cls(own.get("name", ""), made, modes, bool(own.get("keeps_fields", False)))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Return the schema of a YAML file; see ``from_json``.

        Raises
        ------
        ConfigError
            If the file is missing, or a setting is unknown, missing or invalid; with its line.
        """
        content = read_yaml(path)
        with located(content):
            return cls.from_json(content, os.fspath(path))

    def document(self) -> str:
        """Return a table of the fields in Markdown: tensor, key, values, shape, dtype, padding."""
        rows = ["| field | key | values | shape | stored | padding |", "|" + "---|" * 6]
        for item in self.fields:
            axes = ", ".join(item.axes) + "," * (len(item.axes) == 1)
            like = f", as `{item.like}`" if item.like else ""
            side = "on the left" if item.pads_left else str(item.pad_of(0)) if item.axes else ""
            side += f", `{item.mask}`" if item.mask else ""
            key = f"`{item.key}`" + ", optional" * item.optional
            stored = item.stored_dtype if item.values != "text" else "text, bytes or JSON"
            rows.append(
                f"| `{item.name}` | {key} | {item.values} | ({axes}){like} | {stored} | {side} |"
            )
        return "\n".join(rows)


def _align(item: Field, anchors: Mapping[str, Field]) -> Field:
    """Return a field with the axes of the one that it is like, after checking that they agree."""
    if item.like is None:
        return item
    anchor = anchors.get(item.like)
    if anchor is None or item.like == item.key or anchor.values == "text":
        raise ConfigError(
            f"field {item.name!r} must be like the key of another field of numbers, got "
            f"{item.like!r}; there are {[key for key in anchors if key != item.key]}"
        )
    expected = _align(anchor, anchors).axes if anchor.like != item.key else anchor.axes
    axes = item.axes or expected
    shared = min(len(axes), len(expected))
    if not shared or axes[:shared] != expected[:shared]:
        raise ConfigError(
            f"axes of field {item.name!r} must begin like those of {item.like!r}, "
            f"{list(expected)}, got {list(axes)}; leave them out, or leave out like"
        )
    return replace(item, axes=axes)


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


def _check_names(values: Any, kind: type, where: str) -> dict[str, Any]:
    """Return a mapping as a dict, after checking that all its keys are fields of a dataclass."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} must be a mapping of settings, got {shorten(values)}")
    names = [item.name for item in fields(kind)]
    for name in values:
        if name not in names:
            remedy = suggest(str(name), names) or f"; it has {', '.join(names)}"
            raise ConfigError(f"{where} has no setting {name!r}{remedy}")
    return dict(values)


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


def _compare(
    key: str, found: Sequence[Sequence[int]], like: str, wanted: Sequence[Sequence[int]]
) -> None:
    """Raise for a key that has other lengths, axis by axis, than the one that it is like."""
    for one, two in zip(found, wanted, strict=False):
        if one != two:
            raise SourceError(
                f"{key!r} must have the lengths of {like!r}, {shorten(two)}, got {shorten(one)}"
            )
