"""Utilities of Megatron datasets: splits, weights, blend lists, logging."""

import logging
from collections.abc import Sequence
from enum import Enum
from typing import Any

import torch

from zindex.errors import ConfigError
from zindex.plan.split import normalize as normalize
from zindex.samples.collectives import is_distributed

#: Prefixes of a blend and their weights; None for the lengths of the datasets.
Blend = tuple[list[str], list[float] | None]


class Split(Enum):
    """The splits of a dataset, numbered as in a split string."""

    train = 0
    valid = 1
    test = 2


def compile_helpers() -> None:
    """Do nothing; exists for Megatron's callers, as no helper needs a compiler here."""


def get_blend_from_list(blend: Sequence[Any] | None) -> Blend | None:
    """Return the blend described by a flat list.

    Parameters
    ----------
    blend
        Prefixes, or alternating weights, as text or numbers, and prefixes; None for no blend.

    Returns
    -------
    blend
        Stripped prefixes, and their weights, not normalised; None for None. A list of odd length,
        or without numbers at the positions of weights, is a list of prefixes.

    Raises
    ------
    ConfigError
        If the list is empty, or only some positions of weights have numbers.

    Notes
    -----
    Source: Megatron Core ``get_blend_from_list``, with equal results: numeric prefixes are
    interpreted as weights. Version 0.16 interprets some lists with one invalid weight as prefixes,
    and rejects others; later versions reject all of them.

    Examples
    --------
    >>> get_blend_from_list(["30", "a", "70", "b"])
    (['a', 'b'], [30.0, 70.0])
    >>> get_blend_from_list(["a", "b"])
    (['a', 'b'], None)
    """
    if blend is None:
        return None
    if not blend:
        raise ConfigError("a blend list must name at least one dataset, got []; pass None instead")
    weights = [_parse_weight(entry) for entry in blend[::2]]
    numbers = [weight for weight in weights if weight is not None]
    if len(blend) % 2 or not numbers:
        return [entry.strip() for entry in blend], None
    if len(numbers) < len(weights):
        raise ConfigError(
            "a blend list must hold a number in each place of a weight or in none, got "
            f"{len(numbers)} in {len(weights)} places: {list(blend)}; give each prefix a weight"
        )
    return [entry.strip() for entry in blend[1::2]], numbers


def _parse_weight(entry: Any) -> float | None:
    """Return a number, or None if the text is not a number."""
    try:
        return float(entry)
    except ValueError:
        return None


def current_rank() -> int:
    """Return the rank of this process, 0 outside ``torch.distributed``."""
    return torch.distributed.get_rank() if is_distributed() else 0


def log_single_rank(logger: logging.Logger, *args: Any, rank: int = 0, **kwargs: Any) -> None:
    """Log on one rank, or in any process outside ``torch.distributed``.

    Parameters
    ----------
    logger
        The logger.
    args, kwargs
        As for ``logger.log``: the level first, then the message.
    rank
        The rank that logs.
    """
    if not is_distributed() or current_rank() == rank:
        logger.log(*args, **kwargs)
