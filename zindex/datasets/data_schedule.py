"""Schedules of sub-samples, under Megatron Core's names; see ``zindex.samples.schedules``."""

from zindex.samples.schedules.hybrid_context import HybridCPDataLoaderWrapper
from zindex.samples.schedules.rank_batch import (
    _build_thd_padding_mask,
    _sanitize_thd_padding_values,
    get_batch_on_this_rank_for_sequence_packing,
)
from zindex.samples.schedules.schedulers import (
    BalancedScheduler,
    BasePackingScheduler,
    DpBalancedScheduler,
    PackingSchedulerEnum,
    scheduler_map,
    wrap_data_iterator,
)

__all__ = [
    "BalancedScheduler",
    "BasePackingScheduler",
    "DpBalancedScheduler",
    "HybridCPDataLoaderWrapper",
    "PackingSchedulerEnum",
    "_build_thd_padding_mask",
    "_sanitize_thd_padding_values",
    "get_batch_on_this_rank_for_sequence_packing",
    "scheduler_map",
    "wrap_data_iterator",
]
