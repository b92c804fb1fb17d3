"""A split of a run is a dataset like any other, for YAML files too."""

import pickle
import re
from pathlib import Path
from typing import Any

import pytest

import zindex
from tests.conftest import WriteCorpus
from zindex.errors import ConfigError, StoreNotFoundError
from zindex.execution.executor import SerialExecutor
from zindex.loading.run_split import open_run_split
from zindex.streaming.configuration.from_yaml import instantiate_from_yaml


def write_run(folder: Path, members: list[str], **more: Any) -> Path:
    """Write the settings of a run of these datasets."""
    lines = [f"index: {folder}/index", "sequence_length: 4", 'split: "60,40,0"', "datasets:"]
    lines += [f"- {member}" for member in members]
    lines += [f"{key}: {value}" for key, value in more.items()]
    path = folder / "run.yaml"
    path.write_text("\n".join(lines))
    return path


def test_a_blend_from_yaml(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    paths = [write_corpus([5, 7, 9] * n, name=f"corpus-{n}") for n in (4, 8)]
    write_run(tmp_path, [f"{{path: {path}, epochs: 2}}" for path in paths])
    text = f"""
target: open_run_split
name: run
params: {{config: {tmp_path}/run.yaml, split: valid, eod: 0, vocab_size: 1000}}
"""
    (tmp_path / "a.yaml").write_text(text)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreNotFoundError, match=r"lacks corpus-4 train, .*; run `zindex build`"):
        instantiate_from_yaml(tmp_path / "a.yaml")
    assert sorted(tmp_path.rglob("*")) == before
    zindex.build(tmp_path / "run.yaml", SerialExecutor())
    dataset = instantiate_from_yaml(tmp_path / "a.yaml")
    assert dataset.name == "run"
    assert dataset[0]["tokens"].shape == (4,)
    again = pickle.loads(pickle.dumps(dataset))
    assert again.name == "run"
    assert again[1]["tokens"].tolist() == dataset[1]["tokens"].tolist()


def test_one_dataset_without_a_blend(
    tmp_path: Path, write_corpus: WriteCorpus, tokenizer: Any
) -> None:
    path = write_run(tmp_path, [f"{{path: {write_corpus([5, 7, 9] * 4)}, samples: {{train: 5}}}}"])
    zindex.build(path, SerialExecutor())
    assert len(open_run_split(path, tokenizer=tokenizer)) >= 5
    with pytest.raises(ConfigError, match=r"samples of, train, valid, got 'test'; give it"):
        open_run_split(path, "test", tokenizer=tokenizer)


def test_several_datasets_without_a_blend(
    tmp_path: Path, write_corpus: WriteCorpus, tokenizer: Any
) -> None:
    members = [
        f"{{path: {write_corpus([5, 7, 9] * n, name=str(n))}, samples: {{train: 5}}}}"
        for n in (4, 8)
    ]
    path = write_run(tmp_path, members)
    zindex.build(path, SerialExecutor())
    with pytest.raises(ConfigError, match=r"'train' of the run has 2 that are not blended; give"):
        open_run_split(path, tokenizer=tokenizer)


def test_a_tokenizer_or_its_numbers(tmp_path: Path) -> None:
    message = "or none of them, got eod=0 and vocab_size=None"
    with pytest.raises(ConfigError, match=re.escape(message)):
        open_run_split(tmp_path / "run.yaml", eod=0)
