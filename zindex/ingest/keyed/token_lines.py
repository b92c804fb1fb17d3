"""Convert lines with lists of numbers under several keys to records of flat arrays."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import isfinite
from typing import Any

import numpy as np

from zindex.arrays import AnyArray
from zindex.errors import ConfigError, SourceError, shorten
from zindex.formats.keyed.schema_presets import PRESETS, TOKEN_KEYS
from zindex.formats.keyed.value_rules import dtype_by_name, find_invalid
from zindex.sources.damage_log import OnDamage
from zindex.sources.sample_files import SampleFiles
from zindex.sources.wrapped_files import WrappedFiles
from zindex.store.records import LENGTH_SUFFIX
from zindex.text.encoded_files import locate

# Lines that are read to detect the keys.
_MAX_LOOK = 1000
# The declared field of each key.
_FIELDS = {key: field for schema in PRESETS.values() for key, field in schema.by_key.items()}


class TokenLines(WrappedFiles):
    """The keys of lines as records; a list of lists becomes its flat values and their lengths.

    Parameters
    ----------
    files
        The lines, as `JsonlFiles` reads them.
    files_fingerprint
        Identifies them, independent of their parts.
    dtypes
        Numpy dtype name of each key to keep.
    groups
        Keys whose values are lists of lists: ``<key>_length`` is then a field, too.
    on_damage
        Whether a line that lacks a key, or whose keys do not match, is an error or is skipped.

    Raises
    ------
    ConfigError
        If a key has the name of another key's lengths.
    """

    def __init__(
        self,
        files: SampleFiles,
        files_fingerprint: str,
        dtypes: Mapping[str, str],
        groups: Sequence[str] = (),
        *,
        on_damage: OnDamage = "error",
    ) -> None:
        super().__init__(files, files_fingerprint)
        self.dtypes = dict(dtypes)
        self._dtypes = {key: np.dtype(dtype) for key, dtype in dtypes.items()}
        self.groups = tuple(groups)
        self.on_damage = on_damage
        for key in self.dtypes:
            if f"{key}{LENGTH_SUFFIX}" in self.dtypes:
                raise ConfigError(
                    f"a key must not be called {key}{LENGTH_SUFFIX} next to {key}, for the store "
                    f"keeps the lengths of the items of {key} by that name; rename it, or name the "
                    "keys to keep by their dtypes (--dtype)"
                )
        self._companions = {
            key: other for key in self.dtypes if (other := _companion(key)) in self.dtypes
        }

    @property
    def field_dtypes(self) -> dict[str, str]:
        """Dtype of each field of the records, in their order."""
        found = {}
        for key, dtype in self.dtypes.items():
            found[key] = dtype
            if key in self.groups:
                found[f"{key}{LENGTH_SUFFIX}"] = "int64"
        return found

    def identity(self) -> dict[str, Any]:
        """Return the settings that determine the records, besides the files."""
        # A JSON object has no order, but the keys have one.
        keys = list(self.dtypes)
        return {"token_lines": {"keys": keys, "dtypes": self.dtypes, "groups": list(self.groups)}}

    def convert(self, samples: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the record of each line.

        Raises
        ------
        SourceError
            If a line lacks a key, or its keys do not match; unless damage is skipped.
        """
        for sample in samples:
            try:
                record = self._flatten(sample)
            except SourceError as error:
                if self.on_damage == "skip":
                    self.num_refused += 1
                    continue
                raise SourceError(
                    f"{error}, in {locate(sample)}; fix it, or leave out such lines with "
                    "on_damage='skip' (--on-damage skip)"
                ) from None
            record["__key__"] = sample["__key__"]
            record["__url__"] = sample["__url__"]
            yield record

    def _flatten(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of one line."""
        record: dict[str, Any] = {}
        for key in self.dtypes:
            value = sample.get(key)
            if not isinstance(value, list):
                raise SourceError(f"{key!r} must be a list, got {shorten(value)}")
            if key in self.groups:
                if not all(isinstance(item, list) for item in value):
                    raise SourceError(f"{key!r} must be a list of lists, got {shorten(value)}")
                record[f"{key}{LENGTH_SUFFIX}"] = list(map(len, value))
                value = list(chain.from_iterable(value))
            record[key] = packed = _pack(value, self._dtypes[key])
            _check_values(key, packed)
        for key, other in self._companions.items():
            self._compare(key, other, sample)
        return record

    def _compare(self, key: str, other: str, sample: Mapping[str, Any]) -> None:
        """Check that two keys of a line have matching lengths."""
        one, two = sample[key], sample[other]
        if key in self.groups and other in self.groups:
            one, two = list(map(len, one)), list(map(len, two))
            if one != two:
                raise SourceError(
                    f"the items of {key!r} must be as long as those of {other!r}, their lengths "
                    f"are {shorten(one)} and {shorten(two)}"
                )
        elif len(one) != len(two):
            raise SourceError(
                f"{key!r} must have as many values as {other!r}, got {len(one):,} and {len(two):,}"
            )


def _pack(value: list[Any], dtype: np.dtype[Any]) -> list[Any] | AnyArray:
    """Return a list of numbers as an array if all fit; otherwise the list, which fails later."""
    try:
        if dtype.kind == "b":
            bits = np.frombuffer(bytes(value), np.uint8)
            return bits.view(dtype) if not len(bits) or bits.max() <= 1 else value
        if dtype.kind not in "iu":
            return value
        # Accepts integers that fit, in one pass, but also booleans.
        numbers = np.frombuffer(array(dtype.char, value), dtype)
    except (TypeError, ValueError, OverflowError):
        return value
    suspects = np.flatnonzero(numbers.view(f"u{dtype.itemsize}") <= 1)
    if len(suspects) * 4 > len(value):
        return value if bool in set(map(type, value)) else numbers
    return value if any(type(value[i]) is bool for i in suspects.tolist()) else numbers


def _check_values(key: str, values: list[Any] | AnyArray) -> None:
    """Raise for numbers that are not finite, and for negative token ids."""
    if isinstance(values, list):
        # Numbers that do not fit their dtype are an error of the import.
        bad = (value for value in values if isinstance(value, float) and not isfinite(value))
        wrong = next(bad, None)
        if wrong is not None:
            raise SourceError(f"the numbers of {key!r} must be finite, got {wrong}")
    elif (number := find_invalid(values, is_tokens=key in TOKEN_KEYS)) is not None:
        raise SourceError(
            f"the token ids of {key!r} must be from 0 to 2**63 - 1, got {values[number]}"
        )


def open_token_lines(
    files: SampleFiles,
    files_fingerprint: str,
    dtypes: Mapping[str, str] | None = None,
    *,
    on_damage: OnDamage = "error",
) -> TokenLines:
    """Detect the keys and dtypes of lines, and return their records.

    Parameters
    ----------
    files, files_fingerprint, on_damage
        See `TokenLines`.
    dtypes
        Numpy dtype name of each key to keep. None keeps the lists of the first line: keys with
        fractions, or with ``reward`` in their name, as float32, with ``mask`` as bool, others as
        int32. A mask with fractions in a later line alone needs its dtype.

    Raises
    ------
    SourceError
        If there are no lines, or the first has no lists.
    """
    seen: dict[str, list[Any]] = {}
    count = -1
    samples = chain.from_iterable(map(files.read_part, range(files.num_parts)))
    for count, sample in enumerate(samples):
        if not seen:
            names = sample if dtypes is None else dtypes
            seen = {key: value for key in names if isinstance(value := sample.get(key, []), list)}
        for key, value in seen.items():
            if not value and isinstance(sample.get(key), list):
                seen[key] = sample[key]
        if all(seen.values()) or count >= _MAX_LOOK:
            break
    if count < 0:
        raise SourceError(
            f"files must have lines, {files.urls[0]} "
            f"{'and the others have' if len(files.urls) > 1 else 'has'} none; name other files"
        )
    if not seen:
        raise SourceError(
            f"lines must have lists of numbers under their keys, the first of {files.urls[0]} has "
            "none; name other files, or make tokens of texts with zindex tokenize"
        )
    groups = [key for key, value in seen.items() if value and isinstance(value[0], list)]
    if dtypes is None:
        dtypes = {key: _choose_dtype(key, value) for key, value in seen.items()}
    return TokenLines(files, files_fingerprint, dtypes, groups, on_damage=on_damage)


def _choose_dtype(key: str, value: Sequence[Any]) -> str:
    """Choose the dtype of a key by its name, or by some of its values."""
    if key in _FIELDS and _FIELDS[key].values == "floats":
        return "float32"
    flat = chain.from_iterable(value) if value and isinstance(value[0], list) else value
    return dtype_by_name(key, has_fractions=any(isinstance(item, float) for item in flat))


def _companion(key: str) -> str | None:
    """Return the key that another key has one value, or item, for each value of.

    Without a declared field, ``<key>_mask`` has one per value of ``<key>``.
    """
    if key in _FIELDS:
        return _FIELDS[key].like
    return key.removesuffix("_mask") if key.endswith("_mask") else None
