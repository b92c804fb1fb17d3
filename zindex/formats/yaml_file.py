"""A settings file: one YAML mapping, read with bounds on its size and its aliases."""

import os
from pathlib import Path
from typing import Any

import yaml

from zindex.errors import ConfigError

_MAX_NBYTES = 4 << 20
_MAX_ALIASES = 20


def read_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the mapping that a YAML file holds.

    Raises
    ------
    ConfigError
        If the file is missing or too large, or holds no YAML mapping.
    """
    file = Path(path)
    try:
        with open(file, "rb") as stream:
            content = stream.read(_MAX_NBYTES + 1)
    except OSError as error:
        raise ConfigError(f"a run needs its YAML file, cannot read {file}: {error}") from error
    if len(content) > _MAX_NBYTES:
        raise ConfigError(f"{file} must be YAML of at most {_MAX_NBYTES} bytes; check the path")
    try:
        values = yaml.load(content, _Loader)
    except RecursionError as error:
        raise ConfigError(f"{file} must hold YAML that is nested less deeply") from error
    # Values that do not fit their tags, such as !!int "", come out as errors of many kinds.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise ConfigError(f"{file} must hold YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{file} must hold a mapping of settings, got {type(values).__name__}")
    return values


class _Loader(yaml.SafeLoader):
    """Safe, with few aliases: a file of a hundred bytes could stand for gigabytes."""

    num_aliases = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Count an alias before it is followed."""
        if self.check_event(yaml.AliasEvent):
            self.num_aliases += 1
            if self.num_aliases > _MAX_ALIASES:
                raise yaml.YAMLError(f"it may have at most {_MAX_ALIASES} aliases")
        return super().compose_node(parent, index)
