"""Fenced code blocks of a Markdown guide, run in order.

Blocks of ``sh`` run in a shell, and each ``python`` block in a process of its own. A ``yaml`` block
whose first line is a comment that begins with a file name is written to that file. Blocks marked
``no-run`` and blocks of other languages are skipped.
"""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.forked import WITHOUT_MEGATRON, run_python

_BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"# ([\w./-]+\.yaml)\b")


def run_blocks(guide: Path, folder: Path, environment: Mapping[str, str]) -> None:
    """Run the blocks of a guide in a folder; fail with the first command that fails."""
    for language, marks, body in _BLOCK.findall(guide.read_text(encoding="utf-8")):
        if "no-run" in marks:
            continue
        if language == "yaml" and (name := _FILE_NAME.match(body)):
            (folder / name[1]).write_text(body, encoding="utf-8")
        elif language == "python":
            done = run_python("-c", WITHOUT_MEGATRON + body, env=environment, cwd=folder)
        elif language == "sh":
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", body],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
        if language in ("python", "sh"):
            said = f"{body}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
            assert done.returncode == 0, said
            assert "Exception ignored" not in done.stderr, said
