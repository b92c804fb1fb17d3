"""Resume streams: with the same worker slots, with others, or from a state of cogdata."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from itertools import chain, islice
from typing import Any

from zindex.errors import StateMismatchError, check_whole
from zindex.mixing.mixture_tree import list_leaves
from zindex.mixing.percent_board import PercentBoard
from zindex.mixing.pick_orders import ExactMixing
from zindex.streaming import worker_slots
from zindex.streaming.mixed_streams import make_mixing
from zindex.streaming.protocols import Sample
from zindex.streaming.source_streams import SEED_STEP, split_urls
from zindex.streaming.sources import WHOLE_SOURCE, StreamSource
from zindex.streaming.state import LoadedState, State, digest, load_state, merge_states


def resume(
    loaded: LoadedState, slot: worker_slots.WorkerSlot, *, include_all: bool = False
) -> tuple[worker_slots.StreamStart, State]:
    """Return the start of a worker slot of a resumed run, and its first report.

    Parameters
    ----------
    loaded
        The state.
    slot
        The worker slot.
    include_all
        Whether it also reports the worker slots of other ranks, because no rank keeps their state.

    Raises
    ------
    StateMismatchError
        If it is the state of another rank, or of a single rank out of a different number of ranks.
    """
    if not loaded.fits(slot.num_ranks, slot.num_slots):
        return worker_slots.StreamStart(slot, find_origin(loaded), {}), {}
    rank = slot.rank
    if loaded.own is not None and loaded.own[0] != rank:
        raise StateMismatchError(
            f"rank {rank} must go on from its own state or one of all ranks, got that of rank "
            f"{loaded.own[0]}; save gather_states(state), or merge_states of all"
        )
    if rank in loaded.turns:
        # The loader asks worker 0 first, so it takes over the slot that was next in turn.
        slot = replace(slot, slot=(slot.slot + loaded.turns[rank] + 1) % slot.num_slots)
    resumed = {
        f"{name} @{number}/{slot.count}": [loaded.origin.id, value]
        for number, entries in loaded.entries.items()
        if include_all or number // slot.num_slots == rank
        for name, value in entries.items()
    }
    # Whether the other ranks have also loaded a state, and can therefore merge theirs.
    from_all = loaded.own is None and slot.num_ranks > 1 and not include_all
    begin = {f"resumed @{rank}/{slot.num_ranks}": [loaded.origin.id, resumed, from_all]}
    return worker_slots.StreamStart(slot, loaded.origin, loaded.entries.get(slot.index, {})), begin


def rewind_parts(loaded: LoadedState, identities: Mapping[str, str]) -> LoadedState:
    """Return a state from which partly read parts are reread from their first sample.

    It has a new origin, so that entries of the given state are invalid.

    Raises
    ------
    StateMismatchError
        If segments of a yield function are unfinished from another number of worker slots.
    """
    old = loaded.origin
    if old.orphans:
        raise StateMismatchError(
            "reload_from_url_level must begin where no segment of a customized_yield_fn is left "
            "from another number of ranks or workers; save a state some steps later"
        )
    newest = {old.views(name)[-1]: identity for name, identity in identities.items()}
    # Sources that are packed as a whole have other sequences if they have changed.
    pairs = {view: (old.identities[view], identity) for view, identity in newest.items()}
    whole = {
        view
        for view, (before, now) in pairs.items()
        if before != now and (before.startswith(WHOLE_SOURCE) or now.startswith(WHOLE_SOURCE))
    }
    pools = {name: unread.reread() for name, unread in old.pools.items() if name not in whole}
    # Their files may be others now.
    files = {view: listing for view, listing in old.files.items() if view not in newest}
    identities = {**old.identities, **newest}
    origin = follow(old, "reread", identities=identities, pools=pools, files=files)
    rewound = {number: _rewind(own, whole) for number, own in loaded.entries.items()}
    return replace(loaded, origin=origin, entries=rewound)


def _rewind(entries: worker_slots.Entries, whole: Collection[str]) -> worker_slots.Entries:
    """Return entries with all parts, and all segments of yield functions, at their starts.

    Sources that are packed as a whole begin anew.
    """
    found = dict(entries)
    while begun := [
        key for key, value in found.items() if isinstance(value, dict) and "start" in value
    ]:
        outermost = min(begun, key=len)
        start = found[outermost]["start"]
        found[outermost] = {"orphans": found[outermost]["orphans"]}
        found |= start
    return {
        key: [value[0], 0, value[2], *worker_slots.reread_pieces(value[3:])]
        if key.startswith("leaf ")
        else value
        for key, value in found.items()
        if key.removeprefix("leaf ") not in whole
    }


def attach_start(samples: Iterator[Sample], begin: State) -> Iterator[Sample]:
    """Return the samples of a worker slot, the first of which reports where the slot started."""

    def attach(sample: Sample) -> Sample:
        head, _, entries = worker_slots.read_state(sample["__state__"])
        changes = worker_slots.write_changes(entries)
        sample["__state__"] = tuple(head), begin, *(changes or ())
        return sample

    return chain(map(attach, islice(samples, 1)), samples)


def name_states(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Yield outputs of a yield function, with their states under cogdata's name."""
    for sample in samples:
        sample["__states__"] = [sample.pop("__state__")]
        yield sample


