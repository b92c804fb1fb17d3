"""Datasets of tar archives: parts through a process function, and iterated by themselves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from tests.sources.archives import numbered, plain, write_jsonl, write_tar
from zindex.errors import ConfigError, SourceError
from zindex.streaming.file_formats import MetaDistributedWebDataset, SimpleDistributedWebDataset
from zindex.streaming.protocols import PartitionedDataset, UrlDataset

Sample = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two archives of ten samples, the first with metadata."""
    write_jsonl(tmp_path / "a.meta.jsonl", [{"key": f"{i:04d}", "Caption": i} for i in range(9)])
    for name in "ab":
        write_tar(tmp_path / f"{name}.tar", numbered(10))
    return tmp_path


def pairs(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Yield two samples as one, and the last of an odd number alone."""
    held: list[Sample] = []
    for sample in samples:
        held.append(sample)
        if len(held) == 2:
            yield {**held[-1], "keys": [one["__key__"] for one in held]}
            held = []
    if held:
        yield {**held[-1], "keys": [one["__key__"] for one in held]}


def test_parts_and_files(folder: Path) -> None:
    dataset = MetaDistributedWebDataset(f"{folder}/{{a,b}}.tar", pairs)
    assert isinstance(dataset, PartitionedDataset)
    assert isinstance(dataset, UrlDataset)
    assert (dataset.shuffle_buffer, dataset.num_skipped) == (1000, 0)
    parts = [
        [key for sample in dataset.read_part(part) for key in sample["keys"]]
        for part in range(dataset.num_parts)
    ]
    assert [key for keys in parts for key in keys] == [f"{number:04d}" for number in range(10)] * 2
    files = [[sample["keys"] for sample in dataset.read_url(number)] for number in range(2)]
    assert files[0] == files[1] == [[f"{i:04d}", f"{i + 1:04d}"] for i in range(0, 10, 2)]
    assert dataset.fingerprint() == MetaDistributedWebDataset(folder, pairs).fingerprint()


def test_metadata_and_folders(folder: Path) -> None:
    dataset = MetaDistributedWebDataset(
        "", include_dirs=f"{folder}*2", meta_names=["Caption"], shuffle_buffer=0
    )
    assert [Path(url).name for url in dataset.urls] == ["a.tar", "b.tar"] * 2
    captions = [sample["caption"] for sample in dataset if sample["__url__"].endswith("a.tar")]
    assert captions == [*range(9), None] * 2


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_workers_share_the_parts(folder: Path, num_workers: int) -> None:
    dataset = MetaDistributedWebDataset(folder, part_nbytes=4096)
    loader: DataLoader[Sample] = DataLoader(
        dataset,
        batch_size=None,
        num_workers=num_workers,
        multiprocessing_context="fork" if num_workers else None,
    )
    found = sorted(sample["__url__"] + sample["__key__"] for sample in loader)
    assert found == sorted(
        f"{folder}/{name}.tar{number:04d}" for name in "ab" for number in range(10)
    )


def test_simple_datasets(folder: Path) -> None:
    dataset = SimpleDistributedWebDataset(f"{folder}/b.tar", None, 7, shuffle_buffer=5)
    assert (dataset.seed, dataset.shuffle_buffer) == (7, 5)
    assert plain(dataset) == plain(MetaDistributedWebDataset(f"{folder}/b.tar"))


def test_damage_is_counted(folder: Path) -> None:
    with open(folder / "b.tar", "r+b") as stream:
        stream.truncate(7000)
    with pytest.raises(SourceError, match=r"b\.tar must be a whole tar archive"):
        list(MetaDistributedWebDataset(folder))
    dataset = MetaDistributedWebDataset(folder, on_damage="skip")
    assert len(list(dataset)) == 12
    assert dataset.num_skipped == 1


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            {"__url__": "x"},
            r"must yield dicts that keep __url__ and __key__ .* \['__url__'\]; copy",
        ),
        ({"__key__": "x"}, r"yields \['__key__'\]; copy both"),
        ("text", "yields str; copy both"),
    ],
)
def test_process_functions_keep_the_place(folder: Path, result: object, message: str) -> None:
    dataset = MetaDistributedWebDataset(folder, lambda samples: (result for _ in samples))  # type: ignore[misc]
    with pytest.raises(ConfigError, match=message):
        next(dataset.read_part(0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"process_fn": "f"},
            "process_fn must be a function from samples to samples, or None, got s",
        ),
        ({"shuffle_buffer": -1}, "shuffle_buffer must be a whole number of at least 0, got -1"),
        ({"shuffle_buffer": None}, "shuffle_buffer must be a whole number of at least 0, got No"),
        ({"on_damage": "warn"}, "on_damage must be one of error, skip, got 'warn'"),
        ({"part_nbytes": 0}, "must be a whole number of at least 1, got 0"),
    ],
)
def test_settings_that_are_refused(folder: Path, settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MetaDistributedWebDataset(folder, **settings)
