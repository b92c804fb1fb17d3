"""Steps of packing a global batch, under Megatron Core's names."""

from zindex.samples.schedules.steps import (
    _get_global_seqlens_and_ids,
    _pack_sequences,
    _unpack_batch,
    broadcast_scalars,
    broadcast_tensor,
    broadcast_to_pp_group,
    build_packed_microbatches,
    create_data_iterator,
    get_batch_and_global_seqlens,
    reroute_samples_to_dcp_ranks,
)

__all__ = [
    "_get_global_seqlens_and_ids",
    "_pack_sequences",
    "_unpack_batch",
    "broadcast_scalars",
    "broadcast_tensor",
    "broadcast_to_pp_group",
    "build_packed_microbatches",
    "create_data_iterator",
    "get_batch_and_global_seqlens",
    "reroute_samples_to_dcp_ranks",
]
