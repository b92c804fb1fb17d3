"""Percents that change while a mixture is read: by schedules, and by calls of ``set_percents``."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zindex.errors import ConfigError
from zindex.loading.percent_board import PercentBoard, gather_requests
from zindex.plan.percent_schedules import is_percent, is_read, parse_percent, percent_at
from zindex.plan.tail import Tail
from zindex.streaming.mixture_tree import name_children
from zindex.streaming.state import State, find_delivered


def check_percents(percents: Sequence[Any], *, exact: bool) -> None:
    """Check the percents of all sources of a mixture, each of which is valid.

    Raises
    ------
    ConfigError
        If none is > 0 at some sample, or cogdata's mixing does not take them.
    """
    if not exact and any(isinstance(percent, Mapping) for percent in percents):
        raise ConfigError(
            "percents over samples must be mixed exactly, got mixing='cogdata_mix'; leave it out, "
            "or give numbers as percents"
        )
    schedules = [parse_percent(percent) or () for percent in percents]
    for sample in sorted({start for schedule in schedules for start, _ in schedule}):
        current = [percent_at(schedule, sample) for schedule in schedules]
        if not any(current) or not (exact or all(current)):
            raise ConfigError(
                "one dataset of a mixture must have a percent > 0, and with mixing='cogdata_mix' "
                f"all, got {current} from sample {sample:,} on; set the attribute percent"
            )


def check_even_changes(mixture: Any, changes: Iterable[Mapping[str, float]]) -> None:
    """Raise ConfigError if changes of percents add or leave out datasets, and a tail counts them.

    Parameters
    ----------
    mixture
        The mixture; nothing is checked if its tail is exact.
    changes
        New percents by name.
    """
    if mixture.tail is Tail.EXACT:
        return
    children = name_children(mixture)
    for percents in changes:
        for name, percent in percents.items():
            if name in children and is_read(percent) != is_read(children[name].percent):
                raise ConfigError(
                    f"with tail={mixture.tail.value!r}, changes of percents must keep which "
                    f"datasets are read, got {percent} for {name!r}, whose percent is "
                    f"{children[name].percent}; leave tail out, or give it a small percent"
                )


def change_percents(
    mixture: Any,
    board: PercentBoard,
    num_ranks: int,
    percents: Mapping[str, float],
    at: int | None,
    group: Any,
    state: State,
) -> list[list[Any]]:
    """Add a change to a board, at the same place on all ranks; see `MergedDataset.set_percents`.

    Returns
    -------
    changes
        All changes that a state needs, as JSON values.
    """
    if mixture.mixing != "exact":
        raise ConfigError(
            "percents that change must be mixed exactly, got mixing='cogdata_mix'; leave it out"
        )
    children = [
        (name, parse_percent(dataset.percent) or ())
        for name, dataset in name_children(mixture).items()
    ]
    names = [name for name, _ in children]
    if not percents or not all(map(is_percent, percents.values())):
        raise ConfigError(
            f"percents must be a mapping from sources to numbers >= 0, got {percents!r}; give at "
            "least one"
        )
    if unknown := sorted(map(str, percents.keys() - {*names})):
        raise ConfigError(
            f"percents must be of the sources of the outermost mixture, {', '.join(names)}, got "
            f"{unknown[0]!r}; name a nested mixture to change its percent"
        )
    check_even_changes(mixture, [percents])
    if at is not None and (type(at) is not int or at < 0):
        raise ConfigError(f"at must be a number of samples >= 0, or None, got {at!r}")
    with board.hold():
        reached = board.reached
        request = [dict(percents), at, reached, find_delivered(state)]
        asked = gather_requests(request, at, num_ranks, group)
        if any(other[:2] != asked[0][:2] for other in asked):
            raise ConfigError(
                f"all ranks must set the same percents at the same step, got {asked[0][:2]} and "
                f"{next(other[:2] for other in asked if other[:2] != asked[0][:2])}; give each "
                "rank the same, such as losses that are averaged over all ranks"
            )
        changes = board.held_changes()
        first = max([other[2] for other in asked] + [change[:2] for change in changes[-1:]])
        place = first if at is None else (first[0], at)
        if place < first:
            raise ConfigError(
                f"a change of percents must be at a sample that no rank has read yet, from "
                f"{first[1]:,} on, got {at:,}; leave `at` out for the earliest one"
            )
        kept = [change for change in changes if change[:2] != place]
        current = {**(changes[-1][2] if changes else {}), **percents}
        for start in {place[1], *(start for _, schedule in children for start, _ in schedule)}:
            if start >= place[1] and not any(
                current.get(name, percent_at(schedule, start)) for name, schedule in children
            ):
                raise ConfigError(
                    f"one source must have a percent > 0, got none from sample {start:,} on; set "
                    "another one, too"
                )
        own = [other[3] for other in asked]
        # Without a process group, the place of other ranks is not known.
        needed = None if None in own or len(own) < num_ranks else min(own)
        last = min(other[2] for other in asked)
        changes = board.forget([*kept, (*place, current)], last, needed)
        board.write(changes)
    return [[*change] for change in changes]
