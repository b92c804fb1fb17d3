"""Errors in a terminal: options as they are typed, places as they are, and how to go on."""

from pathlib import Path

import pytest

from tests.cli.commands import fail, invoke, succeed


@pytest.fixture(autouse=True)
def _working_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("convert web web.zarr --chunk-length -3", "--shard-length or --shard-nbytes must be at"),
        (
            "convert web web.zarr --shard-length 7",
            "multiple of --chunk-length or --chunk-nbytes, got 7",
        ),
        ("merge web web.zarr out", "pass --to bin or --to zarr"),
        ("show web", "one of --document, --sample and --record, got 0; name one"),
        ("trace run.yaml", "trace needs --step or --position, one of the two"),
        ("trace run.yaml --step 1", "got none; give --global-batch-size"),
        ("trace run.yaml --step 1 --global-batch-size 0", "--global-batch-size must be a whole"),
        ("find run.yaml", "find needs one of --document, --id and --text; name one"),
        ("find run.yaml --document 1", "a document needs --dataset, got none; name it"),
        ("diff run.yaml", "give two runs, or loader states as --state"),
        ("edit run.yaml --drop web", "got none; give the consumed samples as --at"),
        (
            "import texts.jsonl out --part-nbytes 0",
            "--part-nbytes must be a whole number of at least 1, got 0",
        ),
        (
            "import texts.jsonl out --chunk-nbytes 0",
            "--chunk-nbytes and --shard-nbytes must be at least 1",
        ),
        ("export-cache run.yaml --tokenizer t.json --dataset-path x=y", "--dataset-path must name"),
    ],
)
def test_options_are_named_as_they_are_typed(
    arguments: str, message: str, run_file: Path, tmp_path: Path
) -> None:
    succeed("convert", "web", "web.zarr")
    (tmp_path / "texts.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "t.json").write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    line = fail(*arguments.split())
    assert message in line
    assert "(--" not in line
    assert sorted(tmp_path.rglob("*")) == before


def test_files_that_exist_are_replaced_by_the_option(run_file: Path) -> None:
    succeed("convert", "web", "web.zarr")
    line = fail("export", "web.zarr", "web")
    assert line.endswith("/web.bin exists; choose another prefix, or replace it with --overwrite")


@pytest.mark.parametrize(
    "arguments",
    [
        "plan {url}/run.yaml",
        "trace {url}/run.yaml --position 1:2",
        "edit {url}/run.yaml",
        "tokenize texts.jsonl out --for pretrain --tokenizer {url}/tokenizer.json",
        "convert web out.zarr --tokenizer {url}/tokenizer.json",
        "cluster up {url}/cluster",
        "cluster status {url}/cluster",
        "build run.yaml --timeline {url}/trace.json",
    ],
)
def test_urls_where_paths_are_needed(arguments: str, run_file: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "a"}\n')
    line = fail(*arguments.format(url="s3://nobucket/a").split())
    assert "must be a path or a file:// URL, got scheme 's3'" in line
    assert "s3:/n" not in line
    assert not (tmp_path / "s3:").exists()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("plan none.yaml", "a run needs its YAML file, cannot read none.yaml: No such file or"),
        ("convert web run.yaml/x", "run.yaml/x/_zindex: Not a directory; check the path"),
        ("convert web /proc/out.zarr", "/proc/out.zarr does not exist, or its folder does not"),
        ("bench run.yaml/x --seconds 1", "run.yaml/x must be a place to write indices to, it is"),
    ],
)
def test_system_errors_name_the_path_once(
    arguments: str, line: str, run_file: Path, tmp_path: Path
) -> None:
    succeed("convert", "web", "web.zarr")
    found = fail(*arguments.split())
    assert line.format(tmp_path) in found
    assert "Errno" not in found
    assert found.count(arguments.split()[1]) <= 2


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("export store", "Missing argument 'TARGET'"),
        ("convert web", "Missing argument 'STORE'"),
        ("merge web", "Missing argument 'TARGET'"),
        ("import web.jsonl", "Missing argument 'TARGET'"),
        ("tokenize web.jsonl --for sft", "Missing argument 'TARGET'"),
        ("convert", "Missing argument 'SOURCE...'"),
    ],
)
def test_a_missing_target_is_named(command: str, what: str) -> None:
    result = invoke(*command.split())
    assert result.exit_code == 2
    assert what in result.stderr


def test_a_corpus_that_is_named_twice_is_warned_of(run_file: Path, tmp_path: Path) -> None:
    warning = "web and {}/./web are the same corpus, whose documents count twice"
    run_file.write_text(run_file.read_text().replace("path: code", "path: ./web"))
    for command in ("plan", "build"):
        result = invoke(command, run_file)
        assert result.exit_code == 0
        assert result.stderr.count(warning.format(tmp_path)) == 1
    (tmp_path / "link.bin").symlink_to("web.bin")
    assert "web and web are the same corpus" in invoke("merge", "web", "web", "two").stderr
    assert "same corpus" not in invoke("merge", "web", "code", "both").stderr


def test_unknown_commands_are_answered() -> None:
    result = invoke("bulid")
    assert result.exit_code == 2
    assert "No such command 'bulid'" in result.stderr  # new versions of click suggest "build"
