"""Loader state: four values, equal on every rank, validated before use.

``{"version": 1, "fingerprint": "...", "consumed_samples": 4096, "epoch": 0}`` is a whole
state: plain values, which JSON and every checkpoint format can store. It does not depend on the
number of ranks, the micro-batch size, loader workers or prefetched batches.
"""

import json
from collections.abc import Mapping, Sequence, Sized
from dataclasses import asdict, dataclass
from typing import Any

from zindex.errors import StateMismatchError
from zindex.io import files
from zindex.io.objects import PlaceLike, place_of
from zindex.store.commit import fingerprint as fingerprint_of

#: Version of the state format; increased when older states could be misread.
STATE_VERSION = 1

_KEYS = {"version": int, "fingerprint": str, "consumed_samples": int, "epoch": int}


@dataclass(frozen=True, slots=True)
class LoaderState:
    """Position in a stream of samples."""

    #: SHA-256, in hex, of everything that determines the order of the samples.
    fingerprint: str
    #: Samples delivered to all ranks together, without padding.
    consumed_samples: int
    #: Completed passes over the dataset.
    epoch: int

    def to_dict(self) -> dict[str, Any]:
        """Return the state as plain values, with its version."""
        return {"version": STATE_VERSION} | asdict(self)


def read_state(path: PlaceLike) -> Any:
    """Return the state of a loader from a JSON file, unchecked.

    Raises
    ------
    StoreNotFoundError
        If there is no such file.
    StateMismatchError
        If it is not JSON.
    """
    try:
        return json.loads(files.read_file(place_of(path)))
    except (ValueError, RecursionError) as error:
        raise StateMismatchError(
            f"{path} must be JSON, the result of state_dict(), it is not: {error}; save it again"
        ) from error


def parse_state(
    state: Mapping[str, Any],
    *,
    fingerprint: str,
    num_positions: int,
    num_samples: int | None,
    ancestors: Sequence[tuple[str, int]] = (),
) -> LoaderState:
    """Return a state, after checking that it belongs to this stream of samples.

    Parameters
    ----------
    state
        The result of ``state_dict()``, possibly of another job.
    fingerprint
        Of this stream.
    num_positions
        Samples of the dataset, > 0.
    num_samples
        Samples of the whole stream; None if it has no end.
    ancestors
        Fingerprints of this stream before its edits, and the samples up to which each is valid.

    Returns
    -------
    state
        The checked state, with the fingerprint of this stream.

    Raises
    ------
    StateMismatchError
        If it is not a state of zindex, or belongs to another stream.
    """
    if not isinstance(state, Mapping):
        raise StateMismatchError(
            f"a loader state must be a mapping, got {type(state).__name__}; give what state_dict() "
            "returned"
        )
    version = state.get("version")
    if type(version) is int and version != STATE_VERSION:
        raise StateMismatchError(
            f"a loader state must be of version {STATE_VERSION}, got {version}; read it with the "
            "zindex that wrote it"
        )
    if set(state) == {"epoch", "iter"}:
        raise StateMismatchError(
            "a loader state must be one of zindex, got epoch and iter of AstrAI's sampler; load "
            "them into ResumableDistributedSampler(dataset, order='astrai_randperm') with the seed "
            "of that run"
        )
    if set(state) != set(_KEYS):
        raise StateMismatchError(
            f"a loader state must have the keys {sorted(_KEYS)}, got {sorted(map(str, state))}; "
            "give what state_dict() returned"
        )
    for key, kind in _KEYS.items():
        if type(state[key]) is not kind:
            raise StateMismatchError(
                f"{key} of a loader state must be {kind.__name__}, got {state[key]!r}; give what "
                "state_dict() returned"
            )
    found = LoaderState(state["fingerprint"], state["consumed_samples"], state["epoch"])
    for ancestor, position in ancestors:
        if found.fingerprint == ancestor and ancestor != fingerprint:
            if found.consumed_samples > position:
                raise StateMismatchError(
                    f"a loader state from before an edit must be at or before it, at position "
                    f"{position:,}, got {found.consumed_samples:,} consumed samples; go back to an "
                    "earlier checkpoint, or make the edit at the position of training"
                )
            # The length of the run may have changed.
            consumed = found.consumed_samples
            found = LoaderState(fingerprint, consumed, consumed // num_positions)
    if found.fingerprint != fingerprint:
        raise StateMismatchError(
            f"a loader state must belong to these samples, which are {fingerprint}, got one of "
            f"{found.fingerprint}; load it with the run, the split, the shuffle and the token "
            "budget that it was saved with"
        )
    _check_position(found, num_positions, num_samples)
    return found


def _check_position(state: LoaderState, num_positions: int, num_samples: int | None) -> None:
    """Check that a state is at a position of this stream."""
    consumed = state.consumed_samples
    if consumed < 0 or (num_samples is not None and consumed > num_samples):
        bound = "" if num_samples is None else f", at most {num_samples:,}"
        raise StateMismatchError(
            f"consumed_samples of a loader state must be at least 0{bound}, got {consumed:,}; "
            "raise num_samples or num_epochs if the run has become longer"
        )
    if state.epoch != consumed // num_positions:
        raise StateMismatchError(
            f"epoch of a loader state must be {consumed // num_positions} after {consumed:,} "
            f"samples of a dataset of {num_positions:,}, got {state.epoch}; the dataset had "
            "another length when it was saved"
        )


def dataset_fingerprint(dataset: Sized) -> str:
    """Return the identity of a dataset: its samples and their order.

    Parameters
    ----------
    dataset
        A dataset with a ``fingerprint``, as those of zindex, or any other with a length, identified
        by its class and length.

    Returns
    -------
    fingerprint
        SHA-256 in hex.
    """
    fingerprint = getattr(dataset, "fingerprint", None)
    if isinstance(fingerprint, str):
        return fingerprint
    kind = type(dataset)
    return fingerprint_of(
        {"class": f"{kind.__module__}.{kind.__qualname__}", "num_samples": len(dataset)}
    )
