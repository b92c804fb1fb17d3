"""Every command and every example of the guides, in the folder that the quickstart writes."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from examples.guide_files import write_guide_files
from tests.guides.blocks import run_blocks

ROOT = Path(__file__).parents[2]
GUIDES = sorted(ROOT.glob("zindex/*/README.md"))


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sandbox") / "guides"
    write_guide_files(folder)
    return folder


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.parent.name)
def test_guide(guide: Path, sandbox: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sandbox"
    shutil.copytree(sandbox, folder)
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    run_blocks(guide, folder, environment)


def test_guides_are_found() -> None:
    names = {path.parent.name for path in GUIDES}
    assert names >= {"ingest", "indexing", "loading", "streaming", "keyed", "maintenance", "store"}
