"""Fenced code blocks of a Markdown guide as one shell script that runs them in order.

Blocks of ``sh`` run as they are, and each ``python`` block in its own interpreter. A ``yaml`` block
whose first line is a comment that begins with a file name is written to that file. Blocks marked
``no-run`` and blocks of other languages are skipped.
"""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

_BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"# ([\w./-]+\.yaml)\b")


def make_script(guide: Path) -> str:
    """Return the shell script of a guide; it stops at the first command that fails."""
    return "\n".join(["set -euo pipefail", *_commands(guide.read_text(encoding="utf-8"))])


def _commands(text: str) -> Iterator[str]:
    for language, marks, body in _BLOCK.findall(text):
        if "no-run" in marks:
            continue
        if language == "sh":
            yield body
        elif language == "python":
            yield _here_document(shlex.quote(sys.executable), body)
        elif language == "yaml" and (name := _FILE_NAME.match(body)):
            yield _here_document(f"cat > {name[1]}", body)


def _here_document(command: str, body: str) -> str:
    return f"{command} <<'END-OF-BLOCK'\n{body}END-OF-BLOCK"
