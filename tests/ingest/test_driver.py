"""Claims: an import that failed does not block others for good."""

from pathlib import Path
from typing import Any

import pytest

from tests.ingest.records.sources import ListFiles
from tests.sources.archives import write_jsonl
from tests.trees import all_files
from zindex.errors import FingerprintMismatchError, SourceError
from zindex.execution import process_executor
from zindex.execution.executor import SerialExecutor
from zindex.ingest import driver
from zindex.ingest.driver import Claim
from zindex.ingest.records import open_files, partitions
from zindex.ingest.records.import_records import import_records
from zindex.io.files import list_names, read_file
from zindex.io.objects import Place
from zindex.store.layout import ChunkGrid
from zindex.store.record_reader import RecordReader
from zindex.store.scratch import IMPORT_KEY, begin_import

OTHER = ListFiles({"b": [[{"y": 1}, {"y": 2}]]})


@pytest.fixture
def failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of an import that has failed at its second part."""
    monkeypatch.setattr(partitions, "MAX_PARTS", 1)
    source = ListFiles({"a": [[{"x": "1"}], [{"x": "2"}]]})
    source.broken = {1}
    with pytest.raises(SourceError, match="part 1 is broken"):
        import_records(source, tmp_path / "s", client=SerialExecutor())
    return tmp_path / "s"


def test_the_error_says_what_differs_and_what_to_do(failed: Path) -> None:
    problem = (
        r"s holds an unfinished import of another source, or with other settings; what differs: "
        r"on_damage \(--on-damage\), the files, or their sizes; choose another place or, if no "
        r"import is running there, remove that one with restart=True \(--restart\)"
    )
    with pytest.raises(FingerprintMismatchError, match=problem):
        import_records(OTHER, failed, on_damage="skip")


@pytest.mark.parametrize("grid", [ChunkGrid(8, 16), ChunkGrid()])
def test_another_import_takes_its_place(failed: Path, grid: ChunkGrid) -> None:
    store = import_records(OTHER, failed, restart=True, grid=grid)
    assert [RecordReader(store).read(i)["y"] for i in range(2)] == [1, 2]
    assert sorted(path.name for path in (failed / "_zindex").iterdir()) == [
        "manifest.json",
        "plan.json",
    ]
    again = import_records(OTHER, failed, restart=True)
    assert again.fingerprint == store.fingerprint


def test_one_that_died_while_it_wrote_is_removed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = import_records(OTHER, tmp_path / "golden")
    commit = driver.commit_store

    def fail(*arguments: Any) -> None:
        raise OSError("no commit")

    monkeypatch.setattr(driver, "commit_store", fail)
    with pytest.raises(OSError, match="no commit"):
        import_records(ListFiles({"a": [[{"x": "1"}]]}), tmp_path / "s")
    monkeypatch.setattr(driver, "commit_store", commit)
    assert (tmp_path / "s/x_text").is_dir() or (tmp_path / "s/key_text").is_dir()
    store = import_records(OTHER, tmp_path / "s", restart=True)
    assert store.fingerprint == golden.fingerprint
    names = {path.name for path in (tmp_path / "s").iterdir()}
    assert names == {path.name for path in (tmp_path / "golden").iterdir()}


def test_a_finished_store_is_never_removed(tmp_path: Path) -> None:
    import_records(ListFiles({"a": [[{"x": "1"}]]}), tmp_path / "s")
    with pytest.raises(FingerprintMismatchError, match="holds records of another source"):
        import_records(OTHER, tmp_path / "s", restart=True)
    # As after a death between the commit and the end.
    (tmp_path / "s" / IMPORT_KEY).write_text("{}")
    before = {path for path in (tmp_path / "s").rglob("*") if path.is_file()}
    Claim(tmp_path / "s", {}).take(restart=True)
    assert {path for path in (tmp_path / "s").rglob("*") if path.is_file()} == before


def test_only_imports_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s" / "mine").mkdir(parents=True)
    with pytest.raises(FingerprintMismatchError, match="must be empty or a zindex store"):
        import_records(OTHER, tmp_path / "s", restart=True)
    (tmp_path / "s" / "mine").rmdir()
    begin_import(tmp_path / "s", {"source": "a"})
    monkeypatch.setattr(
        "zindex.ingest.driver.read_plan",
        lambda root: {"kind": "tokens", "arrays": [{"name": "tokens"}]},
    )
    with pytest.raises(
        FingerprintMismatchError, match="it holds an unfinished store of kind 'tokens'; choose"
    ):
        Claim(tmp_path / "s", {}).take(restart=True)
    assert (tmp_path / "s" / IMPORT_KEY).exists()


def test_an_import_that_just_finished_is_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zindex.io.files.exists", lambda path: True)
    Claim(tmp_path, {"source": "a"}).take(restart=False)


def test_in_an_object_store(objects: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_import(objects, {"source": "a"})
    Claim(objects, {"source": "b"}).take(restart=True)
    begin_import(objects, {"source": "b"})
    assert read_file(objects / IMPORT_KEY) == b'{"source":"b"}'
    Claim(objects, {}).take(restart=True)
    monkeypatch.setattr(driver, "commit_store", None)
    with pytest.raises(TypeError, match="not callable"):
        import_records(ListFiles({"a": [[{"x": "1"}]]}), objects, client=SerialExecutor())
    assert "x_value" in list_names(objects)
    Claim(objects, {}).take(restart=True)
    assert list_names(objects) == {"_zindex"}
    assert list_names(objects / "_zindex") == {"import.json"}


@pytest.mark.parametrize("least_nbytes", [256, 700])
def test_another_number_of_processes_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least_nbytes: int
) -> None:
    """Also where another version would give each task more to read."""
    path = write_jsonl(tmp_path / "a.jsonl", [{"x": "y" * (i % 9)} for i in range(400)])
    golden = import_records(path, tmp_path / "golden", client=SerialExecutor())
    monkeypatch.setattr(open_files, "_LEAST_NBYTES", 256)
    right, read = partitions.read_partition, list[str]()

    def die(source: Any, root: Place, partition: Any, settings: Any) -> Any:
        if len(read) == 20:
            raise OSError("the machine died")
        read.append(partition.name)
        return right(source, root, partition, settings)

    monkeypatch.setattr(partitions, "read_partition", die)
    with pytest.raises(OSError, match="the machine died"):
        import_records(path, tmp_path / "s", client=SerialExecutor())
    monkeypatch.setattr(partitions, "read_partition", right)
    monkeypatch.setattr(open_files, "_LEAST_NBYTES", least_nbytes)
    notes = {path.stem for path in tmp_path.glob("s/_zindex/scratch/*.json")}
    assert notes == set(read)
    store = import_records(path, tmp_path / "s", num_processes=2)
    assert store.fingerprint == golden.fingerprint
    assert all_files(tmp_path / "s") == all_files(tmp_path / "golden")


def test_little_data_starts_no_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"x": "1"}])
    monkeypatch.setattr(process_executor, "ProcessExecutor", None)
    assert import_records(path, tmp_path / "s", num_processes=0).spec["num_records"] == 1
    import_records(path, tmp_path / "alone", num_processes=1)
    monkeypatch.setattr(driver, "_NBYTES_ALONE", 10)
    with pytest.raises(TypeError, match="not callable"):
        import_records(path, tmp_path / "large", num_processes=0)


def test_a_refused_import_without_finished_partitions_leaves_nothing(tmp_path: Path) -> None:
    source = ListFiles({"a": [[{"x": "1"}]]})
    source.broken = {0}
    with pytest.raises(SourceError, match="part 0 is broken"):
        import_records(source, tmp_path / "s")
    assert not list(tmp_path.iterdir())


def test_an_import_without_finished_partitions_is_replaced(tmp_path: Path) -> None:
    begin_import(tmp_path / "s", {"source": "of a process that was killed"})
    assert (tmp_path / "s" / IMPORT_KEY).exists()
    store = import_records(OTHER, tmp_path / "s")
    golden = import_records(OTHER, tmp_path / "golden")
    assert store.fingerprint == golden.fingerprint
    assert all_files(tmp_path / "s") == all_files(tmp_path / "golden")


def test_one_that_still_runs_finds_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another import begins and ends while the first one reads its first part."""
    golden = import_records(OTHER, tmp_path / "golden")
    right = partitions.read_partition

    def meanwhile(source: Any, root: Place, partition: Any, settings: Any) -> Any:
        monkeypatch.setattr(partitions, "read_partition", right)
        begin_other(root)
        return right(source, root, partition, settings)

    def begins(root: Place) -> None:
        identity = {"source": "b"}
        Claim(root, identity).take(restart=False)
        begin_import(root, identity)

    first = ListFiles({"a": [[{"x": "1"}], [{"x": "2"}]]})
    begin_other: Any = begins
    monkeypatch.setattr(partitions, "read_partition", meanwhile)
    with pytest.raises(
        FingerprintMismatchError,
        match="s must have one import at a time, another one has begun there; what differs: ",
    ):
        import_records(first, tmp_path / "s", client=SerialExecutor())
    # One that has finished already is not harmed, and what the slower one left does no harm.
    begin_other = lambda root: import_records(OTHER, root, client=SerialExecutor())  # noqa: E731
    monkeypatch.setattr(partitions, "read_partition", meanwhile)
    with pytest.raises(FingerprintMismatchError, match="its data or settings differ; "):
        import_records(first, tmp_path / "t", client=SerialExecutor())
    store = import_records(OTHER, tmp_path / "t")
    assert store.fingerprint == golden.fingerprint
    assert all_files(tmp_path / "t") == all_files(tmp_path / "golden")
