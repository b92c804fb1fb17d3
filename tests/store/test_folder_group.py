"""A folder of stores as one Zarr group: derived, replaced, and never in the way of a store."""

import json
import warnings
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr

from tests.harnesses.schema_fuzz import seal_again
from tests.store.stores import GRID, ONE, TWO, build_arrays, count_up
from zindex.errors import StoreError
from zindex.schema import ArraySpec
from zindex.store import folder_group
from zindex.store.commit import read_root
from zindex.store.folder_group import StoreNames, is_group, save_names, write_group
from zindex.store.layout import ChunkGrid

ARRAYS = {ONE: count_up(10)}


def list_stores(folder: Path) -> list[str]:
    with warnings.catch_warnings(action="error"):
        return sorted(name for name, _ in zarr.open_group(folder, mode="r").groups())


def test_it_lists_the_committed_stores(tmp_path: Path) -> None:
    build_arrays(tmp_path / "a", ARRAYS)
    half = build_arrays(tmp_path / "b", ARRAYS)
    (half.root / "zarr.json").rename(half.root / "zarr.json.partial")
    damaged = build_arrays(tmp_path / "c", ARRAYS)
    content = (damaged.root / "zarr.json").read_text()
    (damaged.root / "zarr.json").write_text(content.replace('"seed":1', '"seed":2'))
    (tmp_path / "notes.txt").write_text("mine")
    write_group(tmp_path)
    assert list_stores(tmp_path) == ["a"]
    assert is_group(tmp_path)
    assert not is_group(tmp_path / "a")
    assert not is_group(tmp_path / "missing")
    before = (tmp_path / "zarr.json").stat()
    write_group(tmp_path)
    assert (tmp_path / "zarr.json").stat() == before
    (half.root / "zarr.json.partial").rename(half.root / "zarr.json")
    write_group(tmp_path)
    assert list_stores(tmp_path) == ["a", "b"]


