"""The folders of ``cluster/``: what their pages name is there, and what they show can be read."""

import os
import re
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.cluster.systems.watched import FOLDERS

SYSTEMS = sorted(path.parent for path in FOLDERS.glob("*/README.md"))
SCRIPTS = sorted([*FOLDERS.glob("*/*.sh"), *FOLDERS.glob("*/*.sbatch")])


def test_every_folder_has_its_page() -> None:
    assert sorted(path for path in FOLDERS.iterdir() if path.is_dir()) == SYSTEMS
    names = {"kubernetes", "mpi", "skypilot", "slurm", "ssh", "torchrun"}
    assert {path.name for path in SYSTEMS} == names


@pytest.mark.parametrize("folder", SYSTEMS, ids=lambda path: path.name)
def test_a_page_names_each_file_and_only_files(folder: Path) -> None:
    page = (folder / "README.md").read_text()
    files = {path.name for path in folder.iterdir()} - {"README.md"}
    assert not {name for name in files if name not in page}
    named = set(re.findall(r"[\w-]+\.(?:sbatch|sh|yaml|env)\b", page)) - {"run.yaml"}
    assert named <= files
    for link in re.findall(r"\]\((?!http)([^)]+)\)", page):
        assert (folder / link).exists()


@pytest.mark.parametrize("folder", SYSTEMS, ids=lambda path: path.name)
def test_python_of_a_page_is_python(folder: Path) -> None:
    page = (folder / "README.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        compile(textwrap.dedent(block), str(folder), "exec")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(FOLDERS)))
def test_scripts_can_be_read(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert script.read_text().startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in script.read_text()
    assert script.suffix == ".sbatch" or os.access(script, os.X_OK)
