"""Checkpoints of streams, which are delivered with samples, and their merge over all ranks.

A state is a flat dict of JSON values. Each sample carries the entries that it changed, so a trainer
that updates one dict with ``to_state`` of every batch always has the checkpoint of all trained
batches, independent of prefetched ones. The entry of worker slot I of N is named ``"leaf NAME
@I/N"`` for a source, ``"mix PATH @I/N"`` and ``"lags PATH @I/N"`` for the picks of a mixture, or
``"yield PATH @I/N"``; ``"origin"`` is the start of all worker slots, and ``"percents"`` are those
that were set while training; ``"begun percents"`` come with the first samples, and are those that
were set before these were read.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zindex.errors import StateMismatchError, StoreError
from zindex.loading.stateful_loaders import join_workers
from zindex.mixing.percent_board import Change, Place
from zindex.samples.collectives import gather_objects, is_distributed
from zindex.store.checked_json import parse_as
from zindex.store.commit import fingerprint
from zindex.streaming import worker_slots

State = dict[str, Any]

#: Changes of percents in the first state of a rank, beside those of `MergedDataset.set_percents`.
BEGUN_PERCENTS = "begun percents"
_COGDATA_KEYS = ("__datasetname__", "__dprank__", "__workerid__", "__seed__")


def to_state(sample: Any, *, form: str = "zindex") -> State:
    """Return the entries that a sample or a batch adds to the state of a run.

    Parameters
    ----------
    sample
        A sample of a ``MergedDataset``, a list of them as ``mixed_collate`` gives it, or a dict
        whose values a collate function stacked, with ``__state__`` as a list.
    form
        ``"cogdata"`` returns cogdata's own form, ``{(name, rank, worker): (seed, url, key)}`` or
        ``(seed, index)``, which is not JSON and valid for one number of ranks and workers only.

    Returns
    -------
    state
        Entries for ``dict.update`` of the one dict that a rank keeps.

    Raises
    ------
    ValueError
        If a sample has no state.
    """
    if isinstance(sample, list | tuple):
        if form == "zindex" and all(type(one) is dict and "__state__" in one for one in sample):
            # Most batches; later samples of a worker slot override, so its keys are made once.
            return _unite(one["__state__"] for one in sample)
        state: State = {}
        for one in sample:
            state.update(to_state(one, form=form))
        return state
    if not isinstance(sample, dict):
        raise ValueError(
            "to_state takes a sample (a dict) or a list of them, got "
            f"{type(sample).__name__}; collate with mixed_collate, or keep __state__ in the batch"
        )
    if "__states__" in sample:
        return _unite(sample["__states__"])
    if form == "cogdata":
        return _to_cogdata(sample)
    found = sample.get("__state__")
    if found is None:
        raise ValueError(
            f"a sample must have __state__, got the fields {sorted(sample)}; iterate over a "
            "MergedDataset and keep this field"
        )
    # Pinning memory turns tuples into lists. One state begins with its head, whose first item is a
    # text; a list of states begins with a state.
    is_one = isinstance(found[0][0], str) if found else False
    return _unite([found] if is_one else found)


def _unite(sample_states: Iterable[Any]) -> State:
    """Return the union of the states of samples; later ones override."""
    state: State = {}
    # Head of adjacent samples of one worker slot, and the entries that they changed.
    head: Any = None
    entries: worker_slots.Entries = {}
    for found in sample_states:
        if isinstance(found, dict):
            _add(state, head, entries)
            head = None
            state.update(found)
            continue
        of, begin, changed = worker_slots.read_state(found)
        if begin or of != head:
            _add(state, head, entries)
            head, entries = of, {}
            state.update(begin or {})
        entries.update(changed)
    _add(state, head, entries)
    return state


def _add(state: State, head: Any, entries: worker_slots.Entries) -> None:
    """Add the entries of one worker slot to a state."""
    if head is None:
        return
    origin_id, rank, num_ranks, slot, num_slots = head
    worker_slot = f"@{rank * num_slots + slot}/{num_ranks * num_slots}"
    for key, value in entries.items():
        state[f"{key} {worker_slot}"] = [origin_id, value]
    state[f"turn @{rank}/{num_ranks}"] = [origin_id, [slot, num_slots]]
    state["own"] = [rank, num_ranks]


def slot_state(start: worker_slots.StreamStart, entries: worker_slots.Entries) -> State:
    """Return the state of one worker slot, from which a loader worker of its number resumes."""
    slot = start.slot
    states = [(start.head, None, None, key, value) for key, value in entries.items()]
    state = {"origin": start.origin.to_json(), **_unite(states)}
    # The slot that was last in turn is the last one, so that workers keep their slots.
    last = [(slot.slot - slot.worker - 1) % slot.num_slots, slot.num_slots]
    return state | {f"turn @{slot.rank}/{slot.num_ranks}": [start.origin.id, last]}


def _to_cogdata(sample: Mapping[str, Any]) -> State:
    place = ("__index__",) if "__index__" in sample else ("__url__", "__key__")
    if not sample.keys() >= {*_COGDATA_KEYS, *place}:
        raise ValueError(
            f"cogdata's state of a sample needs {', '.join(_COGDATA_KEYS)} and either __index__ or "
            f"__url__ and __key__, got {sorted(sample)}; keep them in the batch"
        )
    name, rank, worker, *where = (sample[key] for key in (*_COGDATA_KEYS, *place))
    return {(name, rank, worker): tuple(where)}  # type: ignore[dict-item]


def merge_states(states: Iterable[State]) -> State:
    """Merge the states of all ranks into one, from which any number of ranks can resume.

    Parameters
    ----------
    states
        One state per rank. For a rank without samples so far, the state that it loaded, or ``{}``.
        That of a torchdata ``StatefulDataLoader`` is taken apart.

    Raises
    ------
    StateMismatchError
        If they are not the states of all ranks of one run.
    """
    given = [join_workers(state) for state in states]
    owned = [state for state in given if "own" in state]
    origins = {state["origin"]["id"] for state in owned}
    ranks, sizes = [state["own"][0] for state in owned], {state["own"][1] for state in owned}
    if len(origins) > 1:
        raise StateMismatchError(
            f"the states of all ranks must be of one run, got the origins {sorted(origins)}; take "
            "those that were saved at the same step, of ranks with the same datasets"
        )
    if sizes - {len(given)} or len(set(ranks)) < len(ranks):
        raise StateMismatchError(
            f"a state must be merged of all {max(sizes)} ranks, each of them once, got "
            f"{len(given)} states with those of the ranks {sorted(ranks)}; give {{}} for a rank "
            "without samples"
        )
    resumed = [
        key
        for state in given
        for key, value in state.items()
        if key.startswith("resumed ") and value[2]
    ]
    if resumed and not all(given):
        raise StateMismatchError(
            "a rank that has had no sample since all went on from a merged state must give the "
            f"state that it loaded, got {{}} beside the entry {resumed[0]!r}; let each rank keep "
            "one dict, the loaded one, and update that"
        )
    merged: State = {}
    # Entries of other ranks are those that a rank has loaded, so its own ones are added last.
    for state in [*given, *map(_own_entries, owned)]:
        merged.update(state)
    for key in ("own", BEGUN_PERCENTS):
        merged.pop(key, None)
    if changes := max(map(list_changes, given), key=_last_place, default=[]):
        merged["percents"] = [[*change] for change in changes]
    return merged


def find_delivered(state: State) -> Place | None:
    """Return a place that all worker slots of a rank have come to with their delivered samples.

    Parameters
    ----------
    state
        The one dict of the rank.

    Returns
    -------
    place
        None before the first sample, and while segments of earlier jobs are finished.
    """
    if "own" not in state:
        return None
    loaded = load_state({"own": state["own"], **_own_entries(state)})
    origin, rank = loaded.origin, state["own"][0]
    if origin.orphans.get("/"):
        return None
    picks = []
    for slot in loaded.slots[rank * loaded.num_slots :][: loaded.num_slots]:
        own = loaded.entries.get(slot.index, {})
        # An unfinished segment of a yield function is read again from its start.
        position = own.get("yield /", {}).get("start", own).get("mix /", 0)
        picks.append(position if isinstance(position, int) else position[0])
    # That of the last pick: the checkpoint of a piece is delivered with its first sample.
    return origin.iteration, origin.reach(max(0, min(picks) - 1), len(loaded.slots))


def list_changes(state: State) -> list[Change]:
    """Return the changes of percents of a state.

    The first sample of a rank may arrive after `MergedDataset.set_percents`, but it only has the
    changes from before.
    """
    found = [
        [
            parse_as(tuple[int, int, dict[str, float]], change, "a state")
            for change in state.get(key, ())
        ]
        for key in (BEGUN_PERCENTS, "percents")
    ]
    return max(found, key=_last_place)


def _last_place(changes: Sequence[Change]) -> tuple[int, int]:
    """Return the iteration and sample of the last change; those of each state include the first."""
    return changes[-1][:2] if changes else (-1, -1)


def _own_entries(state: State) -> State:
    """Return the entries of the state's own rank, and those that all ranks have."""
    rank, num_ranks = state["own"]
    num_slots = state[f"turn @{rank}/{num_ranks}"][1][1]
    slots = range(rank * num_slots, (rank + 1) * num_slots)
    own_slots = {f"{slot}/{num_ranks * num_slots}" for slot in slots}

    def is_own(key: str) -> bool:
        name, _, place = key.rpartition(" @")
        of_rank = name in ("turn", "resumed")
        return key in ("origin", "percents", BEGUN_PERCENTS) or (
            place == f"{rank}/{num_ranks}" if of_rank else place in own_slots
        )

    return {key: value for key, value in state.items() if is_own(key)}


