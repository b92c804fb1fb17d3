"""How the lanes of a state go on: as they were, or others from what they left."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from zindex.errors import StateMismatchError
from zindex.streaming.lanes import Entries, Lane, Origin
from zindex.streaming.leaf_streams import split_urls
from zindex.streaming.mixed_streams import Stream
from zindex.streaming.parted import Sample
from zindex.streaming.pool import Pool
from zindex.streaming.state import LoadedState, State, begin_anew, digest, load_state, merge_states


def go_on(
    loaded: LoadedState, lane: Lane, *, tells_all: bool = False
) -> tuple[Lane, Origin, Entries, State]:
    """Return a lane of a run that goes on, its origin, where it is, and what it tells first.

    Parameters
    ----------
    loaded
        The state.
    lane
        The lane.
    tells_all
        Whether it tells of the lanes of other ranks too, since no loaded state holds any more.

    Raises
    ------
    StateMismatchError
        If it is the state of another rank, or of one of several ranks of another number.
    """
    if not loaded.fits(lane.num_ranks, lane.num_slots):
        return lane, begin_anew(loaded), {}, {}
    rank = lane.rank
    if loaded.own is not None and loaded.own[0] != rank:
        raise StateMismatchError(
            f"rank {rank} must go on from its own state or one of all ranks, got that of rank "
            f"{loaded.own[0]}; save gather_states(state), or merge_states of all"
        )
    if rank in loaded.turns:
        # The loader asks its worker 0 first: that one takes the lane whose turn it was.
        lane = replace(lane, slot=(lane.slot + loaded.turns[rank] + 1) % lane.num_slots)
    resumed = {
        f"{name} @{number}/{lane.count}": [loaded.origin.id, value]
        for number, entries in loaded.lanes.items()
        if tells_all or number // lane.num_slots == rank
        for name, value in entries.items()
    }
    # Whether the other ranks were known too: then each of them has a state to merge.
    from_all = loaded.own is None and lane.num_ranks > 1 and not tells_all
    begin = {f"resumed @{rank}/{lane.num_ranks}": [loaded.origin.id, resumed, from_all]}
    return lane, loaded.origin, loaded.lanes.get(lane.index, {}), begin


def reread_parts(loaded: LoadedState, identities: Mapping[str, str]) -> LoadedState:
    """Return a state in which every part that was begun is to be read from its start.

    It has an origin of its own, so that entries of the state as it was do not count any more.

    Raises
    ------
    StateMismatchError
        If segments of a yield function are left from another number of lanes.
    """
    if loaded.origin.orphans:
        raise StateMismatchError(
            "reload_from_url_level must begin where no segment of a customized_yield_fn is left "
            "from another number of ranks or workers; save a state some steps later"
        )
    pools = {
        name: replace(pool, begun=tuple((part, 0) for part, _ in pool.begun))
        for name, pool in loaded.origin.pools.items()
    }
    old = loaded.origin
    origin = replace(
        old,
        id=digest(["reread", old.id, dict(identities)]),
        identities=identities,
        pools=pools,
        ancestors=(*old.ancestors, old.id),
    )
    lanes = {lane: _rewind(entries) for lane, entries in loaded.lanes.items()}
    return replace(loaded, origin=origin, lanes=lanes)


def _rewind(entries: Entries) -> Entries:
    """Return a lane's entries with all parts, and segments of yield functions, at their starts."""
    found = dict(entries)
    while begun := [
        key for key, value in found.items() if isinstance(value, dict) and "start" in value
    ]:
        outermost = min(begun, key=len)
        start = found[outermost]["start"]
        found[outermost] = {"orphans": found[outermost]["orphans"]}
        found |= start
    return {
        key: [value[0], 0, value[2]] if key.startswith("leaf ") else value
        for key, value in found.items()
    }


def mark_first(stream: Stream, begin: State) -> Iterator[Iterable[Sample]]:
    """Yield the first sample of a lane, which tells where the lane began, and then all others."""
    samples = iter(stream)
    for sample in samples:
        head, changed, _ = sample["__state__"]
        sample["__state__"] = head, changed, begin
        yield (sample,)
        break
    yield samples


def mark_outputs(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Yield what a yield function makes, with its states as cogdata names them."""
    for sample in samples:
        sample["__states__"] = [sample.pop("__state__")]
        yield sample


def reshard_states(
    states: State | list[State], dataset: Any, new_dpsize: int, new_num_workers: int
) -> State:
    """Return a state with which another number of ranks and loader workers goes on.

    It is needed only in the order ``cogdata_urlbuffer``, where the files that lanes had begun are
    read again from their starts; all other orders go on from the merged state as it is, exactly.

    Parameters
    ----------
    states
        The states of all ranks, or their merged state.
    dataset
        The ``MergedDataset`` that they are of.
    new_dpsize, new_num_workers
        Ranks, and loader workers of each, that will go on.

    Raises
    ------
    StateMismatchError
        If the states are not those of all ranks of this dataset.
    """
    for name, number, least in (
        ("new_dpsize", new_dpsize, 1),
        ("new_num_workers", new_num_workers, 0),
    ):
        if number < least:
            raise StateMismatchError(
                f"{name} must be at least {least}, got {number}; give the new one"
            )
    merged = merge_states(states) if isinstance(states, list) else states
    if not merged:
        return {}
    dataset.set_dataloader_states(merged)
    loaded = load_state(merged)
    urls = {
        leaf.name: _left_urls(loaded, leaf.name, len(leaf.dataset.urls))
        for leaf in dataset.leaves()
        if leaf.order == "cogdata_urlbuffer"
    }
    return {"origin": begin_anew(loaded, urls).to_json()}


def _left_urls(loaded: LoadedState, name: str, num_urls: int) -> Pool:
    """Return the files that no lane has finished, in the order in which cogdata shares them."""
    pool, num_slots = loaded.origin.pool(name), loaded.num_slots or 1
    cursors = {
        number: entries[f"leaf {name}"]
        for number, entries in loaded.lanes.items()
        if f"leaf {name}" in entries
    }
    if pool != Pool():
        num_lanes = (loaded.num_ranks or 1) * num_slots
        return pool.after({number: (cursor[0], 0) for number, cursor in cursors.items()}, num_lanes)
    finished: set[int] = set()
    for number, cursor in cursors.items():
        rank, slot = divmod(number, num_slots)
        own = split_urls(num_urls, Lane(rank, loaded.num_ranks or 1, slot, num_slots))
        finished |= {
            turn // len(own) * num_urls + own[turn % len(own)] for turn in range(cursor[0])
        }
    return Pool.without(finished)
