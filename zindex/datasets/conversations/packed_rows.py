"""Rows of conversations: their tokens side by side, each with positions of its own."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from zindex.datasets.batching.batch_memory import Shapes, allocate_arrays
from zindex.datasets.batching.sample_batch import SampleBatch
from zindex.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from zindex.datasets.sft_dataset import SFTDataset

Int64Array = npt.NDArray[np.int64]

#: Label of tokens that count nothing in the loss.
IGNORE_INDEX = -100


class Encoded(NamedTuple):
    """A conversation as ids, and for each of them the id to be learned, or `IGNORE_INDEX`."""

    #: Shape (tokens,), int64.
    tokens: Int64Array
    #: Shape (tokens,), int64.
    targets: Int64Array


class PadIds(NamedTuple):
    """What stands where a row has no tokens."""

    #: Among the inputs: an id that an embedding has.
    token: int
    #: Among the labels: the tokenizer's own, which may be negative.
    label: int
    #: Whether the label stands nowhere but in padding.
    is_own: bool


def find_pad_ids(tokenizer: Any) -> PadIds:
    """Return what a tokenizer pads with: its end of document where it has nothing else.

    Raises
    ------
    ConfigError
        If it has no end of document.
    """
    eod = tokenizer.eod
    if eod is None:
        raise ConfigError(
            f"conversations need a tokenizer with an end of document, {type(tokenizer).__name__} "
            "says that its eod is None; give it one"
        )
    try:
        pad = tokenizer.pad
    except (AttributeError, NotImplementedError):
        pad = None
    if pad is None:
        return PadIds(int(eod), int(eod), is_own=False)
    return PadIds(int(eod) if pad < 0 else int(pad), int(pad), is_own=pad != eod)


class Row(NamedTuple):
    """Conversations side by side: one more token than the row has inputs, for the last label."""

    #: Shape (sequence_length + 1,), int64.
    tokens: Int64Array
    #: Shape (sequence_length + 1,), int64.
    targets: Int64Array
    #: Shape (sequence_length + 1,), int64: from 0 in each conversation, on through its padding.
    positions: Int64Array
    #: Shape (sequence_length + 1,), bool.
    is_padding: npt.NDArray[np.bool_]
    #: Where conversations start, and where the last one ends.
    boundaries: list[int]


def pack_row(
    conversations: Iterable[Encoded],
    sequence_length: int,
    divisor: int,
    pad: PadIds,
    num_kept_labels: int = 0,
) -> Row:
    """Return conversations as one row.

    Parameters
    ----------
    conversations
        The conversations; no more are asked for than fit.
    sequence_length
        Inputs of the row.
    divisor
        What each conversation is padded to a multiple of.
    pad
        What it is padded with.
    num_kept_labels
        1 if a row that is full has its last label, too.

    Notes
    -----
    Law: what does not fit is cut off, and then the last label is padding, or what
    ``num_kept_labels`` keeps; padding behind the last conversation belongs to it.
    Source: Megatron-LM, ``SFTDataset.__getitem__``.
    """
    width = sequence_length + 1
    tokens = np.full(width, pad.token, np.int64)
    targets = np.full(width, pad.label, np.int64)
    is_padding = np.ones(width, np.bool_)
    starts: list[int] = []
    size = 0
    for encoded in conversations:
        count = len(encoded.tokens)
        if not count:
            continue
        fits = min(count, sequence_length + num_kept_labels - size)
        tokens[size : size + fits] = encoded.tokens[:fits]
        targets[size : size + fits] = encoded.targets[:fits]
        is_padding[size : size + fits] = False
        starts.append(size)
        size += -(-count // divisor) * divisor
        if size > sequence_length:
            break
    positions = np.arange(width)
    positions -= np.repeat(starts or [0], np.diff([*(starts or [0]), width]))
    return Row(tokens, targets, positions, is_padding, [*starts, sequence_length])


@contextmanager
def telling_record(number: int, path: str | None) -> Iterator[None]:
    """Say of errors which record they are about."""
    try:
        yield
    except SourceError as error:
        raise SourceError(f"record {number} of {path}: {error}") from error


def make_conversation_batch(
    datasets: "Sequence[SFTDataset]",
    which: Int64Array,
    positions: Int64Array,
    is_padding: npt.NDArray[np.bool_],
    dataset_ids: npt.NDArray[Any] | None,
) -> SampleBatch:
    """Return samples of conversations; arguments as for the batches of GPT datasets."""
    first = datasets[int(which[0])]
    config = first.config
    size, length = len(which), int(config.sequence_length)
    plane = size, length
    shapes: Shapes = {}
    if dataset_ids is not None:
        shapes["dataset_id"] = ((size,), torch.from_numpy(dataset_ids).dtype)
    shapes |= {
        "tokens": (plane, torch.int64),
        "labels": (plane, torch.int64),
        "loss_mask": (plane, torch.float32),
        "position_ids": (plane, torch.int64),
    }
    if first._has_boundaries:
        shapes["cu_seqlens"] = ((size, length + 1), torch.int32)
        shapes["max_seqlen"] = ((size,), torch.int32)
    tensors, arrays = allocate_arrays(shapes)
    if dataset_ids is not None:
        arrays["dataset_id"][:] = dataset_ids
    pad = find_pad_ids(config.tokenizer)
    for number in dict.fromkeys(which.tolist()):
        rows = np.flatnonzero(which == number)
        member = datasets[number]
        numbers = member._find_records(positions[rows])
        records = member._read_records(numbers)
        for row, name, record in zip(rows.tolist(), numbers, records, strict=True):
            with telling_record(name, member._path):
                packed = pack_row(
                    member._encode(record),
                    length,
                    member.padding_divisor,
                    pad,
                    member._num_kept_labels,
                )
                if len(packed.boundaries) < 2:
                    raise SourceError(
                        "a record must give tokens, this one gives none; remove it or mend the "
                        "tokenizer's chat template"
                    )
            _fill(arrays, row, packed, pad)
    arrays["loss_mask"][is_padding] = 0.0
    return SampleBatch(tensors)


def _fill(arrays: dict[str, npt.NDArray[Any]], row: int, packed: Row, pad: PadIds) -> None:
    """Fill in what a batch has of one row."""
    labels, length = packed.targets[1:], len(packed.tokens) - 1
    arrays["tokens"][row] = packed.tokens[:-1]
    arrays["labels"][row] = labels
    counts = ~packed.is_padding[1:] & (labels != IGNORE_INDEX)
    if pad.is_own:
        counts &= labels != pad.label
    arrays["loss_mask"][row] = counts
    arrays["position_ids"][row] = np.arange(length)
    if "cu_seqlens" in arrays:
        arrays["position_ids"][row] = packed.positions[:-1]
        # As many as any row may need, so that samples can be stacked.
        boundaries = np.full(length + 1, length)
        given = packed.boundaries[: length + 1]
        boundaries[: len(given)] = given
        arrays["cu_seqlens"][row] = boundaries
        arrays["max_seqlen"][row] = np.diff(boundaries).max()


def as_ids(values: Any) -> Int64Array:
    """Return ids as an array: a tensor's, an array's or a list's."""
    if isinstance(values, torch.Tensor):
        values = values.cpu().numpy()
    return np.asarray(values, np.int64).reshape(-1)
