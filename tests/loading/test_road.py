"""The modules that the next batch of a blend passes through."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import zindex
from tests.conftest import FakeTokenizer, WriteCorpus
from zindex.execution.executor import SerialExecutor
from zindex.loading.loader import loader

ROOT = str(Path(zindex.__file__).parent)
MAX_FILES = 12


@pytest.mark.parametrize(
    ("spans_before_kernel", "num_batches"), [(1 << 60, 1), (0, 60)], ids=["first", "kernel"]
)
def test_a_batch_of_a_blend_passes_through_few_files(
    spans_before_kernel: int,
    num_batches: int,
    tmp_path: Path,
    write_corpus: WriteCorpus,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Count the files of zindex in which a function is called for one batch."""
    monkeypatch.setattr("zindex.store.reader.SPANS_BEFORE_KERNEL", spans_before_kernel)
    # Leases of other tests' maps, which are checked now and then, are not of a batch.
    monkeypatch.setattr("zindex.store.open_files.FileTable._drop_broken", lambda table: None)
    paths = []
    for number in range(2):
        prefix = write_corpus([50, 30, 70, 10] * 40, name=f"corpus-{number}")
        paths.append(f"{prefix}.zarr")
        zindex.convert(prefix, paths[-1], client=SerialExecutor())
    run = {
        "index": str(tmp_path / "index"),
        "sequence_length": 16,
        "seed": 1,
        "split": "99,1,0",
        "datasets": [{"path": path, "weight": 1 + i} for i, path in enumerate(paths)],
        "samples": {"train": 800},
    }
    batches = iter(loader(run, FakeTokenizer(), micro_batch_size=8, prefetch=0))
    for _ in range(num_batches):
        next(batches)
    files = set()

    def record(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ROOT):
            files.add(frame.f_code.co_filename.removeprefix(ROOT))

    sys.setprofile(record)
    try:
        next(batches)
    finally:
        sys.setprofile(None)
    assert len(files) <= MAX_FILES, "\n".join(sorted(files))
    assert ("/kernels/batches.py" in files) == (spans_before_kernel == 0)
