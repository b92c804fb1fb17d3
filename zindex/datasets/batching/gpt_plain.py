"""Batches of plain GPT samples whose index is in memory: from positions to tensors in one call.

Plain means that nothing depends on the tokens but padding. What is not plain, not in memory, not
verified yet, not full or not sound is left to ``zindex.datasets.batching.gpt_batches``.
"""

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch

from zindex.datasets.batching.batch_tensors import Tensors, make_room, order_tensors, plain_masks
from zindex.datasets.batching.batch_texts import cut_slices, order_samples
from zindex.datasets.batching.held_arrays import find_held
from zindex.datasets.zarr_dataset import ZarrIndexedDataset
from zindex.store.sample_reader import SampleIndex, can_read_samples, read_samples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zindex.datasets.gpt_dataset import GPTDataset

Int64Array = npt.NDArray[np.int64]
AnyArray = npt.NDArray[Any]

# Of datasets whose index is in memory: its arrays, the tokens' source, and the way that they give.
# Beside the datasets, which are pickled without it.
_indices: "WeakKeyDictionary[GPTDataset, tuple[Any, Any, SampleIndex]]" = WeakKeyDictionary()


def read_plain(
    datasets: "Sequence[GPTDataset]",
    which: Int64Array,
    positions: Int64Array,
    is_padding: npt.NDArray[np.bool_],
    dataset_ids: AnyArray | None,
) -> Tensors | None:
    """Return the tensors of a batch, or None where one call per dataset cannot make them.

    Parameters
    ----------
    datasets
        Datasets of one configuration.
    which, positions
        Shape (samples,): the dataset of each sample, and its position there from the start.
    is_padding
        Shape (samples,): samples that only fill up the batch.
    dataset_ids
        Shape (samples,): what items say of their dataset; None lets them say nothing.
    """
    config = datasets[int(which[0])].config
    if not config.is_plain:
        return None
    rows, edges = order_samples(which, len(datasets))
    groups = []
    for cut in cut_slices(edges, len(rows)):
        member = datasets[int(which[rows[cut.start]])]
        index = _hold_index(member, cut.stop - cut.start)
        if index is None:
            return None
        groups.append((member, index, rows[cut]))
    tensors, arrays = make_room(len(rows), config, dataset_ids, own_positions=False)
    targets = (arrays["tokens"], arrays["labels"], arrays["loss_mask"])
    extra = int(config.add_extra_token_to_sequence)
    for member, index, chosen in groups:
        done = read_samples(
            member.dataset.tokens,
            index,
            positions[chosen],
            chosen,
            targets,
            extra=extra,
            pad=member._pad_token_id,
            num_threads=torch.get_num_threads(),
        )
        if not done:
            return None
    if is_padding.any():
        arrays["loss_mask"][is_padding] = 0.0
    length = config.sequence_length
    arrays["position_ids"][:] = np.arange(length)
    if config.create_attention_mask:
        tensors["attention_mask"] = plain_masks(len(rows), length)
    return order_tensors(tensors, config)


def _hold_index(member: "GPTDataset", num_samples: int) -> SampleIndex | None:
    """Return the way from positions to tokens, if all of its arrays are in memory."""
    source = member.dataset
    if type(source) is not ZarrIndexedDataset or not can_read_samples(source.tokens):
        return None
    arrays = member._open_arrays()
    known = _indices.get(member)
    if known is not None and known[0] is arrays and known[1] is source:
        return known[2]
    wanted = (arrays.shuffle_index, arrays.sample_index, arrays.document_index, source.offsets)
    held = [rows for array in wanted if (rows := find_held(array, num_samples)) is not None]
    if len(held) < len(wanted):
        return None
    index = SampleIndex(held)
    if not index.readable:
        return None
    _indices[member] = (arrays, source, index)
    return index
