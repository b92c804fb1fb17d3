"""The state of a streaming run: it rides with the samples, and all ranks' make one.

A state is a flat dict of JSON values. A sample brings the entries that changed when it was read;
whoever updates one dict with ``to_state`` of every batch that was trained on has, at each moment,
what all those batches came to, whatever loader workers have read ahead meanwhile. An entry is
named ``"leaf NAME @LANE/LANES"``, ``"mix PATH @LANE/LANES"`` or ``"yield PATH @LANE/LANES"``;
``"origin"`` says where those lanes began.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from zindex.errors import StateMismatchError
from zindex.streaming.lanes import STATE_VERSION, Entries, Lane, Mark, Origin
from zindex.streaming.pool import Pool

State = dict[str, Any]

_COGDATA_KEYS = ("__datasetname__", "__dprank__", "__workerid__", "__seed__")


def to_state(sample: Any, *, form: str = "zindex") -> State:
    """Return what a sample or a batch adds to the state of a run.

    Parameters
    ----------
    sample
        A sample of a ``MergedDataset``, a list of them as ``mixed_collate`` gives it, or a dict
        whose values a collate function stacked, with ``__state__`` as a list.
    form
        ``"cogdata"`` gives cogdata's own shape, ``{(name, rank, worker): (seed, url, key)}`` or
        ``(seed, index)``; it cannot be written as JSON and holds for one number of ranks and
        workers.

    Returns
    -------
    state
        To be handed to ``dict.update`` of the one dict that a rank keeps.

    Raises
    ------
    ValueError
        If a sample brings no state.
    """
    if isinstance(sample, list | tuple):
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
    # Where tensors are pinned, tuples become lists: a mark begins with its head, a list of marks
    # with a mark.
    is_one = isinstance(found[0][0], str) if found else False
    return _unite([found] if is_one else found)


def _unite(marks: Iterable[Any]) -> State:
    """Return the union of what samples carry, the later ones first in what they tell."""
    state: State = {}
    for mark in marks:
        state.update(mark if isinstance(mark, dict) else _read_mark(mark))
    return state


def _read_mark(mark: Mark) -> State:
    """Return the state that a sample carries."""
    (origin_id, rank, num_ranks, slot, num_slots), changed, begin = mark
    lane = f"@{rank * num_slots + slot}/{num_ranks * num_slots}"
    state: State = dict(begin or {})
    for key, value in changed.items():
        state[f"{key} {lane}"] = [origin_id, value]
    state[f"turn @{rank}/{num_ranks}"] = [origin_id, [slot, num_slots]]
    state["own"] = [rank, num_ranks]
    return state


def _to_cogdata(sample: Mapping[str, Any]) -> State:
    missing = [key for key in _COGDATA_KEYS if key not in sample]
    if missing or not ("__index__" in sample or ("__url__" in sample and "__key__" in sample)):
        raise ValueError(
            f"cogdata's state of a sample needs {', '.join(_COGDATA_KEYS)} and either __index__ or "
            f"__url__ and __key__, got {sorted(sample)}; keep them in the batch"
        )
    name, rank, worker, seed = (sample[key] for key in _COGDATA_KEYS)
    if "__index__" in sample:
        return {(name, rank, worker): (seed, sample["__index__"])}  # type: ignore[dict-item]
    return {(name, rank, worker): (seed, sample["__url__"], sample["__key__"])}  # type: ignore[dict-item]


def merge_states(states: Iterable[State]) -> State:
    """Return one state of the states of all ranks: rank-free, any number of ranks goes on from it.

    Parameters
    ----------
    states
        One of every rank. Of a rank that has had no sample yet ``{}``, or if it went on from a
        state, that one as it was loaded.

    Raises
    ------
    StateMismatchError
        If they are not the states of all ranks of one run.
    """
    given = list(states)
    origins = {state["origin"]["id"] for state in given if "own" in state}
    sizes = {state["own"][1] for state in given if "own" in state}
    ranks = [state["own"][0] for state in given if "own" in state]
    if len(origins) > 1:
        raise StateMismatchError(
            f"the states of all ranks must be of one run, got the origins {sorted(origins)}; take "
            "those that were saved at the same step"
        )
    if sizes - {len(given)} or len(set(ranks)) < len(ranks):
        raise StateMismatchError(
            f"a state must be merged of all {max(sizes)} ranks, each of them once, got "
            f"{len(given)} states with those of the ranks {sorted(ranks)}; give {{}} for a rank "
            "without samples"
        )
    went_on = [
        key
        for state in given
        for key, value in state.items()
        if key.startswith("resumed ") and value[2]
    ]
    if went_on and not all(given):
        raise StateMismatchError(
            "a rank that has had no sample since all went on from a merged state must give the "
            f"state that it loaded, got {{}} beside the entry {went_on[0]!r}; let each rank keep "
            "one dict, the loaded one, and update that"
        )
    merged: State = {}
    for state in given:
        merged.update(state)
    # A rank knows of the others only what it began with.
    for state in given:
        if "own" in state:
            merged.update(_own_entries(state))
    merged.pop("own", None)
    return merged


def _own_entries(state: State) -> State:
    """Return the entries of the rank whose state this is."""
    rank, num_ranks = state["own"]
    num_slots = state[f"turn @{rank}/{num_ranks}"][1][1]
    by_rank = {f"@{rank}/{num_ranks}"}
    num_lanes = num_ranks * num_slots
    by_lane = {f"@{rank * num_slots + slot}/{num_lanes}" for slot in range(num_slots)}
    return {
        key: value
        for key, value in state.items()
        if key == "origin"
        or f"@{key.rpartition('@')[2]}" in (by_rank if _is_of_rank(key) else by_lane)
    }


def _is_of_rank(key: str) -> bool:
    return key.startswith(("turn ", "resumed "))


def gather_states(state: State, group: Any = None) -> State:
    """Return the merged state of all ranks of a process group, on each of them.

    Every rank of the group calls this, for instance before rank 0 saves a checkpoint. Without an
    initialised ``torch.distributed`` it is the state of this one rank.

    Parameters
    ----------
    state
        This rank's own.
    group
        The data-parallel process group; the default group if None.
    """
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return merge_states([state])
    states: list[Any] = [None] * dist.get_world_size(group)
    # A dict that was loaded from a merged state holds the entries of all ranks.
    own = {"own": state["own"], **_own_entries(state)} if "own" in state else state
    dist.all_gather_object(states, own, group=group)
    return merge_states(states)


@dataclass(frozen=True)
class LoadedState:
    """A state as lanes read it: where they began, and what each has come to since."""

    origin: Origin
    lanes: Mapping[int, Entries]
    #: Number of all lanes, or None if none has entries.
    num_ranks: int | None
    num_slots: int | None
    #: By rank: the slot whose batch was the last.
    turns: Mapping[int, int]
    #: The rank whose own state it is, of how many; None if it was merged.
    own: tuple[int, int] | None

    def fits(self, num_ranks: int, num_slots: int) -> bool:
        """Return whether these are lanes of as many ranks and workers."""
        return (self.num_ranks, self.num_slots) in ((None, None), (num_ranks, num_slots))


def load_state(state: State) -> LoadedState:
    """Return what a state holds.

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
            f"a state must hold its origin, got the entries {_some(state)}; update one dict with "
            "to_state of every batch, from the first on, and hand over that dict alone"
        )
    try:
        return _read_state(state)
    except StateMismatchError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise StateMismatchError(
            f"a state must be as to_state and merge_states made it, it is damaged: {error!r}; take "
            "another checkpoint"
        ) from error


