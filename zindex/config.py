"""The configuration of a run: one YAML file, validated when it is read.

::

    sequence_length: 4096
    seed: 1234
    split: [969, 30, 1]          # or "969,30,1"
    order: megatron              # or scalable
    index: ./index               # where the index stores go
    samples: {train: 1M, valid: 10000}    # 1M alone is that of train
    datasets:
      - corpora/web.zarr         # a Zarr store, or the prefix of a .bin/.idx pair
      - {path: corpora/code, samples: {train: 500000}}

With shares, the datasets form one blend per split. All datasets have the same kind of share::

    samples: {train: 1000000}    # of the blend; needed with weights
    max_epochs: 4                # most epochs of a dataset in train
    shuffle: keyed               # or uniform; of the scalable order's blend
    surplus: 0.005               # share of extra samples to build beyond the weights
    datasets:
      - {path: corpora/web.zarr, weight: 0.7}
      - {path: corpora/code, weight: 0.3, max_epochs: 2}
      - {path: corpora/old, weight: 0}                   # excluded

``tokens: 1.5B`` (also 300M, 2e12) instead of ``weight`` draws that many train tokens of a dataset,
``epochs: 2.5`` that many epochs of it; ``samples`` is then the size of the blend, by default the
sum of all budgets. A split without samples is one epoch of every dataset::

    blend: sizes                 # without shares: every sample of every dataset, one epoch
    samples: {train: 1000000}    # or the first so many of them
    datasets: [corpora/web.zarr, corpora/code]

Samples may be packed with whole documents, by best fit, instead of being taken from a stream::

    packing:
      max_documents: 256         # of a sample
      long_documents: split      # or truncate, or drop: those longer than a sample
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, cast, get_args

from zindex.errors import ConfigError, check_choice
from zindex.formats.yaml_file import located, read_yaml
from zindex.plan.blend_plan import Shuffle
from zindex.plan.blend_request import BlendKind, BlendRequest
from zindex.plan.build_plan import Order, Stored, check_order
from zindex.plan.packing import PackingRules
from zindex.plan.settings import (
    NumberName,
    check_keys,
    check_number,
    check_types,
    parse_number,
    show,
)
from zindex.plan.split import (
    SPLIT_NAMES,
    Bookends,
    convert_split_vector_to_split_matrix,
    parse_and_normalize_split,
)
from zindex.store.layout import ChunkGrid

#: Samples of a split: a number, or None for one epoch, which is also the default.
SampleCounts = dict[str, int | None]
ShareKind = Literal["weight", "tokens", "epochs"]

_SHARE_KINDS: tuple[ShareKind, ...] = ("weight", "tokens", "epochs")
_DATASET_NUMBERS: tuple[NumberName, ...] = (*_SHARE_KINDS, "max_epochs")

_KINDS: dict[str, type] = {
    **dict.fromkeys(("sequence_length", "seed"), int),
    **dict.fromkeys(("index", "split", "order", "store", "blend", "shuffle"), str),
    "add_extra_token_to_sequence": bool,
    "drop_last_partial_validation_sequence": bool,
}


@dataclass(frozen=True)
class DatasetConfig:
    """One dataset of a run, with at most one kind of share."""

    path: str
    #: Samples per split of a run without blends; None for the run's setting.
    samples: SampleCounts | None = None
    #: Weight in the blends, relative to the others; 0 leaves the dataset out.
    weight: float | None = None
    #: Tokens of the dataset that train draws; 0 leaves it out.
    tokens: int | None = None
    #: Epochs of the dataset that train draws; 0 leaves it out.
    epochs: float | None = None
    #: Maximum epochs of train to draw; None for the run's setting.
    max_epochs: float | None = None

    def __post_init__(self) -> None:
        if self.samples is not None:
            _check_samples(self.samples, f"samples of dataset {self.path}")
        for name in _DATASET_NUMBERS:
            value = getattr(self, name)
            if value is not None:
                check_number(value, name, f"{name} of dataset {self.path}")
        kinds = [kind for kind in _SHARE_KINDS if getattr(self, kind) is not None]
        if len(kinds) > 1:
            raise ConfigError(
                f"a dataset must have one share, got {' and '.join(kinds)} for {self.path}; "
                "leave out all but one"
            )

    @property
    def share_kind(self) -> ShareKind | None:
        """Kind of the dataset's share; None without one."""
        return next((kind for kind in _SHARE_KINDS if getattr(self, kind) is not None), None)

    @property
    def share(self) -> float | None:
        """Weight, tokens or epochs as configured; None without a share."""
        kind = self.share_kind
        return None if kind is None else cast("float", getattr(self, kind))


