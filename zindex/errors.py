"""All errors that zindex raises; callers may catch these or the builtins that they extend.

::

    ZindexError
    ├── ConfigError (ValueError)               a setting is unknown, missing or out of range
    ├── SourceError (ValueError)               a source file is damaged or malformed
    ├── PlanError (ValueError)                 the data cannot give the requested numbers
    ├── StoreError                             a store is not zindex's, or is malformed
    │   ├── StoreNotFoundError (FileNotFoundError)
    │   │   └── NotReadyError                  started but not committed: k of n shards
    │   ├── StoreUnavailableError (OSError)    an object store does not answer or refuses
    │   ├── FileSystemError (OSError)         a file system refuses or fails
    │   │   ├── StoreUnreadableError          ... to read a file
    │   │   └── StoreUnwritableError          ... to write one: no room, no permission
    │   └── ForkedStoreError (RuntimeError)    an object store was used before this fork
    ├── NotLoadedError (RuntimeError)          a keyed store is used before it is loaded
    ├── MissingKeyError (KeyError)             a store lacks a required key, array or fact
    ├── StateMismatchError (ValueError)        a loader state belongs to another run
    ├── FingerprintMismatchError               a path holds other content than expected
    ├── VerificationError                      bytes on disk fail their checksum, or are missing
    └── ClusterLostError (RuntimeError)        the Dask cluster of a build is lost

`ConfigError`, `SourceError` and `PlanError` are also ``AssertionError``: Megatron asserts the same
conditions, some versions of it raise ``ValueError``, and scripts written for it catch either. Each
message is one sentence: the requirement, the actual value, where, and what to do.
"""

import operator
import os
from collections.abc import Iterable, Mapping
from functools import partial
from numbers import Integral
from typing import Any, SupportsIndex


class ZindexError(Exception):
    """Base of every error that zindex raises."""


class ConfigError(ZindexError, ValueError, AssertionError):
    """A setting is unknown, missing or out of range."""


class SourceError(ZindexError, ValueError, AssertionError):
    """A source file is damaged or does not follow its format."""


class PlanError(ZindexError, ValueError, AssertionError):
    """The data cannot give the requested numbers."""


class StoreError(ZindexError):
    """A store holds something that zindex did not write or cannot read."""


class StoreNotFoundError(StoreError, FileNotFoundError):
    """No store exists at the given path."""


class NotReadyError(StoreNotFoundError):
    """A store is started but not committed.

    Parameters
    ----------
    message
        The error message.
    num_done
        Shards that are finished and valid.
    num_shards
        Shards of the whole store.
    """

    def __init__(self, message: str, *, num_done: int, num_shards: int) -> None:
        super().__init__(message)
        self.num_done = num_done
        self.num_shards = num_shards

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(NotReadyError, num_done=self.num_done, num_shards=self.num_shards)
        return make, self.args, self.__dict__


class StoreUnavailableError(StoreError, OSError):
    """An object store does not respond or denies access: check network, address and credentials."""


class FileSystemError(StoreError, OSError):
    """A file system denies or fails an operation on a file.

    Parameters
    ----------
    message
        The error message.
    errno, strerror
        Error number and text of the system.
    """

    def __init__(self, message: str, errno: int | None = None, strerror: str | None = None) -> None:
        super().__init__(message)
        self.errno = errno
        self.strerror = strerror

    def __str__(self) -> str:
        return str(self.args[0])  # OSError would show number and text of the system

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.errno, self.strerror), self.__dict__


class StoreUnreadableError(FileSystemError):
    """A file system denies or fails reading a file of a store."""


class StoreUnwritableError(FileSystemError):
    """A file cannot be written: no room, no permission, too many open files."""


class ForkedStoreError(StoreError, RuntimeError):
    """A client of an object store was used before this process was forked."""


class NotLoadedError(ZindexError, RuntimeError):
    """A keyed store, or a dataset over one, is used before it is loaded."""


class MissingKeyError(ZindexError, KeyError):
    """A store lacks a required key, array or fact."""

    # KeyError shows its message in quotes.
    def __str__(self) -> str:
        return str(self.args[0])


class StateMismatchError(ZindexError, ValueError):
    """The state of a loader belongs to another run, or to another version of zindex."""


class FingerprintMismatchError(ZindexError):
    """A path holds other content than expected."""


class VerificationError(ZindexError):
    """Bytes on disk fail their checksum, or are missing."""


class ClusterLostError(ZindexError, RuntimeError):
    """The Dask cluster of a build is lost, or its workers repeatedly die on a task."""


def shorten(value: object) -> str:
    """Return the start of a value for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a hint at similar known names, or an empty text."""
    from difflib import get_close_matches

    close = get_close_matches(name, sorted(known), 3, 0.7)
    return f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""


def check_choice(name: str, value: object, choices: Iterable[object]) -> None:
    """Raise if a setting is not one of its choices.

    Raises
    ------
    ConfigError
        If it is another value.
    """
    known = tuple(choices)
    if value not in known:
        raise ConfigError(
            f"{name} must be one of {', '.join(map(str, known))}, got {value!r}"
            f"{suggest(str(value), map(str, known))}; choose one"
        )


def check_number(index: SupportsIndex, length: int, what: str, where: object) -> int:
    """Return a number counted from the start; negative numbers count from the end.

    Raises
    ------
    IndexError
        If the number is out of range.
    """
    number = operator.index(index)
    if not -length <= number < length:
        raise IndexError(
            f"{what} must lie within [{-length}, {length}), but {index} was asked of {where}; take "
            "it modulo the length"
        )
    return number % length


def check_whole(name: str, value: Any, low: int) -> int:
    """Return a setting as a plain int, after checking that it is whole and at least ``low``.

    Raises
    ------
    ConfigError
        If it is not. Numpy's integers are whole numbers, booleans are not.
    """
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or value < low:
        raise ConfigError(f"{name} must be a whole number of at least {low}, got {value!r}")
    return int(value)


def check_list(name: str, values: object) -> None:
    """Raise if a setting that must be a list is a single text, path or other value.

    Raises
    ------
    ConfigError
        If it is one, or a mapping.
    """
    if isinstance(values, str | os.PathLike):
        raise ConfigError(f"{name} must be a list, got the text {str(values)!r}; put it in one")
    if isinstance(values, Mapping) or not isinstance(values, Iterable):
        raise ConfigError(f"{name} must be a list, got {values!r}; put it in one")
