"""Instantiate the objects that a YAML file describes."""

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from difflib import SequenceMatcher
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

from zindex.errors import ZindexError
from zindex.streaming.configuration.registry import Target, Targets, suggest
from zindex.streaming.configuration.yaml_plan import (
    Call,
    Constant,
    Entry,
    Given,
    ListPlan,
    MapPlan,
    Named,
    Plan,
    Planner,
)
from zindex.streaming.configuration.yaml_tree import Place
from zindex.streaming.protocols import has_name, has_percent

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
        Further objects that a ``target`` may name, besides those of `zindex.streaming` and of
        `zindex.streaming.configuration.registry.register`.
    allow_imports
        Modules and packages, such as ``"mypackage.data"``, whose definitions files may name, such
        as ``mypackage.data.readers.MyReader``.
    include_folders
        Folders of files that may be included, besides the folder of the first file.

    Returns
    -------
    made
        The object. It pickles if its parts do.

    Raises
    ------
    ConfigError
        If a file is missing, too large or invalid; the message has file, line and column. Errors
        of a target's call are raised unchanged, with the place in their message if they are
        zindex's, else in a note.
    """
    planner = Planner(variables, dynamic_objs, Targets(targets, allow_imports), include_folders)
    plan = planner.plan_file(config_path)
    parts = list(_walk(plan))
    targets_used = [part.target for part in parts if isinstance(part, Call | Named)]
    made = {id(target): _load(target) for target in targets_used}
    for call in (part for part in parts if isinstance(part, Call)):
        _check_call(call, made[id(call.target)])
        _check_functions(call, made)
        for _, child in list_children(call, made[id(call.target)]):
            check_spelling(child, made[id(child.target)])
    return _make(plan, made)


def _walk(plan: Plan) -> Iterator[Plan]:
    """Yield a plan and all nested plans."""
    stack = [plan]
    while stack:
        plan = stack.pop()
        yield plan
        if isinstance(plan, ListPlan):
            stack += plan.items
        elif isinstance(plan, MapPlan):
            stack += plan.items.values()
        elif isinstance(plan, Call):
            entries = [*plan.params.values(), *plan.attributes.values()]
            stack += [entry.plan for entry in entries]


def _load(target: Target) -> Any:
    """Return the object of a target, importing its module if necessary."""
    with _placed(target):
        return target.load()


@contextmanager
def _placed(target: Target) -> Iterator[None]:
    """Add the place of a target to errors."""
    try:
        yield
    except Exception as error:
        if not str(error).startswith(str(target.place)):
            where = f"{target.place}: of the target {target.name!r}"
            if isinstance(error, ZindexError) and error.args:
                error.args = (f"{where}: {error.args[0]}", *error.args[1:])
            else:
                error.add_note(where)
        raise


def _check_call(call: Call, made: Callable[..., Any]) -> None:
    """Check the arguments of a call against the signature."""
    target = call.target
    if not callable(made):
        raise target.place.error(
            f"a target with params must be a class or a function, {target.name!r} names "
            f"{type(made).__name__}; remove params to get it itself"
        )
    try:
        signature = inspect.signature(made)
    except (ValueError, TypeError):  # some classes written in C have none
        return
    kinds = signature.parameters.values()
    named = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    names = [part.name for part in kinds if part.kind in named]
    if not any(part.kind is part.VAR_KEYWORD for part in kinds):
        for name, entry in call.params.items():
            if name not in names:
                raise entry.place.error(
                    f"an argument must be one that {target.name!r} takes ({', '.join(names)}), got "
                    f"{name!r}{suggest(name, names)}; correct it"
                )
    try:
        signature.bind(**call.params)
    except TypeError as error:
        raise target.place.error(
            f"params must hold all that {target.name!r} needs: {error}; add it"
        ) from error


def _check_functions(call: Call, made: Mapping[int, Any]) -> None:
    """Refuse a class where an instance is meant."""
    for name in _FUNCTIONS & call.params.keys():
        plan = call.params[name].plan
        if not isinstance(plan, Named):
            continue
        value = made[id(plan.target)]
        # A class with iterable instances may be the function itself.
        if isinstance(value, type) and not hasattr(value, "__iter__"):
            raise plan.target.place.error(
                f"{name} must be a function of samples, {plan.target.name!r} names a class; write "
                "`params: null` beside it to make an object of it"
            )


def _make(plan: Plan, made: Mapping[int, Any]) -> Any:
    """Return the object of a plan, depth first."""
    if isinstance(plan, Given):
        return plan.value
    if isinstance(plan, Constant):
        return deepcopy(plan.value)
    if isinstance(plan, ListPlan):
        return [_make(item, made) for item in plan.items]
    if isinstance(plan, MapPlan):
        return {key: _make(item, made) for key, item in plan.items.items()}
    if isinstance(plan, Named):
        return made[id(plan.target)]
    params = {name: _make(entry.plan, made) for name, entry in plan.params.items()}
    check_children(list_children(plan, made[id(plan.target)]), params)
    with _placed(plan.target):
        value = made[id(plan.target)](**params)
    for name, entry in plan.attributes.items():
        _set_attribute(value, name, entry, _make(entry.plan, made))
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
            f"an attribute must not hide a method, {kind.__name__} has {name!r}; choose another "
            "name"
        )
    try:
        setattr(value, name, content)
    except (AttributeError, TypeError) as error:
        raise entry.place.error(
            f"the object must take the attribute {name!r}, {kind.__name__} does not: {error}; "
            "remove it"
        ) from error


_ATTRIBUTES = ("name", "percent", "length", "length_multiplier", "length_divisor")
# Similarity of a misspelled word: ``lenght`` is above it, ``length_of`` is below.
_LIKE = 0.82


def list_children(call: Call, made: Any) -> list[tuple[int, Call]]:
    """Return the datasets that the files give to a call of MergedDataset, with their numbers.

    Parameters
    ----------
    call
        Any call.
    made
        The object of its target.
    """
    # No import: if its module is not loaded, no target can be the class.
    module: Any = sys.modules.get("zindex.streaming.merged_dataset")
    if module is None or not isinstance(made, type) or not issubclass(made, module.MergedDataset):
        return []
    entry = call.params.get("datasets")
    items = entry.plan.items if entry is not None and isinstance(entry.plan, ListPlan) else []
    return [(number, item) for number, item in enumerate(items) if isinstance(item, Call)]


def check_spelling(child: Call, made: Any) -> None:
    """Refuse an attribute of a dataset that is probably a misspelled attribute of mixtures.

    Parameters
    ----------
    child
        The call of the dataset.
    made
        The object of its target.

    Raises
    ------
    ConfigError
        If there is one, and the correct one is missing.
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
        The result of `list_children`.
    params
        The arguments of the mixture, with instantiated datasets.

    Raises
    ------
    ConfigError
        If one is missing or invalid; the message has the place.
    """
    places: dict[str, Place] = {}
    for number, child in children:
        dataset = params["datasets"][number]
        if not has_percent(dataset):
            raise _place_of(child, "percent").error(
                f"a dataset of a mixture must have a percent > 0, {child.target.name!r} has "
                f"{getattr(dataset, 'percent', None)!r}; write `percent: 0.5` or another share "
                "beside its target, or leave the dataset out"
            )
        # A nested mixture has no state.
        if hasattr(dataset, "datasets"):
            continue
        name: Any = getattr(dataset, "name", None)
        place = _place_of(child, "name")
        if not has_name(dataset):
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
    """Return the place of an attribute, or of the target without it."""
    entry = child.attributes.get(attribute)
    return child.target.place if entry is None else entry.place
