"""Instantiate the objects that a YAML file describes."""

import inspect
import logging
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import chain
from pathlib import PurePath
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

from zindex.errors import suggest
from zindex.mixing.mixture_tree import find_fault, is_epochs, is_mixture
from zindex.streaming.configuration.registry import Target, Targets
from zindex.streaming.configuration.yaml_plan import Call, Entry, Given, Plan, Planner
from zindex.streaming.configuration.yaml_tree import Place

logger = logging.getLogger(__name__)

# Arguments that are functions of samples.
_FUNCTIONS = {"process_fn", "customized_yield_fn"}

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def instantiate_from_yaml(
    config_path: str | os.PathLike[str],
    variables: Mapping[str, Any] = _NOTHING,
    dynamic_objs: Mapping[str, Any] = _NOTHING,
    *,
    targets: Mapping[str, Any] = _NOTHING,
    allow_imports: Iterable[str] = (),
    include_folders: Iterable[str | os.PathLike[str]] = (),
) -> Any:
    """Return the object that a YAML file describes.

    All files are read and checked before any import; all targets are resolved, and their arguments
    checked, before any call.

    Parameters
    ----------
    config_path
        The file. A mapping with ``target`` and ``params`` becomes ``target(**params)``, and its
        other keys become attributes of the object; ``params: null`` is a call without arguments.
        ``target`` alone is the named object itself. A mapping with ``include`` becomes the object
        of another file, with a path relative to this file; its other keys override attributes of
        that object, and ``params`` override its arguments. Other mappings, lists and values are
        unchanged.
    variables
        Values of ``${variables:name}``: null, booleans, numbers, texts, paths, lists and mappings.
        As a whole value it keeps its type; within a text it is inserted as text.
    dynamic_objs
        Objects of ``${dynamic_objs:name}``, which must be a whole value.
    targets
        Additional objects that a ``target`` may name, besides those of `zindex.streaming` and of
        `zindex.streaming.configuration.registry.register`.
    allow_imports
        Modules and packages, such as ``"mypackage.data"``, whose definitions files may name, such
        as ``mypackage.data.readers.MyReader``.
    include_folders
        Folders whose files may be included, besides the folder of the first file.

    Returns
    -------
    made
        The object. It can be pickled if its parts can.

    Raises
    ------
    ConfigError
        If a file is missing, too large or invalid; the message has file, line and column. Errors of
        a target's call are raised unchanged, with the position added to their message if they are
        zindex's, otherwise to their notes.
    """
    planner = Planner(variables, dynamic_objs, Targets(targets, allow_imports), include_folders)
    plan = planner.plan_file(config_path)
    calls = list(_find_calls(plan))
    for call in calls:
        call.target.value  # noqa: B018
    for call in calls:
        if call.params is not None:
            _check_call(call.target, call.params)
            _check_functions(call.params)
        for child in _list_children(call).values():
            _check_spelling(child)
    return _make(plan)


def _find_calls(plan: Plan) -> Iterator[Call]:
    """Yield the calls of a plan, outermost first."""
    if isinstance(plan, list | dict):
        for item in plan.values() if isinstance(plan, dict) else plan:
            yield from _find_calls(item)
    elif isinstance(plan, Call):
        yield plan
        for entry in chain((plan.params or {}).values(), plan.attributes.values()):
            yield from _find_calls(entry.plan)


def _check_call(target: Target, params: Mapping[str, Entry]) -> None:
    """Check the arguments of a call against the signature."""
    if not callable(target.value):
        raise target.place.error(
            f"a target with params must be a class or a function, {target.name!r} names "
            f"{type(target.value).__name__}; remove params to get it itself"
        )
    try:
        signature = inspect.signature(target.value)
    except (ValueError, TypeError):  # some classes written in C have no signature
        return
    kinds = signature.parameters.values()
    named = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    names = [part.name for part in kinds if part.kind in named]
    unknown = [name for name in params if name not in names]
    if unknown and not any(part.kind is part.VAR_KEYWORD for part in kinds):
        raise params[unknown[0]].place.error(
            f"an argument must be one that {target.name!r} takes ({', '.join(names)}), got "
            f"{unknown[0]!r}{suggest(unknown[0], names)}; correct it"
        )
    try:
        signature.bind(**params)
    except TypeError as error:
        raise target.place.error(
            f"params must hold all that {target.name!r} needs: {error}; add it"
        ) from error
    for name, entry in params.items():
        part = signature.parameters.get(name)
        if part is None or part.annotation is not bool or not isinstance(entry.plan, Given):
            continue
        if not isinstance(entry.plan.value, bool):
            raise entry.place.error(
                f"{name} of {target.name!r} must be true or false, got {entry.plan.value!r}; write "
                "true or false, without quotes"
            )


