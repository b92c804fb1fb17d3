"""The configuration of all Megatron datasets, checked on construction."""

import logging
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal, get_args

from zindex.datasets.utils import Blend, Split, log_single_rank
from zindex.errors import ConfigError, check_whole
from zindex.indexing.coordination import TAKEOVER, TIMEOUT
from zindex.indexing.ensure import MAX_COMPUTED_ROWS
from zindex.plan.blend_plan import Shuffle
from zindex.plan.build_plan import Order, Stored
from zindex.plan.split import (
    Bookends,
    convert_split_vector_to_split_matrix,
    parse_and_normalize_split,
)
from zindex.store.layout import ChunkGrid

logger = logging.getLogger(__name__)

_MOCK_SPLIT = "1,1,1"

#: Versions of Megatron whose samples of conversations differ.
SFTRules = Literal["0.14", "0.15", "0.16", "0.17", "main", "dev"]
#: Versions of Megatron whose random tokens of BERT differ.
BERTRules = Literal["0.17", "main"]
#: Sources of the random numbers of fill-in-the-middle.
FIMDraws = Literal["keyed", "sequential"]

#: Choices of the settings that Megatron does not have.
CHOICES = {
    "order": get_args(Order),
    "store": get_args(Stored),
    "shuffle": get_args(Shuffle),
    "sft_rules": get_args(SFTRules),
    "bert_rules": get_args(BERTRules),
    "fim_draws": get_args(FIMDraws),
}
#: Defaults of these settings in this process; set by ``zindex.megatron.install``.
DEFAULTS = SimpleNamespace(
    order="megatron",
    store="all",
    shuffle="keyed",
    max_computed_rows=MAX_COMPUTED_ROWS,
    sft_rules=None,
    bert_rules=None,
    fim_draws="keyed",
)


@dataclass
class BlendedMegatronDatasetConfig:
    """Settings of a blend of datasets: Megatron Core's, by its names, and zindex's own."""

    #: Seed of every shuffle, the same for all datasets and splits.
    random_seed: int

    #: Tokens per sample.
    sequence_length: int

    #: Prefixes or stores, and their weights or None; ``split`` divides them into the splits.
    blend: Blend | None = None

    #: Separate blends of train, valid and test; excludes ``blend`` and ``split``.
    blend_per_split: list[Blend | None] | None = None

    #: Whether each prefix of the validation blend is a separate dataset.
    multiple_validation_sets: bool | None = None

    #: Whether validation uses a full epoch.
    full_validation: bool | None = None

    #: Shares of train, valid and test, such as ``"99,1,0"``.
    split: str | None = None

    #: Bookends of each split, from ``split``.
    split_matrix: list[Bookends] | None = field(init=False, default=None)

    #: Threads that open datasets.
    num_dataset_builder_threads: int = 1

    #: Directory of the indices that are stored; see ``max_computed_rows``. None stores them next to
    #: each dataset, and computes blends in the memory of each process.
    path_to_cache: str | None = None

    #: Whether pairs are read through memory maps; see `IndexedDataset`. Megatron's default is True.
    mmap_bin_files: bool = False

    #: Whether data are mock data: True without any blend.
    mock: bool = field(init=False, default=False)

    #: The tokenizer: its special tokens, vocabulary size and identity are used.
    tokenizer: Any = None

    #: Share of additional samples of the members of a blend, beyond their weight.
    mid_level_dataset_surplus: float = 0.005

    #: Whether padding may have the id of another special token.
    allow_ambiguous_pad_tokens: bool | None = False

    #: Whether data are known to exist: pairs with ``sequences_per_dataset`` are opened, and
    #: checked, on first use. With ``defer_npy_index_mmap`` the builder then reads no data.
    fast_cache_load: bool = False

    #: Whether indices are opened lazily, at the first sample.
    defer_npy_index_mmap: bool = False

    #: zindex: ``"megatron"`` gives Megatron Core's samples, ``"scalable"`` the parallel order.
    order: Order = field(default_factory=lambda: DEFAULTS.order, kw_only=True)

    #: zindex: ``"minimal"`` stores only what the scalable order cannot compute on read.
    store: Stored = field(default_factory=lambda: DEFAULTS.store, kw_only=True)

    #: zindex: chunk grid of new index arrays; existing indices are found with any grid.
    grid: ChunkGrid = field(default_factory=ChunkGrid, kw_only=True)

    #: zindex: shuffle of a blend in the scalable order: ``"keyed"``, or exactly ``"uniform"``.
    shuffle: Shuffle = field(default_factory=lambda: DEFAULTS.shuffle, kw_only=True)

    #: Megatron Core 2024-08 to 2025-02: whether a blend is drawn by the number of samples planned
    #: for each member, ``ceil(size * weight)``, instead of by the weights.
    renormalize_blend_weights: bool = field(default=False, kw_only=True)

    #: zindex: maximum rows of an index that each process computes at its first sample; smallest
    #: first, up to four times as many rows per run. Rank 0 stores indices above 65,536 rows, and
    #: blends that take over 10 ms, for later processes. 0 stores all at construction.
    max_computed_rows: int = field(default_factory=lambda: DEFAULTS.max_computed_rows, kw_only=True)

    #: zindex: seconds that a rank waits for an index that another rank builds.
    index_timeout: float = field(default=TIMEOUT, kw_only=True)

    #: zindex: seconds without a heartbeat of the building rank in its stores after which another
    #: rank takes over. Under ``torch.distributed`` ranks notice a dead one within some seconds.
    index_takeover: float = field(default=TAKEOVER, kw_only=True)

    #: zindex: timeout in seconds of a sample whose part of the index is not built yet; the index is
    #: then built in the background. None builds the index before the dataset is returned.
    follow: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check the settings against each other and derive the split matrix."""
        self._check_cache()
        if self.follow is not None and not self.follow >= 0:
            raise ConfigError(f"follow must be 0 seconds or more, got {self.follow}; or None")
        check_whole("max_computed_rows", self.max_computed_rows, 0)
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

    def plan_settings(self, split: Split) -> dict[str, Any]:
        """Return the fields that the plans of indices and blends of a split share."""
        return {
            "split": split.name,
            "seed": self.random_seed,
            "stored": self.store,
            "grid": self.grid,
        }

    def _require(self, kind: str, *names: str) -> None:
        """Raise if settings are missing."""
        for name in names:
            if getattr(self, name) is None:
                raise ConfigError(f"{name} must be given for {kind} datasets, got None; set it")

    def _check_cache(self) -> None:
        """Check the settings that need a cache directory."""
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
    """Check that there is one weight for each prefix, or none."""
    prefixes, weights = blend
    if weights is not None and len(prefixes) != len(weights):
        raise ConfigError(
            f"{where} must have a weight for each prefix, got {len(prefixes)} prefixes and "
            f"{len(weights)} weights; add or remove some, or give None"
        )
