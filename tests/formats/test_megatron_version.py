"""The version of Megatron is read from its file, of the first place that an import searches."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from zindex.formats.megatron_version import find_megatron_version


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delitem(sys.modules, "megatron", raising=False)
    find_megatron_version.cache_clear()
    yield
    find_megatron_version.cache_clear()


def write_checkout(folder: Path, text: str) -> None:
    (folder / "megatron/core").mkdir(parents=True)
    (folder / "megatron/core/package_info.py").write_text(text)


def test_the_first_place_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, minor in (("b", 12), ("a", 21)):
        write_checkout(tmp_path / name, f"MAJOR = 1\nMINOR = {minor}\nPATCH = 3\n")
        monkeypatch.syspath_prepend(tmp_path / name)
    assert find_megatron_version() == (1, 21)


@pytest.mark.parametrize("module", [None, ModuleType("megatron")])
def test_there_is_none(monkeypatch: pytest.MonkeyPatch, module: ModuleType | None) -> None:
    monkeypatch.setitem(sys.modules, "megatron", module)
    assert find_megatron_version() is None


def test_a_file_without_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkout(tmp_path / "a", "VERSION = read()\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "a")])
    assert find_megatron_version() is None
