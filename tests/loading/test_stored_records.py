"""Imported records as a source: the same samples as their files, in parts of any length."""

import pickle
from pathlib import Path

import pytest

from tests.ingest.records.sources import ListFiles, draw_files
from zindex.errors import ConfigError
from zindex.execution.executor import SerialExecutor
from zindex.ingest.records.import_records import import_records
from zindex.loading.stored_records import StoredRecords


@pytest.fixture(scope="module")
def source() -> ListFiles:
    return draw_files(11)


@pytest.fixture(scope="module")
def path(source: ListFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("records") / "s"
    import_records(source, store, client=SerialExecutor())
    return store


@pytest.mark.parametrize("part_length", [1, 2, 7, 1000])
def test_parts_of_any_length_give_all_records(
    path: Path, source: ListFiles, part_length: int
) -> None:
    records = pickle.loads(pickle.dumps(StoredRecords(path, part_length=part_length)))
    assert records.urls == source.urls
    assert len(records) == len(source.records())
    found = []
    for number, url in enumerate(records.urls):
        for part in records.url_parts(number):
            assert records.part_url(part) == url
            assert records.part_nbytes(part) is None
            samples = list(records.read_part(part))
            assert len(samples) <= part_length
            assert all(sample["__url__"] == url for sample in samples)
            found += samples
    assert found == source.records()
    assert records.num_skipped == 0


def test_a_file_without_records_has_a_part(tmp_path: Path) -> None:
    source = ListFiles({"a": [[]], "b": [[{"x": 1}]], "c": [[]]})
    records = StoredRecords(import_records(source, tmp_path / "s", client=SerialExecutor()).root)
    assert [len(records.url_parts(number)) for number in range(3)] == [1, 1, 1]
    assert [len(list(records.read_part(part))) for part in range(3)] == [0, 1, 0]


def test_the_fingerprint_depends_on_parts(path: Path) -> None:
    prints = [StoredRecords(path, part_length=n).fingerprint() for n in (1, 2, 2)]
    assert prints[0] != prints[1] == prints[2]
    assert set(next(StoredRecords(path, fields=[]).read_part(0))) == {"__key__", "__url__"}


def test_missing_stores_are_refused(path: Path) -> None:
    records = StoredRecords(path)
    for part in (-1, records.num_parts):
        with pytest.raises(IndexError, match=rf"a part must be in \[0, \d+\), got {part}"):
            next(records.read_part(part))
    with pytest.raises(IndexError, match=r"a file must be in \[0, \d+\), got 99"):
        records.url_parts(99)
    with pytest.raises(
        ConfigError, match="part_length must be a whole number of at least 1, got 0"
    ):
        StoredRecords(path, part_length=0)
    with pytest.raises(ConfigError, match=r"a field of .* must be one of .*, got 'no'"):
        StoredRecords(path, fields=["no"])
