"""Make batches of GPT samples, from positions to tensors."""

from functools import partial

import numpy as np
import torch

from zindex.arrays import AnyArray, Int64Array
from zindex.errors import VerificationError
from zindex.samples import tensors
from zindex.samples.batch import (
    BatchRequest,
    Item,
    Sample,
    SampleBatch,
    Tensors,
    empty_array,
    group_samples,
)
from zindex.samples.masks import causal_mask
from zindex.samples.texts import IndexedText, Parts, Texts, cached_rows, choose_samples
from zindex.store.reader import SampleIndex, can_read_samples, read_samples


def make_batch(wanted: BatchRequest, *, share_mask: bool = False) -> SampleBatch:
    """Return samples of GPT datasets.

    Parameters
    ----------
    wanted
        The samples.
    share_mask
        Whether a single sample may share its plain mask with others.
    """
    settings = wanted.open_text(wanted.which[0]).settings
    padding, ids = wanted.is_padding, wanted.dataset_ids
    if torch.utils.data.get_worker_info() is not None and settings.depends_on_text:
        text = read_plain_text(wanted)
        if text is None:
            text = tensors.pad_texts(read_texts(wanted), settings.pad)
        arguments = Texts.of_text(text), settings, padding, ids, None
        make = partial(tensors.make_text_tensors, *arguments, share_mask=share_mask)
        return SampleBatch.of_text(make, len(padding))
    plain = read_plain(wanted, share_mask=share_mask)
    if plain is not None:
        return SampleBatch(plain)
    texts = read_texts(wanted)
    epochs = find_epochs(wanted, texts)
    return SampleBatch(
        tensors.make_text_tensors(texts, settings, padding, ids, epochs, share_mask=share_mask)
    )


def make_plain_item(text: Int64Array, settings: tensors.TextSettings, *, is_padding: bool) -> Item:
    """Return the item of a full sample whose tensors depend on its tokens only through padding.

    Uses numpy, at a fraction of the cost of torch's operations on so few values.
    """
    length, num_labels = settings.sequence_length, len(text) - 1
    is_text = text != settings.pad
    text *= is_text
    labels, loss_mask = np.zeros(length, np.int64), np.zeros(length, np.float32)
    labels[:num_labels] = text[1:]  # without an extra token, the last one predicts nothing
    if not is_padding:
        loss_mask[:num_labels] = is_text[1:]
    tensors.check_ids(text[:length], labels, settings.num_ids)
    item = {"tokens": torch.from_numpy(text[:length]), "labels": torch.from_numpy(labels)}
    if settings.has_masks:
        item["attention_mask"] = causal_mask(length, torch.device("cpu"))
    item["loss_mask"] = torch.from_numpy(loss_mask)
    item["position_ids"] = torch.from_numpy(np.arange(length))
    return Sample(item)


def read_plain(wanted: BatchRequest, *, share_mask: bool = False) -> Tensors | None:
    """Return the tensors of a batch by one kernel call per dataset, or None if not applicable.

    Applicable to plain samples, whose tensors depend on their tokens only through padding, with an
    index in memory, verified local tokens, and full length. `read_texts` reads all others and
    raises the errors. Parameters as of `make_batch`.
    """
    settings = wanted.open_text(wanted.which[0]).settings
    if not settings.is_plain:
        return None
    size, length = len(wanted.which), settings.sequence_length
    batch, arrays = tensors.make_room(size, settings, wanted.dataset_ids)
    if not _read_by_kernel(wanted, (arrays["tokens"], arrays["labels"], arrays["loss_mask"])):
        return None
    if wanted.is_padding.any():
        arrays["loss_mask"][wanted.is_padding] = 0.0
    arrays["position_ids"][:] = np.arange(length)
    if settings.has_masks:
        batch["attention_mask"] = tensors.plain_masks(size, length, share=share_mask)
    return tensors.finish_tensors(batch, arrays, settings)


def read_plain_text(wanted: BatchRequest) -> AnyArray | None:
    """Return the tokens of a batch by one kernel call per dataset, or None if not applicable.

    Applicable to samples as of `read_plain`, with any tensors, of datasets of one dtype.
    """
    settings, size = wanted.open_text(wanted.which[0]).settings, len(wanted.which)
    dtype = wanted.open_text(wanted.which[0]).documents.tokens.dtype
    text = empty_array((size, settings.sequence_length + settings.extra), dtype)
    none = np.empty((0, settings.sequence_length), np.int64)
    return text if _read_by_kernel(wanted, (none, none, none.astype(np.float32)), text) else None


