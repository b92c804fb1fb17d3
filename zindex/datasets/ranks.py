"""Coordinate the ranks of a job: rank 0 builds, and errors reach all ranks.

All ranks need the same stores and find them by name.
"""

import itertools
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

import torch

from zindex.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from zindex.datasets.utils import current_rank
from zindex.execution.rank_step import RankStep
from zindex.indexing.coordination import Rank
from zindex.indexing.ensure import BuildRequest, Builds, Receive
from zindex.samples.collectives import is_distributed

logger = logging.getLogger(__name__)

_steps = itertools.count()
# Forks of this process as a rank; they, such as loader workers, cannot use its connections.
_forks: set[int] = set()
# Ranks of this process that took over the build of an index, and build later ones at once.
_builders: set[int] = set()
_collector: ContextVar[Builds | None] = ContextVar("zindex_collector", default=None)


def _note_fork() -> None:
    """Note a fork of a rank."""
    if is_distributed():
        _forks.add(os.getpid())


os.register_at_fork(after_in_child=_note_fork)


@contextmanager
def collect(builds: Builds) -> Iterator[None]:
    """Collect the build requests of datasets created in the block, to build them together."""
    token = _collector.set(builds)
    try:
        yield
    finally:
        _collector.reset(token)


def obtain(
    request: BuildRequest,
    receive: Receive,
    rank: int,
    config: BlendedMegatronDatasetConfig,
    *,
    may_collect: bool = True,
) -> None:
    """Call back with a store, or None for an index to compute: now, or after collected builds.

    Parameters
    ----------
    request
        The build request.
    receive
        Called with the store or None.
    rank
        The rank of this process or, in a loader worker, of its parent process.
    config
        The timeouts for other ranks.
    may_collect
        Whether the request may be collected; otherwise the callback is always immediate.
    """
    if may_collect and (collected := _collector.get()) is not None:
        collected.add(request, receive)
        return
    number = 0 if rank in _builders else rank
    this, step = Rank(number, config.index_timeout, config.index_takeover), None
    if is_distributed() and os.getpid() not in _forks:
        step = open_step(request.root.name)
        this = replace(this, peers=step)
    with Builds(this, config.follow, max_computed_rows=config.max_computed_rows) as builds:
        builds.add(request, receive)
        builds.finish()
    if step is not None and step.is_builder:
        _builders.add(rank)


def open_builds(config: BlendedMegatronDatasetConfig, step: RankStep) -> Builds:
    """Return the builds of a step of all ranks; followed builds may outlast it."""
    number = 0 if step.is_builder else max(1, current_rank())
    rank = Rank(number, config.index_timeout, config.index_takeover, step.listen, step)
    return Builds(rank, config.follow, step.report, config.max_computed_rows)


def open_step(name: str = "") -> RankStep:
    """Return the step of a name, by default the next one; all processes take these in order."""
    name = name or str(next(_steps))
    num_ranks = torch.distributed.get_world_size() if is_distributed() else 1
    if num_ranks == 1:
        return RankStep(name)
    try:
        store = torch.distributed.distributed_c10d._get_default_store()
    except Exception as error:
        logger.info("torch's process group has no key-value store: %s", error)
        store = None
    return RankStep(name, current_rank(), num_ranks, store)
