"""Parse a YAML file into a tree of plain values with their positions, within limits.

Values are null, booleans, numbers, texts, lists and mappings; other tags are rejected. Aliases
share a tree, so a small file can expand to a large one: call `check_bounds` while following them.
"""

import re
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from zindex.errors import ConfigError, shorten
from zindex.formats.yaml_file import BoundedLoader, read_content

#: Limits of one file: bytes, values with aliases expanded, levels of nesting.
MAX_NBYTES, MAX_NODES, MAX_DEPTH = 1 << 20, 100_000, 40
_MAX_ALIASES = 1000
_MAX_NUMBER_LENGTH = 40

_CORE = "tag:yaml.org,2002:"
_TAGS = {f"{_CORE}{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map")}
_TRUTH = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
_INT = re.compile(r"[-+]?(?:[0-9][0-9_]*|0x[0-9a-fA-F_]+|0o[0-7_]+|0b[01_]+)\Z", re.ASCII)
_FLOAT = re.compile(
    r"""[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:e[-+]?[0-9]+)?|\.[0-9][0-9_]*(?:e[-+]?[0-9]+)?
    |[0-9][0-9_]*e[-+]?[0-9]+|\.inf)\Z|\.nan\Z""",
    re.ASCII | re.VERBOSE | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a file."""

    file: Path
    #: Counted from 1.
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}, column {self.column}"

    def error(self, message: str) -> ConfigError:
        """Return an error at this position."""
        return ConfigError(f"{self}: {message}")


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """A value of a file."""

    place: Place
    #: Null, a boolean, a number, a text, a list of trees, or a mapping to trees.
    value: Any
    #: Position of each key of a mapping.
    keys: dict[Any, Place] = field(default_factory=dict)


def read_tree(file: Path) -> Tree:
    """Parse a YAML file.

    Raises
    ------
    ConfigError
        If the file cannot be read or is too large, or is not one document of plain values within
        the bounds; the message has file, line and column.
    """
    content = read_content(file, "datasets need their YAML file", MAX_NBYTES)
    try:
        loader = _Loader(content, file)
    except (yaml.YAMLError, UnicodeError) as error:
        raise ConfigError(f"{file}: must hold YAML in UTF-8: {error}") from error
    try:
        node = loader.get_single_node()
        if node is None:
            raise Place(file, 1, 1).error("must describe a dataset, it is empty")
        return loader.convert(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(file, 1, 1) if mark is None else loader.place_of(mark)
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise place.error(f"must be YAML: {problem}") from error
    # Numbers in %YAML and escapes such as \UFFFFFFFF raise ValueError and OverflowError.
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        if isinstance(error, ConfigError):
            raise
        raise loader.place_of(loader).error(f"must be YAML: {error}") from error
    finally:
        loader.dispose()


class _Loader(BoundedLoader):
    """Loader of bounded nodes, and their conversion to a tree."""

    max_aliases = _MAX_ALIASES

    def __init__(self, content: bytes, file: Path) -> None:
        self.file = file
        self.level = self.num_nodes = self.num_merged = 0
        #: By the id of a node; None while it is converted.
        self.trees: dict[int, Tree | None] = {}
        super().__init__(content)

    def place_of(self, mark: Any) -> Place:
        """Return the position of a mark, or of the loader itself."""
        return Place(self.file, mark.line + 1, mark.column + 1)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Check tag, depth and number of nodes before composing a node."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        place = self.place_of(event.start_mark)
        tag = getattr(event, "tag", None)
        if tag is not None and tag != "!" and tag not in _TAGS:
            raise place.error(
                f"values must be plain data, got the tag {tag!r}; leave it out, and make objects "
                "by target and params"
            )
        self.num_nodes += 1
        self.level += 1
        check_bounds(self.num_nodes, self.level, place)
        node = super().compose_node(parent, index)
        self.level -= 1
        return node

    def convert(self, node: yaml.Node) -> Tree:
        """Return the tree of a node; aliases share a tree."""
        place = self.place_of(node.start_mark)
        if id(node) in self.trees:
            found = self.trees[id(node)]
            if found is None:
                raise place.error("a value must not hold itself; remove the alias inside of it")
            return found
        self.trees[id(node)] = None
        if isinstance(node, yaml.MappingNode):
            tree = self._convert_mapping(node, place)
        elif isinstance(node, yaml.SequenceNode):
            if node.tag != f"{_CORE}seq":
                raise place.error(f"a list must not be tagged as {node.tag!r}; leave the tag out")
            tree = Tree(place, [self.convert(item) for item in node.value])
        else:
            tree = Tree(place, _make_scalar(node, place))
        self.trees[id(node)] = tree
        return tree

    def _convert_mapping(self, node: yaml.MappingNode, place: Place) -> Tree:
        """Return the tree of a mapping, with merged mappings."""
        if node.tag != f"{_CORE}map":
            raise place.error(f"a mapping must not be tagged as {node.tag!r}; leave the tag out")
        items: dict[Any, Tree] = {}
        places: dict[Any, Place] = {}
        merged: list[Tree] = []
        for key_node, value_node in node.value:
            where = self.place_of(key_node.start_mark)
            if key_node.tag == f"{_CORE}merge":
                merged += self._find_merged(value_node, where)
                continue
            key = self._make_key(key_node, where)
            if key in items:
                raise where.error(f"keys must differ, {key!r} is repeated; remove one of them")
            items[key], places[key] = self.convert(value_node), where
        self.num_merged += sum(len(tree.value) for tree in merged)
        check_bounds(self.num_merged, 1, place)
        for tree in merged:
            for key, item in tree.value.items():
                items.setdefault(key, item)
                places.setdefault(key, tree.keys[key])
        return Tree(place, items, places)

    def _make_key(self, node: yaml.Node, where: Place) -> Any:
        """Return a key of a mapping."""
        if not isinstance(node, yaml.ScalarNode):
            raise where.error("a key must be a text or a number, got a list or a mapping")
        key = _make_scalar(node, where)
        if isinstance(key, str):
            check_characters(key, "a key", where)
            if "${" in key:
                raise where.error(f"a key must be written out, got {key!r}; use ${{...}} in values")
        return key

    def _find_merged(self, node: yaml.Node, where: Place) -> list[Tree]:
        """Return the mappings of ``<<``; the first one takes precedence."""
        tree = self.convert(node)
        trees = tree.value if isinstance(tree.value, list) else [tree]
        if not all(isinstance(each.value, dict) for each in trees):
            raise where.error("<< must name a mapping or a list of mappings; use an alias of one")
        return trees


def check_characters(text: str, what: str, where: Place) -> None:
    """Reject invisible characters, which make different texts look the same."""
    for character in text:
        if unicodedata.category(character) in {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}:
            raise where.error(
                f"{what} must be of visible characters, got U+{ord(character):04X} in {text!r}; "
                "type it again"
            )


def check_bounds(num_values: int, depth: int, place: Place) -> None:
    """Check the number of values, and how deep they are nested in one file."""
    if num_values > MAX_NODES:
        raise place.error(
            f"files may expand to at most {MAX_NODES:,} values, with aliases and includes "
            "followed; use fewer"
        )
    if depth > MAX_DEPTH:
        raise place.error(f"values may be nested {MAX_DEPTH} deep at most; nest them less deeply")


def _make_scalar(node: yaml.Node, place: Place) -> bool | int | float | str | None:
    """Return the value of a scalar."""
    text: str = node.value
    kind = node.tag.removeprefix(_CORE)
    if kind in {"str", "merge"}:
        return text
    if kind == "null" and text.lower() in {"", "~", "null"}:
        return None
    if kind == "bool" and text.lower() in _TRUTH:
        return _TRUTH[text.lower()]
    if kind in {"int", "float"}:
        return _make_number(text, kind, place)
    raise place.error(f"{shorten(text)} must fit its tag {kind!r}; leave the tag out")


def _make_number(text: str, kind: str, place: Place) -> int | float:
    """Parse a number of bounded length."""
    if len(text) > _MAX_NUMBER_LENGTH:
        raise place.error(
            f"a number must have at most {_MAX_NUMBER_LENGTH} characters, got {shorten(text)}; "
            "put it in quotes if it is a text"
        )
    if _INT.match(text):
        digits = text.lstrip("+-").replace("_", "")
        if len(digits) > 1 and digits[0] == "0" and digits[1].isdigit():
            raise place.error(
                f"a number must not begin with 0, got {text}; put it in quotes if it is a text, "
                f"or write 0o{digits.lstrip('0')} for base 8"
            )
        whole = int(digits, 0) * (-1 if text[0] == "-" else 1)
        if not -(2**63) <= whole < 2**64:
            raise place.error(
                f"a whole number must have 64 bits at most, got {text}; put it in quotes if it is "
                "a text"
            )
        return whole if kind == "int" else float(whole)
    if kind == "float" and _FLOAT.match(text):
        plain = text.lower().replace("_", "")
        value = float(plain.replace(".inf", "inf").replace(".nan", "nan"))
        if value in {float("inf"), float("-inf")} and "inf" not in plain:
            raise place.error(f"a number must fit a float of 64 bits, got {text}; make it smaller")
        return value
    raise place.error(f"{shorten(text)} must fit its tag {kind!r}; leave the tag out")


def _make_resolvers() -> dict[Any, list[tuple[str, Any]]]:
    """Return the resolvers of plain scalars.

    They follow YAML 1.1, except that 1e-5 is a number, and 12:30, 2024-01-01 and = are texts.
    """
    kept = {f"{_CORE}{kind}" for kind in ("null", "bool", "merge")}
    resolvers = {
        first: [(tag, form) for tag, form in forms if tag in kept]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for first in "+-.0123456789":
        resolvers[first] = [(f"{_CORE}int", _INT), (f"{_CORE}float", _FLOAT)]
    return resolvers


_Loader.yaml_implicit_resolvers = _make_resolvers()
