"""What the ranks of a job request, as JSON that they compare."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np


def as_text(request: Mapping[str, Any]) -> str:
    """Return a request as JSON, equal in every process."""
    return json.dumps(request, default=_plain)


def _plain(value: Any) -> Any:
    """Return an equivalent of a value that JSON has, or the name of its class."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return type(value).__name__


def find_difference(own: Any, other: Any, name: str = "") -> tuple[str, Any, Any] | None:
    """Return the first field in which two requests differ, and its two values.

    Parameters
    ----------
    own, other
        Requests parsed from JSON, or parts of them.
    name
        The field that holds them.

    Returns
    -------
    difference
        The name of the field and both values, of lists of different lengths the number of entries;
        None if the requests are equal.

    Examples
    --------
    >>> find_difference({"seed": 1, "train": {"paths": ["a"]}}, {"seed": 1, "train": {"paths": []}})
    ('the number of train.paths', 1, 0)
    """
    if isinstance(own, list) and isinstance(other, list):
        if len(own) != len(other):
            return f"the number of {name}", len(own), len(other)
        own, other = dict(enumerate(own)), dict(enumerate(other))
        pattern = f"{name}[{{}}]"
    elif isinstance(own, dict) and isinstance(other, dict):
        pattern = f"{name}.{{}}" if name else "{}"
    else:
        return None if own == other else (name, own, other)
    for key in own | other:
        found = find_difference(own.get(key), other.get(key), pattern.format(key))
        if found is not None:
            return found
    return None
