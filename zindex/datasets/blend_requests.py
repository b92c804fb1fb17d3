"""Compute the members, samples and weights of each split from sizes and configuration.

Pure arithmetic, without I/O. Source: Megatron Core ``BlendedMegatronDatasetBuilder``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from zindex.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from zindex.datasets.utils import Blend, Split
from zindex.errors import ConfigError
from zindex.plan.blend_plan import BlendPlan
from zindex.plan.split import Bookends, normalize

_WHOLE = (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class SplitRequest:
    """The datasets of one split, their numbers of samples, and how they are combined."""

    split: Split
    #: Fractions of each dataset at which the split starts and stops.
    bookends: tuple[float, float]
    #: Paths of the datasets; None for mock data.
    paths: list[str | None]
    #: Samples requested of each dataset; None for one epoch.
    num_samples: list[int | None]
    #: ``"one"`` dataset, ``"many"`` separate ones, or a ``"blend"``.
    kind: Literal["one", "many", "blend"] = "one"
    #: Weights of a blend; None for the datasets' lengths.
    weights: list[float] | None = None
    #: Samples of the blend (without weights, the maximum); None for all.
    size: int | None = None


#: Samples of a split, None for all; of each validation set, if there are several.
Size = int | None | list[int | None]


def check_sizes(sizes: Sequence[Any], config: BlendedMegatronDatasetConfig) -> list[Size]:
    """Return the sizes of the splits as whole numbers or None.

    A list has the size of each of several validation sets; any other list is ignored, as by
    Megatron Core, if the split has no data.

    Raises
    ------
    ConfigError
        If there are not three, one is not a number of samples, or weights have no size.
    """
    if len(sizes) != len(Split):
        raise ConfigError(
            f"sizes must hold {len(Split)} numbers of samples, for train, valid and test, got "
            f"{list(sizes)}; put 0 or None where nothing is wanted"
        )
    checked: list[Size] = []
    for split, size in zip(Split, sizes, strict=True):
        blend = _blend_of(split, config)
        if isinstance(size, (list, tuple, np.ndarray)):
            checked.append(_check_list(split, list(size), blend, config))
            continue
        if size is not None and not _is_size(size):
            raise ConfigError(
                f"size of {split.name} must be a whole number of samples or None, got {size!r}"
            )
        if size is None and blend is not None and blend[1] is not None:
            raise ConfigError(
                f"size of {split.name} must be given with weights, got None with weights "
                f"{_shorten(blend[1])} of {_shorten(blend[0])}; give a number of samples (0 for "
                "none), or leave the weights out to draw every sample once"
            )
        checked.append(None if size is None else int(size))
    return checked


def _check_list(
    split: Split, sizes: list[Any], blend: Blend | None, config: BlendedMegatronDatasetConfig
) -> Size:
    """Return the sizes of several validation sets, or 0 if the split has no data."""
    if _is_separate(config) and blend is None:
        return 0
    is_unweighted = blend is not None and blend[1] is None
    if not _is_separate(config) and is_unweighted and _bookends_of(split, config) is None:
        return 0
    num_sets = len(blend[0]) if blend is not None and _has_many(split, config, blend) else 0
    if len(sizes) != num_sets or not all(size is None or _is_size(size) for size in sizes):
        raise ConfigError(
            f"size of {split.name} must be a whole number of samples or None, or one for each of "
            f"several validation sets, of which there are {num_sets}, got {sizes}; give one number"
        )
    return [None if size is None else int(size) for size in sizes]


def _is_size(size: Any) -> bool:
    """Return whether a value is a whole number of samples, such as 7 or 7.0."""
    is_number = isinstance(size, (int, float, np.integer, np.floating))
    return bool(is_number and size >= 0 and size == size // 1)


def _blend_of(split: Split, config: BlendedMegatronDatasetConfig) -> Blend | None:
    """Return the blend of a split, even if the split has no share of it."""
    if config.mock:
        return None
    if config.blend is not None:
        return config.blend
    assert config.blend_per_split is not None
    return config.blend_per_split[split.value]


def _shorten(values: Sequence[Any]) -> str:
    """Return the text of a list, abbreviated after a few values."""
    shown = ", ".join(map(repr, values[:3]))
    return f"[{shown}]" if len(values) <= 3 else f"[{shown}, ... {len(values)} in all]"


def request_splits(
    sizes: Sequence[Size], config: BlendedMegatronDatasetConfig
) -> list[SplitRequest | None]:
    """Return the request of each split; None for a split without data.

    Raises
    ------
    ConfigError
        If a weight is not a number >= 0, or all are 0.
    """
    return [_request_split(split, size, config) for split, size in zip(Split, sizes, strict=True)]


def _is_separate(config: BlendedMegatronDatasetConfig) -> bool:
    """Return whether each split has data of its own."""
    return config.blend is None and not config.mock


def _has_many(split: Split, config: BlendedMegatronDatasetConfig, blend: Blend) -> bool:
    """Return whether a split is several validation sets."""
    is_valid = _is_separate(config) and split is Split.valid
    return is_valid and bool(config.multiple_validation_sets) and len(blend[0]) > 1


def _bookends_of(split: Split, config: BlendedMegatronDatasetConfig) -> Bookends:
    """Return the fractions of each dataset that belong to a split; None without a share."""
    if _is_separate(config):
        return _WHOLE
    assert config.split_matrix is not None
    return config.split_matrix[split.value]


def _request_split(
    split: Split, size: Size, config: BlendedMegatronDatasetConfig
) -> SplitRequest | None:
    """Return the request of a split; None for a split without data."""
    blend, bookends = _blend_of(split, config), _bookends_of(split, config)
    if bookends is None or (_is_separate(config) and blend is None):
        return None
    if blend is not None and _has_many(split, config, blend):
        sizes = size if isinstance(size, list) else [size] * len(blend[0])
        if config.full_validation and any(own is not None for own in sizes):
            raise ConfigError(
                f"size of valid must be None with full_validation, got {size}: each validation set "
                "is passed over whole; give None"
            )
        return SplitRequest(split, bookends, [*blend[0]], sizes, "many")
    assert not isinstance(size, list)
    if blend is None:
        return SplitRequest(split, bookends, [None], [size])
    paths, weights = blend
    if len(paths) == 1 and (_is_separate(config) or weights is None):
        return SplitRequest(split, bookends, [*paths], [size])
    return _request_blend(split, bookends, blend, size, config)


def _request_blend(
    split: Split,
    bookends: tuple[float, float],
    blend: Blend,
    size: int | None,
    config: BlendedMegatronDatasetConfig,
) -> SplitRequest:
    """Return the request of a blend, without datasets of weight 0."""
    paths, weights = blend
    if not paths:
        raise ConfigError(f"the blend of {split.name} must name at least one dataset, got none")
    if weights is None:
        return SplitRequest(split, bookends, [*paths], [None] * len(paths), "blend", None, size)
    assert size is not None
    kept = positive_weights(weights, paths, f"the blend of {split.name}")
    paths = [paths[i] for i in kept]
    shares = normalize([weights[i] for i in kept])
    targets = [math.ceil(size * share) for share in shares]
    sizes = _get_size_per_split_per_dataset(shares, [size], config.mid_level_dataset_surplus)
    wanted = [of_split for (of_split,) in sizes]
    total = sum(targets)
    if config.renormalize_blend_weights and total:
        shares = [target / total for target in targets]
        # A share too small for one sample would have weight 0 here; ceil makes it one sample.
    if config.order == "scalable":
        # The counts of the scalable order are exact.
        total = size
        counts = BlendPlan.weighted(shares, size, split=split.name, order="scalable").counts
        wanted = np.maximum(wanted, counts).tolist()
    return SplitRequest(split, bookends, [*paths], [*wanted], "blend", shares, total)


def _get_size_per_split_per_dataset(
    normalized_weights: Sequence[float], target_size_per_split: Sequence[int], surplus: float = 0.0
) -> list[list[int]]:
    """Return the samples of each dataset that each split requests, with Megatron's roundings.

    Parameters
    ----------
    normalized_weights
        One per dataset, together 1.
    target_size_per_split
        Samples of each split's blend.
    surplus
        Share of additional samples, beyond the weight.

    Returns
    -------
    sizes
        Datasets by splits.

    Raises
    ------
    ConfigError
        If the weights do not add up to 1.

    Examples
    --------
    >>> _get_size_per_split_per_dataset([0.3, 0.7], [1000, 10, 1], surplus=0.005)
    [[302, 4, 2], [704, 8, 2]]
    """
    total = math.fsum(normalized_weights)
    if not math.isclose(total, 1.0, rel_tol=1e-5, abs_tol=1e-8):
        raise ConfigError(
            f"normalized_weights must add up to 1, got a sum of {total}; divide them by it"
        )
    return [
        [math.ceil(math.ceil(size * weight) * (1 + surplus)) for size in target_size_per_split]
        for weight in normalized_weights
    ]


def positive_weights(weights: Sequence[float], names: Sequence[Any], where: str) -> list[int]:
    """Return the indices of the weights above 0.

    Parameters
    ----------
    weights
        One per dataset.
    names
        Names of the datasets in messages.
    where
        Name of the blend in messages.

    Raises
    ------
    ConfigError
        If a weight is negative or not a number, or none is above 0.
    """
    values = np.asarray(weights, np.float64)
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if wrong.size:
        i = int(wrong[0])
        raise ConfigError(
            f"weights of {where} must be numbers >= 0, got {weights[i]} for {names[i]} "
            f"(dataset {i} of {len(weights)}); correct it"
        )
    kept: list[int] = np.flatnonzero(values).tolist()
    if not kept:
        raise ConfigError(
            f"{where} must have a weight above 0, got {_shorten(weights)} for {_shorten(names)}; "
            "raise one"
        )
    return kept
