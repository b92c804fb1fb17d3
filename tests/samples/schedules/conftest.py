"""Process groups of this process alone, without Megatron Core."""

from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from zindex.samples.schedules import exchange


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Modules of Megatron Core that count as installed, by name: none at first."""
    modules: dict[str, Any] = {}

    def find(name: str) -> Any:
        if name not in modules:
            raise ImportError(name)
        return modules[name]

    monkeypatch.setattr(exchange, "importlib", SimpleNamespace(import_module=find))
    return modules


@pytest.fixture
def groups(installed: dict[str, Any]) -> Iterator[SimpleNamespace]:
    """Give the groups of all kinds of parallelism, each of one rank."""
    dist.init_process_group(
        "gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=30)
    )
    names = ("dp_cp", "dp", "tp", "pp", "cp")
    yield SimpleNamespace(**dict.fromkeys(names, dist.group.WORLD))
    dist.destroy_process_group()
