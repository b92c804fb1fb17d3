"""Mixtures and the datasets in them: their attributes, their names and records in states."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from zindex.mixing.percent_schedules import parse_percent, to_fraction

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


def is_mixture(dataset: Any) -> bool:
    """Return whether a dataset is a `MergedDataset`, without importing torch."""
    return hasattr(dataset, "set_dataloader_states")


def is_epochs(given: Any) -> bool:
    """Return whether a value can be the ``max_epochs`` of a dataset; None is no limit."""
    return given is None or (type(given) is int and given >= 1)


def find_fault(dataset: Any) -> tuple[str, str] | None:
    """Return the attribute that a dataset of a mixture lacks and its requirement, or None.

    A dataset needs a percent and, unless it is a mixture itself, a name for the keys of states.
    """
    percent: Any = getattr(dataset, "percent", None)
    if isinstance(percent, Mapping) and parse_percent(percent) is None:
        return "percent", (
            f"a percent that maps samples, from 0 on, to numbers >= 0, got {dict(percent)!r}; "
            "write it as in {0: 0.5, 1_000_000: 0.2}"
        )
    if parse_percent(percent) is None:
        return "percent", f"a percent >= 0, got {percent!r}; set its attribute percent"
    name = getattr(dataset, "name", None)
    if is_mixture(dataset) or (isinstance(name, str) and name and "@" not in name):
        return None
    return "name", f"a name without '@', got {name!r}; set its attribute name, which keys its state"


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
