"""Calls of the command line as in a terminal, and what they print."""

from click.testing import CliRunner, Result

from zindex.cli import main


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


def succeed(*arguments: object) -> str:
    """Run a command that must succeed, and return what it printed."""
    result = invoke(*arguments)
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    return result.stdout


def fail(*arguments: object) -> str:
    """Run a command that must fail with one line, and return that line."""
    result = invoke(*arguments)
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)
    lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert lines == result.stderr.splitlines()[-1:]
    return lines[0]