def reshard_states(
    states: State | list[State], dataset: Any, new_dpsize: int, new_num_workers: int
) -> State:
    """Return a state from which a different number of ranks and loader workers can resume.

    Only the order ``cogdata_urlbuffer`` needs it: partly read files are reread from their start.
    All other orders resume exactly from the merged state itself.

    Parameters
    ----------
    states
        The states of all ranks, or their merged state.
    dataset
        Their ``MergedDataset``.
    new_dpsize, new_num_workers
        New number of ranks, and of loader workers of each.

    Raises
    ------
    ConfigError
        If a new number is out of range.
    StateMismatchError
        If the states are not those of all ranks of this dataset.
    """
    check_whole("new_dpsize", new_dpsize, 1)
    check_whole("new_num_workers", new_num_workers, 0)
    merged = merge_states(states) if isinstance(states, list) else states
    if not merged:
        return {}
    dataset.set_dataloader_states(merged)
    loaded = load_state(merged)
    urls = {
        source.name: _unread_urls(loaded, source.name, len(source.dataset.urls))
        for source in dataset.sources()
        if source.order == "cogdata_urlbuffer"
    }
    return {"origin": find_origin(loaded, urls).to_json()}


def _unread_urls(loaded: LoadedState, name: str, num_urls: int) -> worker_slots.UnreadPartitions:
    """Return the unfinished files, in the order in which cogdata shares them."""
    unread, cursors = loaded.origin.unread(name), loaded.cursors(name)
    if unread != worker_slots.UnreadPartitions():
        return unread.after([(finished, 0, 0) for finished, _, _ in cursors])
    done: set[int] = set()
    for slot, (finished, _, _) in zip(loaded.slots, cursors, strict=True):
        own = split_urls(num_urls, slot)
        done |= {turn // len(own) * num_urls + own[turn % len(own)] for turn in range(finished)}
    return worker_slots.UnreadPartitions.without(done)


def find_origin(
    loaded: LoadedState, urls: Mapping[str, worker_slots.UnreadPartitions] | None = None
) -> worker_slots.StreamOrigin:
    """Return the origin at which other worker slots resume from a state.

    Parameters
    ----------
    loaded
        The state.
    urls
        Unread files of the sources in cogdata's order of files, which the state alone does not
        determine.

    Raises
    ------
    StateMismatchError
        If it is the state of one rank of several.
    """
    old = loaded.origin
    if not loaded.entries:
        return old
    loaded.check_all_ranks("another number of ranks or loader workers")
    pools = {}
    skipped = dict(old.skipped)
    for name in old.identities:
        cursors = loaded.cursors(name)
        skipped[name] = skipped.get(name, 0) + sum(cursor[2] for cursor in cursors)
        if old.identities[name].startswith("cogdata_urlbuffer"):
            if urls is None:
                raise StateMismatchError(
                    f"{name!r} has cogdata's order of files, which ties its state to "
                    f"{loaded.num_ranks} ranks of {loaded.num_slots} loader workers and to its "
                    "mixture; keep these, or reshard_states, which reads unfinished files again"
                )
            pools[name] = urls.get(name, old.unread(name))
        else:
            pools[name] = old.unread(name).after(cursors)
    # Of a grown source, the views that no worker slot has anything left of.
    finished = {view for view, end in old.ends.items() if pools[view].is_finished(end)}
    given = dict(old.delivered)
    for entries in loaded.entries.values():
        for key, value in entries.items():
            if key.startswith("mix "):
                path = key.removeprefix("mix ")
                given[path] = given.get(path, 0) + old.samples_of(path, value)
    orphans, older = _find_orphans(loaded)
    return follow(
        old,
        identities={view: old.identities[view] for view in old.identities if view not in finished},
        pools={view: pools[view] for view in pools if view not in finished},
        ends={view: old.ends[view] for view in old.ends if view not in finished},
        files={view: old.files[view] for view in old.files if view not in finished},
        delivered=given,
        owed=_count_owed(loaded),
        skipped=skipped,
        orphans=orphans,
        older=older,
    )


def _count_owed(loaded: LoadedState) -> dict[str, dict[str, int]]:
    """Return the picks that all worker slots together owe each source of each mixture."""
    origin, board = loaded.origin, PercentBoard(loaded.changes)
    owed = dict(origin.owed)
    for path, (name, *_) in origin.mixtures.items():
        positions = [
            (worker_slots.picks_begun(own.get(f"mix {path}", 0)), own.get(f"lags {path}"))
            for own in (loaded.entries.get(slot.index, {}) for slot in loaded.slots)
        ]
        if name == "exact" and any(picks for picks, _ in positions):
            start = worker_slots.StreamStart(loaded.slots[0], origin, {}, board)
            mixing = make_mixing(origin.mixtures, path, start)
            assert isinstance(mixing, ExactMixing)
            names = [leaf.name for leaf in list_leaves(origin.mixtures, path)]
            owed[path] = dict(zip(names, mixing.count_owed(positions), strict=True))
    return owed


def follow(
    old: worker_slots.StreamOrigin, reason: str = "", **changes: Any
) -> worker_slots.StreamOrigin:
    """Return the successor of an origin, with a reason and an id derived from its content."""
    origin = replace(old, id=reason, ancestors=(*old.ancestors, old.id), **changes)
    return replace(origin, id=digest(origin.to_json()))


def _find_orphans(
    loaded: LoadedState,
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, dict[str, Any]]]:
    """Return the unfinished segments of all worker slots, and the origins of these slots."""
    old = loaded.origin
    orphans: dict[str, list[dict[str, Any]]] = {}
    paths = {*old.orphans}
    for entries in loaded.entries.values():
        paths |= {key.removeprefix("yield ") for key in entries if key.startswith("yield ")}
    for path in sorted(paths):
        left = []
        for slot in loaded.slots:
            progress = loaded.entries.get(slot.index, {}).get(f"yield {path}") or {"orphans": 0}
            own = old.orphans.get(path, [])[slot.index :: slot.count][progress["orphans"] :]
            if own and "start" not in progress:
                outputs = max(own[0]["outputs"], progress.get("outputs", 0))
                own = [{**own[0], "outputs": outputs}, *own[1:]]
            left += own
            if "start" in progress:
                left.append({"origin": old.id, "lane": asdict(slot), **progress})
                del left[-1]["orphans"]
        if left:
            orphans[path] = left
    known = {**old.older, old.id: old.to_json()}
    return orphans, _find_older(orphans, known)


