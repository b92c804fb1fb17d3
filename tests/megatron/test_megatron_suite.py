"""The runner of Megatron's own tests, on a made-up checkout."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.megatron.megatron_suite import FOLDER, find_reason, main

ROOT = Path(__file__).parents[2]

CONFTEST = """
import pytest
from tests.test_utils.python_scripts.download_unit_tests_dataset import download_and_extract_asset

@pytest.fixture(autouse=True, scope="session")
def ensure_test_data():
    with pytest.raises(RuntimeError, match="downloads nothing"):
        download_and_extract_asset()
"""

TEST = """
import pytest
import torch
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.core.datasets.utils import Split

def test_passes(tmp_path):
    assert IndexedDataset.__module__ == Split.__module__.replace("utils", "indexed_dataset")
    torch.cuda.set_device(0)
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group(backend="nccl", rank=0, world_size=1, store=store)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()

@pytest.mark.parametrize("number", range(3))
def test_fails_for_2(number):
    assert number < 2
"""


def write_checkout(folder: Path) -> Path:
    """Write a checkout of one test that passes, one that fails and a file that is left out."""
    tests = folder / FOLDER
    tests.mkdir(parents=True)
    scripts = folder / "tests" / "test_utils" / "python_scripts"
    scripts.mkdir(parents=True)
    for package in (folder / "tests", scripts.parent, scripts, tests.parent, tests):
        (package / "__init__.py").touch()
    (tests.parent / "conftest.py").write_text(CONFTEST)
    (tests / "test_small.py").write_text(TEST)
    (tests / "test_get_batch.py").write_text("raise RuntimeError")
    (tests / "test_broken.py").write_text("import there_is_no_such_module")
    return folder


@pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs megatron-core")
def test_made_up_checkout(tmp_path: Path) -> None:
    checkout = write_checkout(tmp_path / "checkout")
    command = [sys.executable, "-m", "tests.megatron.megatron_suite", str(checkout), "-q"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    settings = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(
        command, capture_output=True, text=True, env=settings, cwd=tmp_path, timeout=200
    )
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert "test_small.py: 1 failed, 3 passed" in lines
    assert "test_broken.py: 1 not importable" in lines
    assert (
        "test_get_batch.py: left out: tests how Megatron's training loop deals batches to ranks "
        "on CUDA" in lines
    )
    assert "answered by zindex: indexed_dataset, utils" in lines
    assert "Megatron's own: none" in lines


def test_nothing_to_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "python -m tests.megatron.megatron_suite CHECKOUT" in capsys.readouterr().out
    assert main([str(tmp_path)]) == 2
    assert f"CHECKOUT must be one of Megatron-LM, which has {FOLDER}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("test_builder.py", None),
        ("test_multimodal_dataset.py", None),
        ("test_multimodal_dataloader_provider.py", "tests examples/multimodal"),
        ("test_file_bin_reader.py", None),
        ("test_file_bin_reader.py::test_matches_mmap", None),
        ("test_file_bin_reader.py::test_truncated_file_raises_without_retry", "an EOFError"),
    ],
)
def test_reasons(name: str, reason: str | None) -> None:
    found = find_reason(name)
    assert found is None if reason is None else reason in (found or "")


def test_needs_are_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    needs = {"test_fim_dataset.py": ("pytest", "there_is_no_such_module", str(tmp_path / "data"))}
    monkeypatch.setattr("tests.megatron.megatron_suite.NEEDS", needs)
    assert (
        find_reason("test_fim_dataset.py") == f"needs there_is_no_such_module and {tmp_path}/data"
    )
    assert find_reason("test_gpt_dataset.py") is None