@dataclass(frozen=True)
class RunConfig:
    """What to build: datasets, splits, samples, and the storage of the indices."""

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
    #: ``"all"``, or ``"minimal"`` without the arrays that the scalable order computes on read.
    store: Stored = "all"
    #: Whether a sample holds one token more than ``sequence_length``, for the labels.
    add_extra_token_to_sequence: bool = True
    drop_last_partial_validation_sequence: bool = True
    grid: ChunkGrid = field(default_factory=ChunkGrid)
    #: ``"sizes"`` blends datasets without shares in proportion to their samples.
    blend: Literal["sizes"] | None = None
    #: Maximum epochs of train that a blend draws of a dataset; None for no limit.
    max_epochs: float | None = None
    #: Share of extra samples of a dataset to build beyond those that a weighted blend draws.
    surplus: float = 0.005
    #: The shuffle of a blend in the scalable order.
    shuffle: Shuffle = "keyed"
    #: Rules to pack whole documents into samples; None takes samples from a token stream.
    packing: PackingRules | None = None

    def __post_init__(self) -> None:
        if not self.datasets:
            raise ConfigError("datasets must name at least one dataset, got none; add a path")
        [(path, num_times)] = Counter(item.path for item in self.datasets).most_common(1)
        if num_times > 1:
            raise ConfigError(f"datasets must name each path once, got {path} twice; leave one out")
        if self.sequence_length < 1:
            raise ConfigError(f"sequence_length must be at least 1, got {self.sequence_length}")
        check_order(self.order, self.store if self.packing is None else "all")
        check_choice("store", self.store, get_args(Stored))
        _check_samples(self.samples, "samples")
        parse_and_normalize_split(self.split)
        _check_shares(self)
        _check_blend(self)
        _check_packing(self)

    @property
    def share_kind(self) -> ShareKind | None:
        """Kind of the datasets' shares; None without any."""
        return self.datasets[0].share_kind

    @property
    def blend_kind(self) -> BlendKind | None:
        """The shares by which the datasets are blended; None without blends."""
        return self.share_kind or self.blend

    @property
    def members(self) -> tuple[DatasetConfig, ...]:
        """The datasets whose share is not 0."""
        return tuple(dataset for dataset in self.datasets if dataset.share != 0)

    @property
    def blend_request(self) -> BlendRequest | None:
        """The request for blends of the `members`; None without blends."""
        if self.blend_kind is None:
            return None
        return BlendRequest(
            kind=self.blend_kind,
            datasets=tuple(item.path for item in self.members),
            shares=tuple(1 if item.share is None else item.share for item in self.members),
            max_epochs=tuple(item.max_epochs or self.max_epochs for item in self.members),
            samples=self.samples,
            sequence_length=self.sequence_length,
            extra_token=int(self.add_extra_token_to_sequence),
            order=self.order,
            surplus=self.surplus,
            drop_last_partial_validation_sequence=self.drop_last_partial_validation_sequence,
        )

    @property
    def split_matrix(self) -> list[Bookends]:
        """Bookends of train, valid and test."""
        return convert_split_vector_to_split_matrix(parse_and_normalize_split(self.split))

    def drop_last(self, split: str) -> bool:
        """Return whether a split drops a last sample with fewer tokens."""
        return split != "valid" or self.drop_last_partial_validation_sequence

    def samples_of(self, dataset: DatasetConfig, split: str) -> int | None:
        """Return the samples wanted of a dataset's split; None for one epoch."""
        counts = self.samples if dataset.samples is None else dataset.samples
        return counts.get(split)

    @classmethod
    def from_json(cls, values: Mapping[str, Any], *, folder: str = ".") -> "RunConfig":
        """Return the configuration of a mapping.

        Parameters
        ----------
        values
            The mapping of a YAML or JSON file.
        folder
            Directory for relative paths.

        Raises
        ------
        ConfigError
            If a key is unknown or missing, or a value is of the wrong type.
        """
        with located(values):
            return cls._from_json(values, folder)

    @classmethod
    def _from_json(cls, values: Mapping[str, Any], folder: str) -> "RunConfig":
        known = check_keys(values, cls, "the run configuration")
        datasets = known.get("datasets")
        if not isinstance(datasets, (list, tuple)):
            raise ConfigError(f"datasets must be a list of paths, got {show(datasets)}")
        known["datasets"] = tuple(_parse_dataset(item, folder) for item in datasets)
        if "split" in known:
            known["split"] = _parse_split(known["split"])
        if "samples" in known:
            known["samples"] = _parse_samples(known["samples"], "samples")
        check_types(known, _KINDS)
        _parse_numbers(known, ("max_epochs", "surplus"), "")
        if "sequence_length" not in known:
            raise ConfigError("sequence_length must be set: tokens per sample; for example 4096")
        known["index"] = join_path(folder, known.get("index", "index"))
        if "grid" in known:
            with located(known["grid"]):
                grid = check_keys(known["grid"], ChunkGrid, "grid")
                check_types(grid, {"chunk_length": int, "shard_length": int, "codec": str})
                known["grid"] = ChunkGrid(**grid)
        if known.get("packing") is not None:
            with located(known["packing"]):
                rules = check_keys(known["packing"], PackingRules, "packing")
                known["packing"] = PackingRules(**rules)
        return cls(**known)


