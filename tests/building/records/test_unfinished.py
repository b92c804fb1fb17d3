"""What is left of an import that failed: it blocks no other one for good."""

from pathlib import Path
from typing import Any

import pytest

from tests.building.records.sources import ListFiles, write_jsonl
from tests.store.conftest import objects  # noqa: F401
from tests.store.stores import all_files
from zindex.building.executor import SerialExecutor
from zindex.building.records import import_records as module
from zindex.building.records import record_files
from zindex.building.records.import_records import import_records
from zindex.building.records.unfinished import check_unfinished
from zindex.errors import FingerprintMismatchError, SourceError
from zindex.store.files import list_names, read_file
from zindex.store.layout import ChunkGrid
from zindex.store.objects import Place
from zindex.store.record_reader import RecordReader
from zindex.store.scratch import IMPORT_KEY, begin_import

OTHER = ListFiles({"b": [[{"y": 1}, {"y": 2}]]})


@pytest.fixture
def failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of an import that has failed at its second part."""
    monkeypatch.setattr(module, "_MAX_PARTS", 1)
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
    commit = module.commit_store

    def fail(*arguments: Any) -> None:
        raise OSError("no commit")

    monkeypatch.setattr(module, "commit_store", fail)
    with pytest.raises(OSError, match="no commit"):
        import_records(ListFiles({"a": [[{"x": "1"}]]}), tmp_path / "s")
    monkeypatch.setattr(module, "commit_store", commit)
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
    check_unfinished(tmp_path / "s", {}, restart=True)
    assert {path for path in (tmp_path / "s").rglob("*") if path.is_file()} == before


def test_what_is_no_import_is_never_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s" / "mine").mkdir(parents=True)
    with pytest.raises(FingerprintMismatchError, match="must be empty or a zindex store"):
        import_records(OTHER, tmp_path / "s", restart=True)
    (tmp_path / "s" / "mine").rmdir()
    begin_import(tmp_path / "s", {"source": "a"})
    monkeypatch.setattr(
        "zindex.building.records.unfinished.read_plan",
        lambda root: {"kind": "tokens", "arrays": [{"name": "tokens"}]},
    )
    with pytest.raises(
        FingerprintMismatchError, match="it holds an unfinished store of kind 'tokens'; choose"
    ):
        check_unfinished(tmp_path / "s", {}, restart=True)
    assert (tmp_path / "s" / IMPORT_KEY).exists()


def test_an_import_that_just_finished_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zindex.store.files.exists", lambda path: True)
    check_unfinished(tmp_path, {"source": "a"}, restart=False)


def test_in_an_object_store(
    objects: Place,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin_import(objects, {"source": "a"})
    check_unfinished(objects, {"source": "b"}, restart=True)
    begin_import(objects, {"source": "b"})
    assert read_file(objects / IMPORT_KEY) == b'{"source":"b"}'
    check_unfinished(objects, {}, restart=True)
    monkeypatch.setattr(module, "commit_store", None)
    with pytest.raises(TypeError, match="not callable"):
        import_records(ListFiles({"a": [[{"x": "1"}]]}), objects, client=SerialExecutor())
    assert "x_value" in list_names(objects)
    check_unfinished(objects, {}, restart=True)
    assert list_names(objects) == set()


@pytest.mark.parametrize("least_nbytes", [256, 700])
def test_another_number_of_processes_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least_nbytes: int
) -> None:
    """Also where another version would give each task more to read."""
    path = write_jsonl(tmp_path / "a.jsonl", [{"x": "y" * (i % 9)} for i in range(400)])
    golden = import_records(path, tmp_path / "golden", client=SerialExecutor())
    monkeypatch.setattr(record_files, "_LEAST_NBYTES", 256)
    right, read = module.read_portion, list[str]()

    def die(source: Any, root: Place, portion: Any, settings: Any) -> Any:
        if len(read) == 20:
            raise OSError("the machine died")
        read.append(portion.name)
        return right(source, root, portion, settings)

    monkeypatch.setattr(module, "read_portion", die)
    with pytest.raises(OSError, match="the machine died"):
        import_records(path, tmp_path / "s", client=SerialExecutor())
    monkeypatch.setattr(module, "read_portion", right)
    monkeypatch.setattr(record_files, "_LEAST_NBYTES", least_nbytes)
    notes = {path.stem for path in tmp_path.glob("s/_zindex/scratch/*.json")}
    assert notes == set(read)
    store = import_records(path, tmp_path / "s", num_processes=2)
    assert store.fingerprint == golden.fingerprint
    assert all_files(tmp_path / "s") == all_files(tmp_path / "golden")


def test_one_without_a_finished_part_gives_way(tmp_path: Path) -> None:
    source = ListFiles({"a": [[{"x": "1"}]]})
    source.broken = {0}
    with pytest.raises(SourceError, match="part 0 is broken"):
        import_records(source, tmp_path / "s")
    assert (tmp_path / "s" / IMPORT_KEY).exists()
    store = import_records(OTHER, tmp_path / "s")
    golden = import_records(OTHER, tmp_path / "golden")
    assert store.fingerprint == golden.fingerprint
    assert all_files(tmp_path / "s") == all_files(tmp_path / "golden")


def test_one_that_still_runs_finds_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another import begins and ends while the first one reads its first part."""
    golden = import_records(OTHER, tmp_path / "golden")
    right = module.read_portion

    def meanwhile(source: Any, root: Place, portion: Any, settings: Any) -> Any:
        monkeypatch.setattr(module, "read_portion", right)
        begin_other(root)
        return right(source, root, portion, settings)

    def begins(root: Place) -> None:
        identity = {"source": "b"}
        check_unfinished(root, identity, restart=False)
        begin_import(root, identity)

    first = ListFiles({"a": [[{"x": "1"}], [{"x": "2"}]]})
    begin_other: Any = begins
    monkeypatch.setattr(module, "read_portion", meanwhile)
    with pytest.raises(
        FingerprintMismatchError,
        match="s must be one import's alone, another one has begun there meanwhile; what differs: ",
    ):
        import_records(first, tmp_path / "s", client=SerialExecutor())
    # One that has finished already is not harmed, and what the slower one left does no harm.
    begin_other = lambda root: import_records(OTHER, root, client=SerialExecutor())  # noqa: E731
    monkeypatch.setattr(module, "read_portion", meanwhile)
    with pytest.raises(FingerprintMismatchError, match="its data or settings differ; choose"):
        import_records(first, tmp_path / "t", client=SerialExecutor())
    store = import_records(OTHER, tmp_path / "t")
    assert store.fingerprint == golden.fingerprint
    assert all_files(tmp_path / "t") == all_files(tmp_path / "golden")
