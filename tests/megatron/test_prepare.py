"""What is prepared from a command line is all that the training then needs."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.commands import fail, invoke, succeed
from tests.conftest import FakeTokenizer, WriteCorpus
from zindex.datasets.blended_dataset import BlendedDataset
from zindex.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from zindex.datasets.blended_megatron_dataset_config import DEFAULTS
from zindex.datasets.gpt_dataset import GPTDataset
from zindex.errors import ConfigError
from zindex.indexing import ensure
from zindex.megatron.prepare import as_config, parse_arguments, prepare


@pytest.fixture(autouse=True)
def _restore_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the process's defaults as they were."""
    for name in vars(DEFAULTS):
        monkeypatch.setattr(DEFAULTS, name, getattr(DEFAULTS, name))


@pytest.fixture
def command_line(write_corpus: WriteCorpus, tmp_path: Path) -> list[str]:
    generator = np.random.default_rng(3)
    paths = []
    for weight, name in (("1", "a"), ("2", "b")):
        paths += [weight, write_corpus(generator.integers(2, 30, 50), name=name)]
    return [
        *(
            "pretrain_gpt.py",
            "--lr",
            "1e-4",
            "--seq-length",
            "8",
            "--data-path",
            *paths,
            "--split",
            "90,10,0",
        ),
        *("--train-iters", "20", "--global-batch-size", "4", "--eval-iters", "1"),
        *("--data-cache-path", str(tmp_path / "cache")),
    ]


@pytest.mark.parametrize("order", ["megatron", "scalable"])
def test_training_builds_nothing_more(
    command_line: list[str], order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = prepare(command_line, order=order, max_computed_rows=0)
    assert [(part.split, part.num_datasets) for part in made][:2] == [("train", 2), ("valid", 2)]
    before = sorted((tmp_path / "cache").iterdir())
    arguments = parse_arguments(command_line)
    config = as_config(arguments, FakeTokenizer())
    assert config.order == order

    def fail(*_: Any) -> None:
        raise AssertionError("the training builds something")

    monkeypatch.setattr(ensure.Builds, "_build", fail)
    builder = BlendedMegatronDatasetBuilder(GPTDataset, arguments.sizes[0], lambda: True, config)
    datasets = builder.build()
    assert sorted((tmp_path / "cache").iterdir()) == before
    assert len(datasets[0]) == made[0].num_samples
    assert isinstance(datasets[0], BlendedDataset)
    datasets[0][0]


def test_command(command_line: list[str], tmp_path: Path) -> None:
    printed = succeed("prepare", *command_line)
    assert re.search(r"^train: 8\d samples of 2 datasets$", printed, re.MULTILINE)
    assert f"built in {tmp_path / 'cache'} in" in printed
    again = succeed("prepare", "--json", *command_line)
    assert f'"cache": "{tmp_path / "cache"}"' in again
    both = fail("prepare", "--scheduler", "tcp://x:1", "--cluster", "slurm", *command_line)
    assert "--scheduler and --cluster both say where to build" in both
    printed = succeed("prepare", *command_line, "--phase-transition-iterations", 5)
    assert re.search(r"^phase 2, train: 6\d samples of 2 datasets$", printed, re.MULTILINE)


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_sentence_mappings_are_prepared(
    kind: str, write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    prefix = write_corpus([5] * 300, sequences_per_document=3)
    line = [
        *(f"pretrain_{kind}.py", "--data-path", prefix, "--split", "90,10,0"),
        *("--seq-length", "32", "--decoder-seq-length", "16", "--train-iters", "3"),
        *("--global-batch-size", "4", "--eval-iters", "1"),
        *("--data-cache-path", str(tmp_path / "cache")),
    ]
    made = prepare(line)
    assert [part.split for part in made] == ["train", "valid"]
    assert made[0].num_samples >= 12
    names = sorted(path.name for path in (tmp_path / "cache").iterdir())
    assert len(names) == 2
    assert prepare(line) == made
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == names


def test_cache_must_be_named(command_line: list[str]) -> None:
    with pytest.raises(
        ConfigError, match="--data-cache-path must be given, got none: prepared indices"
    ):
        prepare(command_line[:-2])


def test_the_script_must_be_named(command_line: list[str]) -> None:
    line = fail("prepare", *command_line[1:])
    assert "must name the training script, such as pretrain_gpt.py, got --lr; put" in line
    assert line.endswith("or give --kind")
    assert "splits" in succeed("prepare", "--json", "--kind", "gpt", *command_line[1:])


def test_a_script_that_is_not_there_is_warned_of(command_line: list[str], tmp_path: Path) -> None:
    warning = "there is no script pretrain_gpt.py here; unless --kind is given, it is taken from"
    assert warning in invoke("prepare", *command_line).stderr
    script = tmp_path / "pretrain_gpt.py"
    script.touch()
    assert "there is no script" not in invoke("prepare", script, *command_line[1:]).stderr
