"""How the tests of examples run them."""

import os
import subprocess
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(command: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(EXAMPLES.parent)},
    )