def _read_by_kernel(
    wanted: BatchRequest, targets: tuple[AnyArray, AnyArray, AnyArray], text: AnyArray | None = None
) -> bool:
    """Read samples by one kernel call per dataset; return whether it succeeded."""
    rows, slices = group_samples(wanted.which, len(wanted.datasets))
    groups = []
    for own in slices:
        member = wanted.open_text(wanted.which[rows[own.start]])
        index = member.sample_index or _open_sample_index(member, own.stop - own.start)
        if index is None:
            return False
        groups.append((member, index, rows[own]))
    return all(
        read_samples(
            member.documents.tokens,
            index,
            wanted.positions[chosen],
            chosen,
            targets,
            extra=member.settings.extra,
            pad=member.settings.pad,
            num_threads=torch.get_num_threads(),
            text=text,
        )
        for member, index, chosen in groups
    )


def _open_sample_index(member: IndexedText, num_samples: int) -> SampleIndex | None:
    """Return the in-memory sample index of a dataset, once all of its arrays are cached."""
    documents, arrays = member.documents, member.arrays
    if documents.offsets is None or member.fill or not can_read_samples(documents.tokens):
        return None
    wanted = (arrays.shuffle_index, arrays.sample_index, arrays.document_index, documents.offsets)
    cached = [rows for array in wanted if (rows := cached_rows(array, num_samples)) is not None]
    if len(cached) < len(wanted):
        return None
    index = SampleIndex(cached)
    if not index.readable:
        return None
    member.sample_index = index
    return index


def read_texts(wanted: BatchRequest) -> Texts:
    """Return the tokens of samples; a row is undefined after the tokens of a short sample.

    Raises
    ------
    VerificationError
        If an index refers to tokens that do not exist in a document, or to too few of them, or data
        are damaged.

    Notes
    -----
    Rounds: shuffle index, sample index, document index, bounds of documents, tokens.
    """
    chosen = choose_samples(wanted)
    samples, settings = chosen.samples, chosen.groups[0][0].settings
    width = settings.sequence_length + settings.extra
    bounds = chosen.read("sample_index", samples, samples + 2).reshape(-1, 2, 2)
    starts, counts = bounds[:, 0, 0], bounds[:, 1, 0] - bounds[:, 0, 0] + 1
    if (counts < 1).any():
        i = int(np.argmin(counts))
        raise _damaged(chosen.member_of(i), samples[i], f"rows {bounds[i].tolist()} that fall")
    documents = chosen.read("document_index", starts, starts + counts)
    parts = Parts(chosen, documents, counts)
    begins, ends = np.zeros_like(documents), parts.bounds.lengths.copy()
    begins[parts.firsts] = bounds[:, 0, 1]
    ends[parts.lasts] = bounds[:, 1, 1] + settings.extra
    fills = any(member.fill for member, _ in chosen.groups)
    dtype = np.dtype(np.int64) if fills else parts.dtype
    texts = parts.lay_out(ends - begins, empty_array((len(samples), width), dtype))
    damaged = parts.find_damage(texts, begins, min_length=0)
    if damaged is not None:
        columns = [documents, begins, ends, parts.bounds.lengths]
        rows = np.stack([column[texts.owners == damaged] for column in columns], axis=1).tolist()
        what = ", ".join(
            "[{1}, {2}) of the {3} tokens of document {0}".format(*row) for row in rows
        )
        raise _damaged(chosen.member_of(damaged), samples[damaged], what)
    for i in np.flatnonzero(texts.num_tokens < width).tolist():
        member = chosen.member_of(i)
        # Only the last sample of an index of ours may be short.
        is_last = samples[i] == len(member.arrays.sample_index) - 2
        if not (member.may_be_short or (member.may_end_short and is_last)):
            what = f"{texts.num_tokens[i]} tokens, though tokens follow"
            raise _damaged(member, samples[i], what)
    parts.read(texts, begins)
    if fills:
        for i, row in enumerate(texts.rows.tolist()):
            fill, text = chosen.member_of(i).fill, texts.tokens[row, : texts.num_tokens[i]]
            if fill is not None:
                text[:] = fill(text, int(samples[i]))
    return texts


def _damaged(member: IndexedText, sample: int, what: str) -> VerificationError:
    """Return the error for a sample with parts outside its documents."""
    return VerificationError(
        f"sample {sample} of {member.where} must be made of parts of documents, "
        f"together {member.settings.sequence_length} tokens and one if an extra token is drawn, "
        f"its index gives {what}; restore the data if they changed, or remove the index to build "
        "it again"
    )


def find_epochs(wanted: BatchRequest, texts: Texts) -> Int64Array | None:
    """Return the epoch of each sample of a batch, or None without provenance."""
    epochs = None
    for number in set(wanted.which.tolist()):
        member = wanted.open_text(number)
        if member.find_epochs is None:
            return None
        if epochs is None:
            samples, epochs = np.empty((2, len(wanted.which)), np.int64)
            samples[texts.rows] = texts.samples
        is_own = wanted.which == number
        epochs[is_own] = member.find_epochs(samples[is_own])
    return epochs
