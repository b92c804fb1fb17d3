"""Exchange of small objects between ranks of ``torch.distributed``, and where there are none."""

from typing import Any

import torch


def is_distributed() -> bool:
    """Return whether this process is a rank of ``torch.distributed``."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def gather_objects(own: Any, group: Any = None) -> list[Any]:
    """Return what all ranks give, in a collective call; outside ``torch.distributed`` its own."""
    if not is_distributed():
        return [own]
    found: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(found, own, group=group)
    return found
