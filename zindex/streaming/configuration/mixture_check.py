"""What mixtures need of the datasets in them, checked where its place in a file is known."""

import math
import sys
from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import Any

from zindex.streaming.configuration.yaml_plan import Call, ListPlan
from zindex.streaming.configuration.yaml_tree import Place

_ATTRIBUTES = ("name", "percent", "length", "length_multiplier", "length_divisor")
# Likeness from which one word is taken for another; ``lenght`` is as near, ``length_of`` is not.
_LIKE = 0.82


def list_children(call: Call, made: Any) -> list[tuple[int, Call]]:
    """Return the datasets that a call of MergedDataset is given by the files, with their numbers.

    Parameters
    ----------
    call
        Any call.
    made
        What its target names.
    """
    # Nothing is imported for this: without its module nothing that was found can be the class.
    module: Any = sys.modules.get("zindex.streaming.merged_dataset")
    if module is None or not isinstance(made, type) or not issubclass(made, module.MergedDataset):
        return []
    entry = call.params.get("datasets")
    items = entry.plan.items if entry is not None and isinstance(entry.plan, ListPlan) else []
    return [(number, item) for number, item in enumerate(items) if isinstance(item, Call)]


def check_spelling(child: Call, made: Any) -> None:
    """Refuse an attribute of a dataset that is nearly the name of one that mixtures read.

    Parameters
    ----------
    child
        The call that makes the dataset.
    made
        What its target names.

    Raises
    ------
    ConfigError
        If there is one, and the right one is missing.
    """
    for key, entry in child.attributes.items():
        for known in _ATTRIBUTES:
            if known in child.attributes or key in _ATTRIBUTES or hasattr(made, key):
                continue
            if _is_like(key, known):
                raise entry.place.error(
                    f"a dataset of a mixture must have its attributes spelled as {known!r} is, got "
                    f"{key!r} (did you mean {known!r}?); correct it"
                )


def _is_like(word: str, known: str) -> bool:
    word = word.lower()
    swapped = sorted(word) == sorted(known)
    return swapped or SequenceMatcher(None, word, known).ratio() >= _LIKE


def check_children(children: list[tuple[int, Call]], params: Mapping[str, Any]) -> None:
    """Check the names and percents of the datasets of a mixture.

    Parameters
    ----------
    children
        As `list_children` returns them.
    params
        The arguments of the mixture, whose datasets are made.

    Raises
    ------
    ConfigError
        If one is missing, or is none; the message has the place.
    """
    places: dict[str, Place] = {}
    for number, child in children:
        dataset = params["datasets"][number]
        percent: Any = getattr(dataset, "percent", None)
        is_number = isinstance(percent, int | float) and not isinstance(percent, bool)
        if not is_number or not 0 < percent < math.inf:
            raise _place_of(child, "percent").error(
                f"a dataset of a mixture must have a percent > 0, {child.target.name!r} has "
                f"{percent!r}; write `percent: 0.5` or another share beside its target, or leave "
                "the dataset out"
            )
        # A mixture in this one has no state of its own.
        if hasattr(dataset, "datasets"):
            continue
        name = getattr(dataset, "name", None)
        place = _place_of(child, "name")
        if not isinstance(name, str) or not name or "@" in name:
            raise place.error(
                f"a dataset of a mixture must have a name without '@', {child.target.name!r} has "
                f"{name!r}; write `name: ...` beside its target, by which its state is kept"
            )
        if name in places:
            raise place.error(
                f"the names of all datasets must differ, {name!r} is that of {places[name]} too; "
                "states are kept by name: rename one"
            )
        places[name] = place


def _place_of(child: Call, attribute: str) -> Place:
    """Return where an attribute stands, or the target without it."""
    entry = child.attributes.get(attribute)
    return child.target.place if entry is None else entry.place
