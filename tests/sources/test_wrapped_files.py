"""Wrapped files have the parts of their files, and count what either has skipped."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ingest.records.sources import ListFiles
from tests.sources.archives import write_jsonl
from zindex.errors import FingerprintMismatchError
from zindex.execution.executor import SerialExecutor
from zindex.ingest.records import partitions
from zindex.ingest.records.import_records import import_records
from zindex.ingest.records.open_files import open_files
from zindex.ingest.records.read_partitions import own_copy
from zindex.sources.wrapped_files import WrappedFiles
from zindex.store.layout import ChunkGrid
from zindex.store.record_reader import RecordReader

SMALL = ChunkGrid(chunk_length=32, shard_length=128)


class Doubled(WrappedFiles):
    """Doubles the numbers of samples, and leaves out what has none."""

    factor = 2

    def convert(self, samples: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for sample in samples:
            if "n" in sample:
                yield sample | {"n": self.factor * sample["n"]}
            else:
                self.num_refused += 1

    def identity(self) -> dict[str, Any]:
        return {"factor": self.factor}


def test_the_parts_are_those_of_the_files() -> None:
    files = ListFiles({"a": [[{"n": 1}], [{"n": 2}, {}]], "b": [[{"n": 3}]]})
    files.num_skipped = 5
    wrapped = Doubled(files, "digest")
    assert (wrapped.num_parts, list(wrapped.urls), wrapped.part_url(1)) == (3, ["a", "b"], "a")
    assert (wrapped.url_parts(0), wrapped.part_nbytes(2)) == (range(2), 1 << 20)
    assert wrapped.fingerprint() == "digest"
    assert [record["n"] for record in wrapped.read_part(1)] == [4]
    assert wrapped.num_skipped == 6
    assert list(WrappedFiles(files, "").read_part(2)) == list(files.read_part(2))
    assert WrappedFiles(files, "").identity() == {}


def test_a_copy_counts_for_itself(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"n": 1}, {}])
    path.write_text(path.read_text() + "damaged\n")
    files, _ = open_files(path, "jsonl", on_damage="skip")
    wrapped = Doubled(files, "")
    own = own_copy(wrapped)
    assert [record["n"] for record in own.read_part(0)] == [2]
    assert (own.num_skipped, wrapped.num_skipped) == (2, 0)


def test_an_import_is_the_same_however_files_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "PARTITION_NBYTES", 40)
    rows = [{"n": number} if number % 7 else {} for number in range(60)]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    fingerprints = set()
    for part_nbytes in (1 << 20, 50, 7):
        files, identity = open_files(path, "jsonl", part_nbytes=part_nbytes)
        # Tasks count the lines once for all parts; no part counts those before it again.
        monkeypatch.setattr(
            type(files), "_count_breaks", lambda self, number, inner: self._breaks[number][inner]
        )
        store = import_records(
            Doubled(files, identity["source"]),
            tmp_path / str(part_nbytes),
            client=SerialExecutor(),
            grid=SMALL,
        )
        reader = RecordReader(store)
        found = [reader.read(i) for i in range(len(reader))]
        assert found == [
            {"__key__": str(i), "__url__": str(path), "n": 2 * i} for i in range(60) if i % 7
        ]
        assert store.attributes["num_skipped"] == 9
        assert store.spec["import"]["factor"] == 2
        fingerprints.add(store.fingerprint)
    assert len(fingerprints) == 1
    monkeypatch.setattr(Doubled, "factor", 3)
    with pytest.raises(FingerprintMismatchError, match="imported with other settings"):
        import_records(Doubled(files, identity["source"]), tmp_path / "7", client=SerialExecutor())


def test_an_import_that_died_goes_on_with_other_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "PARTITION_NBYTES", 40)
    path = write_jsonl(tmp_path / "a.jsonl", [{"n": number} for number in range(60)])
    right, calls = partitions.read_partition, list[int]()

    def die(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise OSError("the machine died")
        return right(*arguments)

    def run(part_nbytes: int) -> Any:
        files, identity = open_files(path, "jsonl", part_nbytes=part_nbytes)
        source = Doubled(files, identity["source"])
        return import_records(source, tmp_path / "s", client=SerialExecutor(), grid=SMALL)

    monkeypatch.setattr(partitions, "read_partition", die)
    with pytest.raises(OSError, match="the machine died"):
        run(50)
    monkeypatch.setattr(partitions, "read_partition", right)
    reader = RecordReader(run(90))
    assert [reader.read(i)["n"] for i in range(len(reader))] == [2 * i for i in range(60)]
