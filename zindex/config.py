"""The run's configuration: one YAML file, checked once, then trusted.

::

    sequence_length: 4096
    seed: 1234
    split: "969,30,1"
    order: megatron              # or scalable
    index: ./index               # where the index stores go
    samples: {train: 1000000, valid: 10000}
    datasets:
      - corpora/web.zarr         # a Zarr store, or the prefix of a .bin/.idx pair
      - {path: corpora/code, samples: {train: 500000}}
"""

import os
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from zindex.errors import ConfigError
from zindex.plan.index_plan import Order, Stored
from zindex.plan.split import (
    SPLIT_NAMES,
    Bookends,
    convert_split_vector_to_split_matrix,
    parse_and_normalize_split,
)
from zindex.store.layout import ChunkGrid

#: Samples wanted of a split: a number, or None for one epoch. A split that is not named gets one.
SampleCounts = dict[str, int | None]

_MAX_NBYTES = 4 << 20
_MAX_ALIASES = 20
# Shows wrong values in short: aliases can make a value that no memory could print.
_show = reprlib.Repr()
_show.maxlevel, _show.maxstring, _show.maxother = 3, 100, 100

_KINDS = {
    "sequence_length": int,
    "index": str,
    "seed": int,
    "split": str,
    "order": str,
    "store": str,
    "add_extra_token_to_sequence": bool,
    "drop_last_partial_validation_sequence": bool,
}


@dataclass(frozen=True)
class DatasetConfig:
    """One dataset of a run."""

    path: str
    #: Samples per split; None takes the run's.
    samples: SampleCounts | None = None

    def __post_init__(self) -> None:
        if self.samples is not None:
            _check_samples(self.samples, f"samples of dataset {self.path}")


@dataclass(frozen=True)
class RunConfig:
    """What to build: datasets, splits, samples and how to store the indices."""

    datasets: tuple[DatasetConfig, ...]
    #: Tokens per sample.
    sequence_length: int
    #: Directory of the index stores.
    index: str = "index"
    seed: int = 1234
    #: Shares of train, valid and test.
    split: str = "969,30,1"
    samples: SampleCounts = field(default_factory=dict)
    order: Order = "megatron"
    #: ``"all"``, or ``"minimal"`` to leave out what the scalable order computes on read.
    store: Stored = "all"
    #: Whether a sample holds one token more than ``sequence_length``, for the labels.
    add_extra_token_to_sequence: bool = True
    drop_last_partial_validation_sequence: bool = True
    grid: ChunkGrid = field(default_factory=ChunkGrid)

    def __post_init__(self) -> None:
        if not self.datasets:
            raise ConfigError("datasets must name at least one dataset, got none; add a path")
        paths = [dataset.path for dataset in self.datasets]
        twice = next((path for i, path in enumerate(paths) if path in paths[:i]), None)
        if twice is not None:
            raise ConfigError(
                f"datasets must name each path once, got {twice} twice; leave one out"
            )
        if self.sequence_length < 1:
            raise ConfigError(f"sequence_length must be at least 1, got {self.sequence_length}")
        _check_samples(self.samples, "samples")
        parse_and_normalize_split(self.split)

    @property
    def split_matrix(self) -> list[Bookends]:
        """Bookends of train, valid and test."""
        return convert_split_vector_to_split_matrix(parse_and_normalize_split(self.split))

    def drop_last(self, split: str) -> bool:
        """Return whether a last sample with fewer tokens is left out of a split."""
        return split != "valid" or self.drop_last_partial_validation_sequence

    def samples_of(self, dataset: DatasetConfig, split: str) -> int | None:
        """Return the samples wanted of a dataset's split; None for one epoch."""
        counts = self.samples if dataset.samples is None else dataset.samples
        return counts.get(split)

    @classmethod
    def from_json(cls, values: Mapping[str, Any], *, folder: str = ".") -> "RunConfig":
        """Return the configuration that a mapping describes.

        Parameters
        ----------
        values
            The mapping of a YAML or JSON file.
        folder
            Directory against which relative paths are taken.

        Raises
        ------
        ConfigError
            If a key is unknown or missing, or a value is of the wrong kind.
        """
        known = _check_keys(values, cls, "the run configuration")
        datasets = known.get("datasets")
        if not isinstance(datasets, (list, tuple)):
            raise ConfigError(f"datasets must be a list of paths, got {_show.repr(datasets)}")
        known["datasets"] = tuple(_parse_dataset(item, folder) for item in datasets)
        _check_types(known, _KINDS)
        if "sequence_length" not in known:
            raise ConfigError("sequence_length must be set: tokens per sample; for example 4096")
        known["index"] = _join(folder, known.get("index", "index"))
        if "grid" in known:
            grid = _check_keys(known["grid"], ChunkGrid, "grid")
            _check_types(grid, {"chunk_length": int, "shard_length": int, "codec": str})
            known["grid"] = ChunkGrid(**grid)
        return cls(**known)