def load_config(path: str | os.PathLike[str]) -> RunConfig:
    """Return the configuration of a YAML file; relative paths start at its directory.

    Raises
    ------
    ConfigError
        If the file is missing, is not a YAML mapping, or has a setting that is unknown or wrong;
        the message has the file and the line.
    """
    values = read_yaml(path)
    return RunConfig.from_json(values, folder=os.path.dirname(values.file))


def as_config(config: RunConfig | Mapping[str, Any] | str | os.PathLike[str]) -> RunConfig:
    """Return a configuration from itself, its mapping, or the path of its YAML file."""
    if isinstance(config, RunConfig):
        return config
    if isinstance(config, Mapping):
        return RunConfig.from_json(config)
    return load_config(config)


def _parse_dataset(value: Any, folder: str) -> DatasetConfig:
    """Return one entry of ``datasets``: a path, or a mapping with a path."""
    with located(value):
        return _make_dataset({"path": value} if isinstance(value, str) else value, folder)


def _make_dataset(value: Any, folder: str) -> DatasetConfig:
    """Return one entry of ``datasets`` from its mapping."""
    known = check_keys(value, DatasetConfig, "a dataset")
    if not isinstance(known.get("path"), str):
        raise ConfigError(f"a dataset must have a path, got {show(value)}")
    known["path"] = join_path(folder, known["path"])
    where = f" of dataset {known['path']}"
    _parse_numbers(known, _DATASET_NUMBERS, where)
    if known.get("samples") is not None:
        known["samples"] = _parse_samples(known["samples"], f"samples{where}")
    return DatasetConfig(**known)


def join_path(folder: str, path: str) -> str:
    """Return a path relative to a folder; in the working directory paths are unchanged."""
    if "://" in path:
        return path
    expanded = os.path.expanduser(path)
    return expanded if folder in ("", ".") else os.path.join(folder, expanded)


def _parse_split(value: Any) -> Any:
    """Return a list of shares, such as ``[99, 1, 0]``, as the equivalent text."""
    if not isinstance(value, list):
        return value
    if not all(isinstance(share, int | float) and not isinstance(share, bool) for share in value):
        raise ConfigError(f"split must be numbers such as [99, 1, 0], got {show(value)}")
    return ",".join(f"{Decimal(str(share)):f}" for share in value)


def _parse_samples(counts: Any, where: str) -> Any:
    """Return sample counts by split; a single count is that of train, and may be like ``1M``."""
    if isinstance(counts, str) or (isinstance(counts, int) and not isinstance(counts, bool)):
        counts = {"train": counts}
    if not isinstance(counts, Mapping):
        return counts
    return {
        split: parse_number(count, "samples", f"{split} of {where}")
        for split, count in counts.items()
    }