def test_a_store_that_is_built_again_on_another_grid_is_described_again(tmp_path: Path) -> None:
    plan = build_arrays(tmp_path / "a", ARRAYS)
    write_group(tmp_path)
    for path in sorted(plan.root.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    build_arrays(tmp_path / "a", ARRAYS, ChunkGrid(2, 4))
    write_group(tmp_path)
    array: Any = zarr.open_group(tmp_path, mode="r")["a/one"]
    assert array.shards == (4,)
    np.testing.assert_array_equal(array[:], count_up(10))


def test_a_group_of_others_stays(tmp_path: Path) -> None:
    build_arrays(tmp_path / "a", ARRAYS)
    write_group(tmp_path, create=False)
    assert not (tmp_path / "zarr.json").exists()
    for content in ('{"zarr_format":3,"node_type":"group","attributes":{"my":1}}', "no JSON"):
        (tmp_path / "zarr.json").write_text(content)
        write_group(tmp_path)
        assert (tmp_path / "zarr.json").read_text() == content
        assert not is_group(tmp_path)


def test_writers_that_overtake_each_other_describe_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer commits, and describes, between the look and the write of the first one."""
    build_arrays(tmp_path / "a", ARRAYS)
    write_once = folder_group.files.write_once
    others = iter(["b", "c"])

    def write_later(path: Path, *args: Any, **settings: Any) -> bool:
        if path.parent == tmp_path and (name := next(others, None)) is not None:
            build_arrays(tmp_path / name, ARRAYS)
            write_group(tmp_path)
        return write_once(path, *args, **settings)

    monkeypatch.setattr(folder_group.files, "write_once", write_later)
    write_group(tmp_path)
    assert next(others, None) is None
    assert list_stores(tmp_path) == ["a", "b", "c"]


def test_names_of_several_runs_are_joined(tmp_path: Path) -> None:
    for name in ("index", "blend"):
        build_arrays(tmp_path / name, ARRAYS)
    web = StoreNames("train", ("web",), ("data/web",))
    blend = StoreNames("train", ("web", "code"), ("data/web", "data/code"), is_blend=True)
    other = StoreNames("train", ("news", "code"), ("data/news", "data/code"), is_blend=True)
    save_names(tmp_path, {"index": web, "blend": blend, "removed": web})
    save_names(tmp_path, {"index": StoreNames("train", ("copy",), ("data/copy",)), "blend": other})
    save_names(tmp_path, {"blend": blend})
    assert len(list(tmp_path.glob("names-*.json"))) == 3
    write_group(tmp_path)
    tree = xarray.open_datatree(tmp_path, engine="zarr", chunks=None)
    assert sorted(tree.children) == ["blend", "index"]
    assert tree["index"].attrs["datasets"] == ["copy", "web"]
    assert tree["blend"].attrs["datasets"] == ["news | web", "code"]
    assert tree["blend"].attrs["corpora"] == ["data/news | data/web", "data/code"]
    assert tree["blend"].attrs["split"] == "train"
    assert tree["blend"].attrs["zindex"]["kind"] == "index"


def test_names_that_zindex_did_not_write(tmp_path: Path) -> None:
    (tmp_path / "names-1.json").write_text('{"a": {"split": 7}}')
    with pytest.raises(StoreError, match="names-1"):
        write_group(tmp_path)


def test_dimensions_of_one_name_and_several_sizes(tmp_path: Path) -> None:
    longer = ArraySpec("longer", ("row",), "number", "One column of more rows.")
    arrays = {ONE: count_up(10), longer: count_up(11), TWO: count_up(10, num_columns=2)}
    build_arrays(tmp_path / "a", arrays, GRID)
    write_group(tmp_path)
    with warnings.catch_warnings(action="error"):
        node = xarray.open_datatree(tmp_path, engine="zarr")["a"]
    assert dict(node.sizes) == {"row": 11, "one_row": 10, "two_row": 10, "field": 2}
    np.testing.assert_array_equal(node["longer"], count_up(11))
    root = json.loads((tmp_path / "a" / "zarr.json").read_text())
    names = root["consolidated_metadata"]["metadata"]["one"]["dimension_names"]
    assert names == ["row"]


@pytest.mark.parametrize("forged", [None, {}, {"metadata": {"one": {"shape": [10]}}}, 5])
def test_only_what_the_arrays_of_a_store_say_is_used(tmp_path: Path, forged: Any) -> None:
    """Who forges a store computes its digests, too: a build next to it must not fail."""
    root = build_arrays(tmp_path / "a", ARRAYS).root
    write_group(tmp_path)
    sound = (tmp_path / "zarr.json").read_bytes()
    content = json.loads((root / "zarr.json").read_bytes())
    content["consolidated_metadata"] = forged
    seal_again(root, "zarr.json", content, renamed=False)
    write_group(tmp_path)
    group = json.loads((tmp_path / "zarr.json").read_bytes())
    stored = group["consolidated_metadata"]["metadata"]
    assert stored.pop("a") is not None
    assert stored.items() <= json.loads(sound)["consolidated_metadata"]["metadata"].items()


@pytest.mark.parametrize("number", ["NaN", "1e999"])
def test_numbers_that_json_does_not_have(tmp_path: Path, number: str) -> None:
    root = build_arrays(tmp_path / "a", ARRAYS).root
    content = json.loads((root / "zarr.json").read_bytes())
    facts = content["attributes"]["zindex"]
    del facts["root_sha256"]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    text = text.replace('"zindex":{', f'"zindex":{{"a":{number},', 1)
    digest = sha256(text.encode()).hexdigest()
    text = text.replace('"zindex":{', f'"zindex":{{"root_sha256":"{digest}",', 1)
    (root / "zarr.json").write_text(text)
    assert read_root(root)["manifest_sha256"] == facts["manifest_sha256"]
    write_group(tmp_path)
    assert list_stores(tmp_path) == []
