"""Batches without padding: the samples of a keyed dataset one after the other."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from zindex.arrays import AnyArray, Int64Array
from zindex.errors import ConfigError, check_whole
from zindex.keyed.base_dataset import BaseDataset
from zindex.plan.token_batches import SampleSizes
from zindex.samples.batch import BatchTensors, SampleBatch, Shapes

#: Tensors of every packed batch that say where its sequences are.
POSITIONS, DOCUMENTS, BOUNDS, LONGEST = "position_ids", "document_ids", "cu_seqlens", "max_seqlen"


class PackedBatch(SampleBatch):
    """Samples read as one packed batch; they have no items of their own.

    Parameters
    ----------
    tensors
        The batch.
    size
        Its samples.
    """

    def __init__(self, tensors: dict[str, torch.Tensor], size: int) -> None:
        super().__init__(tensors)
        self._size = size

    def _take_item(self, place: int) -> dict[str, Any]:
        raise ConfigError(
            f"a packed batch has no item {place}; take it from the dataset that is packed, or give "
            "a DataLoader the collate of the packed dataset as collate_fn"
        )


class PackedDataset(torch.utils.data.Dataset[dict[str, Any]]):
    """A keyed dataset whose batches hold samples one after the other, without padding.

    Parameters
    ----------
    dataset
        Windows with ``documents="respect"`` or ``"ignore"``, or records.
    multiple_of
        The tokens of a batch are padded to a multiple of this, > 0; with the budget of the batches
        itself, all have one shape.

    Raises
    ------
    ConfigError
        If the dataset has no samples that can be packed.

    Notes
    -----
    Batches have, with T tokens and N sequences: ``input_ids`` (int64, shape (1, T));
    ``position_ids``, from 0 in each sequence; ``document_ids``, the number of the sequence, -1 in
    padding; ``cu_seqlens`` (int32, shape (N + 1,)), where sequences start, and T; and
    ``max_seqlen`` (int32, shape ()), the tokens of the longest. Padding, if any, is one more
    sequence of ``cu_seqlens``.

    A window is a sequence, with the other tensors of windows, all of shape (1, T).

    Of records, each answer is a sequence, after its prompt if that is stored apart, which is then
    repeated. All sequences of a record are in one batch, in the order of its fields and items.
    ``record_ids`` (int64, shape (N,)) is the record of each, from 0 in every batch, and
    ``field_ids`` the number of its field: 0 for chosen, 1 for rejected. ``loss_mask`` (bool, or
    stored floats, shape (1, T)) joins the masks; as in padded batches it belongs to its own token,
    not to the next one, and it is False at the first token of a sequence, so that one shift of the
    whole batch gives the targets. Other values of tokens have shape (1, T), those of items, such as
    rewards, (N,), and those of records (records,).
    """

    def __init__(self, dataset: BaseDataset, *, multiple_of: int = 1) -> None:
        super().__init__()
        if not hasattr(dataset, "check_packed"):
            raise ConfigError(
                f"a packed dataset needs a dataset of zindex.keyed, got {type(dataset).__name__}; "
                "load it with DatasetFactory.load"
            )
        dataset.check_packed()
        self.dataset = dataset
        self.multiple_of = check_whole("multiple_of", multiple_of, 1)

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of what determines the samples."""
        return self.dataset.fingerprint

    def sample_sizes(self) -> SampleSizes:
        """Return the tokens of every sample."""
        return self.dataset.sample_sizes()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a sample, as the dataset does."""
        return self.dataset[index]

    def __getitems__(self, indices: Sequence[int]) -> PackedBatch:
        """Return a batch of several samples, in the given order; torch's DataLoader calls this."""
        numbers = self.dataset.resolve(indices)
        return PackedBatch(self.dataset.read_packed(numbers, self.multiple_of), len(numbers))

    def collate(self, batch: Any) -> BatchTensors:
        """Return the tensors of a batch; a ``collate_fn`` for torch's DataLoader."""
        if not isinstance(batch, PackedBatch):
            raise ConfigError(
                "collate of a packed dataset takes what its __getitems__ returned, got "
                f"{type(batch).__name__}; read the samples of a batch together, from the packed "
                "dataset"
            )
        return batch.tensors


class PackedSequences:
    """Where the sequences of a packed batch are.

    Parameters
    ----------
    lengths
        Shape (sequences,), int64, tokens.
    multiple_of
        As of `PackedDataset`.
    """

    def __init__(self, lengths: Int64Array, multiple_of: int) -> None:
        self.lengths = lengths
        self.stops = np.cumsum(lengths)
        self.starts = self.stops - lengths
        self.num_tokens = int(self.stops[-1]) if len(lengths) else 0
        self.width = -(-self.num_tokens // multiple_of) * multiple_of

    @property
    def shapes(self) -> Shapes:
        """Shapes and dtypes of the tensors that `mark` fills."""
        plane, num_bounds = (1, self.width), len(self.lengths) + 1
        return {
            POSITIONS: (plane, torch.int64),
            DOCUMENTS: (plane, torch.int64),
            BOUNDS: ((num_bounds + (self.width > self.num_tokens),), torch.int32),
            LONGEST: ((), torch.int32),
        }

    def mark(self, arrays: dict[str, AnyArray]) -> None:
        """Fill the tensors that say where sequences are."""
        positions, documents = arrays[POSITIONS][0], arrays[DOCUMENTS][0]
        documents[: self.num_tokens] = np.repeat(np.arange(len(self.lengths)), self.lengths)
        documents[self.num_tokens :] = -1
        positions[: self.num_tokens] = np.repeat(-self.starts, self.lengths)
        positions[: self.num_tokens] += np.arange(self.num_tokens)
        positions[self.num_tokens :] = np.arange(self.width - self.num_tokens)
        bounds = arrays[BOUNDS]
        bounds[0] = 0
        bounds[1 : len(self.stops) + 1] = self.stops
        bounds[-1] = self.width
        arrays[LONGEST][...] = np.diff(bounds).max(initial=0)


def find_bounds(document_ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return ``cu_seqlens`` and ``max_seqlen`` of windows.

    Parameters
    ----------
    document_ids
        Shape (samples, tokens), int64: the document of each token; samples never share one.

    Examples
    --------
    >>> found = find_bounds(torch.tensor([[0, 0, 1], [0, 0, -1]]))
    >>> found["cu_seqlens"].tolist(), int(found["max_seqlen"])
    ([0, 2, 3, 5, 6], 2)
    """
    ids = document_ids.numpy()
    is_start = np.ones(ids.shape, np.bool_)
    np.not_equal(ids[:, 1:], ids[:, :-1], out=is_start[:, 1:])
    bounds = np.append(np.flatnonzero(is_start), ids.size).astype(np.int32)
    longest = np.diff(bounds).max(initial=0)
    return {BOUNDS: torch.from_numpy(bounds), LONGEST: torch.tensor(longest, dtype=torch.int32)}
