"""Plan the objects of YAML files: read and check all files before any import or call."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from zindex.errors import ConfigError
from zindex.streaming.configuration.registry import Target, Targets, suggest
from zindex.streaming.configuration.yaml_tree import (
    MAX_NODES,
    ListTree,
    MapTree,
    Place,
    Scalar,
    Tree,
    check_characters,
    read_tree,
)

# Limits of all files together: nesting, included files, bytes of inserted text.
_MAX_DEPTH, _MAX_INCLUDES, _MAX_TEXT = 100, 1000, 1 << 20

_MAX_VARIABLE_DEPTH = 40

_WORDS = {"target", "params", "include"}
_REFERENCE = re.compile(r"\$\{\s*(variables|dynamic_objs)\s*:\s*([A-Za-z0-9_.-]+)\s*\}", re.ASCII)
_ENTRY = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Constant:
    """A value of the files or of a variable."""

    value: Any


@dataclass(frozen=True, slots=True)
class Given:
    """An object that the program passes, unchanged."""

    value: Any


@dataclass(frozen=True, slots=True)
class ListPlan:
    """A list of values."""

    items: "list[Plan]"


@dataclass(frozen=True, slots=True)
class MapPlan:
    """A plain mapping."""

    items: "dict[Any, Plan]"


@dataclass(frozen=True, slots=True)
class Named:
    """The object of a target itself."""

    target: Target


@dataclass(frozen=True, slots=True)
class Entry:
    """An argument or an attribute."""

    place: Place
    plan: "Plan"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a target with keyword arguments, and attributes for its result."""

    target: Target
    params: dict[str, Entry]
    attributes: dict[str, Entry]


Plan = Constant | Given | ListPlan | MapPlan | Named | Call


