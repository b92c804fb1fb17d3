"""Stores of records and of keyed tokens are rebuilt from their files."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import succeed
from tests.ingest.keyed.keyed_files import (
    grpo_records,
    sft_records,
    write_bin,
    write_h5,
    write_lines,
)
from tests.ingest.records.sources import ListFiles
from tests.sources.archives import write_jsonl, write_tar
from tests.text.small_tokenizer import save_tokenizer
from tests.trees import all_files
from zindex.errors import ConfigError, FingerprintMismatchError
from zindex.execution.executor import SerialExecutor
from zindex.ingest.corpora.tokenize_corpus import tokenize_corpus
from zindex.ingest.keyed.convert_keyed import convert_keyed
from zindex.ingest.merge import export
from zindex.ingest.records.import_records import import_records
from zindex.maintenance.repairs.repair import repair
from zindex.store.layout import ChunkGrid
from zindex.store.verify import verify_store

SERIAL = SerialExecutor()
SOURCES = ["jsonl", "tar", "jsonl zstd", "keyed h5", "keyed bin", "keyed zstd", "keyed jsonl"]


def make_store(kind: str, folder: Path) -> str:
    """Write a source and its store ``s``; return the path of the source."""
    grid = ChunkGrid(32, 128, "zstd" if "zstd" in kind else "none")
    settings: dict[str, Any] = {}
    if kind.startswith("keyed"):
        if kind == "keyed jsonl":
            path = write_lines(folder / "in/a.jsonl", [*grpo_records()[0], {}])
            settings["on_damage"] = "skip"
        else:
            path = (write_h5 if kind == "keyed h5" else write_bin)(folder / "in", grpo_records())
        convert_keyed(path, folder / "s", grid=grid, client=SERIAL, **settings)
    elif kind == "tar":
        path = write_tar(folder / "in/a.tar", [(f"{i}.id", b"x" * i) for i in range(40)])
        write_jsonl(folder / "in/a.meta.jsonl", [{"key": str(i), "c": i} for i in range(40)])
        import_records(path, folder / "s", client=SERIAL, grid=grid, meta_names=["c"])
    else:
        path = write_jsonl(folder / "in/a.jsonl", [{"x": "é" * i, "n": [i]} for i in range(40)])
        with path.open("a") as stream:
            stream.write("no JSON\n")
        settings = {"dtypes": {"n": "int16"}, "fields": ["n", "x"], "on_damage": "skip"}
        import_records(path, folder / "s", client=SERIAL, grid=grid, **settings)
    return str(path)


@pytest.mark.parametrize("kind", SOURCES)
def test_damaged_files_are_rebuilt(kind: str, tmp_path: Path) -> None:
    source, root = make_store(kind, tmp_path), tmp_path / "s"
    before = all_files(root)
    shards = [key for key in before if "/c/" in key]
    for key in (*shards[::4], "_zindex/manifest.json"):
        path = root / key
        path.write_bytes(path.read_bytes()[:-1])
    assert not verify_store(root).is_sound
    [result] = repair(root, source=source)
    assert result.num_rebuilt == len(shards[::4])
    assert all_files(root) == before
    (root / "zarr.json").write_bytes(b"")
    succeed("repair", root, "--source", source)
    assert all_files(root) == before


@pytest.mark.parametrize("kind", ["jsonl", "tar"])
def test_files_must_be_named_and_the_same(kind: str, tmp_path: Path) -> None:
    source, root = make_store(kind, tmp_path), tmp_path / "s"
    (root / "key_text/c/0").unlink()
    with pytest.raises(ConfigError, match="was imported from files, which must be named to repair"):
        repair(root)
    content = Path(source).read_bytes()
    Path(source).write_bytes(content * (2 if kind == "jsonl" else 1) + b"\0" * 512)
    with pytest.raises(
        FingerprintMismatchError, match=r"must be what .* was imported from, it gives"
    ):
        repair(root, source=source)


def test_keyed_files_must_be_named_and_the_same(tmp_path: Path) -> None:
    make_store("keyed bin", tmp_path)
    (tmp_path / "s/rewards_value/c/0").unlink()
    with pytest.raises(ConfigError, match="was converted from keyed files, which must be named to"):
        repair(tmp_path / "s")
    other = write_bin(tmp_path / "other", sft_records())
    with pytest.raises(FingerprintMismatchError, match=r"must be what .* was converted from, it"):
        repair(tmp_path / "s", source=str(other))


def test_records_of_no_files_cannot_be_rebuilt(tmp_path: Path) -> None:
    import_records(ListFiles({"a": [[{"x": 1}]]}), tmp_path / "s", client=SERIAL)
    (tmp_path / "s/key_text/c/0").unlink()
    with pytest.raises(ConfigError, match="or import them again at another place"):
        repair(tmp_path / "s", source="a.jsonl")


def test_fields_of_documents_are_copied_or_kept(tmp_path: Path) -> None:
    rows = [{"text": f"text {i}", "id": f"d{i}"} for i in range(40)]
    source = write_jsonl(tmp_path / "a.jsonl", rows)
    settings: Any = {"tokenizer": save_tokenizer(tmp_path / "t"), "client": SERIAL}
    root, copy = tmp_path / "s", tmp_path / "copy"
    for place in (root, copy):
        tokenize_corpus(source, place, **settings)
    export(root, tmp_path / "pair", client=SERIAL)
    before = all_files(root)
    # A pair has the tokens, and the store keeps the fields.
    (root / "tokens/c/0").unlink()
    (root / "document_offset/c/0").write_bytes(b"")
    [result] = repair(root, source=str(tmp_path / "pair"))
    assert result.num_rebuilt == 2
    assert all_files(root) == before
    (root / "document_id_value/c/0").unlink()
    with pytest.raises(ConfigError, match=r"a .bin/.idx pair has no fields of documents; tokenize"):
        repair(root, source=str(tmp_path / "pair"))
    with pytest.raises(ConfigError, match="which must be named to repair it"):
        repair(root)
    (root / "_zindex/manifest.json").write_bytes(b"")
    [result] = repair(root, source=str(copy))
    assert result.num_rebuilt == 1
    assert all_files(root) == before
