"""Exit codes of every command, and the completion of the shell."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from tests.cli.commands import invoke
from tests.forked import run_python
from zindex.cli import main
from zindex.errors import ConfigError


def list_commands(group: click.Group, *names: str) -> list[tuple[tuple[str, ...], click.Command]]:
    """Return the commands of a group and of its groups, by their names."""
    found: list[tuple[tuple[str, ...], click.Command]] = []
    for name, command in sorted(group.commands.items()):
        path = (*names, name)
        is_group = isinstance(command, click.Group)
        found += list_commands(command, *path) if is_group else [(path, command)]
    return found


COMMANDS = list_commands(main)
EVERY = pytest.mark.parametrize(
    ("names", "command"), COMMANDS, ids=[" ".join(names) for names, _ in COMMANDS]
)


def replace_work(
    command: click.Command, monkeypatch: pytest.MonkeyPatch, error: BaseException | None
) -> None:
    """Let a command take no arguments, and raise an error or nothing."""

    def work(context: click.Context) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(command, "parse_args", lambda context, arguments: arguments)
    monkeypatch.setattr(command, "invoke", work)


@EVERY
@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (None, 0, ""),
        (ConfigError("x must be y"), 1, "Error: x must be y\n"),
        (PermissionError(13, "Permission denied", "a"), 1, "Error: the system refuses a: Perm"),
        (KeyboardInterrupt(signal.SIGINT), 130, "\ninterrupted"),
        (KeyboardInterrupt(), 130, "\ninterrupted"),
        (KeyboardInterrupt(signal.SIGTERM), 143, "\nterminated"),
    ],
    ids=["0", "1", "1-system", "130", "130-plain", "143"],
)
def test_exit_codes(
    names: tuple[str, ...],
    command: click.Command,
    error: BaseException | None,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replace_work(command, monkeypatch, error)
    result = invoke(*names)
    assert result.exit_code == code
    assert result.stderr.startswith(said)


@EVERY
def test_wrong_usage_exits_with_2(names: tuple[str, ...], command: click.Command) -> None:
    if command.context_settings.get("ignore_unknown_options"):
        pytest.skip("passes its options on")
    result = invoke(*names, "--no-such-option")
    assert result.exit_code == 2
    assert "Error: " in result.stderr


def test_only_commands_that_resume_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("build", "bench"):
        replace_work(main.commands[name], monkeypatch, KeyboardInterrupt())
    assert "run the same command to resume" in invoke("build").stderr
    assert invoke("bench").stderr == "\ninterrupted\n"


BASH = """
eval "$(_ZINDEX_COMPLETE=bash_source zindex)"
COMP_WORDS=(zindex {words}) COMP_CWORD={number} COMPREPLY=()
$(complete -p zindex | sed 's/.*-F \\([^ ]*\\) .*/\\1/') zindex
echo "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("words", "found"),
    [("bui", "build"), ("build --clu", "--cluster --cluster-folder --cluster-host"),
     ("merge --to ''", "bin zarr")],
)  # fmt: skip
def test_bash_completes(words: str, found: str) -> None:
    if shutil.which("bash") is None or not Path(sys.executable).with_name("zindex").exists():
        pytest.skip("needs bash and the installed command")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", BASH.format(words=words, number=len(words.split()))],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": path},
    )
    assert done.stdout.split() == found.split(), done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_of_the_guide_has_its_script(shell: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("_ZINDEX_COMPLETE", f"{shell}_source")
    with pytest.raises(SystemExit) as ended:
        main(prog_name="zindex")
    assert ended.value.code == 0


def test_an_interrupt_during_imports_has_no_traceback() -> None:
    code = """if True:
        import sys

        class Interrupting:
            def find_spec(self, name, path=None, target=None):
                if name == "zindex.cli.commands":
                    raise KeyboardInterrupt

        sys.meta_path.insert(0, Interrupting())
        sys.modules.pop("zindex.cli.commands", None), sys.modules.pop("zindex.cli", None)
        from zindex.cli import main
    """
    done = run_python("-c", code)
    assert (done.returncode, done.stderr) == (130, "")
