"""Datasets by the names of kinds of training."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.keyed.small_stores import write_dpo, write_grpo, write_sft
from zindex.errors import ConfigError
from zindex.keyed import BaseDataset, DatasetFactory
from zindex.keyed.window_dataset import WindowDataset


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    known: dict[str, Any] = {}
    monkeypatch.setattr(DatasetFactory, "_registered", known)
    return known


@pytest.mark.parametrize("storage_type", [None, "bin"])
def test_every_kind_loads(tmp_path: Path, storage_type: str | None) -> None:
    paths = {
        "seq": write_sft(tmp_path / "sft"),
        "sft": tmp_path / "sft",
        "dpo": write_dpo(tmp_path / "dpo"),
        "grpo": write_grpo(tmp_path / "grpo"),
    }
    for name, path in paths.items():
        dataset = DatasetFactory.load(name, path, 16, None, storage_type)
        assert len(dataset) > 0
        assert set(dataset.required_keys) <= set(dataset.keys)
        assert isinstance(dataset.collate(dataset.__getitems__([0, 1])), dict)


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"train_type must be one of seq, sft, dpo, grpo, .* got 'rl'"
    ):
        DatasetFactory.create("rl", 4)


@pytest.mark.parametrize(("kind", "mode"), [("seq", "records"), ("dpo", "both")])
def test_an_unknown_mode_is_named(kind: str, mode: Any) -> None:
    with pytest.raises(
        ConfigError, match=f"mode of '{kind}' must be one of .*windows, got '{mode}'"
    ):
        DatasetFactory.create(kind, 4, mode=mode)


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(
        ConfigError,
        match="options of windows of 'sft' must be among documents, tail, pad_id, split, "
        "split_weights, split_seed, got docs; name one",
    ):
        DatasetFactory.create("sft", 4, docs="pack")
    with pytest.raises(ConfigError, match="options of records of 'dpo' must be among pad_id, spli"):
        DatasetFactory.create("dpo", 4, pad=0)


def test_classes_can_be_registered(registered: dict[str, Any], tmp_path: Path) -> None:
    @DatasetFactory.register("mine")
    class Mine(WindowDataset):
        def __init__(self, window_size: int, stride: int | None, **options: Any) -> None:
            from zindex.formats.keyed.schema_presets import SEQ

            super().__init__(SEQ, window_size, stride, **options)

    dataset = DatasetFactory.load("mine", write_sft(tmp_path), 8, 4, tail="pad")
    assert isinstance(dataset, Mine)
    assert (dataset.stride, dataset.tail) == (4, "pad")
    for name in ("mine", "seq"):
        with pytest.raises(ConfigError, match=f"train_type '{name}' is registered already"):
            DatasetFactory.register(name)(Mine)
    with pytest.raises(
        ConfigError, match="a dataset must be a class of BaseDataset, got <class 'int"
    ):
        DatasetFactory.register("other")(int)  # type: ignore[type-var]
    assert issubclass(Mine, BaseDataset)
