"""Tail probabilities of the statistics of shuffle tests, without scipy."""

import math

# Iterations of the series and of the continued fraction, and their relative precision.
_MAX_TERMS, _PRECISION = 100_000, 1e-12


def chi_square_tail(statistic: float, degrees: int) -> float:
    """Return the probability that a chi-square variable exceeds a value.

    Parameters
    ----------
    statistic
        The value, >= 0.
    degrees
        Degrees of freedom, > 0.

    Notes
    -----
    Source: Numerical Recipes, 3rd edition, section 6.2: the incomplete gamma function by its
    series below ``a + 1`` and by Lentz's continued fraction above.

    Examples
    --------
    >>> round(chi_square_tail(3.841, 1), 3), round(chi_square_tail(18.307, 10), 3)
    (0.05, 0.05)
    """
    a, x = degrees / 2, statistic / 2
    if x <= 0:
        return 1.0
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        for number in range(1, _MAX_TERMS):
            term *= x / (a + number)
            total += term
            if term < total * _PRECISION:
                break
        return max(0.0, 1 - scale * total)
    b, tiny = x + 1 - a, 1e-300
    c, d = 1 / tiny, 1 / b
    fraction = d
    for number in range(1, _MAX_TERMS):
        numerator = -number * (number - a)
        b += 2
        d = 1 / (numerator * d + b or tiny)
        c = b + numerator / c or tiny
        fraction *= c * d
        if abs(c * d - 1) < _PRECISION:
            break
    return min(1.0, scale * fraction)


def normal_tails(deviation: float) -> float:
    """Return the probability that a standard normal variable is further from 0 than a value.

    Examples
    --------
    >>> round(normal_tails(1.96), 3), round(normal_tails(-1.96), 3)
    (0.05, 0.05)
    """
    return math.erfc(abs(deviation) / math.sqrt(2))
