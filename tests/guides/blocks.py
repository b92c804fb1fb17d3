"""Fenced code blocks of a Markdown guide, run in order.

Blocks of ``sh`` run in a shell, and each ``python`` block in a process of its own. A ``yaml`` block
whose first line is a comment that begins with a file name is written to that file. Blocks marked
``no-run`` and blocks of other languages are skipped.

The first command of zindex in a guide starts an interpreter, whose exit may fail as that of a fork
may not; the others are forks.
"""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory

from tests.forked import WITHOUT_MEGATRON, run_python

_BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"# ([\w./-]+\.yaml)\b")

# The shell writes the words of commands that are forks into one pipe, and reads their exit codes
# from another one; at its end it writes nothing.
_COMMANDS = """
zindex() {
    local code
    if [ -n "${_ZINDEX_COMPLETE-}" ] || rm "$ZINDEX_PIPES/is_first" 2> /dev/null; then
        command zindex "$@"
        return
    fi
    printf '%s\\0' "$BASHPID" "$PWD" "$@" > "$ZINDEX_PIPES/words"
    read -r code < "$ZINDEX_PIPES/codes"
    return "$code"
}
trap ': > "$ZINDEX_PIPES/words"' EXIT
"""


def run_blocks(guide: Path, folder: Path, environment: Mapping[str, str]) -> None:
    """Run the blocks of a guide in a folder; fail with the first command that fails."""
    with TemporaryDirectory() as pipes:
        for name in ("words", "codes"):
            os.mkfifo(Path(pipes, name))
        Path(pipes, "is_first").touch()
        for language, marks, body in _BLOCK.findall(guide.read_text(encoding="utf-8")):
            if "no-run" in marks:
                continue
            if language == "yaml" and (named := _FILE_NAME.match(body)):
                (folder / named[1]).write_text(body, encoding="utf-8")
            elif language == "python":
                done = run_python("-c", WITHOUT_MEGATRON + body, env=environment, cwd=folder)
            elif language == "sh":
                done = run_shell(body, folder, {**environment, "ZINDEX_PIPES": pipes})
            if language in ("python", "sh"):
                said = f"{body}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
                assert done.returncode == 0, said
                assert "Exception ignored" not in done.stderr, said


def run_shell(body: str, folder: Path, environment: Mapping[str, str]) -> CompletedProcess[str]:
    """Run commands in a shell until it ends."""
    command = ["bash", "-euo", "pipefail", "-c", _COMMANDS + body]
    pipes = environment["ZINDEX_PIPES"]
    words, codes, printed, errors = (Path(pipes, name) for name in ("words", "codes", "1", "2"))
    with printed.open("wb") as stdout, errors.open("wb") as stderr:
        shell = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
    while request := words.read_text():
        process, place, *arguments = request.split("\0")[:-1]
        code = "from zindex.cli import main; main()"
        done = run_python("-c", code, *arguments, env=environment, cwd=Path(place))
        for number, text in ((1, done.stdout), (2, done.stderr)):
            with open(f"/proc/{process}/fd/{number}", "a") as stream:
                stream.write(text)
        codes.write_text(f"{done.returncode}\n")
    return CompletedProcess(command, shell.wait(), printed.read_text(), errors.read_text())
