"""Checks of mixtures: of their datasets, of settings that need known lengths, and of lengths."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from zindex.arrays import Int64Array
from zindex.errors import ConfigError, check_choice
from zindex.mixing.mixture_tree import find_fault, is_mixture
from zindex.mixing.percent_schedules import ends_unread, is_read, mean_percents
from zindex.mixing.percents import check_percents
from zindex.plan.tail import Tail
from zindex.streaming.sources import StreamSource, describe, known_length


def list_datasets(given: Any) -> list[Any]:
    """Return the datasets of a mixture as a list; ConfigError if something else is given."""
    if not isinstance(given, Iterable) or isinstance(given, str | Mapping | Dataset):
        raise ConfigError(
            f"the datasets of a MergedDataset must be a list, got {describe(given)}; put them in "
            "one, each with a name and a percent"
        )
    return list(given)


def check_datasets(mixture: Any) -> None:
    """Check the datasets of a mixture, without those of nested ones.

    Raises
    ------
    ConfigError
        If there are none, or one lacks a percent or a name, or the percents do not fit, or a nested
        mixture has ``max_epochs``, or ``stop_on_first`` has no effect.
    """
    if not mixture.datasets:
        raise ConfigError("a MergedDataset must have datasets, got none; give at least one")
    for number, dataset in enumerate(mixture.datasets):
        fault = find_fault(dataset)
        if fault is not None:
            raise ConfigError(
                f"dataset {number} ({describe(dataset)}) must have {fault[1]}, or leave it out"
            )
        if is_mixture(dataset) and getattr(dataset, "max_epochs", None) is not None:
            raise ConfigError(
                f"max_epochs must be of a dataset that is no mixture, dataset {number} is one, "
                "whose datasets have epochs of their own; set it on these"
            )
    percents = [dataset.percent for dataset in mixture.datasets]
    check_percents(percents, exact=mixture.mixing == "exact")
    if mixture.stop_on_first and not _may_end(mixture):
        raise ConfigError(
            "stop_on_first needs a dataset that ends, with cyclic=True all are endless; set "
            "cyclic=False, or max_epochs of one"
        )


def _may_end(mixture: Any) -> bool:
    """Return whether a dataset of a mixture may be exhausted."""
    return not mixture.cyclic or any(
        _may_end(dataset) if is_mixture(dataset) else getattr(dataset, "max_epochs", None)
        for dataset in mixture.datasets
    )


def check_names(sources: Sequence[StreamSource]) -> None:
    """Raise ConfigError if two sources of a tree of mixtures have the same name."""
    names = [source.name for source in sources]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"the names of all datasets must differ, {twice[0]!r} came {names.count(twice[0])} "
            "times; states are kept by name: rename all but one"
        )


def is_countable(mixture: Any) -> bool:
    """Return whether a mixture reads all its datasets once, so that their samples are its own."""
    if mixture.cyclic or mixture.stop_on_first or mixture.customized_yield_fn is not None:
        return False
    return all(
        not ends_unread(dataset.percent) and (not is_mixture(dataset) or is_countable(dataset))
        for dataset in mixture.datasets
        if is_read(dataset.percent)
    )


def check_even(mixture: Any) -> None:
    """Raise ConfigError if a mixture has a tail, and no known number of samples."""
    if not is_countable(mixture):
        raise ConfigError(
            f"tail={mixture.tail.value!r} needs a finite stream of a known number of "
            "samples; set cyclic=False, and neither stop_on_first, customized_yield_fn nor a "
            "percent that ends with 0, in nested mixtures, too"
        )


def list_lengths(mixture: Any, required_samples: int) -> list[Any]:
    """Return how many samples each dataset has and needs; see `MergedDataset.check_length`."""
    percents = mean_percents([one.percent for one in mixture.datasets], required_samples)
    found: list[Any] = []
    for dataset, percent in zip(mixture.datasets, percents, strict=True):
        required = int(required_samples * percent / sum(percents))
        if is_mixture(dataset):
            found.append(dataset.check_length(required))
        else:
            found.append((dataset.name, known_length(dataset), required))
    return found


def choose_order(setting: str, given: bool | str, mode: str) -> str:
    """Return the order that a setting selects."""
    check_choice(setting, given, (True, False, mode))
    return mode if given == mode else "keyed" if given else "none"


def count_samples(mixture: Any, num_workers: int) -> Int64Array:
    """Return the samples of loader workers in the next iteration: shape (ranks, workers).

    Raises
    ------
    TypeError
        If they are not known.
    """
    if not is_countable(mixture):
        raise TypeError(
            "infinite streams, outputs of functions, and mixtures that do not read all their "
            "datasets once have no known length"
        )
    _, num_ranks = mixture.place
    totals = np.zeros(num_ranks * num_workers, np.int64)
    for source in mixture.sources(read=True):
        counts = source.count_samples(len(totals), mixture.next_iteration)
        if counts is None:
            raise TypeError("a process function, or a file read in order, has no known length")
        totals += counts
    if mixture.tail is not Tail.EXACT:
        totals[:] = totals.max() if mixture.tail is Tail.PAD else totals.min()
    return totals.reshape(num_ranks, num_workers)
