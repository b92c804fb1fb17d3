"""The package as a whole: what its imports load, what it exports, how large its pieces are."""

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import zindex
from tests.forked import run_fresh
from zindex.lazy import lazy_names

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "zindex").rglob("*.py"))
PUBLIC_NAMES = json.loads((ROOT / "tests" / "public_names.json").read_text())
MAX_FILE_LINES, MAX_FUNCTION_LINES = 480, 70


def modules_after(statement: str) -> set[str]:
    """Return the names of all modules that a new interpreter holds after a statement."""
    code = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    return set(json.loads(run_fresh("-c", code, check=True).stdout))


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import zindex", {"torch", "dask", "distributed", "numba", "zarr", "xarray", "numpy"}),
        ("import zindex.cli", {"torch", "dask", "distributed", "numba", "zarr", "numpy"}),
        (
            "import zindex; zindex.build",
            {"torch", "dask", "distributed", "numba", "zarr", "xarray"},
        ),
        ("import zindex; zindex.open_store", {"torch", "dask", "distributed", "numba", "obstore"}),
        ("import zindex.datasets.gpt_dataset", {"dask", "distributed", "numba", "zarr", "xarray"}),
        ("import zindex; zindex.loader", {"dask", "distributed", "numba", "zarr", "xarray"}),
    ],
)
def test_imports_stay_light(statement: str, absent: set[str]) -> None:
    loaded = modules_after(statement)
    assert "zindex" in loaded
    assert not absent & loaded


def test_the_layers_are_those_of_the_guide() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = [name.removeprefix("zindex.") for name in settings["contracts"][0]["layers"]]
    table = re.findall(r"^\| (`.+`) \| ", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    rooms = [re.findall(r"`([\w.]+)`", row) for row in table]
    listed = [name.removesuffix(".py") for row in rooms for name in row]
    assert listed[listed.index("cli") :] == layers
    folders = {path.parent.name for path in ROOT.glob("zindex/*/__init__.py")}
    assert folders <= {*layers}


@pytest.mark.parametrize("name", zindex.__all__)
def test_every_public_name_loads(name: str) -> None:
    assert name in dir(zindex)
    assert getattr(zindex, name).__name__ == name


@pytest.mark.parametrize(("module", "names"), PUBLIC_NAMES.items(), ids=list(PUBLIC_NAMES))
def test_no_public_name_is_lost(module: str, names: list[str]) -> None:
    found = import_module(module)
    assert not [name for name in names if not hasattr(found, name)]


@pytest.mark.parametrize("file", sorted((ROOT / "zindex").rglob("__init__.py")), ids=str)
def test_no_lazy_name_is_that_of_a_module(file: Path) -> None:
    """Importing the module would replace the value in its package."""
    if "lazy_names(" in file.read_text():
        names = {*lazy_names("package", str(file))[2]}
        assert not names & {path.stem for path in file.parent.iterdir()}


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'zindex' has no attribute 'bulid'"):
        zindex.bulid  # noqa: B018


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pieces_stay_small(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_FILE_LINES
    too_long = [
        f"{node.name}: {count} lines"
        for node, count in function_lengths(ast.parse(text))
        if count > MAX_FUNCTION_LINES
    ]
    assert not too_long


def function_lengths(
    tree: ast.Module,
) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, int]]:
    """Yield every function and the lines of its body, without its docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            if body:
                yield node, (body[-1].end_lineno or 0) - body[0].lineno + 1


def test_tests_mirror_the_package() -> None:
    packages = {path.parent.name for path in (ROOT / "zindex").glob("*/__init__.py")}
    tests = [path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")]
    tested = {path.parts[0] for path in tests if len(path.parts) > 1}
    others = {"benchmarks", "cloud", "examples", "guides", "harnesses", "oracle", "reference"}
    assert tested - packages <= others
    assert packages <= tested