def _find_older(
    orphans: Mapping[str, list[dict[str, Any]]], known: Mapping[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the origins of segments, reduced to what their source streams need.

    Complete origins would contain their predecessors recursively.
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


def is_of_cogdata(state: Mapping[Any, Any]) -> bool:
    """Return whether a state has cogdata's form, ``{(name, rank, worker): (seed, ...)}``."""
    return any(isinstance(key, tuple) for key in state)


def read_cogdata_state(
    state: Mapping[Any, Any], sources: list[StreamSource], slot: worker_slots.WorkerSlot
) -> worker_slots.Entries:
    """Return the entries of a worker slot from a state in cogdata's form.

    Parameters
    ----------
    state
        State of as many ranks and loader workers as now.
    sources
        The sources, in cogdata's orders.
    slot
        The worker slot.

    Returns
    -------
    entries
        Map-style sources resume after the last item. The delivered samples of a partly read file
        are unknown, so it is reread, as in cogdata with ``reload_from_url_level``.

    Raises
    ------
    StateMismatchError
        If a source has another order, or the state is not of these sources and worker slots.
    """
    entries: worker_slots.Entries = {}
    for source in sources:
        found = state.get((source.name, slot.rank, slot.worker))
        if found is None:
            continue
        if not source.order.startswith("cogdata_"):
            raise StateMismatchError(
                f"a state in cogdata's form needs cogdata's orders, {source.name!r} has another "
                "one; set shuffle_unstreaming_subsets='cogdata_block2m' and "
                "shuffle_streaming_subsets='cogdata_urlbuffer'"
            )
        count = _count_files if source.order == "cogdata_urlbuffer" else _count_items
        entries[source.key] = (count(source, slot, *found), 0, 0)
    return entries


def _count_items(source: StreamSource, slot: worker_slots.WorkerSlot, seed: int, index: int) -> int:
    epoch, wrong = divmod(seed - source.seed, SEED_STEP)
    size = source.num_items
    number = epoch * size + index
    if wrong or epoch < 0 or not 0 <= index < size or (number - slot.index) % slot.count:
        raise _refusal(source, slot, f"seed {seed}, index {index} of {size}")
    return (number - slot.index) // slot.count + 1


def _count_files(
    source: StreamSource, slot: worker_slots.WorkerSlot, seed: int, url: str, key: str | None = None
) -> int:
    own = [source.dataset.urls[number] for number in split_urls(source.num_items, slot)]
    epoch, wrong = divmod(seed - source.seed - 64 * slot.rank - slot.slot, SEED_STEP)
    if wrong or epoch < 0 or url not in own:
        raise _refusal(source, slot, f"seed {seed}, {url}, key {key}")
    return epoch * len(own) + own.index(url)


def _refusal(source: StreamSource, slot: worker_slots.WorkerSlot, what: str) -> StateMismatchError:
    return StateMismatchError(
        f"a state in cogdata's form must be of the same files, seed, {slot.num_ranks} ranks and "
        f"{slot.num_slots} loader workers, got {what} for {source.name!r} in worker {slot.worker} "
        f"of rank {slot.rank}; take the numbers that it was saved with"
    )
