"""Mock conversations with drawn, given or real lengths, for runs without data."""

import json
import math
import os
from collections.abc import Sequence
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from zindex.arrays import AnyArray, Int64Array
from zindex.datasets.indexed_dataset import IndexedDataset
from zindex.datasets.sequences import SequenceDataset
from zindex.datasets.zarr_dataset import ZarrIndexedDataset
from zindex.errors import ConfigError, SourceError, StoreNotFoundError, check_choice
from zindex.ingest.length_source import is_store
from zindex.io.files import read_text

# Default lengths of mode "verification", as in Megatron.
_DEFAULTS = {
    "min_seq_len": 100,
    "max_seq_len": 4096,
    "mean_seq_len": 2048,
    "lognormal_sigma": 1.1,
}
# Required settings of each mode.
_MODES = {
    "file": ("path",),
    "distribution": tuple(_DEFAULTS),
    "verification": ("data_path", *_DEFAULTS),
}


class MockSFTLowLevelDataset:
    """Token ids of mock conversations, without the end token that a dataset appends.

    Equal to Megatron's: lengths are drawn by ``RandomState(seed).lognormal``, clipped and rounded
    down; ids count 1, 2, 3, ... Lengths are drawn lazily and never pickled.

    Parameters
    ----------
    mode
        ``"distribution"`` draws the lengths; ``"file"`` reads them from a file of numbers below a
        header line; ``"verification"`` draws them and takes tokens from a real dataset.
    settings
        ``path`` of the file of lengths; ``data_path``, a ``.bin/.idx`` prefix or a Zarr corpus;
        ``type``, which is ``"lognormal"``, ``min_seq_len``, ``max_seq_len`` and ``mean_seq_len``,
        in tokens without the end token, and ``lognormal_sigma``; ``format`` of samples, ``"thd"``
        with or ``"sbhd"`` without ``cu_seqlens``; ``vocab_size``, the exclusive bound of ids.

    Raises
    ------
    ConfigError
        If a setting is missing, unknown or out of range.
    StoreNotFoundError
        If there is no file of lengths.
    SourceError
        If the file contains anything but lengths of at least 1.
    """

    #: Seed of the lengths.
    seed: int = 0

    #: Number of conversations, unless read from a file.
    size: int = 1_000_000

    def __init__(self, mode: str, **settings: Any) -> None:
        self.mode = mode
        self.format = settings.pop("format", "thd")
        self.vocab_size: int | None = settings.pop("vocab_size", None)
        check_choice("format", self.format, ["thd", "sbhd"])
        check_choice("type of made-up lengths", settings.pop("type", "lognormal"), ["lognormal"])
        check_choice("mode", mode, _MODES)
        self.indexed_dataset: IndexedDataset | ZarrIndexedDataset | None = None
        self._settings = _DEFAULTS | settings if mode == "verification" else settings
        self._check_settings(_MODES[mode])
        if mode == "file":
            self.size = len(self.sequence_lengths)
        elif mode == "verification":
            path = self._settings["data_path"]
            self.indexed_dataset = (
                ZarrIndexedDataset(path) if is_store(path) else IndexedDataset(path)
            )
            if not int(np.sum(self.indexed_dataset.sequence_lengths[:], dtype=np.int64)):
                raise SourceError(
                    f"data_path of made-up conversations must hold tokens, {path} holds none; "
                    "name another dataset"
                )

    def _check_settings(self, names: Sequence[str]) -> None:
        """Check that a mode's settings are complete, known and in range."""
        missing = [name for name in names if name not in self._settings]
        unknown = sorted(set(self._settings) - {*names, *_DEFAULTS, "path", "data_path"})
        if missing or unknown:
            raise ConfigError(
                f"made-up conversations of mode {self.mode!r} need {', '.join(names)}, "
                f"{', '.join(missing) or 'none'} missing, {', '.join(unknown) or 'none'} unknown; "
                "fix the JSON of the mock dataset"
            )
        ranges = {"min_seq_len": 1, "mean_seq_len": 1, "lognormal_sigma": 0, "vocab_size": 1}
        given = self._settings | {"vocab_size": 1 if self.vocab_size is None else self.vocab_size}
        for name, lowest in {**ranges, "max_seq_len": given.get("min_seq_len", 1)}.items():
            value = given.get(name, lowest)
            if not isinstance(value, Real) or not lowest <= value < math.inf:
                raise ConfigError(
                    f"{name} of made-up conversations must be a number of at least {lowest}, got "
                    f"{value!r}; fix the JSON of the mock dataset"
                )

    @cached_property
    def sequence_lengths(self) -> Int64Array:
        """Shape (size,), int64, tokens without the end token."""
        settings = self._settings
        if self.mode == "file":
            return _read_lengths(settings["path"])
        sigma = settings["lognormal_sigma"]
        mean = np.log(settings["mean_seq_len"]) - sigma**2 / 2
        drawn = np.random.RandomState(self.seed).lognormal(mean, sigma, self.size)
        return np.clip(drawn, settings["min_seq_len"], settings["max_seq_len"]).astype(np.int64)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, idx: int) -> Int64Array:
        """Return the ids of a conversation: shape (length,), int64."""
        count = int(self.sequence_lengths[idx % self.size])
        if self.indexed_dataset is not None:
            return _take_real(self.indexed_dataset, idx, count)
        ids = np.arange(1, count + 1, dtype=np.int64)
        return ids if self.vocab_size is None else ids % self.vocab_size

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "sequence_lengths"}


