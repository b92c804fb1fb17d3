"""Data-parallel rank of this process."""

import os

import torch

from zindex.cluster.job import find_job
from zindex.errors import ConfigError
from zindex.samples.collectives import is_distributed


def find_place(
    data_parallel_rank: int | None = None,
    data_parallel_size: int | None = None,
    *,
    names: tuple[str, str] = ("data_parallel_rank", "data_parallel_size"),
) -> tuple[int, int]:
    """Return the data-parallel rank of this process and the number of ranks.

    Parameters
    ----------
    data_parallel_rank, data_parallel_size
        The rank and size, if known: with tensor, pipeline or context parallelism, several
        processes share one data-parallel rank. Give both or none.
    names
        Their names in error messages.

    Returns
    -------
    rank, size
        As given; otherwise from ``torch.distributed``, if it is initialized; from ``RANK`` and
        ``WORLD_SIZE`` in the environment, as set by ``torchrun``; from the variables of Slurm, MPI
        or an indexed Kubernetes Job, see `zindex.cluster.find_job`; or 0 and 1.

    Raises
    ------
    ConfigError
        If only one of the two is known.
    """
    if data_parallel_rank is not None and data_parallel_size is not None:
        return data_parallel_rank, data_parallel_size
    if data_parallel_rank is not None or data_parallel_size is not None:
        raise ConfigError(
            f"{names[0]} and {names[1]} must be given together, got {data_parallel_rank} and "
            f"{data_parallel_size}; give both or none"
        )
    if is_distributed():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    found = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    if found == {"RANK": None, "WORLD_SIZE": None}:
        job = find_job()
        return job.rank, job.world_size
    try:
        return int(found["RANK"] or ""), int(found["WORLD_SIZE"] or "")
    except ValueError:
        raise ConfigError(
            f"RANK and WORLD_SIZE of the environment must both be whole numbers, got "
            f"{found['RANK']!r} and {found['WORLD_SIZE']!r}; set both, or give data_parallel_rank "
            "and data_parallel_size"
        ) from None
