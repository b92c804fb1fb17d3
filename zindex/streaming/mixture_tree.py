"""Mixtures within mixtures: the names of their datasets, their records in states, their sources."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from zindex.loading.lane_picks import to_fraction
from zindex.plan.percent_schedules import parse_percent
from zindex.streaming.protocols import is_mixture

#: Path -> mixing, the sources of the mixture, each with its percent as JSON, samples of a pick, and
#: if there are any, the nested mixtures that are taken apart: name -> path.
Mixtures = Mapping[str, list[Any]]


@dataclass(frozen=True)
class Leaf:
    """A source of a mixture, or of one within it that is taken apart."""

    name: str
    #: Number of the dataset of the mixture that it is in, and its share of that.
    child: int
    share: Fraction
    #: Name and path of each mixture that it is in, below the outermost.
    groups: tuple[tuple[str, str], ...] = ()


def name_children(mixture: Any, path: str = "/") -> dict[str, Any]:
    """Return the datasets of a mixture by name; nested mixtures without one by their paths."""
    names = [dataset.name for dataset in mixture.datasets]
    return {
        f"{path}{number}/"
        if is_mixture(dataset) and (not name or names.count(name) > 1)
        else name: dataset
        for number, (name, dataset) in enumerate(zip(names, mixture.datasets, strict=True))
    }


def describe_mixtures(mixture: Any, path: str = "/") -> Iterator[tuple[str, list[Any]]]:
    """Yield the paths of a mixture and of nested ones, each as in `Mixtures`."""
    named = name_children(mixture, path)
    children = [
        [name, [*map(list, schedule)] if len(schedule) > 1 else schedule[0][1]]
        for name, dataset in named.items()
        if (schedule := parse_percent(dataset.percent))
    ]
    nested = [
        (name, f"{path}{number}/", dataset)
        for number, (name, dataset) in enumerate(named.items())
        if is_mixture(dataset)
    ]
    apart = {name: inner for name, inner, one in nested if _is_taken_apart(mixture, one)}
    yield path, [mixture.mixing, children, mixture.samples_per_pick, *([apart] if apart else [])]
    for _, inner, dataset in nested:
        yield from describe_mixtures(dataset, inner)


def _is_taken_apart(mixture: Any, nested: Any) -> bool:
    """Return whether the sources of a nested mixture are mixed with those of the outer one.

    Then each has its share of all samples within one sample. The nested mixture needs no order of
    its own picks, nor to know when it has ended.
    """
    return (
        mixture.mixing == nested.mixing == "exact"
        and nested.customized_yield_fn is None
        and mixture.samples_per_pick == nested.samples_per_pick
        and not (mixture.stop_on_first or nested.stop_on_first)
        and all(len(parse_percent(one.percent) or ()) == 1 for one in nested.datasets)
    )


def list_leaves(mixtures: Mixtures, path: str = "/") -> list[Leaf]:
    """Return the sources that a mixture picks from."""
    _, children, _, *rest = mixtures[path]
    apart = rest[0] if rest else {}
    leaves = []
    for number, (name, _) in enumerate(children):
        if name not in apart:
            leaves.append(Leaf(name, number, Fraction(1)))
            continue
        percents = [to_fraction(percent) for _, percent in mixtures[apart[name]][1]]
        for leaf in list_leaves(mixtures, apart[name]):
            share = leaf.share * percents[leaf.child] / sum(percents)
            groups = (name, apart[name]), *leaf.groups
            leaves.append(Leaf(leaf.name, number, share, groups))
    return leaves