def _take_real(dataset: SequenceDataset, document: int, count: int) -> Int64Array:
    """Return tokens of as many consecutive documents as needed."""
    parts: list[AnyArray] = [np.empty(0, np.int64)]
    while count > 0:
        parts.append(dataset[document % len(dataset)][:count])
        count -= len(parts[-1])
        document += 1
    return np.concatenate(parts, dtype=np.int64)


def _read_lengths(path: str | os.PathLike[str]) -> Int64Array:
    """Return the numbers of a file, separated by commas or line breaks, below a header line."""
    try:
        _, *lines = read_text(Path(path)).splitlines() or [""]
    except FileNotFoundError:
        raise StoreNotFoundError(
            f"{os.fspath(path)} must be a file of lengths, there is none; check the path"
        ) from None
    fields = [field for line in lines for field in line.split(",") if field.strip()]
    try:
        lengths = np.array([int(float(field)) for field in fields], np.int64)
    except (ValueError, OverflowError) as error:
        raise SourceError(
            f"{os.fspath(path)} must hold lengths below a title, one a line, but {error}; fix it"
        ) from error
    if not lengths.size or lengths.min() < 1:
        raise SourceError(
            f"{os.fspath(path)} must hold lengths of 1 or more tokens below a title, got "
            f"{lengths.min() if lengths.size else 'none'}; fix it"
        )
    return lengths


def load_json_arg(spec: str | None) -> Any:
    """Return the value of a setting that is JSON or the path of a JSON file; None for None.

    Raises
    ------
    ConfigError
        If it is neither.
    """
    if spec is None:
        return None
    is_file = os.path.isfile(spec)
    try:
        return json.loads(read_text(Path(spec)) if is_file else spec)
    except ValueError as error:
        what = f"the file {spec}" if is_file else repr(spec)
        raise ConfigError(
            f"the setting must be JSON, or the path of a file of JSON, got {what}: {error}; fix it"
        ) from error


def open_mock(spec: str | None, sequence_length: int) -> MockSFTLowLevelDataset:
    """Return mock conversations configured by JSON.

    Parameters
    ----------
    spec
        The JSON or its path; None draws lengths between half of ``sequence_length`` and all of it.
    sequence_length
        Tokens of a sample.
    """
    settings = load_json_arg(spec)
    if settings is None:
        settings = _DEFAULTS | {
            "mode": "distribution",
            "min_seq_len": max(1, sequence_length // 2),
            "max_seq_len": sequence_length,
            "mean_seq_len": max(1, sequence_length // 4 * 3),
        }
    if not isinstance(settings, dict) or "mode" not in settings:
        raise ConfigError(
            f"the JSON of made-up conversations must be an object with a mode, got {settings!r}; "
            'write {"mode": "distribution", ...}'
        )
    return MockSFTLowLevelDataset(**settings)
