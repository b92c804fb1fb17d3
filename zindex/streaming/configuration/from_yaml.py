"""Objects that YAML files describe: datasets, their mixtures, and what these are made with."""

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

from zindex.errors import ZindexError
from zindex.streaming.configuration.mixture_check import (
    check_children,
    check_spelling,
    list_children,
)
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

# Arguments that are called with samples.
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

    All files are read and checked before anything is imported; all targets are found, and their
    arguments checked, before anything is made.

    Parameters
    ----------
    config_path
        The file. A mapping with ``target`` and ``params`` becomes ``target(**params)``, its other
        keys attributes of the object; ``params: null`` is a call without arguments. ``target``
        alone is what it names, itself. A mapping with ``include`` becomes what another file
        describes, its path taken from the folder of this one; other keys go over the attributes of
        that object, and ``params`` over its arguments. Other mappings, lists and values are
        themselves.
    variables
        What ``${variables:name}`` stands for, with its type where it is a whole value, as text
        within a longer one: null, truth values, numbers, texts, paths, lists and mappings.
    dynamic_objs
        What ``${dynamic_objs:name}`` stands for, as a whole value: any object, as it is.
    targets
        Objects that a ``target`` may name, by name, besides those of `zindex.streaming` and those
        of `zindex.streaming.configuration.registry.register`.
    allow_imports
        Modules and packages, such as ``"mypackage.data"``, of which files may name what is defined
        there, as ``mypackage.data.readers.MyReader``.
    include_folders
        Folders from which files may be included, besides that of the first file and those in it.

    Returns
    -------
    made
        The object, which pickles if its parts do.

    Raises
    ------
    ConfigError
        If a file is missing, too large, or asks for what it may not have; the message names file,
        line and column. What a target raises when it is called comes as it is, with the place in
        its message, or in a note if it is no error of zindex.
    """
    planner = Planner(variables, dynamic_objs, Targets(targets, allow_imports), include_folders)
    plan = planner.plan_file(config_path)
    made = {id(target): _load(target) for target in _find_targets(plan)}
    for call in _find_calls(plan):
        _check_call(call, made[id(call.target)])
        _check_functions(call, made)
        for _, child in list_children(call, made[id(call.target)]):
            check_spelling(child, made[id(child.target)])
    return _make(plan, made)


def _walk(plan: Plan) -> Iterator[Plan]:
    """Yield a plan and all that it holds."""
    waiting = [plan]
    while waiting:
        plan = waiting.pop()
        yield plan
        if isinstance(plan, ListPlan):
            waiting += plan.items
        elif isinstance(plan, MapPlan):
            waiting += plan.items.values()
        elif isinstance(plan, Call):
            entries = [*plan.params.values(), *plan.attributes.values()]
            waiting += [entry.plan for entry in entries]


def _find_targets(plan: Plan) -> Iterator[Target]:
    return (part.target for part in _walk(plan) if isinstance(part, Call | Named))


def _find_calls(plan: Plan) -> Iterator[Call]:
    return (part for part in _walk(plan) if isinstance(part, Call))


def _load(target: Target) -> Any:
    """Return what a target names, imported if it must be."""
    with _Placed(target):
        return target.load()


class _Placed:
    """Says in an error which target it is of."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, Exception) or str(error).startswith(str(self.target.place)):
            return
        where = f"{self.target.place}: of the target {self.target.name!r}"
        if isinstance(error, ZindexError) and error.args:
            error.args = (f"{where}: {error.args[0]}", *error.args[1:])
        else:  # its arguments are its own business
            error.add_note(where)


def _check_call(call: Call, made: Callable[..., Any]) -> None:
    """Refuse a call whose arguments do not fit, before anything is called."""
    target = call.target
    if not callable(made):
        raise target.place.error(
            f"a target with params must be a class or a function, {target.name!r} names "
            f"{type(made).__name__}; remove params to get it itself"
        )
    try:
        signature = inspect.signature(made)
    except (ValueError, TypeError):  # some classes written in C do not tell
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
    """Refuse a class where an object of it is meant to be called."""
    for name in _FUNCTIONS & call.params.keys():
        plan = call.params[name].plan
        if not isinstance(plan, Named):
            continue
        value = made[id(plan.target)]
        # A class may itself be the function, if its objects are what it yields from.
        if isinstance(value, type) and not hasattr(value, "__iter__"):
            raise plan.target.place.error(
                f"{name} must be a function of samples, {plan.target.name!r} names a class; write "
                "`params: null` beside it to make an object of it"
            )


def _make(plan: Plan, made: Mapping[int, Any]) -> Any:
    """Return the object of a plan, inner ones made first."""
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
    with _Placed(plan.target):
        value = made[id(plan.target)](**params)
    for name, entry in plan.attributes.items():
        _set_attribute(value, name, entry, _make(entry.plan, made))
    return value


def _set_attribute(value: Any, name: str, entry: Entry, content: Any) -> None:
    """Set an attribute of an object that was made for this place."""
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