def load_config(path: str | os.PathLike[str]) -> RunConfig:
    """Return the configuration of a YAML file; relative paths are taken from its directory.

    Raises
    ------
    ConfigError
        If the file is missing, is no YAML mapping, or holds a setting that is not known.
    """
    file = Path(path)
    try:
        with open(file, "rb") as stream:
            content = stream.read(_MAX_NBYTES + 1)
    except OSError as error:
        raise ConfigError(f"a run needs its YAML file, cannot read {file}: {error}") from error
    if len(content) > _MAX_NBYTES:
        raise ConfigError(f"{file} must be YAML of at most {_MAX_NBYTES} bytes; check the path")
    try:
        values = yaml.load(content, _Loader)
    except RecursionError as error:
        raise ConfigError(f"{file} must hold YAML that is nested less deeply") from error
    # Values that do not fit their tags, such as !!int "", come out as errors of many kinds.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise ConfigError(f"{file} must hold YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{file} must hold a mapping of settings, got {type(values).__name__}")
    return RunConfig.from_json(values, folder=str(file.parent))


class _Loader(yaml.SafeLoader):
    """Safe, with few aliases: a file of a hundred bytes could stand for gigabytes."""

    num_aliases = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Count an alias before it is followed."""
        if self.check_event(yaml.AliasEvent):
            self.num_aliases += 1
            if self.num_aliases > _MAX_ALIASES:
                raise yaml.YAMLError(f"it may have at most {_MAX_ALIASES} aliases")
        return super().compose_node(parent, index)


def as_config(config: RunConfig | Mapping[str, Any] | str | os.PathLike[str]) -> RunConfig:
    """Return a configuration given as itself, as its mapping, or as the path of its YAML file."""
    if isinstance(config, RunConfig):
        return config
    if isinstance(config, Mapping):
        return RunConfig.from_json(config)
    return load_config(config)


def _check_keys(values: Any, kind: type, where: str) -> dict[str, Any]:
    """Return a mapping as a dict, all of whose keys are fields of a dataclass."""
    names = [item.name for item in fields(kind)]
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} must be a mapping, got {_show.repr(values)}")
    unknown = sorted(set(map(str, values)) - set(names))
    if unknown:
        raise ConfigError(f"{where} has no setting {unknown[0]!r}; it has {', '.join(names)}")
    return dict(values)


def _parse_dataset(value: Any, folder: str) -> DatasetConfig:
    """Return one entry of ``datasets``: a path, or a mapping with a path."""
    known = (
        {"path": value}
        if isinstance(value, str)
        else _check_keys(value, DatasetConfig, "a dataset")
    )
    if not isinstance(known.get("path"), str):
        raise ConfigError(f"a dataset must have a path, got {_show.repr(value)}")
    return DatasetConfig(**(known | {"path": _join(folder, known["path"])}))


def _join(folder: str, path: str) -> str:
    """Return a path taken from a folder; in the working directory paths stay as they are."""
    if "://" in path:
        return path
    expanded = os.path.expanduser(path)
    return expanded if folder in ("", ".") else os.path.join(folder, expanded)


def _check_samples(counts: Any, where: str) -> None:
    """Check that sample counts are whole numbers by split."""
    if not isinstance(counts, Mapping):
        raise ConfigError(f"{where} must be like {{train: 1000}}, got {_show.repr(counts)}")
    for split, count in counts.items():
        if split not in SPLIT_NAMES:
            raise ConfigError(f"{where} must name splits of {SPLIT_NAMES}, got {split!r}")
        whole = isinstance(count, int) and not isinstance(count, bool)
        if count is not None and (not whole or count < 0):
            raise ConfigError(
                f"{where} must be whole numbers or null, got {_show.repr(count)} for {split}"
            )


def _check_types(known: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    """Check the plain settings against the types that they must have."""
    for name, kind in kinds.items():
        value = known.get(name)
        wrong = isinstance(value, bool) and kind is not bool
        if name in known and (wrong or not isinstance(value, kind)):
            raise ConfigError(
                f"{name} must be {kind.__name__}, got {_show.repr(value)}; quote or unquote it"
            )