def _check_samples(counts: Any, where: str) -> None:
    """Check that sample counts are whole numbers by split."""
    if not isinstance(counts, Mapping):
        raise ConfigError(f"{where} must be like {{train: 1000}}, got {show(counts)}")
    for split, count in counts.items():
        if split not in SPLIT_NAMES:
            raise ConfigError(f"{where} must name splits of {SPLIT_NAMES}, got {split!r}")
        whole = isinstance(count, int) and not isinstance(count, bool)
        if count is not None and (not whole or count < 0):
            raise ConfigError(
                f"{where} must be whole numbers or null, got {show(count)} for {split}"
            )


def _parse_numbers(known: dict[str, Any], names: Sequence[NumberName], where: str) -> None:
    """Replace texts such as ``1.5B``, and whole floats of tokens, by numbers."""
    for name in names:
        if name in known:
            known[name] = parse_number(known[name], name, name + where)


def _check_shares(config: RunConfig) -> None:
    """Check that all datasets have the same kind of share, or none has any."""
    kind = config.share_kind
    for dataset in config.datasets:
        if dataset.share_kind != kind:
            first = config.datasets[0].path
            names = (kind or "no share", dataset.share_kind or "no share")
            raise ConfigError(
                f"datasets must all have the same kind of share, got {names[0]} for {first} and "
                f"{names[1]} for {dataset.path}; a share of 0 leaves a dataset out"
            )
        if kind is None and dataset.max_epochs is not None:
            raise ConfigError(
                f"max_epochs needs shares, got it for {dataset.path} without any; set weight, "
                "tokens or epochs of every dataset"
            )
        if config.blend_kind is not None and dataset.samples is not None:
            raise ConfigError(
                f"samples of a blend are set for the run, got samples of dataset {dataset.path}; "
                "leave them out or leave out the blend"
            )
    if not config.members:
        raise ConfigError(f"one dataset must have a {kind} above 0 at least, got 0 for all")


def _check_blend(config: RunConfig) -> None:
    """Check the settings of the run's blends."""
    check_number(config.surplus, "surplus", "surplus")
    if config.blend not in (None, "sizes"):
        raise ConfigError(
            f"blend must be 'sizes', got {config.blend!r}; for other blends give datasets shares"
        )
    if config.blend is not None and config.share_kind is not None:
        raise ConfigError(
            f"blend: {config.blend} is for datasets without shares, got {config.share_kind} for "
            f"{config.datasets[0].path}; leave one of the two out"
        )
    check_choice("shuffle", config.shuffle, ("keyed", "uniform"))
    if config.shuffle != "keyed" and config.order == "megatron":
        raise ConfigError(
            f"shuffle: {config.shuffle} needs order: scalable, got order: megatron, whose blends "
            "are not shuffled; leave one of the two out"
        )
    if config.max_epochs is not None:
        check_number(config.max_epochs, "max_epochs", "max_epochs")
        if config.share_kind is None:
            raise ConfigError(
                f"max_epochs needs shares, got max_epochs {config.max_epochs:g} without any; set "
                "weight, tokens or epochs of every dataset"
            )
    if config.share_kind == "weight" and config.samples.get("train") is None:
        raise ConfigError(
            "a blend by weights needs samples.train, got none; set it, to 0 for no train, or give "
            "tokens or epochs in the place of weights"
        )


def _check_packing(config: RunConfig) -> None:
    """Check that a run with packing needs no count that is known only after packing."""
    kind = config.blend_kind
    if config.packing is None or kind is None:
        return
    if kind != "weight":
        raise ConfigError(
            f"packing needs a blend by weights, got one by {kind}: how many samples a dataset "
            "gives is known when its documents are packed; give weights and samples, or no blend"
        )
    if config.max_epochs is not None or any(item.max_epochs for item in config.datasets):
        raise ConfigError(
            "packing takes no max_epochs, for epochs are known when documents are packed; leave "
            "it out and see the epochs that zindex plan shows"
        )
    for split, bookends in zip(SPLIT_NAMES, config.split_matrix, strict=True):
        if bookends is not None and config.samples.get(split) is None:
            raise ConfigError(
                f"a blend with packing needs samples.{split}, got none; set it, to 0 for no {split}"
            )
