"""The error of a blend that draws more of a dataset than its epochs give, with the ways out."""

import math
from collections.abc import Sequence
from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction

from zindex.errors import PlanError
from zindex.plan.blend_request import BlendRequest
from zindex.plan.split import normalize


def check_epochs(
    request: BlendRequest,
    members: Sequence[int],
    shares: Sequence[float],
    size: int,
    tokens: Sequence[int],
) -> None:
    """Check that a weighted train blend draws at most max_epochs epochs of a dataset.

    Parameters
    ----------
    request
        The blends of the run.
    members, shares
        The datasets of the blend, and the weight of each, > 0.
    size
        Samples of the blend.
    tokens
        Tokens of one epoch of each dataset of the request.

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
    most = {
        row: request.count_samples(limit, tokens[d])
        for row, d in enumerate(members)
        if (limit := request.max_epochs[d]) is not None
    }
    short = [row for row in most if math.floor(size * weights[row]) > most[row]]
    if not short:
        return

    def epochs_to_raise_to(row: int) -> str:
        target = math.ceil(size * weights[row])
        num_tokens = target * request.sequence_length + request.extra_token
        return _format_hundredths(math.ceil(Fraction(num_tokens, tokens[members[row]]) * 100))

    worst = max(short, key=lambda row: float(epochs_to_raise_to(row)))
    others = sum(map(Fraction, shares)) - Fraction(shares[worst])
    if request.kind == "weight" and others:
        weight = Fraction(most[worst], size - most[worst]) * others
        way_out = f"its weight to {_format_down(weight)}"
    else:
        least = min(math.floor(count / weights[row]) for row, count in most.items())
        way_out = f"samples.train to {least:,}"
    also = f"; so it is with {len(short) - 1:,} more" if len(short) > 1 else ""
    d = members[worst]
    raise PlanError(
        f"blend needs {math.ceil(size * weights[worst]):,} samples of train from "
        f"'{request.datasets[d]}' but {request.max_epochs[d]:g} epochs give {most[worst]:,}; raise "
        f"max_epochs to {epochs_to_raise_to(worst)} or lower {way_out}{also}"
    )


def _format_hundredths(number: int) -> str:
    """Return a number of hundredths as a decimal without trailing zeros."""
    return f"{number // 100}.{number % 100:02d}".rstrip("0").rstrip(".")


def _format_down(value: Fraction) -> str:
    """Return a number rounded down to two digits."""
    context = Context(prec=2, rounding=ROUND_FLOOR)
    return f"{context.divide(Decimal(value.numerator), Decimal(value.denominator)):g}"