def _read_state(state: State) -> LoadedState:
    version = state["origin"].get("version")
    if version != STATE_VERSION:
        raise StateMismatchError(
            f"a state must be of version {STATE_VERSION}, got {version!r}; use the zindex that "
            "wrote it"
        )
    origin = Origin.from_json(state["origin"])
    known = {origin.id, *origin.ancestors}
    flat: State = {}
    for key, value in state.items():
        if key.startswith("resumed ") and value[0] == origin.id:
            flat.update(value[1])
    for key, value in state.items():
        if key in ("origin", "own") or key.startswith("resumed "):
            continue
        if value[0] not in known:
            raise StateMismatchError(
                f"the entries of a state must have the origin {origin.id} or one before it, "
                f"{key!r} has {value[0]}; do not mix the states of several runs"
            )
        if value[0] == origin.id:
            flat[key] = value
    own = state.get("own")
    return _sort_lanes(origin, flat, None if own is None else (own[0], own[1]))


def _sort_lanes(origin: Origin, flat: State, own: tuple[int, int] | None) -> LoadedState:
    lanes: dict[int, Entries] = {}
    turns: dict[int, int] = {}
    num_ranks = num_slots = None
    for key, (_, value) in flat.items():
        name, place = key.rsplit(" @", 1)
        number, count = map(int, place.split("/"))
        if name == "turn":
            turns[number], num_slots = value
            num_ranks = count
        else:
            lanes.setdefault(number, {})[name] = value
    return LoadedState(origin, lanes, num_ranks, num_slots, turns, own)


