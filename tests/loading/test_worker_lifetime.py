"""Loader workers end with the process that started them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Prints the worker's id and is killed; the worker waits for an item that never comes.
SCRIPT = """
import os, sys, time
import torch

class Items(torch.utils.data.Dataset):
    name, percent = "items", 1.0

    def __len__(self):
        return 8

    def __getitem__(self, index):
        with open(sys.argv[2], "w") as pipe:
            pipe.write(str(os.getpid()))
            pipe.flush()
            time.sleep(3600)

if __name__ == "__main__":
    from zindex.streaming import MergedDataset, mixed_collate
    from zindex.loading.reading import BatchReader, WorkerPool

    method, reader = sys.argv[1], sys.argv[3]
    if reader == "stream":
        loader = torch.utils.data.DataLoader(
            MergedDataset([Items()]), num_workers=1, collate_fn=mixed_collate,
            multiprocessing_context=method,
        )
        next(iter(loader))
    else:
        pool = WorkerPool(
            BatchReader(Items(), list), num_workers=1, prefetch=1, pin_memory=False, context=method
        )
        next(pool.read(iter([[0]])))
"""


@pytest.mark.parametrize(
    ("method", "reader"), [("fork", "stream"), ("forkserver", "stream"), ("fork", "pool")]
)
def test_a_killed_rank_takes_its_workers_along(tmp_path: Path, method: str, reader: str) -> None:
    pipe, script = tmp_path / "pipe", tmp_path / "rank.py"
    script.write_text(SCRIPT)
    os.mkfifo(pipe)
    rank = subprocess.Popen(
        [sys.executable, script, method, pipe, reader], stderr=subprocess.DEVNULL
    )
    with pipe.open() as worker:
        assert os.read(worker.fileno(), 20).isdigit()
        rank.send_signal(signal.SIGKILL)
        rank.wait()
        # The worker keeps the pipe open as long as it lives.
        assert os.read(worker.fileno(), 1) == b""


def test_a_process_without_a_parent_lives() -> None:
    code = "from zindex.loading.worker_lifetime import exit_with_parent as e; e(); print('lives')"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "lives\n"
