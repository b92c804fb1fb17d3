"""Plan the objects of YAML files: read and check all files before any import or call."""

import os
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from zindex.errors import ConfigError, check_list, suggest
from zindex.streaming.configuration.registry import Target, Targets
from zindex.streaming.configuration.yaml_tree import (
    Place,
    Tree,
    check_bounds,
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
class Given:
    """A value of the files, or of the program."""

    value: Any


@dataclass(frozen=True, slots=True)
class Entry:
    """An argument or an attribute."""

    place: Place
    plan: "Plan"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a target with keyword arguments, and attributes for its result."""

    target: Target
    #: None: not a call, but the target object itself.
    params: dict[str, Entry] | None
    attributes: dict[str, Entry]


Plan = Given | Call | list["Plan"] | dict[Any, "Plan"]


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
        Folders whose files may be included, besides that of the first file.

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
        check_list("include_folders", include_folders)
        for name, value in variables.items():
            _check_variable(value, f"variables[{name!r}]", 0)
        self.variables, self.dynamic_objs, self.targets = variables, dynamic_objs, targets
        self.folders = [Path(os.path.realpath(folder)) for folder in include_folders]
        self.trees: dict[Path, Tree] = {}
        self.chain: list[Path] = []
        #: Levels of nesting in each file of the chain.
        self.levels: list[int] = []
        self.num_includes = self.num_nodes = self.num_text = 0

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
        self.levels.append(0)
        plan = self._plan(self.trees[file])
        self.chain.pop()
        self.levels.pop()
        return plan

    def _plan(self, tree: Tree) -> Plan:
        """Return the plan of a value."""
        self.num_nodes += 1
        self.levels[-1] += 1
        check_bounds(self.num_nodes, self.levels[-1], tree.place)
        if sum(self.levels) > _MAX_DEPTH:
            raise tree.place.error(
                f"values of all files may be nested {_MAX_DEPTH} deep at most; nest them less"
            )
        plan: Plan
        if isinstance(tree.value, list):
            plan = [self._plan(item) for item in tree.value]
        elif isinstance(tree.value, dict):
            plan = self._plan_mapping(tree)
        else:
            plan = Given(self._resolve(tree))
        self.levels[-1] -= 1
        return plan

    def _plan_mapping(self, tree: Tree) -> Plan:
        """Return the plan of a mapping: of a call, of an included file, or a plain one."""
        items: dict[Any, Tree] = tree.value
        if "include" in items:
            return self._plan_include(tree)
        if "target" in items:
            return self._plan_target(tree)
        if "params" in items:
            hints = [(key, suggest(key, ("target", "include"))) for key in map(str, items)]
            got = next((f"got {key!r}{hint}" for key, hint in hints if hint), "got none")
            raise tree.keys["params"].error(
                f"params must be next to a target or an include, {got}; name what is made of them"
            )
        return {key: self._plan(item) for key, item in items.items()}

    def _resolve(self, tree: Tree) -> Any:
        """Return a single value with its references resolved."""
        text = tree.value
        if not isinstance(text, str) or "${" not in text:
            return text
        whole = _REFERENCE.fullmatch(text)
        if not whole:
            return self._insert(text, tree.place)
        value = self._look_up(whole[1], whole[2], tree.place)
        return deepcopy(value) if whole[1] == "variables" else value

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
                f"{text!r}; pass its value, or a text with it, as a variable"
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
            option = f"--set {name}=..." if kind == "variables" else f"--object {name}=MODULE.NAME"
            raise place.error(
                f"${{{kind}:{name}}} must be given, {kind} has {names}"
                f"{suggest(name, map(str, known))}; pass {kind}={{{name!r}: ...}} ({option}), or "
                "correct the name"
            )
        return known[name]

    def _plan_target(self, tree: Tree) -> Call:
        """Return the plan of a mapping with a target."""
        item = tree.value["target"]
        if not isinstance(item.value, str):
            raise item.place.error("a target must be a name, got a value of another kind")
        if "${" in item.value:
            raise item.place.error(
                f"a target must be written out, got {item.value!r}; pass the object as a dynamic "
                "object in place of the whole mapping"
            )
        target = self.targets.find(item.value, item.place)
        others = tree.value.keys() - _WORDS
        if "params" not in tree.value and others:
            first = next(key for key in tree.value if key in others)
            raise tree.keys[first].error(
                f"a target without params must be alone, {target.name!r} is next to "
                f"{first!r}{suggest(str(first), ['params'])}; all who use the object itself "
                "share its attributes: write `params: null` to make one of its own"
            )
        return Call(target, *self._plan_settings(tree))

    def _plan_settings(self, tree: Tree) -> tuple[dict[str, Entry] | None, dict[str, Entry]]:
        """Return the arguments under ``params``, None without it, and all other keys."""
        params = None
        if "params" in tree.value:
            given = tree.value["params"]
            if not isinstance(given.value, dict | None):
                raise given.place.error(
                    "params must be a mapping of arguments, or null for none, got a "
                    f"{'list' if isinstance(given.value, list) else 'single value'}; name them"
                )
            params = self._plan_entries(given, given.value or ())
        return params, self._plan_entries(tree, [key for key in tree.value if key not in _WORDS])

    def _plan_entries(self, tree: Tree, keys: Iterable[Any]) -> dict[str, Entry]:
        """Return the entries of some keys of a mapping, which name arguments or attributes."""
        for key in keys:
            if not isinstance(key, str) or not _ENTRY.fullmatch(key):
                raise tree.keys[key].error(
                    "an argument or an attribute must be named by letters, digits and "
                    f"underscores, beginning with a letter, got {key!r}; choose another name"
                )
        return {key: Entry(tree.keys[key], self._plan(tree.value[key])) for key in keys}

    def _plan_include(self, tree: Tree) -> Plan:
        """Return the plan of an included file, with overrides."""
        item = tree.value["include"]
        if "target" in tree.value:
            raise tree.keys["target"].error(
                "a target must not be next to an include, which makes the object; remove one"
            )
        plan = self._plan_file(*self._find_include(item))
        params, attributes = self._plan_settings(tree)
        if not params and not attributes:
            return plan
        if not isinstance(plan, Call) or plan.params is None:
            first = next(iter(params or attributes))
            raise item.place.error(
                f"what is included must be a target with params, to be given {first!r}, but "
                f"{item.value!r} describes something else; move these settings there"
            )
        return Call(plan.target, plan.params | (params or {}), plan.attributes | attributes)

    def _find_include(self, item: Tree) -> tuple[Path, Path]:
        """Return the included file, as shown in messages and resolved."""
        path = self._resolve(item)
        if not isinstance(path, str | PurePath) or not str(path):
            raise item.place.error("an include must be the path of a YAML file, got another value")
        text = str(path)
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
                f"an include must be in {self.folders[0]}, {text!r} leads out of it; move the "
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


def _check_variable(value: Any, name: str, level: int) -> None:
    """Check that a variable is plain data."""
    if level > _MAX_VARIABLE_DEPTH:
        raise ConfigError(
            f"a variable must be nested {_MAX_VARIABLE_DEPTH} deep at most, {name} is deeper or "
            "holds itself"
        )
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple):
        for item in value:
            _check_variable(item, name, level + 1)
    elif value is not None and not isinstance(value, str | int | float | PurePath):
        raise ConfigError(
            f"a variable must be null, a truth value, a number, a text, or lists and mappings of "
            f"them, {name} has {type(value).__name__}; pass objects by dynamic_objs"
        )