def _some(names: Iterable[str]) -> str:
    return ", ".join(sorted(map(str, names))[:5]) or "none"


def begin_anew(loaded: LoadedState, urls: Mapping[str, Pool] | None = None) -> Origin:
    """Return the origin at which other lanes go on where those of a state were.

    Parameters
    ----------
    loaded
        The state.
    urls
        What is left of the sources in cogdata's order of files, which cannot be told from the state
        alone.

    Raises
    ------
    StateMismatchError
        If it is the state of one rank of several.
    """
    num_ranks, num_slots, old = loaded.num_ranks, loaded.num_slots, loaded.origin
    if num_ranks is None or num_slots is None:
        return old
    if loaded.own is not None and loaded.own[1] > 1:
        raise StateMismatchError(
            f"another number of ranks or loader workers needs the states of all {num_ranks} ranks, "
            f"got that of rank {loaded.own[0]}; save gather_states(state), or merge_states of all"
        )
    num_lanes = num_ranks * num_slots
    pools = {}
    skipped = dict(old.skipped)
    for name in old.identities:
        cursors = {
            lane: entries[f"leaf {name}"]
            for lane, entries in loaded.lanes.items()
            if f"leaf {name}" in entries
        }
        skipped[name] = skipped.get(name, 0) + sum(cursor[2] for cursor in cursors.values())
        if old.identities[name].startswith("cogdata_urlbuffer"):
            if urls is None:
                raise StateMismatchError(
                    f"{name!r} has cogdata's order of files, which ties its state to {num_ranks} "
                    f"ranks of {num_slots} loader workers; take as many, or reshard_states, which "
                    "reads unfinished files again"
                )
            pools[name] = urls[name]
            continue
        pools[name] = old.pool(name).after({k: (v[0], v[1]) for k, v in cursors.items()}, num_lanes)
    orphans, older = _find_orphans(loaded, num_ranks, num_slots)
    origin = replace(
        old,
        pools=pools,
        skipped=skipped,
        orphans=orphans,
        older=older,
        ancestors=(*old.ancestors, old.id),
    )
    return replace(origin, id=digest({**origin.to_json(), "id": ""}))


def _find_orphans(
    loaded: LoadedState, num_ranks: int, num_slots: int
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, dict[str, Any]]]:
    """Return the segments that lanes have begun, and the origins of these lanes."""
    old, num_lanes = loaded.origin, num_ranks * num_slots
    orphans: dict[str, list[dict[str, Any]]] = {}
    paths = {*old.orphans}
    for entries in loaded.lanes.values():
        paths |= {key.removeprefix("yield ") for key in entries if key.startswith("yield ")}
    for path in sorted(paths):
        left = []
        for lane in range(num_lanes):
            progress = loaded.lanes.get(lane, {}).get(f"yield {path}") or {"orphans": 0}
            own = old.orphans.get(path, [])[lane::num_lanes][progress["orphans"] :]
            if own and "start" not in progress:
                outputs = max(own[0]["outputs"], progress.get("outputs", 0))
                own = [{**own[0], "outputs": outputs}, *own[1:]]
            left += own
            if "start" in progress:
                rank, slot = divmod(lane, num_slots)
                place = Lane(rank, num_ranks, slot, num_slots, worker=slot)
                left.append({"origin": old.id, "lane": asdict(place), **progress})
                del left[-1]["orphans"]
        if left:
            orphans[path] = left
    known = {**old.older, old.id: old.to_json()}
    return orphans, _find_older(orphans, known)


def _find_older(
    orphans: Mapping[str, list[dict[str, Any]]], known: Mapping[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the origins of segments, each with what their source streams need of it alone.

    Whole origins would hold those before them, and these the ones before them.
    """
    paths: dict[str, set[str]] = {}
    for path, left in orphans.items():
        for orphan in left:
            paths.setdefault(orphan["origin"], set()).add(path)
    older = {}
    for name, outer in paths.items():
        within = {
            path: left
            for path, left in known[name]["orphans"].items()
            if any(path != one and path.startswith(one) for one in outer)
        }
        needed = {**known[name], "orphans": within, "ancestors": []}
        older[name] = {**needed, "older": _find_older(within, known[name]["older"])}
    return older


def digest(values: Any) -> str:
    """Return a short name of JSON values."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
