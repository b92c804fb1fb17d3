"""Read YAML files, with limits on their size and their aliases."""

import os
from pathlib import Path
from typing import Any

import yaml

from zindex.errors import ConfigError
from zindex.io.regular_files import open_file

_MAX_NBYTES = 4 << 20
_MAX_ALIASES = 20


def read_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a YAML file with one mapping.

    Raises
    ------
    ConfigError
        If the file is missing, too large, or not a YAML mapping.
    """
    file = Path(path)
    content = read_content(file, "a run needs its YAML file", _MAX_NBYTES)
    try:
        values = yaml.load(content, BoundedLoader)
    except RecursionError as error:
        raise ConfigError(f"{file} must hold YAML that is nested less deeply") from error
    # Values that do not fit their tags, such as !!int "", raise errors of many kinds.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise ConfigError(f"{file} must hold YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{file} must hold a mapping of settings, got {type(values).__name__}")
    return values


def read_content(file: Path, need: str, max_nbytes: int) -> bytes:
    """Read the bytes of a YAML file.

    Parameters
    ----------
    file
        Its path.
    need
        Purpose, for the message.
    max_nbytes
        Size limit; no more is read.

    Raises
    ------
    ConfigError
        If it is unreadable or too large.
    """
    try:
        with open_file(file) as stream:
            content = stream.read(max_nbytes + 1)
    except OSError as error:
        raise ConfigError(f"{need}, cannot read {file}: {error}") from error
    if len(content) > max_nbytes:
        raise ConfigError(f"{file} must be YAML of at most {max_nbytes} bytes; check the path")
    return content


class BoundedLoader(yaml.SafeLoader):
    """A safe loader with a limit on aliases: a hundred bytes could expand to gigabytes."""

    max_aliases = _MAX_ALIASES
    num_aliases = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Count an alias before following it."""
        if self.check_event(yaml.AliasEvent):
            self.num_aliases += 1
            if self.num_aliases > self.max_aliases:
                raise yaml.YAMLError(f"it may have at most {self.max_aliases} aliases")
        return super().compose_node(parent, index)