def gather_states(state: State, group: Any = None) -> State:
    """Return the merged state of all ranks of a process group, on every rank.

    A collective call, for instance before rank 0 saves a checkpoint. Without an initialised
    ``torch.distributed`` it merges the state of this rank alone.

    Parameters
    ----------
    state
        State of this rank.
    group
        The data-parallel process group; the default group if None.
    """
    if not is_distributed():
        return merge_states([state])
    # A dict that was loaded from a merged state has the entries of all ranks.
    own = {"own": state["own"], **_own_entries(state)} if "own" in state else state
    return merge_states(gather_objects(own, group))


@dataclass(frozen=True)
class LoadedState:
    """A parsed state: the origin of all worker slots, and the checkpoint of each."""

    origin: worker_slots.StreamOrigin
    #: Worker slot -> its entries.
    entries: Mapping[int, worker_slots.Entries]
    #: Ranks, and worker slots of each; 1 if none has entries.
    num_ranks: int
    num_slots: int
    #: Rank -> the slot of its last batch.
    turns: Mapping[int, int]
    #: Rank of the state, and the number of ranks; None if merged.
    own: tuple[int, int] | None
    #: Percents that were set while training; see `zindex.mixing.percent_board.Change`.
    changes: Sequence[Change] = ()

    @property
    def sample(self) -> int:
        """Samples of the stream of which no worker slot has delivered a later one."""
        begun = worker_slots.picks_begun
        picks = (begun(entries.get("mix /", 0)) for entries in self.entries.values())
        reached = [self.origin.reach(max(picks, default=0), self.num_ranks * self.num_slots)]
        for orphan in self.origin.orphans.get("/", ()):
            older = worker_slots.StreamOrigin.from_json(self.origin.older[orphan["origin"]])
            # A pick gives at least one input.
            num_picks = begun(orphan["start"].get("mix /", 0)) + orphan.get("inputs", 0)
            reached.append(older.reach(num_picks, worker_slots.WorkerSlot(**orphan["lane"]).count))
        return max(reached)

    @property
    def slots(self) -> list[worker_slots.WorkerSlot]:
        """All worker slots."""
        indices = range(self.num_ranks * self.num_slots)
        return [
            worker_slots.WorkerSlot.at(index, self.num_ranks, self.num_slots) for index in indices
        ]

    def cursors(self, name: str) -> list[worker_slots.Cursor]:
        """Return the cursors of all worker slots in a source."""
        unread, slots = self.origin.unread(name), self.slots
        entries = (self.entries.get(slot.index, {}).get(f"leaf {name}") for slot in slots)
        return [
            tuple(cursor or unread.first_cursor(slot.index, slot.count))
            for slot, cursor in zip(slots, entries, strict=True)
        ]

    def fits(self, num_ranks: int, num_slots: int) -> bool:
        """Return whether the state is of this number of ranks and workers, or of none."""
        return not self.entries or (self.num_ranks, self.num_slots) == (num_ranks, num_slots)

    def check_names(self, names: Collection[str]) -> None:
        """Raise if the state has none of the datasets."""
        if not any(map(self.origin.views, names)):
            raise StateMismatchError(
                f"a state must be of the datasets {sorted(names)}, got one of "
                f"{sorted(self.origin.identities)}; use the datasets that it was saved of"
            )

    def check_all_ranks(self, what: str) -> None:
        """Raise if this is the state of a single rank and all ranks are needed."""
        if self.own is not None and self.own[1] > 1:
            raise StateMismatchError(
                f"{what} needs the states of all {self.own[1]} ranks, got that of rank "
                f"{self.own[0]}; take gather_states(state), or merge_states of all"
            )


