"""The samples of a batch of packed datasets, read in a few rounds: tokens, labels, boundaries."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from zindex.datasets.batching.batch_tensors import (
    Arrays,
    Origin,
    Tensors,
    document_masks,
    fill_boundaries,
    fill_provenance,
    fill_tokens,
    find_origin,
    make_room,
    order_tensors,
)
from zindex.datasets.batching.batch_texts import ChosenSamples, Texts, choose_samples, locate_parts
from zindex.datasets.batching.sample_batch import SampleBatch
from zindex.datasets.gpt_config import GPTDatasetConfig
from zindex.errors import VerificationError
from zindex.plan.packing import PackingRules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zindex.datasets.packed_dataset import PackedGPTDataset

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
AnyArray = npt.NDArray[Any]


def make_packed_batch(
    datasets: "Sequence[PackedGPTDataset]",
    which: Int64Array,
    positions: Int64Array,
    is_padding: BoolArray,
    dataset_ids: AnyArray | None,
) -> SampleBatch:
    """Return samples of packed datasets of one configuration.

    Parameters
    ----------
    datasets
        The datasets.
    which, positions
        Shape (samples,): the dataset of each sample, and its position there from the start.
    is_padding
        Shape (samples,): samples that only fill up the batch, and count nothing in the loss.
    dataset_ids
        Shape (samples,): what items say of their dataset; None lets them say nothing.
    """
    first = datasets[int(which[0])]
    texts = read_packed_texts(datasets, which, positions)
    origin = find_origin(datasets, which, texts, dataset_ids)
    return SampleBatch(make_packed_tensors(texts, first.config, first.rules, is_padding, origin))


def read_packed_texts(
    datasets: "Sequence[PackedGPTDataset]", which: Int64Array, positions: Int64Array
) -> Texts:
    """Return the tokens of packed samples, with 0 in padding; parameters as of a batch.

    Raises
    ------
    VerificationError
        If an index asks for tokens that a document does not hold, or data are damaged.

    Notes
    -----
    Rounds: shuffle index, offsets of samples, parts, bounds of documents, tokens.
    """
    chosen = choose_samples(datasets, which, positions)
    samples, plan = chosen.samples, chosen.indices[0].plan
    bounds = chosen.read("sample_offset", samples, samples + 2).reshape(-1, 2)
    starts, counts = bounds[:, 0], bounds[:, 1] - bounds[:, 0]
    wrong = (counts < 1) | (counts > plan.rules.max_documents)
    if wrong.any():
        raise _damaged(chosen, int(np.argmax(wrong)))
    rows = chosen.read("part_index", starts, starts + counts)
    documents, begins = np.ascontiguousarray(rows[:, 0]), np.ascontiguousarray(rows[:, 1])
    parts = locate_parts(chosen, documents, counts)
    lengths = np.minimum(parts.extents.lengths - begins, plan.room)
    texts = parts.lay_out(lengths, np.zeros((len(samples), plan.room), parts.dtype))
    damaged = parts.find_damage(texts, begins, min_length=1)
    if damaged is not None:
        raise _damaged(chosen, damaged)
    parts.read(texts, begins)
    return texts


def _damaged(chosen: ChosenSamples, place: int) -> VerificationError:
    """Return the error of a sample whose parts do not fit into it, or not into their documents."""
    member = chosen.member_of(place)
    return VerificationError(
        f"sample {chosen.samples[place]} of {member._where} must hold 1 to "
        f"{member.rules.max_documents} parts of documents, each of tokens that its document has, "
        "its index gives others; restore the data if they changed, or remove the index to build "
        "it again"
    )


def make_packed_tensors(
    texts: Texts,
    config: GPTDatasetConfig,
    rules: PackingRules,
    is_padding: BoolArray,
    origin: Origin,
) -> Tensors:
    """Return the tensors of a batch, as `PackedGPTDataset` tells of them.

    Parameters
    ----------
    texts
        The tokens of its samples.
    config, rules
        The configuration of their datasets.
    is_padding
        Shape (samples,): samples that only fill up the batch.
    origin
        Where the samples come from.
    """
    size, length = len(texts.rows), config.sequence_length
    tensors, arrays = make_room(
        size,
        config,
        origin.dataset_ids,
        own_positions=True,
        num_boundaries=rules.max_documents + 2,
    )
    if origin.epochs is not None:
        fill_provenance(arrays, texts, origin.epochs)
    fill_tokens(arrays, texts.tokens)
    num_inputs = np.minimum(texts.num_tokens, length)
    starts = _fill_boundaries(arrays, texts, num_inputs)
    positions = np.arange(length)
    np.subtract(positions, starts, out=arrays["position_ids"])
    loss_mask = arrays["loss_mask"]
    ends = np.empty(size, np.int64)
    ends[texts.rows] = num_inputs
    loss_mask[:] = (positions < ends[:, None]) & ~is_padding[:, None]
    last = texts.offsets + texts.lengths - 1  # its label would be of the next document
    is_inside = last < length
    loss_mask[texts.rows[texts.owners[is_inside]], last[is_inside]] = 0.0
    if config.eod_mask_loss:
        loss_mask[arrays["tokens"] == config.tokenizer.eod] = 0.0
    if config.has_masks:
        tensors["attention_mask"] = document_masks(starts)
    return order_tensors(tensors, config)


def _fill_boundaries(arrays: Arrays, texts: Texts, num_inputs: Int64Array) -> Int64Array:
    """Fill in where documents start, then padding if there is any; return it for each token too."""
    counts = np.bincount(texts.owners, minlength=len(texts.rows))
    columns = np.arange(len(texts.owners)) - texts.first_parts[texts.owners]
    return fill_boundaries(
        arrays,
        np.append(texts.rows[texts.owners], texts.rows),
        np.append(columns, counts),
        np.append(texts.offsets, num_inputs),
    )
