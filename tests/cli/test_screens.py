"""Screens of every kind of terminal: narrow ones, and those without colour."""

from pathlib import Path

import pytest

from tests.cli.commands import invoke, succeed


@pytest.mark.parametrize(
    "command",
    [
        "plan run.yaml",
        "info run.yaml web",
        "ls .",
        "show web --document 1",
        "trace run.yaml --position 0:2",
        "find run.yaml --dataset web --document 1",
        "diff run.yaml run.yaml",
    ],
)
def test_screens_fit_50_columns(
    command: str, run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    result = invoke(*command.split())
    assert result.exit_code in (0, 1), result.output
    lines = result.stdout.splitlines()
    # A sentence may wrap, a table may not; paths are not broken.
    indented = [line for line in lines if line.startswith("  ") and " " in line.strip()]
    wide = [line for line in indented if len(line) > 50]
    assert lines
    assert not wide


def test_no_color(run_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from click.testing import CliRunner

    from zindex.cli import main

    (tmp_path / "a.jsonl").write_text('{"text": [1, 2], "text_mask": [0, 1]}\n')
    succeed("convert", "a.jsonl", "a", "--dtype", "text=int32", "--dtype", "text_mask=int8")
    command = ["show", "a", "--record", "0"]
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in CliRunner().invoke(main, command, color=True).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in CliRunner().invoke(main, command, color=True).stdout
    assert invoke(*command).exit_code == 0
