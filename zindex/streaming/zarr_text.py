"""Windows over the tokens of a Zarr corpus, as a map-style dataset."""

import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from zindex import schema
from zindex.datasets.batching.batch_memory import allocate_arrays
from zindex.datasets.batching.sample_batch import SampleBatch, resolve_positions
from zindex.datasets.zarr_dataset import ZarrIndexedDataset
from zindex.errors import ConfigError
from zindex.store.identity import fingerprint
from zindex.streaming.processing.text_packing import Tail

Int64Array = npt.NDArray[np.int64]
#: Whether windows run across the ends of documents, or each holds tokens of one only.
Documents = Literal["joined", "apart"]


class ZarrText(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Every window of one length over the tokens of a Zarr corpus, in the corpus' order.

    It pickles as its path and settings, and reads a batch in one go.

    Parameters
    ----------
    path
        Path or URL of the token store, as ``zindex convert`` writes it.
    sequence_length
        Tokens per window.
    overlap
        1: a window begins with the last label of the one before, so that every token but the first
        is a label once. 0: windows share nothing, and their first tokens are no labels.
    documents
        ``"joined"``: windows run across the ends of documents. ``"apart"``: each holds tokens of
        one document, whose last window is filled up or left out; where they begin is counted at
        first use, in 16 bytes of memory per document.
    tail
        ``"pad"`` fills up the last window, with weight 0 in the loss; ``"drop"`` leaves it out.
    pad_id
        Id to fill up with, in tokens and labels.

    Raises
    ------
    ConfigError
        If an argument is out of range.
    StoreNotFoundError, StoreError
        If there is no committed token store.

    Notes
    -----
    Samples have ``tokens`` and ``labels`` (int64), ``loss_mask`` (float32) and ``position_ids``
    (int64), all of shape (sequence_length,). What is left as a single token has no label, so it
    makes no window.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        sequence_length: int,
        *,
        overlap: Literal[0, 1] = 1,
        documents: Documents = "joined",
        tail: Tail = "pad",
        pad_id: int = 0,
    ) -> None:
        if (
            isinstance(sequence_length, bool)
            or not isinstance(sequence_length, int)
            or sequence_length < 1
        ):
            raise ConfigError(
                f"sequence_length must be a whole number from 1 on, got {sequence_length!r}"
            )
        if overlap not in (0, 1):
            raise ConfigError(f"overlap must be 0 or 1 tokens, got {overlap!r}")
        if documents not in get_args(Documents):
            raise ConfigError(f"documents must be 'joined' or 'apart', got {documents!r}")
        if tail not in get_args(Tail):
            raise ConfigError(f"tail must be 'pad' or 'drop', got {tail!r}")
        self.path = os.fspath(path)
        self.source = ZarrIndexedDataset(self.path)
        self.sequence_length = sequence_length
        self.overlap = overlap
        self.documents = documents
        self.tail = tail
        self.pad_id = pad_id

    def __getstate__(self) -> dict[str, Any]:
        # Windows are counted again where they are needed.
        return {key: value for key, value in self.__dict__.items() if key != "_windows"}

    @property
    def num_tokens(self) -> int:
        """Tokens of the corpus."""
        return int(self.source.store.spec["num_tokens"])

    @property
    def fingerprint(self) -> str:
        """The SHA-256, in hex, of what decides which window stands where, in any process."""
        return fingerprint(
            {
                "content": self.source.store.fingerprint,
                "sequence_length": self.sequence_length,
                "overlap": self.overlap,
                "documents": self.documents,
                "tail": self.tail,
            }
        )

    @property
    def _step(self) -> int:
        return self.sequence_length + 1 - self.overlap

    @cached_property
    def _windows(self) -> tuple[Int64Array, Int64Array]:
        """Where each document starts, with the end, and how many windows come before it."""
        if self.documents == "joined":
            bounds = np.array([0, self.num_tokens])
        else:
            store = self.source.store
            sequences = np.asarray(store[schema.SEQUENCE_OFFSET.name])
            bounds = sequences[np.asarray(store[schema.DOCUMENT_OFFSET.name])].astype(np.int64)
        sizes = np.diff(bounds)
        counts = np.maximum((sizes - self.sequence_length - 1) // self._step + 1, 0)
        if self.tail == "pad":
            counts += sizes - counts * self._step > 1
        return bounds, np.concatenate([[0], np.cumsum(counts)])

    def __len__(self) -> int:
        return int(self._windows[1][-1])

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Return a window; IndexError if there is none of this number."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> SampleBatch:
        """Return the windows of a batch, read together: torch's DataLoader calls this.

        Raises
        ------
        IndexError
            If there is no window of a number.
        VerificationError
            If data are damaged or missing.
        """
        numbers, _ = resolve_positions(indices, len(self), f"windows of {self.path}")
        bounds, before = self._windows
        documents = np.searchsorted(before, numbers, "right") - 1
        length = self.sequence_length
        starts = bounds[documents] + (numbers - before[documents]) * self._step
        stops = np.minimum(starts + length + 1, bounds[documents + 1])
        read = np.full((len(numbers), length + 1), self.pad_id, np.int64)
        places = np.arange(len(numbers)) * (length + 1)
        self.source.tokens.read_spans(starts, stops, read.reshape(-1), places)
        whole, part = (len(numbers), length), torch.int64
        tensors, arrays = allocate_arrays(
            {
                "tokens": (whole, part),
                "labels": (whole, part),
                "loss_mask": (whole, torch.float32),
                "position_ids": (whole, part),
            }
        )
        arrays["tokens"][:] = read[:, :-1]
        arrays["labels"][:] = read[:, 1:]
        arrays["position_ids"][:] = np.arange(length)
        arrays["loss_mask"][:] = np.arange(length) < (stops - starts - 1)[:, None]
        return SampleBatch(tensors)
