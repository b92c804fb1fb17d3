"""The names of Megatron's dataset modules and the arguments of their functions, from its source.

``python -m tests.oracle.names CHECKOUT`` writes ``megatron_names.json``, a table of names alone:
for each module the arguments of each function, and the members of each class.
"""

import ast
import json
import sys
from pathlib import Path
from typing import Any

from zindex.megatron.install import ALIASES

TABLE = Path(__file__).with_name("megatron_names.json")

#: Arguments of a function, members of a class, or None for any other name.
Names = dict[str, Any]


def read_names(source: str) -> Names:
    """Return the names that a module defines."""
    return _names_of(ast.parse(source).body, keep_dunders=False)


def _names_of(body: list[ast.stmt], *, keep_dunders: bool) -> Names:
    found: Names = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if keep_dunders or not node.name.startswith("__"):
                arguments = node.args
                every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
                found[node.name] = [argument.arg for argument in every]
        elif isinstance(node, ast.ClassDef):
            found[node.name] = _names_of(node.body, keep_dunders=True)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            found |= {
                target.id: None
                for target in targets
                if isinstance(target, ast.Name) and not target.id.startswith("__")
            }
    return found


def read_checkout(checkout: Path) -> dict[str, Names]:
    """Return the names of all modules that zindex replaces."""
    found = {}
    for module in ALIASES:
        path = checkout.joinpath(*module.split(".")).with_suffix(".py")
        if path.exists():
            found[module] = read_names(path.read_text())
    return found


def format_table(modules: dict[str, Names]) -> str:
    """Return names as JSON, with a line for each name of a module."""
    parts = []
    for module, names in modules.items():
        lines = [f"  {json.dumps(name)}: {json.dumps(facts)}" for name, facts in names.items()]
        parts.append(f" {json.dumps(module)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    [checkout] = sys.argv[1:]
    TABLE.write_text(format_table(read_checkout(Path(checkout))))
