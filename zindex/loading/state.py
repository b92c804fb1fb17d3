"""The state of a loader: four values, equal on every rank, checked in full before they are used.

``{"version": 1, "fingerprint": "...", "consumed_samples": 4096, "epoch": 0}`` is all of it: plain
values, so that JSON and every checkpoint format keep them. Nothing in it depends on the number of
ranks, the size of a micro-batch, loader workers or batches read ahead.
"""

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

from zindex.errors import StateMismatchError
from zindex.store.identity import fingerprint as fingerprint_of

STATE_VERSION = 1
"""Version of the state; it changes whenever an older one could be misread."""

_KEYS = {"version": int, "fingerprint": str, "consumed_samples": int, "epoch": int}


@dataclass(frozen=True, slots=True)
class LoaderState:
    """Where a stream of samples stands."""

    fingerprint: str
    """What decides the order of the samples, as SHA-256 in hex."""
    consumed_samples: int
    """Samples that all ranks together have been handed, padding not counted."""
    epoch: int
    """Times that the dataset was passed over in full."""

    def to_dict(self) -> dict[str, Any]:
        """Return the state as plain values, with its version."""
        return {
            "version": STATE_VERSION,
            "fingerprint": self.fingerprint,
            "consumed_samples": self.consumed_samples,
            "epoch": self.epoch,
        }


def parse_state(
    state: Mapping[str, Any],
    *,
    fingerprint: str,
    num_positions: int,
    num_samples: int | None,
    ancestors: Sequence[tuple[str, int]] = (),
) -> LoaderState:
    """Return a state after checking that it belongs to this stream of samples.

    Parameters
    ----------
    state
        What ``state_dict()`` returned, perhaps in another job.
    fingerprint
        Of this stream.
    num_positions
        Samples of the dataset, > 0.
    num_samples
        Samples of the whole stream; None if it has no end.
    ancestors
        Fingerprints of this stream before it was edited, and the samples up to which each was the
        same.

    Returns
    -------
    state
        The checked state, as one of this stream.

    Raises
    ------
    StateMismatchError
        If it is none of ours, or belongs to another stream.
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
                    f"a loader state from before an edit must stand at or before it, at position "
                    f"{position:,}, got {found.consumed_samples:,} consumed samples; go back to an "
                    "earlier checkpoint, or make the edit where training stands"
                )
            # The run may have had another length.
            consumed = found.consumed_samples
            found = LoaderState(fingerprint, consumed, consumed // num_positions)
    if found.fingerprint != fingerprint:
        raise StateMismatchError(
            f"a loader state must belong to these samples, which are {fingerprint}, got one of "
            f"{found.fingerprint}; load it with the run, the split and the shuffle that it was "
            "saved with"
        )
    _check_place(found, num_positions, num_samples)
    return found


def _check_place(state: LoaderState, num_positions: int, num_samples: int | None) -> None:
    """Check that a state's place is one that this stream has."""
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
    """Return what identifies the samples of a dataset and their order.

    Parameters
    ----------
    dataset
        A dataset of zindex, which knows its ``fingerprint``, or any other with a length: its class
        and its length stand for it then.

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
