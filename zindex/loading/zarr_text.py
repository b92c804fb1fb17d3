"""Map-style dataset of fixed-length windows over the tokens of a Zarr corpus."""

import logging
import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import torch

from zindex import schema
from zindex.arrays import Int64Array
from zindex.datasets.zarr_dataset import ZarrIndexedDataset
from zindex.errors import check_choice, check_whole
from zindex.plan.tail import Tail, TailName, count_windows, describe_waste, parse_tail
from zindex.samples.batch import SampleBatch, Shapes, allocate_arrays, resolve_positions
from zindex.store.commit import fingerprint

logger = logging.getLogger(__name__)

#: Whether windows cross document boundaries.
Documents = Literal["joined", "apart"]


class ZarrText(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """All windows of one length over the tokens of a Zarr corpus, in order.

    It is pickled as its path and settings, and reads batches at once.

    Parameters
    ----------
    path
        Path or URL of the token store, as ``zindex convert`` writes it.
    sequence_length
        Tokens per window.
    overlap
        1: a window starts with the last label of the previous one, so that every token except the
        first is a label once. 0: windows are disjoint, and their first tokens are not labels.
    documents
        ``"joined"``: windows cross document boundaries. ``"apart"``: each window has tokens of one
        document, and the last window of a document is padded or dropped. Document bounds are
        computed on first use, in 16 bytes of memory per document.
    tail
        ``"pad"`` pads the last window, with weight 0 in the loss; ``"drop_last"`` (or ``"drop"``)
        drops it; see `zindex.plan.tail.Tail`.
    pad_id
        Id of padding, in tokens and labels.

    Raises
    ------
    ConfigError
        If an argument is out of range.
    StoreNotFoundError, StoreError
        If there is no committed token store.

    Notes
    -----
    Samples have ``tokens`` and ``labels`` (int64), ``loss_mask`` (float32) and ``position_ids``
    (int64), all of shape (sequence_length,). A single remaining token has no label and gives no
    window.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        sequence_length: int,
        *,
        overlap: Literal[0, 1] = 1,
        documents: Documents = "joined",
        tail: Tail | TailName = Tail.PAD,
        pad_id: int = 0,
    ) -> None:
        self.sequence_length = check_whole("sequence_length", sequence_length, 1)
        check_choice("overlap", overlap, (0, 1))
        check_choice("documents", documents, get_args(Documents))
        self.path = os.fspath(path)
        self.source = ZarrIndexedDataset(self.path)
        self.overlap = overlap
        self.documents = documents
        self.tail = parse_tail(tail, (Tail.PAD, Tail.DROP_LAST))
        self.pad_id = pad_id

    def __getstate__(self) -> dict[str, Any]:
        # Windows are recomputed after unpickling.
        return {key: value for key, value in self.__dict__.items() if key != "_windows"}

    @property
    def num_tokens(self) -> int:
        """Tokens of the corpus."""
        return int(self.source.store.spec["num_tokens"])

    @property
    def fingerprint(self) -> str:
        """The SHA-256, in hex, of the corpus and the settings that determine the windows."""
        return fingerprint(
            {
                "content": self.source.store.fingerprint,
                "sequence_length": self.sequence_length,
                "overlap": self.overlap,
                "documents": self.documents,
                "tail": self.tail.fingerprint_name,
            }
        )

    @property
    def _step(self) -> int:
        return self.sequence_length + 1 - self.overlap

    @cached_property
    def _windows(self) -> tuple[Int64Array, Int64Array]:
        """Start of each document, and the number of windows before it; both include the end."""
        if self.documents == "joined":
            bounds = np.array([0, self.num_tokens])
        else:
            store = self.source.store
            sequences = np.asarray(store[schema.SEQUENCE_OFFSET.name])
            bounds = sequences[np.asarray(store[schema.DOCUMENT_OFFSET.name])].astype(np.int64)
        lengths = np.diff(bounds)
        counts = count_windows(lengths, self.sequence_length, self._step, self.tail)
        if waste := describe_waste(lengths, counts, self.sequence_length, self._step):
            logger.warning(
                "windows of %s %s, with tail=%r and documents=%r; join these, or shorten windows",
                self.path,
                waste,
                self.tail.value,
                self.documents,
            )
        return bounds, np.concatenate([[0], np.cumsum(counts)])

    def __len__(self) -> int:
        return int(self._windows[1][-1])

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Return a window; IndexError if out of range."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> SampleBatch:
        """Return the windows of a batch, read together; called by torch's DataLoader.

        Raises
        ------
        IndexError
            If a number is out of range.
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
        names = ("tokens", "labels", "loss_mask", "position_ids")
        shapes: Shapes = dict.fromkeys(names, ((len(numbers), length), torch.int64))
        shapes["loss_mask"] = shapes["loss_mask"][0], torch.float32
        tensors, arrays = allocate_arrays(shapes)
        arrays["tokens"][:] = read[:, :-1]
        arrays["labels"][:] = read[:, 1:]
        arrays["position_ids"][:] = np.arange(length)
        arrays["loss_mask"][:] = np.arange(length) < (stops - starts - 1)[:, None]
        return SampleBatch(tensors)
