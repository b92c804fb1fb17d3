"""The index folder of a run as plain zarr and xarray open it: everything, without a warning."""

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr

import zindex
from tests.cli.commands import succeed
from tests.conftest import WriteCorpus
from tests.indexing.runs import LENGTHS, make_config, make_run
from zindex.indexing import run
from zindex.plan.packing import PackingRules


@pytest.mark.parametrize(
    "settings",
    [
        {"order": "megatron"},
        {"order": "scalable"},
        {"order": "scalable", "store": "minimal"},
        {"packing": PackingRules()},
    ],
    ids=["megatron", "scalable", "minimal", "packed"],
)
def test_all_of_it_is_opened_without_warnings(
    tmp_path: Path, write_corpus: WriteCorpus, settings: dict[str, Any]
) -> None:
    config = make_run(tmp_path, write_corpus, **settings)
    built = zindex.build(config)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group = zarr.open_group(config.index, mode="r")
        tree = xarray.open_datatree(config.index, engine="zarr")
        assert str(group.tree())
        members = dict(group.members(max_depth=None))
    stores = {done.store.root.name: done.store for done in built.values()}
    assert members.keys() == stores.keys() | {
        f"{name}/{array}" for name, store in stores.items() for array in store.layouts
    }
    assert tree.children.keys() == stores.keys()
    for (path, split), done in built.items():
        store = done.store
        for name in store.layouts:
            expected = store[name][:]
            found: Any = members[f"{store.root.name}/{name}"]
            np.testing.assert_array_equal(found[:], expected, strict=True)
            read = tree[store.root.name][name]
            np.testing.assert_array_equal(read.values, expected, strict=True)
        facts = tree[store.root.name].attrs
        assert facts["split"] == split
        assert facts["datasets"] == (["web", "code"] if path is None else [Path(path).name])
        paths = [item.path for item in config.datasets] if path is None else [path]
        assert facts["corpora"] == paths
        assert group[store.root.name].attrs["zindex"] == facts["zindex"]


def test_datasets_that_share_an_index_are_named_together(
    tmp_path: Path, write_corpus: WriteCorpus
) -> None:
    paths = [write_corpus(LENGTHS, name=name) for name in ("web", "copy")]
    config = make_config(tmp_path, *paths, split="1,0,0")
    zindex.build(config)
    [node] = xarray.open_datatree(config.index, engine="zarr").children.values()
    assert node.attrs["datasets"] == ["copy", "web"]
    assert node.attrs["corpora"] == sorted(paths)


def test_commands_take_the_folder_as_one_of_stores(
    tmp_path: Path, write_corpus: WriteCorpus
) -> None:
    config = make_run(tmp_path, write_corpus)
    zindex.build(config)
    index = Path(config.index)
    assert len(zindex.repair(index)) == 6
    verified = succeed("verify", index)
    assert "no part of" not in verified
    assert succeed("gc", index, "--hours", "-1") == f"nothing is unused in {index}\n"
    # A store that another run has removed is no longer listed.
    other = make_config(tmp_path, config.datasets[0].path, split="1,0,0")
    zindex.build(other)
    run_file = tmp_path / "other.yaml"
    run_file.write_text(
        f"datasets: [{other.datasets[0].path}]\nsequence_length: 4\nsplit: '1,0,0'\n"
        f"index: {config.index}\n"
    )
    assert len(list(zarr.open_group(index, mode="r").groups())) == 7
    assert "6 files and folders, " in succeed(
        "gc", index, "--run", run_file, "--hours", "-1", "--remove"
    )
    assert len(list(zarr.open_group(index, mode="r").groups())) == 1


def test_a_finished_run_restores_it_and_writes_nothing_else(
    tmp_path: Path, write_corpus: WriteCorpus
) -> None:
    config = make_run(tmp_path, write_corpus)
    zindex.build(config)
    root = Path(config.index) / "zarr.json"
    content, before = root.read_bytes(), root.stat()
    zindex.build(config)
    assert root.stat() == before
    root.unlink()
    zindex.build(config)
    assert root.read_bytes() == content


def test_an_unwritable_group_is_only_logged(
    tmp_path: Path,
    write_corpus: WriteCorpus,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*args: Any, **settings: Any) -> bool:
        raise PermissionError(13, "Permission denied")

    config = make_run(tmp_path, write_corpus)
    monkeypatch.setattr(run, "write_group", refuse)
    caplog.set_level(logging.INFO, "zindex")
    assert len(zindex.build(config)) == 6
    assert "cannot write the Zarr group" in caplog.text
