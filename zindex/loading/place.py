"""Which part of the samples this process takes: from arguments, torch.distributed or torchrun."""

import os

import torch

from zindex.errors import ConfigError


def find_place(
    data_parallel_rank: int | None = None, data_parallel_size: int | None = None
) -> tuple[int, int]:
    """Return the data-parallel rank of this process, and the number of ranks.

    Parameters
    ----------
    data_parallel_rank, data_parallel_size
        The answer, where it is known: with tensor, pipeline or context parallelism, several
        processes share one data-parallel rank. Give both or none.

    Returns
    -------
    rank, size
        As given; or of ``torch.distributed``, if it is initialized; or ``RANK`` and ``WORLD_SIZE``
        of the environment, as ``torchrun`` sets them; or one rank alone.

    Raises
    ------
    ConfigError
        If only one of the two is known.
    """
    if data_parallel_rank is not None and data_parallel_size is not None:
        return data_parallel_rank, data_parallel_size
    if data_parallel_rank is not None or data_parallel_size is not None:
        raise ConfigError(
            "data_parallel_rank and data_parallel_size must be given together, got "
            f"{data_parallel_rank} and {data_parallel_size}; give both or none"
        )
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    found = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    if found == {"RANK": None, "WORLD_SIZE": None}:
        return 0, 1
    try:
        return int(found["RANK"] or ""), int(found["WORLD_SIZE"] or "")
    except ValueError:
        raise ConfigError(
            f"RANK and WORLD_SIZE of the environment must both be whole numbers, got "
            f"{found['RANK']!r} and {found['WORLD_SIZE']!r}; set both, or give data_parallel_rank "
            "and data_parallel_size"
        ) from None
