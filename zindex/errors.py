"""Every error that zindex raises on purpose; callers may catch these or the builtin they extend.

::

    ZindexError
    ├── ConfigError (ValueError)               a setting is unknown, missing or out of range
    ├── SourceError (ValueError)               a .bin/.idx pair is not what it must be
    ├── PlanError (ValueError)                 the numbers asked for cannot be had from the data
    ├── StoreError                             a store holds something that zindex did not write
    │   ├── StoreNotFoundError (FileNotFoundError)
    │   │   └── NotReadyError                  begun but not committed yet: k of n shards
    │   ├── StoreUnavailableError (OSError)    an object store does not answer, or refuses
    │   ├── StoreUnreadableError (OSError)     a file system refuses a file, or fails to read it
    │   └── ForkedStoreError (RuntimeError)    an object store was used before this fork
    ├── NotLoadedError (RuntimeError)          a keyed store or dataset is used before it is loaded
    ├── MissingKeyError (KeyError)             a keyed store lacks a key that is needed
    ├── StateMismatchError (ValueError)        a loader state belongs to another run
    ├── FingerprintMismatchError               same place, other content
    ├── VerificationError                      bytes on disk fail their checksum, or are missing
    └── ClusterLostError (RuntimeError)        the Dask cluster of a build is gone, or dies over it

`ConfigError`, `SourceError` and `PlanError` are ``AssertionError`` as well: Megatron asserts what
these say, some versions of it raise ``ValueError``, and scripts written for it catch either.
Each message is one sentence: what must hold, what came, where, and what to do.
"""

from functools import partial
from typing import Any


class ZindexError(Exception):
    """Base of every error that zindex raises on purpose."""


class ConfigError(ZindexError, ValueError, AssertionError):
    """A setting is unknown, missing or out of range."""


class SourceError(ZindexError, ValueError, AssertionError):
    """A ``.bin/.idx`` pair is not what its format says it must be."""


class PlanError(ZindexError, ValueError, AssertionError):
    """The numbers asked for cannot be had from the data."""


class StoreError(ZindexError):
    """A store holds something that zindex did not write or cannot read."""


class StoreNotFoundError(StoreError, FileNotFoundError):
    """Nothing is stored at the given place."""

    # OSError gives exceptions a two-argument form; one sentence is all a caller needs here.
    def __init__(self, message: str) -> None:
        super().__init__(message)


class NotReadyError(StoreNotFoundError):
    """A store has been begun but not committed.

    Parameters
    ----------
    message
        The sentence to show.
    num_done
        Shards that are finished and valid.
    num_shards
        Shards that the whole store has.
    """

    def __init__(self, message: str, *, num_done: int, num_shards: int) -> None:
        super().__init__(message)
        self.num_done = num_done
        self.num_shards = num_shards

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(NotReadyError, num_done=self.num_done, num_shards=self.num_shards)
        return make, self.args, self.__dict__


class StoreUnavailableError(StoreError, OSError):
    """An object store does not answer, or refuses: the network, the address or the credentials."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class StoreUnreadableError(StoreError, OSError):
    """A file system refuses a file of a store, or fails to read it: permissions, or the disk.

    Parameters
    ----------
    message
        The sentence to show.
    errno, strerror
        What the system says.
    """

    def __init__(self, message: str, errno: int | None = None, strerror: str | None = None) -> None:
        super().__init__(message)
        self.errno = errno
        self.strerror = strerror

    def __str__(self) -> str:
        return str(self.args[0])  # that of OSError is made of number and text of the system

    def __reduce__(self) -> tuple[Any, ...]:
        return StoreUnreadableError, (self.args[0], self.errno, self.strerror), self.__dict__


class ForkedStoreError(StoreError, RuntimeError):
    """A client of an object store was used before this process was forked, and cannot go on."""


class NotLoadedError(ZindexError, RuntimeError):
    """A keyed store, or a dataset over one, is used before it is loaded."""


class MissingKeyError(ZindexError, KeyError):
    """A keyed store lacks a key that is needed."""

    # KeyError shows its message in quotes.
    def __str__(self) -> str:
        return str(self.args[0])


class StateMismatchError(ZindexError, ValueError):
    """The state of a loader belongs to another run, or to another version of zindex."""


class FingerprintMismatchError(ZindexError):
    """The content at a place is not the content that was asked for."""


class VerificationError(ZindexError):
    """Bytes on disk fail their checksum, or are missing."""


class ClusterLostError(ZindexError, RuntimeError):
    """The Dask cluster of a build is gone, or its workers die over a task."""
