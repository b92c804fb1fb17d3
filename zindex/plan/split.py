"""Split strings such as ``"969,30,1"``, and the documents of each split.

Source: Megatron Core ``blended_megatron_dataset_config``. The float arithmetic is part of the
format: it decides which documents a split has.
"""

import math
import re
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from zindex.errors import ConfigError

SPLIT_NAMES = ("train", "valid", "test")

_SEPARATOR = re.compile(r"\s*[,/]\s*|\s+")
_NUMBER = re.compile(r"\d+\.?\d*|\.\d+", re.ASCII)

#: Start and stop of one split as fractions of a dataset, or None for a split without documents.
Bookends = tuple[float, float] | None


def normalize(weights: Sequence[float]) -> list[float]:
    """Return weights divided by their sum, in float64.

    Examples
    --------
    >>> normalize([3, 1])
    [0.75, 0.25]
    """
    values = np.array(weights, dtype=np.float64)
    normalized: list[float] = (values / np.sum(values)).tolist()
    return normalized


def parse_and_normalize_split(split: str) -> list[float]:
    """Return the three fractions of a split string.

    Parameters
    ----------
    split
        One to three numbers, separated by commas, slashes or spaces; missing ones are 0.

    Raises
    ------
    ConfigError
        If it has more than three numbers or anything else, such as a sign, an exponent or a stray
        separator, or if the sum is 0 or infinite.

    Notes
    -----
    Megatron Core 0.16 ignores every character but digits and points, so ``"-1,1"`` halves the data
    and an exponent counts as another number. Later versions raise an error in both cases, as this
    function does.

    Examples
    --------
    >>> parse_and_normalize_split("99,1,0")
    [0.99, 0.01, 0.0]
    """
    texts = _SEPARATOR.split(split.strip())
    if not all(_NUMBER.fullmatch(text) for text in texts):
        raise ConfigError(
            f"split must hold plain numbers with commas between them, such as '99,1,0', got "
            f"{split!r}; write each share without sign or exponent"
        )
    vector = [float(text) for text in texts]
    if len(vector) > len(SPLIT_NAMES) or not 0 < sum(vector) < math.inf:
        raise ConfigError(
            f"split must hold one to three numbers with a sum above 0, got {split!r}; "
            "for example '99,1,0'"
        )
    return normalize(vector + [0.0] * (len(SPLIT_NAMES) - len(vector)))


def convert_split_vector_to_split_matrix(
    vector_a: Sequence[float], vector_b: Sequence[float] | None = None
) -> list[Bookends]:
    """Return the bookends of each split, or of the overlap of two splits.

    Notes
    -----
    Bounds are summed from left to right, starting with the integer 0. So the last one may be less
    than 1, and the first one is ``0``, not ``0.0``: both are part of Megatron's cache key.

    Examples
    --------
    >>> convert_split_vector_to_split_matrix([0.99, 0.01, 0.0])
    [(0, 0.99), (0.99, 1.0), None]
    """
    bounds_a = pairwise(accumulate(vector_a, initial=0))
    bounds_b = pairwise(accumulate(vector_a if vector_b is None else vector_b, initial=0))
    matrix: list[Bookends] = []
    for (start_a, stop_a), (start_b, stop_b) in zip(bounds_a, bounds_b, strict=True):
        start, stop = max(start_a, start_b), min(stop_a, stop_b)
        matrix.append(None if stop <= start else (start, stop))
    return matrix


def split_range(num_elements: int, bookends: Bookends) -> tuple[int, int]:
    """Return the half-open range of elements of a split.

    Parameters
    ----------
    num_elements
        Elements of the whole dataset: sequences for GPT, documents for BERT and T5.
    bookends
        From ``convert_split_vector_to_split_matrix``.

    Examples
    --------
    Rounding is half to even, as in Python:

    >>> split_range(10, (0, 0.99)), split_range(10, (0.99, 1.0)), split_range(10, None)
    ((0, 10), (10, 10), (0, 0))
    """
    if bookends is None:
        return 0, 0
    start, stop = bookends
    return round(start * float(num_elements)), round(stop * float(num_elements))
