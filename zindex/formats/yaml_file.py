"""Read YAML files, with limits on their size and their aliases."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from zindex.errors import ConfigError
from zindex.io.regular_files import open_file
from zindex.io.system_errors import reason_of

_MAX_NBYTES = 4 << 20
_MAX_ALIASES = 20


class Settings(dict[Any, Any]):
    """A mapping of a YAML file that knows the line of each of its settings."""

    file = ""
    #: Line of each setting, counted from 1.
    lines: dict[str, int]


@contextmanager
def located(values: Any) -> Iterator[None]:
    """Prefix a ConfigError about settings of a file with the file and the line.

    The line is that of the first setting that the message names.
    """
    try:
        yield
    except ConfigError as error:
        message = str(error)
        if not isinstance(values, Settings) or message.startswith(values.file):
            raise
        named = [word for word in re.findall(r"\w+", message) if word in values.lines]
        line = f", line {values.lines[named[0]]}" if named else ""
        raise ConfigError(f"{values.file}{line}: {message}") from error


def read_yaml(path: str | os.PathLike[str], what: str = "a run") -> Settings:
    """Read a YAML file with one mapping; nested mappings are `Settings`, too.

    Parameters
    ----------
    path
        Its path.
    what
        What it describes, for messages.

    Raises
    ------
    ConfigError
        If the file is missing, too large, or not a YAML mapping, or a setting is given twice.
    """
    text = os.fspath(path)
    file = Path(path)
    if "://" in text:
        from zindex.io.local import local_path  # needs numpy

        file = local_path(text, "a run file")
    content = read_content(file, f"{what} needs its YAML file", _MAX_NBYTES)
    try:
        loader = _SettingsLoader(content)
        loader.name = str(file)
        values = loader.get_single_data()
    except RecursionError as error:
        raise ConfigError(f"{file} must hold YAML that is nested less deeply") from error
    except yaml.MarkedYAMLError as error:
        line, problem = describe_fault(error)
        raise ConfigError(f"{file}, line {line}: must hold YAML: {problem}") from error
    except ConfigError:
        raise
    # Values that do not fit their tags, such as !!int "", raise errors of many kinds.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise ConfigError(f"{file} must hold YAML: {error}") from error
    if not isinstance(values, Settings):
        found = "nothing" if values is None else type(values).__name__
        raise ConfigError(f"{file} must hold a mapping of settings, got {found}")
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
        raise ConfigError(
            f"{need}, cannot read {file}: {reason_of(error)}; check the path"
        ) from error
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


class _SettingsLoader(BoundedLoader):
    """A loader of mappings as `Settings`, whose keys must differ."""

    def construct_settings(self, node: yaml.MappingNode) -> Iterator[Settings]:
        """Construct a mapping; first empty, so that an alias in it may refer to it."""
        values = Settings()
        yield values
        values.file, values.lines = str(self.name), {}
        for name, line in _name_lines(node):
            first = values.lines.setdefault(name, line)
            if first != line:
                raise ConfigError(
                    f"{values.file}, line {line}: settings must differ, {name!r} is on line "
                    f"{first}, too; leave one out"
                )
        values.update(self.construct_mapping(node))
        # Those of merged mappings are there now, and come first.
        values.lines = dict(_name_lines(node)) | values.lines


def _name_lines(node: yaml.MappingNode) -> list[tuple[str, int]]:
    """Return the names of settings, each with its line."""
    return [
        (key.value, key.start_mark.line + 1)
        for key, _ in node.value
        if isinstance(key, yaml.ScalarNode)
    ]


_SettingsLoader.add_constructor("tag:yaml.org,2002:map", _SettingsLoader.construct_settings)


def describe_fault(error: yaml.MarkedYAMLError) -> tuple[int, str]:
    """Return the line, counted from 1, and the problem of a YAML syntax error."""
    mark = error.problem_mark or error.context_mark
    problem = " ".join(part for part in (error.context, error.problem) if part)
    return (1 if mark is None else mark.line + 1), problem
