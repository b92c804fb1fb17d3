"""Measure the code base: import cycles, unidiomatic words, and sizes of the rooms.

``python -m tests.layout`` prints the figures and the worst files; with ``--check`` it fails if a
limit is exceeded. A room is a folder directly below ``zindex``.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_DIALECT_WORDS = 8.0  # per 10,000 words of docstrings and comments
MAX_ROOM_LINES = 7_500
# Words that the documentation of other libraries of the field hardly ever uses.
DIALECT = {
    *("anew", "behind", "beside", "came", "comes", "goes", "lie", "lies", "nobody", "stand"),
    *("stands", "tell", "tells", "whatever", "whoever"),
}
_WITH_DOCSTRING = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def read_modules(root: Path = ROOT) -> dict[str, Path]:
    """Return the files of all modules of ``zindex`` by dotted name."""
    files = sorted((root / "zindex").rglob("*.py"))
    names = (".".join(path.relative_to(root).with_suffix("").parts) for path in files)
    return {name.removesuffix(".__init__"): path for name, path in zip(names, files, strict=True)}


def find_imports(tree: ast.Module, modules: dict[str, Path]) -> set[str]:
    """Return the modules that a module imports, also inside functions and for types only."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                found.add(submodule if submodule in modules else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & modules.keys()


def find_circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of nodes that reach each other, by Tarjan's algorithm."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    circles = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for target in sorted(graph[node]):
            if target not in order:
                visit(target)
            if target in stack:
                lowest[node] = min(lowest[node], lowest[target])
        if lowest[node] == order[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                circles.append(sorted(group))

    sys.setrecursionlimit(max(sys.getrecursionlimit(), 10 * len(graph) + 1000))
    for node in sorted(graph):
        if node not in order:
            visit(node)
    return circles


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return re.findall("[a-z]+", text.lower())


def count_words(source: str, tree: ast.Module) -> Counter[str]:
    """Count the words of a module's docstrings and comments."""
    words: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, _WITH_DOCSTRING):
            words.update(split_words(ast.get_docstring(node) or ""))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            words.update(split_words(token.string))
    return words


def count_code_lines(source: str, tree: ast.Module) -> int:
    """Count the lines that are neither blank nor comment nor docstring."""
    return len(set(_code_lines(source)) - set(_docstring_lines(tree)))


def _code_lines(source: str) -> Iterator[int]:
    for number, line in enumerate(source.splitlines(), 1):
        if line.strip() and not line.strip().startswith("#"):
            yield number


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            yield from range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)


def main() -> int:
    """Print the figures; return 1 if ``--check`` is given and one exceeds its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail where a bound is exceeded")
    check = parser.parse_args().check
    modules = read_modules()
    graph, dialect, rooms = {}, {}, Counter[str]()
    num_words = num_code_lines = 0
    for name, path in modules.items():
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        graph[name] = find_imports(tree, modules) - {name, "zindex"}
        words = count_words(source, tree)
        dialect[name] = sum(words[word] for word in DIALECT)
        num_words += words.total()
        num_code_lines += count_code_lines(source, tree)
        parts = path.relative_to(ROOT / "zindex").parts
        rooms[parts[0] if len(parts) > 1 else "."] += len(source.splitlines())
    circles = find_circles(graph)
    rate = 1e4 * sum(dialect.values()) / max(1, num_words)
    [(room, size)] = rooms.most_common(1)
    print(
        f"{rooms.total():,} lines in {len(modules)} modules, {num_code_lines:,} of code; "
        f"{len(circles)} circles of imports; {rate:.1f} dialect words per 10,000; "
        f"largest room: {room}, {size:,} lines"
    )
    for circle in circles:
        print("circle:", *circle)
    if not check or rate > MAX_DIALECT_WORDS:
        for name, count in sorted(dialect.items(), key=lambda item: -item[1])[:10]:
            print(f"{count:4d} dialect words in {name}")
    return int(check and bool(circles or rate > MAX_DIALECT_WORDS or size > MAX_ROOM_LINES))


if __name__ == "__main__":
    sys.exit(main())
