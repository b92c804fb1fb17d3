"""The error of a blend that draws more of a dataset than its epochs give, with the ways out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction

from zindex.errors import PlanError
from zindex.plan.split import normalize


@dataclass(frozen=True, slots=True)
class EpochLimit:
    """The most that a blend may draw of one dataset."""

    dataset: str
    #: Row of the dataset in the blend's shares.
    row: int
    max_epochs: float
    tokens_per_epoch: int
    #: Samples that max_epochs epochs give.
    num_samples: int


def check_limits(
    limits: Sequence[EpochLimit],
    shares: Sequence[float],
    size: int,
    *,
    sequence_length: int,
    extra_token: int,
    by_weight: bool,
) -> None:
    """Check that a train blend draws at most what the epochs of each dataset give.

    Parameters
    ----------
    limits
        Datasets with a limit.
    shares
        Weight of each dataset of the blend, each > 0.
    size
        Samples of the blend.
    sequence_length, extra_token
        Tokens per sample.
    by_weight
        Whether the shares are configured weights, which can be lowered.

    Raises
    ------
    PlanError
        If a dataset is too small; the message names the one that needs the most epochs.

    Notes
    -----
    Law: each way out alone ends the shortage of the named dataset.
    A weighted count is known to within one sample, which is tolerated.
    """
    weights = normalize(shares)
    short = [limit for limit in limits if math.floor(size * weights[limit.row]) > limit.num_samples]
    if not short:
        return

    def epochs_to_raise_to(limit: EpochLimit) -> str:
        target = math.ceil(size * weights[limit.row])
        need = Fraction(target * sequence_length + extra_token, limit.tokens_per_epoch)
        return _format_hundredths(math.ceil(need * 100))

    worst = max(short, key=lambda limit: float(epochs_to_raise_to(limit)))
    others = sum(map(Fraction, shares)) - Fraction(shares[worst.row])
    if by_weight and others:
        weight = Fraction(worst.num_samples, size - worst.num_samples) * others
        way_out = f"its weight to {_format_down(weight)}"
    else:
        most = min(math.floor(limit.num_samples / weights[limit.row]) for limit in limits)
        way_out = f"samples.train to {most:,}"
    also = f"; so it is with {len(short) - 1:,} more" if len(short) > 1 else ""
    raise PlanError(
        f"blend needs {math.ceil(size * weights[worst.row]):,} samples of train from "
        f"'{worst.dataset}' but {worst.max_epochs:g} epochs give {worst.num_samples:,}; raise "
        f"max_epochs to {epochs_to_raise_to(worst)} or lower {way_out}{also}"
    )


def _format_hundredths(number: int) -> str:
    """Return a number of hundredths as a decimal without trailing zeros."""
    return f"{number // 100}.{number % 100:02d}".rstrip("0").rstrip(".")


def _format_down(value: Fraction) -> str:
    """Return a number rounded down to two digits."""
    context = Context(prec=2, rounding=ROUND_FLOOR)
    return f"{context.divide(Decimal(value.numerator), Decimal(value.denominator)):g}"
