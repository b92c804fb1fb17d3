"""States in cogdata's form, ``{(name, rank, worker): (seed, ...)}``: read once, to go on here."""

from collections.abc import Mapping
from typing import Any

from zindex.errors import StateMismatchError
from zindex.streaming.lanes import Entries, Lane
from zindex.streaming.leaf_streams import SEED_STEP, split_urls
from zindex.streaming.leaves import Leaf


def is_of_cogdata(state: Mapping[Any, Any]) -> bool:
    """Return whether a state has cogdata's form."""
    return any(isinstance(key, tuple) for key in state)


def read_cogdata_state(state: Mapping[Any, Any], leaves: list[Leaf], lane: Lane) -> Entries:
    """Return where a lane is by a state in cogdata's form.

    Parameters
    ----------
    state
        Of as many ranks and loader workers as there are now.
    leaves
        The sources, in cogdata's orders.
    lane
        The lane.

    Returns
    -------
    entries
        Map-style sources go on behind the last item. Of a file that was begun, nothing is known to
        be delivered: it is read again, as cogdata does with ``reload_from_url_level``.

    Raises
    ------
    StateMismatchError
        If a source has another order, or the state is not one of these sources and lanes.
    """
    entries: Entries = {}
    for leaf in leaves:
        found = state.get((leaf.name, lane.rank, lane.worker))
        if found is None:
            continue
        if not leaf.order.startswith("cogdata_"):
            raise StateMismatchError(
                f"a state in cogdata's form needs cogdata's orders, {leaf.name!r} has another one; "
                "set shuffle_unstreaming_subsets='cogdata_block2m' and "
                "shuffle_streaming_subsets='cogdata_urlbuffer'"
            )
        if leaf.order == "cogdata_urlbuffer":
            num_finished = _count_files(leaf, lane, *found)
        else:
            num_finished = _count_items(leaf, lane, *found)
        entries[leaf.key] = (num_finished, 0, 0)
    return entries


def _count_items(leaf: Leaf, lane: Lane, seed: int, index: int) -> int:
    epoch, wrong = divmod(seed - leaf.seed, SEED_STEP)
    size = leaf.num_items
    number = epoch * size + index
    if wrong or epoch < 0 or not 0 <= index < size or (number - lane.index) % lane.count:
        raise _refusal(leaf, lane, f"seed {seed}, index {index} of {size}")
    return (number - lane.index) // lane.count + 1


def _count_files(leaf: Leaf, lane: Lane, seed: int, url: str, key: str | None = None) -> int:
    own = [leaf.dataset.urls[number] for number in split_urls(len(leaf.dataset.urls), lane)]
    epoch, wrong = divmod(seed - leaf.seed - 64 * lane.rank - lane.slot, SEED_STEP)
    if wrong or epoch < 0 or url not in own:
        raise _refusal(leaf, lane, f"seed {seed}, {url}, key {key}")
    return epoch * len(own) + own.index(url)


def _refusal(leaf: Leaf, lane: Lane, what: str) -> StateMismatchError:
    return StateMismatchError(
        f"a state in cogdata's form must be of the same files, seed, {lane.num_ranks} ranks and "
        f"{lane.num_slots} loader workers, got {what} for {leaf.name!r} in worker {lane.worker} of "
        f"rank {lane.rank}; take the numbers that it was saved with"
    )
