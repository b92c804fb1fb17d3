"""Changes of a mixture between the jobs of a run: sources added, dropped, reweighted and grown.

A changed mixture begins a new origin, as another number of worker slots does. It keeps the entries
of dropped sources. Of a grown source, the epochs that any worker slot has begun are finished over
the files that it had, and later ones are over all.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from zindex.errors import SourceError, StateMismatchError
from zindex.mixing.mixture_paths import match_paths, rename_paths
from zindex.mixing.mixture_tree import Mixtures
from zindex.sources.file_listing import describe_growth
from zindex.streaming import resuming
from zindex.streaming.sources import WHOLE_SOURCE, StreamSource, list_files
from zindex.streaming.state import LoadedState
from zindex.streaming.worker_slots import StreamOrigin, UnreadPartitions

logger = logging.getLogger(__name__)
# Ends the identity of a source of files.
_DIGEST = re.compile(": [0-9a-f]{64}$")


@dataclass(frozen=True)
class MixtureFacts:
    """What the state of a mixture depends on."""

    sources: Sequence[StreamSource]
    mixtures: Mixtures

    @cached_property
    def identities(self) -> dict[str, str]:
        """Identity of each source."""
        return {source.name: source.identity() for source in self.sources}

    @cached_property
    def files(self) -> dict[str, str]:
        """The list of the files of each source that may grow."""
        lists = {source.name: list_files(source.dataset) for source in self.sources}
        return {name: listing for name, listing in lists.items() if listing}

    def make_origin(self, iteration: int) -> StreamOrigin:
        """Return the origin of an iteration from its first sample on, without an id."""
        return StreamOrigin(
            "",
            self.identities,
            iteration=iteration,
            mixtures=self.mixtures,
            files=self.files,
        )


def adapt(
    loaded: LoadedState, facts: MixtureFacts, *, any_content: bool = False
) -> tuple[LoadedState, list[str]]:
    """Return a state for the current mixture, and the changes since it was saved, as sentences.

    Parameters
    ----------
    loaded
        The state.
    facts
        The current mixture.
    any_content
        Whether kept sources may have other content, because begun parts are reread.

    Raises
    ------
    StateMismatchError
        If no source is kept, or one has other content; or the mixture has changed, and it is the
        state of one rank of several, or a dropped source is needed.
    """
    loaded = _follow_paths(loaded, facts.mixtures)
    old = loaded.origin
    names = [source.name for source in facts.sources]
    known = [name for name in names if old.views(name)]
    if not known:
        raise StateMismatchError(
            f"a state must be of the datasets {sorted(names)}, got one of "
            f"{sorted(old.identities)}; use the datasets that it was saved of"
        )
    current = facts.identities
    grown = [
        source
        for source in facts.sources
        if source.name in known
        and current[source.name] != old.identities[old.views(source.name)[-1]]
        and not any_content
    ]
    earlier = {source.name: _take_back(source, old, current[source.name]) for source in grown}
    changes = [*_compare(old, facts), *(_describe_growth(source, old) for source in grown)]
    if not changes:
        return loaded, []
    if loaded.entries:
        loaded.check_all_ranks(f"a changed mixture ({changes[0]})")
    before = resuming.find_origin(loaded)
    _check_segments(before, facts)
    identities = dict(before.identities)
    pools, ends = dict(before.pools), dict(before.ends)
    files = dict(before.files)
    for source in facts.sources:
        name = source.name
        if name in earlier:
            _grow(source, earlier[name], before, identities, pools, ends)
        elif name not in known:
            identities[name] = current[name]
        view = replace(before, identities=identities).views(name)[-1]
        if name in facts.files and identities[view] == current[name]:
            files[view] = facts.files[name]
    origin = resuming.follow(
        before,
        "mixture",
        identities=identities,
        pools={view: pools[view] for view in pools if view in identities},
        files={view: files[view] for view in files if view in identities},
        ends={view: ends[view] for view in ends if view in identities},
        mixtures=facts.mixtures,
    )
    return LoadedState(origin, {}, 1, 1, {}, None), changes


def _follow_paths(loaded: LoadedState, mixtures: Mixtures) -> LoadedState:
    """Return a state with the current paths of nested mixtures whose places have changed."""
    old = loaded.origin
    paths = dict(match_paths(old.mixtures, mixtures)) if "/" in old.mixtures else {}
    if all(before == now for before, now in paths.items()):
        return loaded
    origin = StreamOrigin.from_json(rename_paths(old.to_json(), paths))
    entries = {number: rename_paths(own, paths) for number, own in loaded.entries.items()}
    return replace(loaded, origin=origin, entries=entries)


def _compare(old: StreamOrigin, facts: MixtureFacts) -> list[str]:
    """Return the sources that were added, dropped or reweighted, and changed mixings."""
    if not old.mixtures:  # a state of an earlier version
        kept, names = {*old.identities}, {source.name for source in facts.sources}
        found = [f"added {name!r}" for name in sorted(names - kept)]
        return found + [f"dropped {name!r}" for name in sorted(kept - names)]
    found = []
    for path, (mixing, children, number, *_) in facts.mixtures.items():
        before_mixing, before, before_number, *_ = old.mixtures.get(path, (mixing, [], number))
        then, now = dict(before), dict(children)
        found += [
            f"added {name!r} with percent {now[name]}"
            + (", which continues where it was" if old.views(name) else "")
            for name in now
            if name not in then
        ]
        found += [f"dropped {name!r}" for name in then if name not in now]
        found += [
            f"changed the percent of {name!r} from {then[name]} to {percent}"
            for name, percent in now.items()
            if name in then and percent != then[name]
        ]
        if mixing != before_mixing:
            found.append(f"changed the mixing from {before_mixing!r} to {mixing!r}")
        if number != before_number:
            found.append(f"changed samples_per_pick from {before_number} to {number}")
        if not found and [*then] != [*now]:
            found.append("changed the order of the sources")
    paths = sorted(old.mixtures.keys() - facts.mixtures.keys())
    return found + [f"dropped the nested mixture {path}" for path in paths]


def _take_back(source: StreamSource, old: StreamOrigin, identity: str) -> StreamSource:
    """Return a source as it was; raise if it has another identity for more than growth."""
    view = old.views(source.name)[-1]
    expected, listing = old.identities[view], old.files.get(view)
    # Whether it is packed as a whole depends on its size.
    orders = [_DIGEST.sub("", text).removeprefix(WHOLE_SOURCE) for text in (expected, identity)]
    reason = "its files or its process_fn, with all settings, are others"
    if orders[0] != orders[1]:
        reason = f"it is of [{orders[0]}], these are [{orders[1]}]"
    elif listing and source.kind == "parts":
        try:
            before = replace(source, dataset=source.dataset.as_listed(listing))
        except SourceError as error:
            reason = f"of its files {error}"
        else:
            if before.identity() == expected:
                return before
            reason = "its process_fn, or a setting such as a sequence length, is another"
    raise StateMismatchError(
        f"the state of {source.name!r} must be of the same files, seed and order, and made "
        f"alike: {reason}; take those back, or set reload_from_url_level to read begun parts "
        "again, or start from the first sample. Files may be added, and lines at the end of one"
    )


def _describe_growth(source: StreamSource, old: StreamOrigin) -> str:
    before, now = old.files[old.views(source.name)[-1]], list_files(source.dataset)
    return f"{source.name!r} has {describe_growth(before, now)}, from its next epoch on"


def _grow(
    source: StreamSource,
    old: StreamSource,
    before: StreamOrigin,
    identities: dict[str, str],
    pools: dict[str, UnreadPartitions],
    ends: dict[str, int],
) -> None:
    """Add a view of a grown source; its earlier view ends with the epochs that were begun."""
    view = before.views(source.name)[-1]
    unread = before.unread(view)
    touched = max(
        [unread.low, *(stop for _, stop in unread.ahead), *(part + 1 for part, _ in unread.begun)]
    )
    num_epochs = -(-touched // max(1, old.num_turns))
    ends[view] = num_epochs * old.num_turns
    if unread.is_finished(ends[view]):
        del identities[view]
    name, _, number = view.partition("@")
    new = f"{name}@{int(number or 0) + 1}"
    identities[new] = source.identity()
    pools[new] = UnreadPartitions(num_epochs * source.num_turns)


def _check_segments(origin: StreamOrigin, facts: MixtureFacts) -> None:
    """Raise if unfinished segments of a yield function need a mixture that is not there."""
    for older in origin.older.values():
        for path, (_, then, *_) in older["mixtures"].items():
            now = dict(facts.mixtures.get(path, ["", []])[1])
            missing = [name for name, _ in then if name not in now]
            if missing:
                raise StateMismatchError(
                    "unfinished segments of a customized_yield_fn need all sources that they have "
                    f"begun with, {missing[0]!r} was dropped; keep it with a percent of 0"
                )


def report(changes: Sequence[str]) -> None:
    """Log the changes of a mixture."""
    for change in changes:
        logger.warning("the mixture is not that of the state: %s", change)
