"""The commands convert and export on keyed files; those on corpora are in test_cli."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import fail, invoke, succeed
from tests.conftest import WriteCorpus
from tests.ingest.keyed.keyed_files import grpo_records, sft_records, write_bin, write_h5
from tests.ingest.keyed.keyed_files import write_lines as write_lines_of
from tests.trees import all_files


def write_lines(path: Path) -> Path:
    return write_lines_of(path, [row for part in sft_records() for row in part])


def test_folders_of_keyed_files_are_found_by_their_names(tmp_path: Path) -> None:
    source = write_bin(tmp_path / "in", sft_records())
    printed = succeed("convert", source, tmp_path / "s")
    assert printed == (
        f"{tmp_path}/s: 17 records of 4 files or folders, sequence (95 int32), "
        "loss_mask (95 bool)\n"
    )
    printed = succeed("export", tmp_path / "s", tmp_path / "back")
    assert printed == f"{tmp_path}/back: 4 files or folders\n"
    assert all_files(tmp_path / "back") == all_files(source)
    line = fail("export", tmp_path / "s", tmp_path / "back")
    assert "meta.json exists; choose another folder or pass --overwrite" in line or ".bin" in line
    succeed("export", tmp_path / "s", tmp_path / "back", "--overwrite")


def test_facts_as_json(tmp_path: Path) -> None:
    source = write_h5(tmp_path / "in", grpo_records())
    summary = json.loads(succeed("convert", source / "data_0000.h5", tmp_path / "s", "--json"))
    [fact] = summary["stores"]
    assert fact["num_records"] == 3
    assert fact["num_files"] == 1
    assert fact["has_records"]
    assert fact["keys"]["responses"] == {"dtype": "int64", "num_values": 10}
    assert list(fact["keys"]) == ["masks", "prompts", "responses", "rewards"]


def test_grid_and_codec_of_keyed_files(tmp_path: Path) -> None:
    source = write_h5(tmp_path / "in", sft_records())
    sizes = ("--codec", "zstd", "--chunk-nbytes", 16, "--shard-nbytes", 64)
    succeed("convert", source, tmp_path / "s", *sizes)
    metadata = json.loads((tmp_path / "s/sequence_value/zarr.json").read_text())
    assert metadata["chunk_grid"]["configuration"]["chunk_shape"] == [16]
    assert "zstd" in json.dumps(metadata["codecs"])


@pytest.mark.slow
def test_lines_by_processes(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl")
    succeed("convert", source, tmp_path / "s")
    succeed("convert", source, tmp_path / "t", "--processes", 1, "--kind", "jsonl")
    assert all_files(tmp_path / "s") == all_files(tmp_path / "t")


def test_lines_with_dtypes_and_damage(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl")
    source.write_text(source.read_text() + "damaged\n")
    options = ("--dtype", "sequence=uint16", "--on-damage", "skip", "--restart", "--processes", 1)
    printed = succeed("convert", source, tmp_path / "s", *options)
    assert printed == (
        f"{tmp_path}/s: 17 records of 1 file or folder, sequence (95 uint16); skipped: "
        "1 damaged line\n"
    )
    succeed("export", tmp_path / "s", tmp_path / "out", "--to", "jsonl")
    first = json.loads((tmp_path / "out/a.jsonl").read_text().splitlines()[0])
    assert first == {"sequence": [0, 1, 2]}


def test_several_files_of_lines(tmp_path: Path) -> None:
    one, other = write_lines(tmp_path / "b.jsonl"), write_lines(tmp_path / "a.jsonl")
    printed = succeed("convert", one, other, tmp_path / "s", "--processes", 1)
    assert printed.startswith(f"{tmp_path}/s: 34 records of 2 files or folders, ")
    succeed("export", tmp_path / "s", tmp_path / "out")
    assert sorted(all_files(tmp_path / "out")) == ["0-b.jsonl", "1-a.jsonl"]
    assert fail("convert", tmp_path / "s", tmp_path / "s", tmp_path / "t", "--kind", "h5")


def test_keys_that_do_not_match(tmp_path: Path) -> None:
    source = write_bin(tmp_path / "in", sft_records(), has_offsets=False)
    (source / "part/shard_3/meta.json").write_text('{"x": {"shape": [0], "dtype": "int8"}}')
    (source / "part/shard_3/x.bin").write_bytes(b"")
    assert "lacks 'loss_mask', 'sequence'" in fail("convert", source, tmp_path / "s")
    printed = succeed("convert", source, tmp_path / "s", "--loose")
    assert printed.startswith(f"{tmp_path}/s: values of 4 files or folders, ")
    line = fail("export", tmp_path / "s", tmp_path / "out", "--to", "jsonl")
    assert "must know where records begin to be written as lines" in line


def test_options_of_the_other_kind(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    prefix, source = write_corpus([3]), write_h5(tmp_path / "in", sft_records())
    for option in ("--loose", "--restart", "--dtype=x=int8", "--chunk-nbytes=8", "--processes=1"):
        line = fail("convert", prefix, tmp_path / "s", option)
        assert f"{option.split('=')[0]} must not come with corpus files" in line
    for option in ("--link", "--multimodal", "--chunk-length=8", "--shard-length=8"):
        line = fail("convert", source, tmp_path / "s", option)
        assert (
            f"{option.split('=')[0]} must not come with h5 files, for which it means nothing"
            in line
        )
    assert "must be one of bin, h5, jsonl, got 'zarr'" in fail(
        "convert", _corpus_store(prefix, tmp_path), tmp_path / "t"
    )
    line = fail("export", tmp_path / "corpus.zarr", tmp_path / "o", "--to", "bin")
    assert "must hold records, it holds tokens" in line


def _corpus_store(prefix: str, folder: Path) -> Path:
    """Convert a corpus."""
    succeed("convert", prefix, folder / "corpus.zarr", "--kind", "corpus")
    return folder / "corpus.zarr"


def test_a_folder_of_other_files_is_taken_for_a_prefix(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/readme.txt").write_text("")
    assert "in.idx" in fail("convert", tmp_path / "in", tmp_path / "s")


def test_places_that_cannot_be_written_to(tmp_path: Path) -> None:
    source = write_bin(tmp_path / "in", sft_records())
    (tmp_path / "file").touch()
    line = fail("convert", source, tmp_path / "file/s")
    assert line == (
        f"Error: the system refuses {tmp_path}/file/s/_zindex: Not a directory; check the path "
        "and its permissions"
    )


def test_lines_that_give_no_record(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"sequence": ["x"]}\n')
    options = ("--on-damage", "skip", "--processes", 1, "--dtype", "sequence=int32")
    result = invoke("convert", tmp_path / "a.jsonl", tmp_path / "s", *options)
    assert result.exit_code == 0
    assert (
        "s has no records: its source has none, or only damaged ones (skipped: 1)" in result.stderr
    )
    assert result.stdout == (
        f"{tmp_path}/s: 0 records of 1 file or folder, no values; skipped: 1 damaged line\n"
    )
    (tmp_path / "a.jsonl").write_text("")
    line = fail("convert", tmp_path / "a.jsonl", tmp_path / "t")
    assert line == f"Error: files must have lines, {tmp_path}/a.jsonl has none; name other files"
