"""Imported records as a stream: the samples of the datasets of files, mixed and resumed alike."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.sources.archives import write_jsonl, write_tar
from zindex.errors import ConfigError
from zindex.execution.executor import SerialExecutor
from zindex.ingest.records.import_records import import_records
from zindex.streaming import (
    JsonlIterableDataset,
    MergedDataset,
    MetaDistributedWebDataset,
    to_state,
)
from zindex.streaming.record_iterable_dataset import RecordIterableDataset

SERIAL = SerialExecutor()


def in_pairs(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One sample of every two, and of what is left."""
    while two := list(islice(samples, 2)):
        yield {"texts": [sample["text"] for sample in two]} | {
            name: two[-1][name] for name in ("__url__", "__key__")
        }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two jsonl files, two tars, and the stores of both."""
    for number in range(2):
        rows = [{"text": f"t{number}-{i}", "n": i} for i in range(15 + number)]
        write_jsonl(tmp_path / f"lines/{number}.jsonl", rows)
        members = [(f"{i:02}.{name}", bytes([i])) for i in range(9) for name in ("txt", "id")]
        write_tar(tmp_path / f"tars/{number}.tar", members)
        write_jsonl(tmp_path / f"tars/{number}.meta.jsonl", [{"key": "03", "caption": "three"}])
    import_records(tmp_path / "lines", tmp_path / "lines.zarr", client=SERIAL)
    import_records(tmp_path / "tars", tmp_path / "tars.zarr", client=SERIAL, meta_names=["caption"])
    return tmp_path


def test_samples_are_those_of_the_files(folder: Path) -> None:
    lines = JsonlIterableDataset(folder / "lines")
    tars = MetaDistributedWebDataset(str(folder / "tars"), meta_names=["caption"])
    for files, name in ((lines, "lines.zarr"), (tars, "tars.zarr")):
        records = RecordIterableDataset(folder / name, part_length=4)
        assert list(records) == list(files)
        assert records.urls == files.urls
        for number in range(2):
            assert list(records.read_url(number)) == list(files.read_url(number))
    loader = torch.utils.data.DataLoader(
        RecordIterableDataset(folder / "lines.zarr", part_length=4), batch_size=None, num_workers=2
    )
    assert sorted(sample["text"] for sample in loader) == sorted(sample["text"] for sample in lines)


def merged(folder: Path, **settings: Any) -> MergedDataset:
    records = RecordIterableDataset(folder / "lines.zarr", in_pairs, part_length=5, **settings)
    records.name, records.percent = "lines", 1.0  # type: ignore[attr-defined]
    return MergedDataset([records], cyclic=False, seed=3)


def test_mixed_and_resumed_at_every_sample(folder: Path) -> None:
    whole = list(merged(folder))
    texts = [text for sample in whole for text in sample["texts"]]
    assert sorted(texts) == sorted(s["text"] for s in JsonlIterableDataset(folder / "lines"))
    for cut in range(1, len(whole)):
        state: dict[str, Any] = {}
        for sample in islice(merged(folder), cut):
            state.update(to_state(sample))
        dataset = merged(folder)
        dataset.set_dataloader_states(state)
        rest = [sample["texts"] for sample in dataset]
        assert rest == [sample["texts"] for sample in whole[cut:]]


def test_settings_are_checked(folder: Path) -> None:
    with pytest.raises(ConfigError, match="process_fn must be a function from samples to samples"):
        RecordIterableDataset(folder / "lines.zarr", 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="shuffle_buffer must be a whole number of at least 0"):
        RecordIterableDataset(folder / "lines.zarr", shuffle_buffer=-1)
    prints = {
        RecordIterableDataset(folder / name, part_length=n).fingerprint()
        for name, n in (("lines.zarr", 4), ("lines.zarr", 5), ("tars.zarr", 4))
    }
    assert len(prints) == 3
