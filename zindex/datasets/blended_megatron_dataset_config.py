"""What every Megatron dataset is configured by, checked when it is made."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from zindex.building.waiting import TAKEOVER, TIMEOUT
from zindex.datasets.utils import Blend, Split, log_single_rank
from zindex.errors import ConfigError
from zindex.plan.blend_plan import Shuffle
from zindex.plan.index_plan import Order, Stored
from zindex.plan.split import (
    Bookends,
    convert_split_vector_to_split_matrix,
    parse_and_normalize_split,
)
from zindex.store.layout import ChunkGrid

__all__ = [
    "BlendedMegatronDatasetConfig",
    "convert_split_vector_to_split_matrix",
    "parse_and_normalize_split",
]

logger = logging.getLogger(__name__)

_MOCK_SPLIT = "1,1,1"


@dataclass
class Defaults:
    """What configurations take for settings of ours that a Megatron script cannot give."""

    allowed: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "order": ("megatron", "scalable"),
        "store": ("all", "minimal"),
        "shuffle": ("keyed", "uniform"),
    }

    order: Order = "megatron"
    store: Stored = "all"
    shuffle: Shuffle = "keyed"


#: Those of this process; ``zindex.megatron.install`` sets them.
DEFAULTS = Defaults()


@dataclass
class BlendedMegatronDatasetConfig:
    """Settings of a blend of datasets, by Megatron Core's names, and some of our own."""

    random_seed: int
    """Seed of every shuffle, the same for all datasets and splits."""

    sequence_length: int
    """Tokens per sample."""

    blend: Blend | None = None
    """Prefixes or stores, and their weights or None, from which ``split`` cuts all splits."""

    blend_per_split: list[Blend | None] | None = None
    """A blend of its own for train, valid and test; excludes ``blend`` and ``split``."""

    multiple_validation_sets: bool | None = None
    """Whether each prefix of the validation blend is a dataset by itself."""

    full_validation: bool | None = None
    """Whether a validation passes over a whole epoch."""

    split: str | None = None
    """Shares of train, valid and test, such as ``"99,1,0"``."""

    split_matrix: list[Bookends] | None = field(init=False, default=None)
    """Bookends of each split, from ``split``."""

    num_dataset_builder_threads: int = 1
    """Threads that open datasets."""

    path_to_cache: str | None = None
    """Directory of the indices. None puts them beside each dataset, and has each process compute
    blends in memory."""

    mmap_bin_files: bool = True
    """Whether a ``.bin`` is read through a mapping, or by position."""

    mock: bool = field(init=False, default=False)
    """Whether data are made up: True without any blend."""

    tokenizer: Any = None
    """The tokenizer: its special tokens, its vocabulary size and its identity are used."""

    mid_level_dataset_surplus: float = 0.005
    """Share of samples that members of a blend get beyond what their weight asks for."""

    allow_ambiguous_pad_tokens: bool | None = False
    """Whether padding may have the id of another special token."""

    fast_cache_load: bool = False
    """Taken for Megatron's sake: finding a finished index costs one small file already."""

    defer_npy_index_mmap: bool = False
    """Whether an index is looked for at the first sample instead of at once."""

    order: Order = field(default_factory=lambda: DEFAULTS.order, kw_only=True)
    """Ours: ``"megatron"`` gives Megatron Core's samples, ``"scalable"`` the parallel order."""

    store: Stored = field(default_factory=lambda: DEFAULTS.store, kw_only=True)
    """Ours: ``"minimal"`` stores only what the scalable order cannot compute on read."""

    grid: ChunkGrid = field(default_factory=ChunkGrid, kw_only=True)
    """Ours: how new index arrays are cut; an index that is there is found whatever its grid."""

    shuffle: Shuffle = field(default_factory=lambda: DEFAULTS.shuffle, kw_only=True)
    """Ours: how the scalable order shuffles a blend: ``"keyed"``, or exactly ``"uniform"``."""

    renormalize_blend_weights: bool = field(default=False, kw_only=True)
    """Megatron Core's of 2024-08 to 2025-02: whether a blend is drawn by the samples planned of
    each member, ``ceil(size * weight)``, instead of by the weights themselves."""

    index_timeout: float = field(default=TIMEOUT, kw_only=True)
    """Ours: seconds that a rank waits at most for an index that another rank builds."""

    index_takeover: float = field(default=TAKEOVER, kw_only=True)
    """Ours: seconds without any sign of the building rank after which another one builds."""

    follow: float | None = field(default=None, kw_only=True)
    """Ours: seconds that a sample waits at most for what is still being built of its index; the
    index is then built behind the datasets. None waits for the index before there is a dataset."""

    def __post_init__(self) -> None:
        """Check the settings against each other and derive the split matrix."""
        self._check_cache()
        if self.follow is not None and not self.follow >= 0:
            raise ConfigError(f"follow must be 0 seconds or more, got {self.follow}; or None")
        for name in ("index_timeout", "index_takeover"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0 seconds, got {getattr(self, name)}")
        if self.blend_per_split is not None and any(self.blend_per_split):
            self._check_blend_per_split(self.blend_per_split)
            return
        if self.blend is None:
            self.mock = True
            self.split = _MOCK_SPLIT
            log_single_rank(
                logger, logging.INFO, "no blend is given: mock data, split %s", _MOCK_SPLIT
            )
        else:
            _check_blend(self.blend, "blend")
        if self.split is None:
            raise ConfigError("split must be given with blend, got None; for example '99,1,0'")
        self.split_matrix = convert_split_vector_to_split_matrix(
            parse_and_normalize_split(self.split)
        )

    def _check_cache(self) -> None:
        """Check what needs a cache directory."""
        for name in ("fast_cache_load", "defer_npy_index_mmap"):
            if getattr(self, name) and self.path_to_cache is None:
                raise ConfigError(
                    f"{name} needs path_to_cache, got None; name the directory of the indices "
                    "(--data-cache-path)"
                )
        if self.fast_cache_load and self.blend is not None:
            raise ConfigError(
                "fast_cache_load needs blend_per_split, got blend; give each split its own data "
                "(--per-split-data-args-path, or --train-data-path and its like)"
            )

    def _check_blend_per_split(self, blends: list[Blend | None]) -> None:
        """Check the blends of the splits."""
        for name in ("blend", "split"):
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"{name} must be None with blend_per_split, got {getattr(self, name)!r}; "
                    "give one of the two"
                )
        if len(blends) != len(Split):
            raise ConfigError(
                f"blend_per_split must hold {len(Split)} blends, for train, valid and test, got "
                f"{len(blends)}; put None where there is none"
            )
        for split in Split:
            blend = blends[split.value]
            if blend is None:
                log_single_rank(logger, logging.INFO, "no blend is given for split %s", split.name)
            else:
                _check_blend(blend, f"blend_per_split of {split.name}")


def _check_blend(blend: Blend, where: str) -> None:
    """Check that there are as many weights as prefixes, or none."""
    prefixes, weights = blend
    if weights is not None and len(prefixes) != len(weights):
        raise ConfigError(
            f"{where} must have a weight for each prefix, got {len(prefixes)} prefixes and "
            f"{len(weights)} weights; add or remove some, or give None"
        )