def _check_functions(params: Mapping[str, Entry]) -> None:
    """Raise if a class is given instead of an instance."""
    for name in _FUNCTIONS & params.keys():
        plan = params[name].plan
        if not isinstance(plan, Call) or plan.params is not None:
            continue
        # A class with iterable instances may be the function itself.
        if isinstance(plan.target.value, type) and not hasattr(plan.target.value, "__iter__"):
            raise plan.target.place.error(
                f"{name} must be a function of samples, {plan.target.name!r} names a class; write "
                "`params: null` next to it to make an object of it"
            )


def _make(plan: Plan) -> Any:
    """Return the object of a plan, depth first."""
    if isinstance(plan, Given):
        return plan.value
    if isinstance(plan, list):
        return [_make(item) for item in plan]
    if isinstance(plan, dict):
        return {key: _make(item) for key, item in plan.items()}
    if plan.params is None:
        return plan.target.value
    params = {name: _make(entry.plan) for name, entry in plan.params.items()}
    _check_children(_list_children(plan), params)
    with plan.target.placed():
        value = plan.target.value(**params)
    for name, entry in plan.attributes.items():
        _set_attribute(value, name, entry, _make(entry.plan))
    return value


def _set_attribute(value: Any, name: str, entry: Entry, content: Any) -> None:
    """Set an attribute of an instantiated object."""
    kind = type(value)
    if isinstance(value, type | ModuleType | FunctionType):
        raise entry.place.error(
            f"only an object of its own must be given attributes, got {name!r} for a "
            f"{kind.__name__} that others share; remove {name!r}"
        )
    if callable(getattr(kind, name, None)):
        raise entry.place.error(
            f"an attribute must not hide a method, {kind.__name__} has {name!r}; rename it"
        )
    if kind.__module__.startswith("zindex."):
        _check_known(value, name, entry.place)
    try:
        setattr(value, name, content)
    except (AttributeError, TypeError) as error:
        raise entry.place.error(
            f"the object must take the attribute {name!r}, {kind.__name__} does not: {error}; "
            "remove it"
        ) from error


_LENGTHS = ("length", "length_multiplier", "length_divisor")
# Attributes of datasets of a mixture, and of mixtures within it.
_ATTRIBUTES = ("name", "percent", "max_epochs", *_LENGTHS)
_OF_MIXTURES = ("name", "percent")
# Names of a percent elsewhere.
_PERCENTS = {"weight", "ratio", "proportion", "probability", "share", "fraction"}
# Similarity threshold for misspellings: ``lenght`` is above it, ``length_of`` is below.
_LIKE = 0.82


def _check_known(value: Any, name: str, place: Place) -> None:
    """Check the name of an attribute of an object of zindex."""
    kind = type(value)
    known = _OF_MIXTURES if is_mixture(value) else _ATTRIBUTES
    if name in known:
        return
    if name == "max_epochs":
        raise place.error(
            "max_epochs must be an attribute of a dataset in a cyclic mixture, a "
            f"{kind.__name__} has epochs of each of its datasets; write it next to these"
        )
    if name.lower().rstrip("s") in _PERCENTS:
        raise place.error(
            f"the share of a dataset must be its percent, got the attribute {name!r} (did you mean "
            "'percent'?); correct it, or remove it next to a percent"
        )
    arguments = list(inspect.signature(kind).parameters)
    if close := [name] if name in arguments else get_close_matches(name, arguments, 1, _LIKE):
        raise place.error(
            f"arguments of {kind.__name__} must be under its params, got the attribute {name!r} "
            f"(did you mean the argument {close[0]!r}?); move it there"
        )
    if hasattr(value, name):
        raise place.error(
            f"an attribute must not replace one that {kind.__name__} computes, got {name!r}; "
            "rename it"
        )
    logger.warning(
        "%s: zindex reads no attribute %r of a %s%s; it is set, but has no effect on the stream",
        place,
        name,
        kind.__name__,
        suggest(name, {*known, "seed", "cyclic"} - {name}),
    )


