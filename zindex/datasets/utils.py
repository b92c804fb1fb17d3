"""What every Megatron dataset module imports: splits, weights, blend lists, logging."""

import logging
from collections.abc import Sequence
from enum import Enum
from typing import Any

import torch

from zindex.errors import ConfigError
from zindex.plan.split import normalize

__all__ = [
    "Split",
    "compile_helpers",
    "current_rank",
    "get_blend_from_list",
    "log_single_rank",
    "normalize",
]

logger = logging.getLogger(__name__)

#: Prefixes of a blend and their weights; weights are None where lengths decide.
Blend = tuple[list[str], list[float] | None]


class Split(Enum):
    """The splits of a dataset, by their place in a split string."""

    train = 0
    valid = 1
    test = 2


def compile_helpers() -> None:
    """Do nothing: no helper needs a compiler here; Megatron's callers may go on calling it."""


def get_blend_from_list(blend: Sequence[str] | None) -> Blend | None:
    """Return the blend that a flat list names.

    Parameters
    ----------
    blend
        Prefixes only, or weights and prefixes in turn; None for no blend.

    Returns
    -------
    blend
        Stripped prefixes, and their weights as given, not normalised; None for None. A list of odd
        length, or one in which any weight's place holds no number, is a list of prefixes.

    Raises
    ------
    ConfigError
        If the list is empty.

    Notes
    -----
    Source: Megatron Core ``get_blend_from_list``, whose results this keeps: a list of prefixes
    that are all numbers is taken for weights, and one bad weight turns the other weights into
    prefixes. The latter is hardly ever meant, so it is logged as a warning.

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
    prefixes = [entry.strip() for entry in blend]
    if len(blend) % 2:
        return prefixes, None
    weights = [_parse_weight(entry) for entry in blend[::2]]
    numbers = [weight for weight in weights if weight is not None]
    if len(numbers) == len(weights):
        return prefixes[1::2], numbers
    if numbers:
        logger.warning(
            "blend list has %d numbers in %d places of weights, so all of its %d entries are taken "
            "for prefixes: %s; give each prefix a weight or none",
            len(numbers),
            len(weights),
            len(blend),
            list(blend),
        )
    return prefixes, None


def _parse_weight(text: str) -> float | None:
    """Return a number, or None for what is none."""
    try:
        return float(text)
    except ValueError:
        return None


def current_rank() -> int:
    """Return the rank of this process, 0 outside ``torch.distributed``."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return 0


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
    initialized = torch.distributed.is_available() and torch.distributed.is_initialized()
    if not initialized or torch.distributed.get_rank() == rank:
        logger.log(*args, **kwargs)