class Planner:
    """Read files and check their content.

    Parameters
    ----------
    variables
        Values of ``${variables:name}``: null, booleans, numbers, texts, paths, and lists and
        mappings of them.
    dynamic_objs
        Objects of ``${dynamic_objs:name}``.
    targets
        Allowed targets.
    include_folders
        Folders of files that may be included, besides that of the first file.

    Raises
    ------
    ConfigError
        If a variable has another type.
    """

    def __init__(
        self,
        variables: Mapping[str, Any],
        dynamic_objs: Mapping[str, Any],
        targets: Targets,
        include_folders: Iterable[str | os.PathLike[str]],
    ) -> None:
        if isinstance(include_folders, str | os.PathLike):
            raise ConfigError(
                f"include_folders must be a list of folders, got {str(include_folders)!r}; put it "
                "in a tuple"
            )
        for name, value in variables.items():
            _check_variable(value, f"variables[{name!r}]", 0)
        self.variables = variables
        self.dynamic_objs = dynamic_objs
        self.targets = targets
        self.folders = [Path(os.path.realpath(folder)) for folder in include_folders]
        self.trees: dict[Path, Tree] = {}
        self.chain: list[Path] = []
        self.num_includes = self.num_nodes = self.num_text = self.level = 0

    def plan_file(self, path: str | os.PathLike[str]) -> Plan:
        """Return the plan of the first file, with all its includes."""
        given = Path(path)
        # The file may be a link; its includes are relative to the link.
        folder = Path(os.path.realpath(given.parent))
        self.folders.insert(0, folder)
        return self._plan_file(given, folder / given.name)

    def _plan_file(self, shown: Path, file: Path) -> Plan:
        """Return the plan of a file; messages show its path as given."""
        if file not in self.trees:
            self.trees[file] = read_tree(shown)
        self.chain.append(file)
        plan = self._plan(self.trees[file])
        self.chain.pop()
        return plan

    def _plan(self, tree: Tree) -> Plan:
        """Return the plan of a value."""
        self.num_nodes += 1
        self.level += 1
        if self.num_nodes > MAX_NODES:
            raise tree.place.error(
                f"all files together may stand for at most {MAX_NODES:,} values; include fewer"
            )
        if self.level > _MAX_DEPTH:
            raise tree.place.error(
                f"values of all files may be nested {_MAX_DEPTH} deep at most; nest them less "
                "deeply"
            )
        if isinstance(tree, Scalar):
            plan: Plan = self._plan_scalar(tree)
        elif isinstance(tree, ListTree):
            plan = ListPlan([self._plan(item) for item in tree.items])
        elif "include" in tree.items:
            plan = self._plan_include(tree)
        elif "target" in tree.items:
            plan = self._plan_target(tree)
        else:
            _check_plain(tree)
            plan = MapPlan({key: self._plan(item) for key, item in tree.items.items()})
        self.level -= 1
        return plan

    def _plan_scalar(self, tree: Scalar) -> Constant | Given:
        """Return a scalar with its references resolved."""
        text = tree.value
        if not isinstance(text, str) or "${" not in text:
            return Constant(text)
        whole = _REFERENCE.fullmatch(text)
        if whole:
            value = self._look_up(whole[1], whole[2], tree.place)
            return Constant(value) if whole[1] == "variables" else Given(value)
        return Constant(self._insert(text, tree.place))

    def _insert(self, text: str, place: Place) -> str:
        """Return a text with its variables inserted."""
        parts, end = [], 0
        for found in _REFERENCE.finditer(text):
            if found[1] == "dynamic_objs":
                raise place.error(
                    f"a dynamic object must be a whole value, got it inside {text!r}; take the "
                    "text around it away"
                )
            value = self._look_up(found[1], found[2], place)
            if not isinstance(value, str | int | float | PurePath):
                raise place.error(
                    f"a variable inside a text must be a text or a number, {found[2]!r} is "
                    f"{type(value).__name__}; use it as a whole value"
                )
            parts += [text[end : found.start()], str(value)]
            end = found.end()
        parts.append(text[end:])
        if any("${" in part for part in parts[::2]):
            raise place.error(
                "${...} must be ${variables:NAME} or ${dynamic_objs:NAME}, got "
                f"{text!r}; pass what it should stand for, or a text with it, as a variable"
            )
        self.num_text += sum(map(len, parts))
        if self.num_text > _MAX_TEXT:
            raise place.error(
                f"texts made of variables may have {_MAX_TEXT:,} characters at most together; "
                "use shorter ones"
            )
        return "".join(parts)

    def _look_up(self, kind: str, name: str, place: Place) -> Any:
        """Return a variable or a dynamic object."""
        known = self.variables if kind == "variables" else self.dynamic_objs
        if name not in known:
            names = ", ".join(sorted(map(str, known))) or "none"
            option = f" (--set {name}=...)" if kind == "variables" else ""
            raise place.error(
                f"${{{kind}:{name}}} must be given, {kind} has {names}"
                f"{suggest(name, map(str, known))}; pass {kind}={{{name!r}: ...}}{option}, or "
                "correct the name"
            )
        return known[name]

    def _plan_target(self, tree: MapTree) -> Call | Named:
        """Return the plan of a mapping with a target."""
        target = self._find_target(tree)
        others = {key: item for key, item in tree.items.items() if key not in _WORDS}
        if "params" not in tree.items:
            if others:
                first = next(iter(others))
                raise tree.places[first].error(
                    f"a target without params must stand alone, {target.name!r} comes with "
                    f"{first!r}{suggest(str(first), ['params'])}; all who use the object itself "
                    "share its attributes: write `params: null` to make one of its own"
                )
            return Named(target)
        return Call(
            target, self._plan_params(tree.items["params"]), self._plan_entries(others, tree)
        )

    def _find_target(self, tree: MapTree) -> Target:
        """Return the target of a mapping."""
        item = tree.items["target"]
        if not isinstance(item, Scalar) or not isinstance(item.value, str):
            raise item.place.error("a target must be a name, got a value of another kind")
        if "${" in item.value:
            raise item.place.error(
                f"a target must be written out, got {item.value!r}; pass the object as a dynamic "
                "object in place of the whole mapping"
            )
        return self.targets.find(item.value, item.place)

    def _plan_params(self, params: Tree) -> dict[str, Entry]:
        """Return the keyword arguments of ``params``."""
        if isinstance(params, Scalar) and params.value is None:
            return {}
        if not isinstance(params, MapTree):
            raise params.place.error(
                "params must be a mapping of arguments, or null for none, got a "
                f"{'list' if isinstance(params, ListTree) else 'single value'}; name the arguments"
            )
        return self._plan_entries(params.items, params)

    def _plan_entries(self, items: Mapping[Any, Tree], tree: MapTree) -> dict[str, Entry]:
        """Return the entries of a mapping of arguments or attributes."""
        for key in items:
            if not isinstance(key, str) or not _ENTRY.fullmatch(key):
                raise tree.places[key].error(
                    "an argument or an attribute must be named by letters, digits and "
                    f"underscores, beginning with a letter, got {key!r}; choose another name"
                )
        return {key: Entry(tree.places[key], self._plan(item)) for key, item in items.items()}

    def _plan_include(self, tree: MapTree) -> Plan:
        """Return the plan of an included file, with overrides."""
        item = tree.items["include"]
        if "target" in tree.items:
            raise tree.places["target"].error(
                "a target must not stand beside an include, which makes the object; remove one of "
                "them"
            )
        plan = self._plan_file(*self._find_include(item))
        params = self._plan_params(tree.items["params"]) if "params" in tree.items else {}
        others = {key: value for key, value in tree.items.items() if key not in _WORDS}
        attributes = self._plan_entries(others, tree)
        if not params and not attributes:
            return plan
        if not isinstance(plan, Call):
            first = next(iter(params or attributes))
            raise item.place.error(
                f"what is included must be a target with params, to be given {first!r}, but "
                f"{item.value!r} describes something else; move what stands beside it there"  # type: ignore[union-attr]
            )
        return replace(plan, params=plan.params | params, attributes=plan.attributes | attributes)

    def _find_include(self, item: Tree) -> tuple[Path, Path]:
        """Return the included file, as shown in messages and resolved."""
        plan = self._plan_scalar(item) if isinstance(item, Scalar) else None
        text = plan.value if isinstance(plan, Constant) else None
        if not isinstance(text, str | PurePath) or not str(text):
            raise item.place.error("an include must be the path of a YAML file, got another value")
        text = str(text)
        check_characters(text, "a path", item.place)
        if "://" in text:
            raise item.place.error(
                f"an include must be a file of this machine, got {text!r}; copy the file here"
            )
        self.num_includes += 1
        if self.num_includes > _MAX_INCLUDES:
            raise item.place.error(
                f"all files together may include {_MAX_INCLUDES} files at most; include fewer"
            )
        folder = self.chain[-1].parent
        shown = Path(os.path.normpath(item.place.file.parent / text))
        file = Path(os.path.realpath(folder / text))
        if not any(file.is_relative_to(root) for root in self.folders):
            raise item.place.error(
                f"an include must lie in {self.folders[0]}, {text!r} leads out of it; move the "
                "file, or open its folder by include_folders"
            )
        if not file.is_file():
            raise item.place.error(
                f"an include must be a file, there is none at {file}; paths are taken from the "
                "folder of the file that includes"
            )
        if file in self.chain:
            loop = " -> ".join(path.name for path in [*self.chain[self.chain.index(file) :], file])
            raise item.place.error(f"files must not include each other in a circle: {loop}")
        return shown, file


def _check_plain(tree: MapTree) -> None:
    """Refuse a mapping with params but without a target."""
    if "params" in tree.items:
        others = [str(key) for key in tree.items if key != "params"]
        near = suggest("target", others) or suggest("include", others)
        raise tree.places["params"].error(
            f"params must stand beside a target or an include, there is none{near}; name what is "
            "made of them"
        )


def _check_variable(value: Any, name: str, level: int) -> None:
    """Check that a variable is plain data."""
    if level > _MAX_VARIABLE_DEPTH:
        raise ConfigError(
            f"a variable must be nested {_MAX_VARIABLE_DEPTH} deep at most, {name} is deeper or "
            "holds itself"
        )
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_variable(key, name, level + 1)
            _check_variable(item, name, level + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_variable(item, name, level + 1)
    elif value is not None and not isinstance(value, str | int | float | PurePath):
        raise ConfigError(
            f"a variable must be null, a truth value, a number, a text, or lists and mappings of "
            f"them, {name} has {type(value).__name__}; pass objects by dynamic_objs"
        )
