"""Pack the sub-samples of a global batch, so that the ranks have equal work."""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

import numpy as np
import torch

from zindex.errors import SourceError, check_choice
from zindex.samples.schedules.exchange import LENGTHS, Sample, find_device, find_groups
from zindex.samples.schedules.packed_samples import TOKEN_KEYS
from zindex.samples.schedules.packs import PackRules, Packs, plan_evenly, plan_in_order
from zindex.samples.schedules.steps import (
    broadcast_scalars,
    broadcast_to_pp_group,
    build_packed_microbatches,
    create_data_iterator,
    get_batch_and_global_seqlens,
    reroute_samples_to_dcp_ranks,
)


class BasePackingScheduler:
    """Packs the sub-samples of a global batch, and sends each pack to its rank.

    A subclass defines `get_groups_and_subsamples`.

    Parameters
    ----------
    max_seqlen_per_dp_cp_rank
        Tokens of a packed sample on one rank.
    cp_size, dp_size
        Context-parallel and data-parallel ranks.
    microbatch_group_size_per_vp_stage
        With virtual pipeline parallelism: the number of micro-batches is a multiple of it.
    """

    def __init__(
        self,
        max_seqlen_per_dp_cp_rank: int,
        cp_size: int,
        dp_size: int,
        microbatch_group_size_per_vp_stage: int | None,
    ) -> None:
        self.max_seqlen_per_dp_cp_rank = max_seqlen_per_dp_cp_rank
        self.cp_size = cp_size
        self.dp_size = dp_size
        self.microbatch_group_size_per_vp_stage = microbatch_group_size_per_vp_stage
        self.max_seq_len_all_ranks = max_seqlen_per_dp_cp_rank * cp_size

    def get_required_sample_keys(self) -> list[str]:
        """Return the names of the tensors that sub-samples must have."""
        return [*TOKEN_KEYS, *LENGTHS]

    def get_groups_and_subsamples(
        self, sample_id_seqlens: Sequence[tuple[int, int]]
    ) -> list[list[list[int]]]:
        """Return for each micro-batch and rank the numbers of its sub-samples.

        Parameters
        ----------
        sample_id_seqlens
            Number and length of every sub-sample, numbered from 0.
        """
        raise NotImplementedError

    def _read_config(self, config: Any) -> None:
        """Take settings from the configuration of the model."""

    def _share_packs(self, packs: Packs) -> list[list[list[int]]]:
        """Return packs by micro-batch and rank; ranks that share the context have the same."""
        size = self.dp_size
        return [
            [pack for pack in packs[start : start + size] for _ in range(self.cp_size)]
            for start in range(0, len(packs), size)
        ]

    @property
    def _rules(self) -> PackRules:
        """The size of packed samples."""
        num_together = self.microbatch_group_size_per_vp_stage or 1
        return PackRules(self.max_seq_len_all_ranks, self.dp_size, num_together)

    def run(
        self,
        data_iterator: Any,
        num_microbatches: int,
        dp_group: Any,
        tp_group: Any,
        pp_group: Any,
        dp_cp_group: Any,
        dev: torch.device | int | str,
        config: Any,
    ) -> tuple[Any, int, float, float]:
        """Read a global batch, and return its packed samples on this rank; a collective call.

        Parameters
        ----------
        data_iterator
            Samples of this rank, on the first rank of tensor parallelism in the first and the last
            stage of the pipeline, elsewhere None; with virtual pipeline parallelism a list of one
            for each virtual stage.
        num_microbatches
            How often it is advanced.
        dp_group, tp_group, pp_group, dp_cp_group
            The process groups of this rank.
        dev
            Device of the packed samples.
        config
            Has ``virtual_pipeline_model_parallel_size``.

        Returns
        -------
        data_iterator
            The packed samples, or a list for virtual stages; None on the other ranks of tensor
            parallelism. The middle stages of a pipeline get the lengths alone.
        num_microbatches
            Number of packed samples.
        num_tokens, squared_tokens
            Sums of the lengths of all sub-samples, and of their squares.

        Raises
        ------
        SourceError
            If a tensor is missing.
        PlanError
            If the sub-samples cannot be packed.
        """
        self._read_config(config)
        if (config.virtual_pipeline_model_parallel_size or 1) > 1:
            is_last = pp_group.rank() == pp_group.size() - 1
            is_edge = is_last or pp_group.rank() == 0
            place = -1 if is_last and pp_group.rank() else 0
            data_iterator = data_iterator[place] if is_edge and data_iterator else None
        packed: list[Sample] | None = None
        sums: Any = (None, None, None)
        if data_iterator is not None:
            packed, lengths = self._pack(
                data_iterator, num_microbatches, dp_group, tp_group, dp_cp_group, dev
            )
            squares = sum(length**2 for length in lengths)
            sums = len(packed), float(sum(lengths)), float(squares)
        if tp_group.rank() == 0:
            arguments = (packed, *sums, pp_group, dev)
            packed, *sums = broadcast_to_pp_group(*arguments)
        sums = broadcast_scalars(sums, tp_group, dev, torch.float64)
        iterator = create_data_iterator(packed, pp_group, tp_group, config)
        return iterator, int(sums[0]), sums[1], sums[2]

    def _pack(
        self,
        data_iterator: Iterator[Any],
        num_microbatches: int,
        dp_group: Any,
        tp_group: Any,
        dp_cp_group: Any,
        dev: torch.device | int | str,
    ) -> tuple[list[Sample], list[int]]:
        """Return the packed samples of this rank, and the lengths of all sub-samples."""
        batch, numbered, own, offsets, lengths = get_batch_and_global_seqlens(
            data_iterator, num_microbatches, dp_group
        )
        missing = [name for name in self.get_required_sample_keys() if name not in batch[0]]
        if missing:
            raise SourceError(
                f"sub-samples must have {', '.join(missing)}, got {', '.join(batch[0])}; add them "
                "to the dataset's samples"
            )
        groups = self.get_groups_and_subsamples(numbered)
        received = reroute_samples_to_dcp_ranks(
            batch, own, numbered, groups, offsets, dp_group, tp_group, dp_cp_group,
            dp_cp_group.size(),
        )  # fmt: skip
        rank = dp_cp_group.rank()
        packs = [[received[number] for number in group[rank]] for group in groups]
        return build_packed_microbatches(packs, dev), lengths


