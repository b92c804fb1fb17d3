"""Stores by the names of their formats."""

import re
from pathlib import Path

import pytest

from zindex.errors import ConfigError
from zindex.keyed.store import KeyedStore
from zindex.keyed.stores import H5Store, MmapStore, StoreFactory, ZarrStore


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreFactory, "_entries", dict(StoreFactory._entries))


@pytest.mark.parametrize(
    ("name", "store_type"), [("h5", H5Store), ("bin", MmapStore), ("zarr", ZarrStore)]
)
def test_builtin(name: str, store_type: type[KeyedStore]) -> None:
    store = StoreFactory.create(name)
    assert type(store) is store_type
    assert store.format == name


def test_unknown() -> None:
    known = "['bin', 'growing', 'h5', 'mapped_bin', 'zarr']"
    message = re.escape(f"Unknown component: 'csv'. Supported types: {known};")
    with pytest.raises(ConfigError, match=message):
        StoreFactory.create("csv")


def test_register() -> None:
    @StoreFactory.register("mine", category="test", priority=2)
    class Mine(KeyedStore):
        format = "mine"

    assert type(StoreFactory.create("mine")) is Mine
    assert StoreFactory.names() == ["mine", "bin", "growing", "h5", "mapped_bin", "zarr"]
    assert StoreFactory.names("test") == ["mine"]


def test_a_name_once() -> None:
    register = StoreFactory.register("h5")
    with pytest.raises(ConfigError, match=r"once, 'h5' is there already; register MmapStore by"):
        register(MmapStore)


def test_no_store() -> None:
    register = StoreFactory.register("mine")
    for other in (dict, MmapStore()):
        with pytest.raises(TypeError, match=r"inherits from zindex.keyed.Store, 'mine' has <"):
            register(other)


def install(folder: Path, points: str) -> None:
    """Lay out an installed package with entry points."""
    info = folder / "other-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[zindex.keyed_stores]\n{points}\n")
    (folder / "other_stores.py").write_text(
        "from zindex.keyed import Store\n"
        "class Theirs(Store):\n"
        "    format = 'theirs'\n"
        "class NoStore: pass\n"
    )


def test_packages_add_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        tmp_path,
        "theirs = other_stores:Theirs\nnone = other_stores:NoStore\nh5 = other_stores:Theirs",
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert StoreFactory.create("theirs").format == "theirs"
    assert StoreFactory.create("h5").format == "h5"
    assert StoreFactory.names("package") == ["none", "theirs"]
    with pytest.raises(TypeError, match=r"'none' has <class 'other_stores.NoStore'>"):
        StoreFactory.create("none")
    with pytest.raises(ConfigError, match="'theirs' is there already"):
        StoreFactory.register("theirs")(MmapStore)
