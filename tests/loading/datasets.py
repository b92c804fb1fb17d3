"""Datasets whose samples say which ones they are, in this process and in any other."""

import os
import signal
import threading
from typing import Any

import torch


class Numbers(torch.utils.data.Dataset[Any]):
    """Sample i is i, where it was read, and a loss mask."""

    fingerprint = "numbers"

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self.size:
            raise IndexError(index)
        return {
            "sample": torch.tensor(index),
            "process": os.getpid(),
            "thread": threading.get_ident(),
            "loss_mask": torch.ones(2),
        }


class Failing(Numbers):
    """Numbers of which one cannot be read as long as a file is missing."""

    def __init__(self, size: int, wrong: int, file: str) -> None:
        super().__init__(size)
        self.wrong, self.file = wrong, file

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.wrong and not os.path.exists(self.file):
            raise OSError(f"sample {index} cannot be read")
        return super().__getitem__(index)


class Deadly(Failing):
    """Numbers of which one kills the process that reads it as long as a file is missing."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.wrong and not os.path.exists(self.file):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)
