"""The tree of errors: what callers may catch, and what survives a trip between processes."""

import copy
import pickle

import pytest

from zindex import errors
from zindex.errors import (
    ClusterLostError,
    ConfigError,
    FileSystemError,
    FingerprintMismatchError,
    ForkedStoreError,
    MissingKeyError,
    NotLoadedError,
    NotReadyError,
    PlanError,
    SourceError,
    StateMismatchError,
    StoreError,
    StoreNotFoundError,
    StoreUnavailableError,
    StoreUnreadableError,
    StoreUnwritableError,
    VerificationError,
    ZindexError,
)

CLASSES = (
    ZindexError,
    ConfigError,
    SourceError,
    PlanError,
    StoreError,
    StoreNotFoundError,
    StoreUnavailableError,
    FileSystemError,
    StoreUnreadableError,
    StoreUnwritableError,
    ForkedStoreError,
    NotLoadedError,
    MissingKeyError,
    StateMismatchError,
    FingerprintMismatchError,
    VerificationError,
    ClusterLostError,
)


def make_not_ready() -> NotReadyError:
    return NotReadyError("3 of 7 shards", num_done=3, num_shards=7)


@pytest.mark.parametrize(
    ("kind", "bases"),
    [
        (ConfigError, (ZindexError, ValueError, AssertionError)),
        (SourceError, (ZindexError, ValueError, AssertionError)),
        (PlanError, (ZindexError, ValueError, AssertionError)),
        (StoreError, (ZindexError,)),
        (StoreNotFoundError, (StoreError, FileNotFoundError, OSError)),
        (NotReadyError, (StoreNotFoundError, FileNotFoundError)),
        (StoreUnavailableError, (StoreError, OSError)),
        (StoreUnreadableError, (FileSystemError, StoreError, OSError)),
        (StoreUnwritableError, (FileSystemError, StoreError, OSError)),
        (ForkedStoreError, (StoreError, RuntimeError)),
        (StateMismatchError, (ZindexError, ValueError)),
        (FingerprintMismatchError, (ZindexError,)),
        (VerificationError, (ZindexError,)),
        (ClusterLostError, (ZindexError, RuntimeError)),
    ],
)
def test_tree(kind: type[ZindexError], bases: tuple[type[Exception], ...]) -> None:
    assert all(issubclass(kind, base) for base in bases)


def test_every_error_is_in_the_tree_and_in_the_picture() -> None:
    found = [item for item in vars(errors).values() if isinstance(item, type)]
    ours = {item for item in found if issubclass(item, Exception)}
    assert ours == {*CLASSES, NotReadyError}
    assert all(item.__name__ in (errors.__doc__ or "") for item in ours)


def test_damage_is_not_a_store_error() -> None:
    """A damaged or foreign store is never taken for one that is merely not there yet."""
    for kind in (FingerprintMismatchError, VerificationError, ConfigError, PlanError):
        assert not issubclass(kind, StoreError)
        assert not issubclass(kind, OSError)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_error_is_pickled(kind: type[ZindexError], protocol: int) -> None:
    error = kind("one sentence with 7 numbers")
    error.add_note("in shard 3")
    read = pickle.loads(pickle.dumps(error, protocol))
    assert type(read) is kind
    assert str(read) == "one sentence with 7 numbers"
    assert read.args == ("one sentence with 7 numbers",)
    assert read.__notes__ == ["in shard 3"]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_not_ready_keeps_its_numbers(protocol: int) -> None:
    error = make_not_ready()
    error.add_note("in shard 3")
    for read in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error)):
        assert type(read) is NotReadyError
        assert str(read) == "3 of 7 shards"
        assert (read.num_done, read.num_shards) == (3, 7)
        assert read.__notes__ == ["in shard 3"]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_system_errors_keep_their_text(protocol: int) -> None:
    error = StoreUnreadableError("one sentence", 5, "Input/output error")
    for read in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error)):
        assert (str(read), read.errno, read.strerror) == ("one sentence", 5, "Input/output error")


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (ConfigError("text"), ValueError),
        (SourceError("text"), ValueError),
        (PlanError("text"), ValueError),
        (StoreNotFoundError("text"), FileNotFoundError),
        (make_not_ready(), FileNotFoundError),
    ],
)
def test_callers_may_catch_builtins(error: ZindexError, builtin: type[Exception]) -> None:
    with pytest.raises(builtin, match=r"text|3 of 7"):
        raise error


def test_a_missing_key_is_said_without_quotes() -> None:
    error = MissingKeyError("the store needs the key 'sequence'")
    assert isinstance(error, KeyError)
    assert str(error) == "the store needs the key 'sequence'"


def test_suggestions() -> None:
    assert errors.suggest("sead", ["seed", "path"]) == " (did you mean 'seed'?)"
    assert errors.suggest("x", ["seed"]) == ""
    with pytest.raises(ConfigError, match=r"got 'keyd' \(did you mean 'keyed'\?\); choose one"):
        errors.check_choice("shuffle", "keyd", ("keyed", "uniform"))
