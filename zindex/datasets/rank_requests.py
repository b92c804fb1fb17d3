"""What a rank requests of a builder or a run, for the comparison with other ranks."""

import dataclasses
from collections.abc import Sequence
from typing import Any

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
