"""Declared kinds of records: a field for each tensor of a sample, its values, axes and alignment.

A `RecordSchema` decides the keys and dtypes of a store, what is checked, how samples are padded
into batches, and what of a JSON object becomes tokens. `zindex.formats.keyed.schema_presets` has
those of the usual kinds of training.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self, get_args

from zindex.errors import ConfigError, SourceError, check_choice, shorten, suggest
from zindex.formats.keyed.schema_field import LENGTH_SUFFIX, Field, Mode, join_items
from zindex.formats.yaml_file import located, read_yaml


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
            finite, a token id is negative, or keys that belong together differ in length. With
            ``keeps_fields``, other keys are texts. The caller adds where the record is.
        """
        others = sorted(name for name in record if name not in self.by_key and name[:2] != "__")
        if others and not self.keeps_fields:
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
                given = ", ".join(str(name) for name in record if record[name] is not None)
                raise SourceError(
                    f"a record of {self.name!r} must have the key {key!r}, it has "
                    f"{given or 'none'}; add it"
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
        return found | {name: record[name] for name in others}

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
            named = {str(x.get("name") if isinstance(x, Mapping) else x): x for x in declared}
            declared = named if len(named) == len(declared) else declared
        if not isinstance(declared, Mapping):
            raise ConfigError(
                f"fields of {where} must be a mapping from different names to settings, got "
                f"{shorten(declared)}"
            )
        made = []
        for name, settings in declared.items():
            with located(settings):
                given = {} if settings is None else settings
                given = _check_names(given, Field, f"field {name!r} of {where}")
                made.append(Field(**{"name": name} | given))
        modes: Any = own.get("modes", ("records",))
        modes = modes if isinstance(modes, list | tuple) else (modes,)
        keeps_fields = own.get("keeps_fields", False)
        if not isinstance(keeps_fields, bool):
            raise ConfigError(
                f"keeps_fields of {where} must be true or false, got {shorten(keeps_fields)}"
            )
        return cls(own.get("name", ""), made, modes, keeps_fields)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Return the schema of a YAML file; see ``from_json``.

        Raises
        ------
        ConfigError
            If the file is missing, or a setting is unknown, missing or invalid; with its line.
        """
        content = read_yaml(path, "a kind of records")
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


def _align(item: Field, anchors: Mapping[str, Field], followers: tuple[str, ...] = ()) -> Field:
    """Return a field with the axes of the one that it is like, after checking that they agree."""
    if item.like is None:
        return item
    anchor, followers = anchors.get(item.like), (*followers, item.key)
    if anchor is None or item.like in followers or anchor.values == "text":
        raise ConfigError(
            f"field {item.name!r} must be like the key of another field of numbers, which is not "
            f"like it, got {item.like!r}; there are {[key for key in anchors if key != item.key]}"
        )
    expected = _align(anchor, anchors, followers).axes
    axes = item.axes or expected
    shared = min(len(axes), len(expected))
    if not shared or axes[:shared] != expected[:shared]:
        raise ConfigError(
            f"axes of field {item.name!r} must begin like those of {item.like!r}, "
            f"{list(expected)}, got {list(axes)}; leave them out, or leave out like"
        )
    return replace(item, axes=axes)


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


def _compare(
    key: str, found: Sequence[Sequence[int]], like: str, wanted: Sequence[Sequence[int]]
) -> None:
    """Raise for a key that has other lengths, axis by axis, than the one that it is like."""
    for one, two in zip(found, wanted, strict=False):
        if one != two:
            raise SourceError(
                f"{key!r} must have the lengths of {like!r}, {shorten(two)}, got {shorten(one)}"
            )
