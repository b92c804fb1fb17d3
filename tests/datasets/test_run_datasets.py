"""The datasets of a run, opened over what ``zindex.build`` built."""

from pathlib import Path
from typing import Any

import pytest

import zindex
from tests.conftest import FakeTokenizer, WriteCorpus
from tests.indexing.runs import LENGTHS, make_config
from zindex.config import DatasetConfig
from zindex.datasets.blended_dataset import BlendedDataset
from zindex.datasets.run_datasets import open_run
from zindex.errors import ConfigError
from zindex.execution.executor import SerialExecutor

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "weights": ("weight", {"samples": {"train": 40, "valid": 3}}),
    "tokens": ("tokens", {}),
    "tokens, capped": ("tokens", {"max_epochs": 1.5}),
    "epochs": ("epochs", {}),
    "epochs of a given size": ("epochs", {"samples": {"train": 25}}),
    "sizes": ("", {"blend": "sizes"}),
}


@pytest.fixture
def paths(write_corpus: WriteCorpus) -> list[str]:
    return [write_corpus(LENGTHS * n, name=f"corpus-{n}") for n in (1, 2)]


def run_config(tmp_path: Path, paths: list[str], name: str, **settings: Any) -> Any:
    kind, own = RUNS[name]
    amounts = {"weight": (3.0, 1.0), "tokens": (200, 60), "epochs": (2.5, 1.0)}.get(kind, (0, 0))
    members = [
        DatasetConfig(path, **({kind: amount} if kind else {}))
        for path, amount in zip(paths, amounts, strict=True)
    ]
    return make_config(tmp_path, *members, **({"split": "60,40,0"} | own | settings))


@pytest.mark.parametrize("order", ["megatron", "scalable"])
@pytest.mark.parametrize("name", RUNS)
def test_indices_built_ahead_are_opened(
    tmp_path: Path, paths: list[str], tokenizer: FakeTokenizer, name: str, order: str
) -> None:
    config = run_config(tmp_path, paths, name, order=order)
    results = zindex.build(config, SerialExecutor())
    before = sorted((tmp_path / "index").iterdir())
    datasets = open_run(config, tokenizer)
    assert sorted((tmp_path / "index").iterdir()) == before
    assert list(datasets) == ["train", "valid"]
    for split, dataset in datasets.items():
        assert isinstance(dataset, BlendedDataset)
        stored = results[None, split].store["dataset_count"][:].tolist()
        assert dataset.dataset_count.tolist() == stored
        assert len(dataset) == sum(stored)
        item = dataset[len(dataset) - 1]
        assert item["tokens"].shape == (4,)
        assert [member.dataset_path for member in dataset.datasets] == paths


def test_missing_indices_are_built(
    tmp_path: Path, paths: list[str], tokenizer: FakeTokenizer
) -> None:
    config = run_config(tmp_path, paths, "weights")
    datasets = open_run(config, tokenizer, max_computed_rows=0)
    results = zindex.build(config, SerialExecutor())
    assert {result.num_written for result in results.values()} == {0}
    assert datasets["train"][0]["dataset_id"] == 0


def test_without_blends_datasets_are_separate(
    tmp_path: Path, paths: list[str], tokenizer: FakeTokenizer
) -> None:
    config = make_config(tmp_path, *paths, split="60,40,0", samples={"train": 30})
    datasets = open_run(config, tokenizer, create_attention_mask=False)
    assert {split: len(parts) for split, parts in datasets.items()} == {"train": 2, "valid": 2}
    assert [dataset.dataset_path for dataset in datasets["train"]] == paths
    assert all(len(dataset) >= 30 for dataset in datasets["train"])
    assert "attention_mask" not in datasets["train"][0][0]


def test_settings_are_checked(tmp_path: Path, paths: list[str], tokenizer: FakeTokenizer) -> None:
    config = run_config(tmp_path, paths, "weights")
    with pytest.raises(ConfigError, match="eod_mask_loss must be given"):
        open_run(config, tokenizer, eod_mask_loss=None)
    with pytest.raises(TypeError, match="sequence_length"):
        open_run(config, tokenizer, sequence_length=7)