def load_state(state: State) -> LoadedState:
    """Parse a state.

    Raises
    ------
    StateMismatchError
        If it is not a state of this version, lacks its origin, or mixes runs.
    """
    if not isinstance(state, dict):
        raise StateMismatchError(
            f"a state must be a dict, as to_state gives it, got {type(state).__name__}; read it "
            "with json.loads if it is text"
        )
    if "origin" not in state:
        raise StateMismatchError(
            "a state must hold its origin, got the entries "
            f"{', '.join(sorted(map(str, state))[:5]) or 'none'}; update one dict with "
            "to_state of every batch, from the first on, and hand over that dict alone"
        )
    try:
        return _read_state(state)
    except StateMismatchError:
        raise
    except (StoreError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise StateMismatchError(
            f"a state must be as to_state and merge_states made it, it is damaged: {error!r}; take "
            "another checkpoint"
        ) from error


def _read_state(state: State) -> LoadedState:
    version = state["origin"].get("version")
    if version != worker_slots.STATE_VERSION:
        raise StateMismatchError(
            f"a state must be of version {worker_slots.STATE_VERSION}, got {version!r}; use the "
            "zindex that wrote it"
        )
    origin = worker_slots.StreamOrigin.from_json(state["origin"])
    known = {origin.id, *origin.ancestors}
    flat: State = {}
    for key, value in state.items():
        if key.startswith("resumed ") and value[0] == origin.id:
            flat.update(value[1])
    for key, value in state.items():
        if key in ("origin", "own", "percents", BEGUN_PERCENTS) or key.startswith("resumed "):
            continue
        if value[0] not in known:
            raise StateMismatchError(
                f"the entries of a state must have the origin {origin.id} or one before it, "
                f"{key!r} has {value[0]}; do not mix the states of several runs"
            )
        if value[0] == origin.id:
            flat[key] = value
    slots: dict[int, worker_slots.Entries] = {}
    turns: dict[int, int] = {}
    num_ranks = num_slots = 1
    for key, (_, value) in flat.items():
        name, place = key.rsplit(" @", 1)
        number, count = map(int, place.split("/"))
        if name == "turn":
            turns[number], num_slots = value
            num_ranks = count
        else:
            slots.setdefault(number, {})[name] = value
    own = state.get("own")
    own = None if own is None else (own[0], own[1])
    changes = list_changes(state)
    return LoadedState(origin, slots, num_ranks, num_slots, turns, own, changes)


def digest(values: dict[str, Any]) -> str:
    """Return a short digest of JSON values."""
    return fingerprint(values)[:12]
