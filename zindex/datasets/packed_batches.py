"""The samples of a batch of packed datasets, read in a few rounds: tokens, labels, boundaries."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from zindex.datasets.batch_memory import allocate
from zindex.datasets.batch_texts import ChosenSamples, Texts, choose_samples, locate_parts
from zindex.datasets.gpt_config import GPTDatasetConfig
from zindex.datasets.gpt_masks import causal_mask
from zindex.datasets.sample_batch import SampleBatch
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
    tensors = make_packed_tensors(texts, first.config, first.rules, is_padding)
    if first.config.with_provenance:
        tensors |= _tell_provenance(datasets, which, texts, first.config.sequence_length)
    if dataset_ids is not None:
        tensors = {"dataset_id": torch.from_numpy(dataset_ids.copy())} | tensors
    return SampleBatch(tensors)


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
    texts: Texts, config: GPTDatasetConfig, rules: PackingRules, is_padding: BoolArray
) -> dict[str, torch.Tensor]:
    """Return the tensors of a batch, as `PackedGPTDataset` tells of them.

    Parameters
    ----------
    texts
        The tokens of its samples.
    config, rules
        The configuration of their datasets.
    is_padding
        Shape (samples,): samples that only fill up the batch.
    """
    size, length = len(texts.rows), config.sequence_length
    plane, shape = (size, length), (size, rules.max_documents + 2)
    tensors = allocate(
        {
            "tokens": (plane, torch.int64),
            "labels": (plane, torch.int64),
            "loss_mask": (plane, torch.float32),
            "position_ids": (plane, torch.int64),
            "cu_seqlens": (shape, torch.int32),
            "max_seqlen": ((size,), torch.int32),
        }
    )
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    rows = texts.rows[texts.owners]
    num_labels = texts.tokens.shape[1] - 1
    arrays["tokens"][:] = texts.tokens[:, :length]
    arrays["labels"][:, num_labels:] = 0
    arrays["labels"][:, :num_labels] = texts.tokens[:, 1:]
    starts: AnyArray = np.zeros(plane, np.int64)
    is_inside = texts.offsets < length
    starts[rows[is_inside], texts.offsets[is_inside]] = texts.offsets[is_inside]
    num_inputs = np.minimum(texts.num_tokens, length)
    padded = num_inputs < length
    starts[texts.rows[padded], num_inputs[padded]] = num_inputs[padded]
    np.maximum.accumulate(starts, axis=1, out=starts)
    positions = np.arange(length)
    np.subtract(positions, starts, out=arrays["position_ids"])
    loss_mask = arrays["loss_mask"]
    ends = np.empty(size, np.int64)
    ends[texts.rows] = num_inputs
    loss_mask[:] = (positions < ends[:, None]) & ~is_padding[:, None]
    last = texts.offsets + texts.lengths - 1  # its label would be of the next document
    is_inside = last < length
    loss_mask[rows[is_inside], last[is_inside]] = 0.0
    if config.eod_mask_loss:
        loss_mask[arrays["tokens"] == config.tokenizer.eod] = 0.0
    boundaries = arrays["cu_seqlens"]
    boundaries.fill(length)
    columns = np.arange(len(rows)) - texts.first_parts[texts.owners]
    boundaries[rows, columns] = np.minimum(texts.offsets, length)
    counts = np.bincount(texts.owners, minlength=size)
    boundaries[texts.rows, counts] = num_inputs
    arrays["max_seqlen"][:] = np.diff(boundaries, axis=1).max(axis=1)
    if config.create_attention_mask and not config.inter_document_masking:
        is_before = positions < np.expand_dims(starts, (1, 3))
        mask = causal_mask(length, torch.device("cpu"))
        tensors["attention_mask"] = mask | torch.from_numpy(is_before)
    return {name: tensors[name] for name in _ORDER if name in tensors}


_ORDER = (
    "tokens",
    "labels",
    "attention_mask",
    "loss_mask",
    "position_ids",
    "cu_seqlens",
    "max_seqlen",
)


def _tell_provenance(
    datasets: "Sequence[PackedGPTDataset]", which: Int64Array, texts: Texts, length: int
) -> dict[str, torch.Tensor]:
    """Return where samples and tokens come from; the documents of padding are -1."""
    size = len(which)
    tensors = allocate(
        {
            "document_ids": ((size, length), torch.int64),
            "epoch": ((size,), torch.int64),
            "sample_id": ((size,), torch.int64),
        }
    )
    width = texts.tokens.shape[1]
    documents = np.full((size, width), -1, np.int64)
    firsts = texts.rows[texts.owners] * width + texts.offsets
    before = np.cumsum(texts.lengths) - texts.lengths
    places = np.repeat(firsts - before, texts.lengths) + np.arange(int(texts.lengths.sum()))
    documents.reshape(-1)[places] = np.repeat(texts.documents, texts.lengths)
    tensors["document_ids"].numpy()[:] = documents[:, :length]
    samples = tensors["sample_id"].numpy()
    samples[texts.rows] = texts.samples
    for number in set(which.tolist()):
        own = which == number
        epochs = datasets[number]._open_arrays().epochs_of(samples[own])
        tensors["epoch"].numpy()[own] = epochs
    return tensors