def _list_children(call: Call) -> dict[int, Call]:
    """Return the datasets that the files pass to a call of MergedDataset, by their numbers."""
    made, entry = call.target.value, (call.params or {}).get("datasets")
    # No import is needed: if its module is not loaded, no target can be the class.
    module: Any = sys.modules.get("zindex.streaming.merged_dataset")
    if module is None or not isinstance(made, type) or not issubclass(made, module.MergedDataset):
        return {}
    if entry is None:
        return {}
    items = entry.plan if isinstance(entry.plan, list) else [entry.plan]
    for item in items:
        _check_dataset(item, entry.place)
    return {number: item for number, item in enumerate(items) if isinstance(item, Call)}


def _check_dataset(plan: Plan, place: Place) -> None:
    """Raise if a value of the files is given in the place of a dataset."""
    if isinstance(plan, dict):
        keys = (f"{key!r}{suggest(str(key), ('target', 'include'))}" for key in plan)
        given = f"a mapping of {', '.join(keys) or 'nothing'}"
    elif isinstance(plan, Given) and isinstance(plan.value, str | int | float | PurePath | None):
        given = repr(plan.value)
    else:
        return
    raise place.error(
        f"datasets must be a list of mappings with a target or an include, got {given}; correct it"
    )


def _check_spelling(child: Call) -> None:
    """Raise if an attribute of a dataset is probably a misspelled attribute of mixtures."""
    missing = [known for known in _ATTRIBUTES if known not in child.attributes]
    for key, entry in child.attributes.items():
        if key in _ATTRIBUTES or hasattr(child.target.value, key):
            continue
        word = key.lower()
        swapped = [known for known in missing if sorted(word) == sorted(known)]
        if word.rstrip("s") in _PERCENTS and "percent" in missing:
            swapped = ["percent"]
        for known in swapped or get_close_matches(word, missing, 1, _LIKE):
            raise entry.place.error(
                f"a dataset of a mixture must have its attributes spelled as {known!r} is, got "
                f"{key!r} (did you mean {known!r}?); correct it"
            )


def _check_children(children: Mapping[int, Call], params: Mapping[str, Any]) -> None:
    """Check the names and percents of the instantiated datasets of a mixture."""
    places: dict[str, Place] = {}
    for number, child in children.items():
        dataset = params["datasets"][number]
        fault = find_fault(dataset)
        if fault is not None:
            attribute, what = fault
            raise _place_of(child, attribute).error(
                f"a dataset of a mixture must have {what}, or leave out the dataset, a "
                f"{child.target.name!r}"
            )
        for attribute in _LENGTHS:
            length = getattr(dataset, attribute, 1)
            is_number = isinstance(length, int | float) and not isinstance(length, bool)
            if attribute in child.attributes and not (is_number and 0 < length < math.inf):
                raise _place_of(child, attribute).error(
                    f"{attribute} must be a number > 0, got {length!r}; write a number"
                )
        most = getattr(dataset, "max_epochs", None)
        if "max_epochs" in child.attributes and not is_epochs(most):
            raise _place_of(child, "max_epochs").error(
                f"a dataset must have max_epochs >= 1, got {most!r}; set its percent to 0 to leave "
                "it out"
            )
        if is_mixture(dataset):
            continue
        place = _place_of(child, "name")
        if dataset.name in places:
            raise place.error(
                f"the names of all datasets must differ, {dataset.name!r} is that of "
                f"{places[dataset.name]} too; states are kept by name: rename one"
            )
        places[dataset.name] = place


def _place_of(child: Call, attribute: str) -> Place:
    """Return the position of an attribute, or of the target if it is missing."""
    entry = child.attributes.get(attribute)
    return child.target.place if entry is None else entry.place
