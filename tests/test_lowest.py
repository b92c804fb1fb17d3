"""What the package says of itself: its bounds, its Pythons, and the links of its page."""

import re
import runpy
import sys
import tomllib
from importlib.metadata import version
from types import SimpleNamespace

import pytest
from packaging.version import Version

import zindex
from tests.lowest import list_requirements, lowest_versions
from tests.test_package import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_dependency_has_one_lower_bound() -> None:
    lowest = lowest_versions()
    assert {"numpy", "zarr", "torch", "tokenizers"} <= set(lowest)
    del lowest["deepspeed"]  # built from source, so that CI does without
    for name, bound in lowest.items():
        assert Version(version(name)) >= Version(bound)


def test_no_dependency_has_an_upper_bound() -> None:
    assert not [each for each in list_requirements() if {"<", "<=", "=="} & operators(each)]


def operators(requirement: object) -> set[str]:
    return {each.operator for each in requirement.specifier}  # type: ignore[attr-defined]


def test_python_versions_agree() -> None:
    project = PROJECT["project"]
    named = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert project["requires-python"] == f">={named[0]}"
    assert PROJECT["tool"]["mypy"]["python_version"] == named[0]
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{named[0].replace('.', '')}"


def test_versions_agree() -> None:
    assert PROJECT["project"]["version"] == zindex.__version__


@pytest.mark.parametrize(
    "name",
    [
        "zindex/py.typed",
        *PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"],
        "LICENSE",
    ],
)
def test_what_the_wheel_has_besides_modules(name: str) -> None:
    assert (ROOT / name).exists()


def test_the_page_of_the_package_has_no_relative_links(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "hatchling.metadata.plugin.interface"
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(MetadataHookInterface=object))
    hook = runpy.run_path(str(ROOT / "hatch_build.py"))["CustomMetadataHook"]()
    hook.root = str(ROOT)
    metadata: dict[str, object] = {"version": "1.2"}
    hook.update(metadata)
    assert links_of(metadata) == {"https://zarr.dev", "https://dask.org"}
    metadata["urls"] = {"Repository": "https://code.example/zindex/"}
    hook.update(metadata)
    links = links_of(metadata)
    assert "https://code.example/zindex/blob/v1.2/zindex/indexing/README.md" in links
    assert any(link.startswith("https://code.example/zindex/raw/v1.2/tests/") for link in links)
    assert all("://" in link for link in links)


def links_of(metadata: dict[str, object]) -> set[str]:
    readme = metadata["readme"]
    assert isinstance(readme, dict)
    return set(re.findall(r"\]\(([^)\s]+)\)", readme["text"]))
