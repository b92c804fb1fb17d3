"""What the ranks of a job request, in a form that they can compare."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zindex.config import RunConfig
from zindex.datasets.blend_requests import SplitRequest
from zindex.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from zindex.datasets.utils import Split

# Settings that change samples or which rank builds them, and are not part of Megatron's key.
_SETTINGS = (
    "order",
    "store",
    "shuffle",
    "packing",
    "max_computed_rows",
    "add_extra_token_to_sequence",
    "drop_last_partial_validation_sequence",
)
# Parts of Megatron's key that the requests of the splits have, or that no index depends on.
_NOT_COMPARED = {"split", "split_matrix", "tokenizer"}


def describe_splits(
    cls: Any, requests: Sequence[SplitRequest | None], config: BlendedMegatronDatasetConfig
) -> dict[str, Any]:
    """Return what a rank's builder requests: the class, the settings, and every split.

    Parameters
    ----------
    cls
        The class of the members.
    requests
        Of train, valid and test.
    config
        The configuration; settings of a process, such as timeouts or threads, are left out.
    """
    keys: list[str] = getattr(cls, "_key_config_attributes", list)()
    settings = {
        name: getattr(config, name, None)
        for name in (*keys, *_SETTINGS)
        if name not in _NOT_COMPARED
    }
    splits = {
        split.name: request and dataclasses.asdict(request) | {"split": split.name}
        for split, request in zip(Split, requests, strict=True)
    }
    return {"class": getattr(cls, "__name__", str(cls))} | splits | settings


def describe_run(config: RunConfig, settings: BlendedMegatronDatasetConfig) -> dict[str, Any]:
    """Return what a rank requests of a run: its configuration without the place of the indices."""
    run = dataclasses.asdict(config)
    del run["index"], run["grid"]
    return run | {"max_computed_rows": settings.max_computed_rows}


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
