"""Every name of Megatron's dataset modules, and its arguments, are here too.

The names of the main branch of 2026-08 are a table; those of 0.16.1 are read from the wheel.
"""

import importlib
import importlib.util
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.oracle.names import TABLE, Names, read_checkout, read_names
from zindex.megatron.install import ALIASES

MAIN: dict[str, Names] = json.loads(TABLE.read_text())

_LOGS = "each module logs by a logger of its own"
_CLOSES = "files are closed with their last user"
_OPENS = "what is open is opened again on first use"
#: Names that only Megatron has, and why.
MISSING = {
    "*.logger": _LOGS,
    "blended_dataset._VERBOSE": "argument of a helper that is not called",
    "data_schedule.tex": "Transformer Engine is not needed",
    "indexed_dataset._IndexReader.__del__": _CLOSES,
    "indexed_dataset._MMapBinReader.__del__": _CLOSES,
    "indexed_dataset._S3BinReader.__del__": _CLOSES,
    "indexed_dataset._S3BinReader._extract_from_cache": "blocks are cached by another class",
    "indexed_dataset.IndexedDataset.__del__": _CLOSES,
    "indexed_dataset.IndexedDataset.__setstate__": _OPENS,
}
#: Arguments that have other names here, and why.
OTHER_ARGUMENTS = {
    "indexed_dataset._IndexWriter.__exit__": "Python passes them by position",
}


def find_modules() -> dict[str, Names]:
    """Return the names of the modules of the wheel, if it is installed."""
    found = {}
    spec = importlib.util.find_spec("megatron")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        found |= read_checkout(Path(folder).parent)
    return found


WHEEL = find_modules()
CASES = [("main", name) for name in MAIN] + [("0.16.1", name) for name in WHEEL]


def find_differences(theirs: Names, ours: Any, where: str) -> Iterator[str]:
    """Yield the names that are missing, and the functions with other arguments."""
    for name, facts in theirs.items():
        path = f"{where}.{name}"
        if path in MISSING or f"*.{name}" in MISSING:
            continue
        fields = getattr(ours, "__dataclass_fields__", {})
        if not hasattr(ours, name) and name not in fields:
            yield f"{path} is missing"
        elif isinstance(facts, dict):
            yield from find_differences(facts, getattr(ours, name), path)
        elif facts is not None and path not in OTHER_ARGUMENTS:
            yield from find_other_arguments(facts, ours, name, path)


def find_other_arguments(theirs: list[str], ours: Any, name: str, path: str) -> Iterator[str]:
    """Yield a function whose first arguments are others than those of Megatron's."""
    member = inspect.getattr_static(ours, name)
    if isinstance(member, property):
        return
    function = getattr(member, "__func__", member)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a member of a base class of C
        return
    kinds = {parameter.kind for parameter in parameters}
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return
    names = [parameter.name for parameter in parameters]
    if names[: len(theirs)] != theirs:
        yield f"{path} takes {names}, Megatron's {theirs}"


@pytest.mark.parametrize(("version", "module"), CASES)
def test_names(version: str, module: str) -> None:
    ours = importlib.import_module(ALIASES[module])
    theirs = (MAIN if version == "main" else WHEEL)[module]
    where = module.rpartition(".")[2]
    assert list(find_differences(theirs, ours, where)) == []


def test_the_table_has_all_modules() -> None:
    gone = {"megatron.core.datasets.megatron_tokenizer"}
    assert set(MAIN) == set(ALIASES) - gone


def test_names_are_found_in_source() -> None:
    source = """
import os
LIMIT: int = 3
class A(Base):
    field: int = 0
    def __init__(self, a, *, b): pass
    class Inner: pass
def f(x, /, y): pass
def __getattr__(name): pass
"""
    members = {"field": None, "__init__": ["self", "a", "b"], "Inner": {}}
    assert read_names(source) == {"LIMIT": None, "A": members, "f": ["x", "y"]}


@pytest.mark.parametrize("kind", ["missing", "arguments"])
def test_differences_are_found(kind: str) -> None:
    theirs: Names = {"f": ["a", "b"], "C": {"g": ["self", "x"]}}
    ours: Any = type("module", (), {"C": type("C", (), {})})
    if kind == "missing":
        assert list(find_differences(theirs, ours, "m")) == ["m.f is missing", "m.C.g is missing"]
        return
    ours.f = staticmethod(lambda a: a)
    ours.C.g = lambda self, y: y
    assert list(find_differences(theirs, ours, "m")) == [
        "m.f takes ['a'], Megatron's ['a', 'b']",
        "m.C.g takes ['self', 'y'], Megatron's ['self', 'x']",
    ]


def test_attributes_of_datasets(write_corpus: Any, tmp_path: Path) -> None:
    from tests.datasets.configs import build_datasets, plain_config
    from zindex.datasets.gpt_dataset import GPTDataset
    from zindex.datasets.indexed_dataset import _MMapBinReader

    paths = [write_corpus([5, 9, 4], name=name) for name in "ab"]
    cache = str(tmp_path / "cache")
    config = plain_config(blend=(paths, [1, 2]), split="1,0,0", path_to_cache=cache)
    train, *_ = build_datasets(GPTDataset, [6, 0, 0], config)
    name = f"{train.unique_description_hash}-BlendedDataset-train"
    assert train.path_to_dataset_index == f"{cache}/{name}-dataset_index.npy"
    assert train.path_to_dataset_sample_index == f"{cache}/{name}-dataset_sample_index.npy"
    member = train.datasets[0]
    name = f"{cache}/{member.unique_description_hash}-GPTDataset-train"
    for array in ("document_index", "sample_index", "shuffle_index"):
        assert getattr(member, f"path_to_{array}") == f"{name}-{array}.npy"
    config.path_to_cache = None
    assert train.path_to_dataset_index is None
    folder = f"{paths[0]}/cache/GPTDataset_indices"
    assert member.path_to_shuffle_index.startswith(f"{folder}/{member.unique_description_hash}")
    content = Path(f"{paths[0]}.bin").read_bytes()
    assert bytes(_MMapBinReader(bin_path=f"{paths[0]}.bin")._bin_buffer) == content
