"""Where a worker slot starts to read: from a state of a mixture, or with an iteration over it."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from torch.utils.data import get_worker_info

from zindex.errors import ConfigError, StateMismatchError
from zindex.mixing.percent_board import PercentBoard
from zindex.mixing.percents import change_percents as add_change
from zindex.streaming import mixture_changes, resuming
from zindex.streaming.mixture_changes import MixtureFacts
from zindex.streaming.state import LoadedState, State, digest, find_delivered, load_state
from zindex.streaming.worker_slots import StreamOrigin, StreamStart, WorkerSlot

# Earlier iterations of which a trainer's dict may still have entries.
_MAX_ANCESTORS = 64


def first_iteration(state: State | None) -> int:
    """Return the number of the iteration that a state is of; 0 without one."""
    if state is None or resuming.is_of_cogdata(state):
        return 0
    return load_state(state).origin.iteration


def resume_mixture(
    facts: MixtureFacts, state: State, slot: WorkerSlot, *, from_url_level: bool
) -> tuple[StreamStart, State]:
    """Return where a worker slot starts from a state of either form, and its first report.

    Parameters
    ----------
    facts
        The current mixture.
    state
        The state.
    slot
        The worker slot.
    from_url_level
        Whether begun parts are reread.

    Raises
    ------
    StateMismatchError
        If it is the state of other datasets, or does not fit the ranks.
    """
    loaded = _load(facts, state, slot)
    loaded, _ = mixture_changes.adapt(loaded, facts, any_content=from_url_level)
    if from_url_level:
        loaded = resuming.rewind_parts(loaded, facts.identities)
    return resuming.resume(loaded, slot, include_all=from_url_level)


def begin_iteration(
    facts: MixtureFacts,
    iteration: int,
    before: State | None,
    slot: WorkerSlot,
    from_url_level: bool,
) -> StreamOrigin:
    """Return the origin of an iteration from its first sample on.

    A trainer's dict may have entries of earlier iterations, whose origins it therefore knows.

    Parameters
    ----------
    facts
        The current mixture.
    iteration
        Its number.
    before
        State that was loaded for an earlier iteration.
    slot, from_url_level
        As for `resume_mixture` then.
    """
    origin = facts.make_origin(iteration)
    fields = origin.to_json()

    def find_id(number: int) -> str:
        return digest(fields | {"iteration": number})

    ids = [find_id(n) for n in range(max(0, iteration - _MAX_ANCESTORS), iteration)]
    if before and not resuming.is_of_cogdata(before):
        known = load_state(before).origin
        with suppress(StateMismatchError):  # then no iteration has resumed from it
            known = resume_mixture(facts, before, slot, from_url_level=from_url_level)[0].origin
        ids += [*known.ancestors, known.id]
    return replace(origin, id=find_id(iteration), ancestors=tuple(ids))


def change_percents(
    mixture: Any,
    board: PercentBoard,
    percents: Mapping[str, float],
    at: int | None,
    group: Any,
    state: State,
) -> list[list[Any]]:
    """Add a change to a board, without those that the state of this rank needs no longer.

    See `MergedDataset.set_percents`.
    """
    _, num_ranks = mixture.place
    delivered = find_delivered(state)
    return add_change(mixture, board, percents, at, num_ranks, group, delivered)


def add_percents(state: State, start: StreamStart) -> State:
    """Return the state of a worker slot with the percents that were set while it was read."""
    changes = [] if start.board is None else start.board.changes
    if changes and get_worker_info() is not None:
        raise ConfigError(
            "the states of single loader workers cannot have percents of set_percents; use "
            "zindex.stream_loader, whose states are of all workers, or no workers"
        )
    return state | {"percents": [[*change] for change in changes]} if changes else state


def check_one_worker(
    loaded: LoadedState | None, changes: list[str], num_ranks: int, num_workers: int
) -> None:
    """Raise if a loader worker cannot resume from its own state alone."""
    if loaded is None:
        return
    fault = changes[0] if changes else "changed percents" if loaded.changes else ""
    if not loaded.fits(num_ranks, num_workers):
        fault = f"one of {loaded.num_ranks} ranks of {loaded.num_slots} workers"
    if fault:
        raise StateMismatchError(
            "the state of a single loader worker must be of the same mixture, without percents of "
            f"set_percents, and of {num_ranks} ranks of {num_workers} workers, got {fault}; leave "
            "the StatefulDataLoader's load_state_dict out, and give the dataset's "
            "set_dataloader_states the states of all: merge_states([loader_state, ...])"
        )


def _load(facts: MixtureFacts, state: State, slot: WorkerSlot) -> LoadedState:
    """Parse a state of either form."""
    if not resuming.is_of_cogdata(state):
        return load_state(state)
    slots = [replace(slot, slot=each, worker=each) for each in range(slot.num_slots)]
    sources = list(facts.sources)
    entries = {each.index: resuming.read_cogdata_state(state, sources, each) for each in slots}
    own = (slot.rank, slot.num_ranks)
    origin = begin_iteration(facts, 0, None, slot, from_url_level=False)
    return LoadedState(origin, entries, slot.num_ranks, slot.num_slots, {}, own)
