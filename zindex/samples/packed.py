"""Make batches of packed samples, which hold whole documents, from positions to tensors."""

import numpy as np

from zindex.errors import VerificationError
from zindex.samples import tensors
from zindex.samples.batch import BatchRequest, SampleBatch
from zindex.samples.gpt import find_epochs
from zindex.samples.texts import ChosenSamples, Parts, Texts, choose_samples


def make_packed_batch(wanted: BatchRequest) -> SampleBatch:
    """Return samples of packed datasets.

    The tensors are those of an item of `zindex.datasets.packed_dataset.PackedGPTDataset`.
    """
    texts, settings = read_packed_texts(wanted), wanted.open_text(wanted.which[0]).settings
    size, length = len(texts.rows), settings.sequence_length
    batch, arrays = tensors.make_room(size, settings, wanted.dataset_ids)
    epochs = find_epochs(wanted, texts)
    if epochs is not None:
        tensors.fill_provenance(arrays, texts, epochs)
    tensors.fill_tokens(arrays, texts.tokens)
    # Boundaries are the starts of documents, and the start of padding if there is any.
    num_inputs = np.minimum(texts.num_tokens, length)
    counts = np.bincount(texts.owners, minlength=size)
    columns = np.arange(len(texts.owners)) - texts.first_parts[texts.owners]
    starts = tensors.fill_boundaries(
        arrays,
        np.append(texts.rows[texts.owners], texts.rows),
        np.append(columns, counts),
        np.append(texts.offsets, num_inputs),
    )
    positions_in_sample = np.arange(length)
    np.subtract(positions_in_sample, starts, out=arrays["position_ids"])
    loss_mask = arrays["loss_mask"]
    ends = np.empty(size, np.int64)
    ends[texts.rows] = num_inputs
    loss_mask[:] = (positions_in_sample < ends[:, None]) & ~wanted.is_padding[:, None]
    last = texts.offsets + texts.lengths - 1  # the label of this token is in the next document
    is_inside = last < length
    loss_mask[texts.rows[texts.owners[is_inside]], last[is_inside]] = 0.0
    if settings.eod_mask_loss:
        loss_mask[arrays["tokens"] == settings.eod] = 0.0
    if settings.has_masks:
        batch["attention_mask"] = tensors.document_masks(starts)
    return SampleBatch(tensors.finish_tensors(batch, arrays, settings))


def read_packed_texts(wanted: BatchRequest) -> Texts:
    """Return the tokens of packed samples, with 0 in padding.

    Raises
    ------
    VerificationError
        If an index refers to tokens that do not exist in a document, or data are damaged.

    Notes
    -----
    Rounds: shuffle index, offsets of samples, parts, bounds of documents, tokens.
    """
    chosen = choose_samples(wanted)
    samples, plan = chosen.samples, chosen.groups[0][0].arrays.plan
    bounds = chosen.read("sample_offset", samples, samples + 2).reshape(-1, 2)
    starts, counts = bounds[:, 0], bounds[:, 1] - bounds[:, 0]
    wrong = (counts < 1) | (counts > plan.rules.max_documents)
    if wrong.any():
        raise _damaged(chosen, int(np.argmax(wrong)))
    rows = chosen.read("part_index", starts, starts + counts)
    documents, begins = np.ascontiguousarray(rows[:, 0]), np.ascontiguousarray(rows[:, 1])
    parts = Parts(chosen, documents, counts)
    lengths = np.minimum(parts.bounds.lengths - begins, plan.room)
    texts = parts.lay_out(lengths, np.zeros((len(samples), plan.room), parts.dtype))
    damaged = parts.find_damage(texts, begins, min_length=1)
    if damaged is not None:
        raise _damaged(chosen, damaged)
    parts.read(texts, begins)
    return texts


def _damaged(chosen: ChosenSamples, sample: int) -> VerificationError:
    """Return the error for a sample with parts that exceed it or their documents."""
    member = chosen.member_of(sample)
    return VerificationError(
        f"sample {chosen.samples[sample]} of {member.where} must hold 1 to "
        f"{member.arrays.plan.rules.max_documents} parts of documents, each of tokens that its "
        "document has, its index gives others; restore the data if they changed, or remove the "
        "index to build it again"
    )
