"""How the tests of examples run them."""

import os
from subprocess import CompletedProcess

from tests.forked import ROOT, run_python

EXAMPLES = ROOT / "examples"


def run_example(name: str, *arguments: object) -> CompletedProcess[str]:
    command = [str(EXAMPLES / f"{name}.py"), *map(str, arguments)]
    return run_python(*command, env=os.environ | {"PYTHONPATH": str(ROOT)}, forks=True)