class DpBalancedScheduler(BasePackingScheduler):
    """Fills packs with sub-samples in their order, as Megatron Core does.

    Parameters
    ----------
    max_seqlen_per_dp_cp_rank, cp_size, dp_size, microbatch_group_size_per_vp_stage
        As of `BasePackingScheduler`.
    """

    def get_groups_and_subsamples(
        self, sample_id_seqlens: Sequence[tuple[int, int]]
    ) -> list[list[list[int]]]:
        """Return for each micro-batch and rank the numbers of its sub-samples; see the base."""
        return self._share_packs(plan_in_order(_lengths_of(sample_id_seqlens), self._rules))


class BalancedScheduler(BasePackingScheduler):
    """Packs sub-samples so that all ranks have about the same work, in few micro-batches.

    Not in Megatron; see `zindex.samples.schedules.packs.plan_evenly`.

    Parameters
    ----------
    max_seqlen_per_dp_cp_rank, cp_size, dp_size, microbatch_group_size_per_vp_stage
        As of `BasePackingScheduler`.
    """

    #: The work of n tokens is ``n * (n + linear)``; by default 12 times the ``hidden_size`` of the
    #: configuration, if it has one, otherwise chosen so that both terms have equal shares.
    linear: int | None = None

    def get_groups_and_subsamples(
        self, sample_id_seqlens: Sequence[tuple[int, int]]
    ) -> list[list[list[int]]]:
        """Return for each micro-batch and rank the numbers of its sub-samples; see the base."""
        lengths = _lengths_of(sample_id_seqlens)
        return self._share_packs(plan_evenly(lengths, self._rules, self.linear))

    def _read_config(self, config: Any) -> None:
        """Derive the work of sub-samples from the size of the model."""
        hidden_size = getattr(config, "hidden_size", None)
        if self.linear is None and hidden_size:
            self.linear = 12 * hidden_size


def _lengths_of(sample_id_seqlens: Sequence[tuple[int, int]]) -> Any:
    """Return the lengths of numbered sub-samples."""
    return np.array([length for _, length in sample_id_seqlens], np.int64)


class PackingSchedulerEnum(Enum):
    """Names of schedulers."""

    DP_BALANCED = "dp_balanced"
    BALANCED = "balanced"


#: The scheduler of each name.
scheduler_map: dict[PackingSchedulerEnum, type[BasePackingScheduler]] = {
    PackingSchedulerEnum.DP_BALANCED: DpBalancedScheduler,
    PackingSchedulerEnum.BALANCED: BalancedScheduler,
}


def wrap_data_iterator(
    data_iterator: Any, config: Any, num_microbatches: int, pg_collection: Any = None
) -> tuple[Any, int, float, float]:
    """Return the packed samples of the next global batch on this rank; a collective call.

    Parameters
    ----------
    data_iterator, num_microbatches
        As of `BasePackingScheduler.run`.
    config
        Has ``sequence_packing_scheduler``, ``"dp_balanced"`` or ``"balanced"``;
        ``max_seqlen_per_dp_cp_rank``; ``virtual_pipeline_model_parallel_size``, and with it
        ``microbatch_group_size_per_vp_stage``.
    pg_collection
        Has the process groups ``dp_cp``, ``dp``, ``tp`` and ``pp``; None uses Megatron Core's.

    Returns
    -------
    data_iterator, num_microbatches, num_tokens, squared_tokens
        As of `BasePackingScheduler.run`.

    Raises
    ------
    ConfigError
        If there is no such scheduler, or no such groups.
    """
    names = ("dp_cp", "dp", "tp", "pp")
    groups = find_groups(pg_collection, names, wrap_data_iterator.__name__)
    dp_cp_group, dp_group, tp_group, pp_group = groups
    dp_size = dp_group.size()
    kinds = {kind.value: scheduler for kind, scheduler in scheduler_map.items()}
    name = str(config.sequence_packing_scheduler).lower()
    check_choice("sequence_packing_scheduler", name, kinds)
    has_stages = config.virtual_pipeline_model_parallel_size is not None
    scheduler = kinds[name](
        config.max_seqlen_per_dp_cp_rank,
        dp_cp_group.size() // dp_size,
        dp_size,
        config.microbatch_group_size_per_vp_stage if has_stages else None,
    )
    return scheduler.run(
        data_iterator,
        num_microbatches,
        dp_group,
        tp_group,
        pp_group,
        dp_cp_group,
        find_device(dp_cp_group),
        config,
    )
