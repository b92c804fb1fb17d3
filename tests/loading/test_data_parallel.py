"""Where a process finds its data-parallel rank."""

from pathlib import Path

import pytest
import torch

from zindex.errors import ConfigError
from zindex.loading.data_parallel import find_place


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def test_arguments_come_before_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_place() == (0, 1)
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert find_place() == (5, 8)
    assert find_place(1, 2) == (1, 2)


def test_ranks_of_other_launchers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "3", "SIZE": "4", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    assert find_place() == (3, 4)
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert find_place() == (5, 8)


def test_torch_distributed_comes_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        assert find_place() == (0, 1)
    finally:
        torch.distributed.destroy_process_group()


def test_half_a_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="must be given together, got 1 and None"):
        find_place(1)
    with pytest.raises(ConfigError, match="must be given together, got None and 2"):
        find_place(None, 2)
    monkeypatch.setenv("RANK", "5")
    with pytest.raises(ConfigError, match="must both be whole numbers, got '5' and None"):
        find_place()
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(ConfigError, match="must both be whole numbers, got '5' and 'many'"):
        find_place()
