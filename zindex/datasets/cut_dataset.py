"""What was left of a dataset when the sequence length changed, cut into samples of another length.

The unused samples of the source before, laid end to end, are its token stream: a sample may be
made of several spans of the corpus. The label of a span's last token is the token that follows it
in the corpus, never the first one of the next span.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from zindex.building.edits.edited import shuffle_cut
from zindex.building.edits.used import UsedTable
from zindex.datasets.batching.batch_tensors import Origin
from zindex.datasets.batching.batch_texts import Texts
from zindex.datasets.batching.gpt_tensors import make_tensors
from zindex.datasets.batching.sample_batch import SampleBatch, batch_of_items, resolve_positions
from zindex.datasets.batching.token_spans import SpanTexts, read_token_spans
from zindex.datasets.gpt_config import GPTDatasetConfig
from zindex.datasets.gpt_dataset import GPTDataset
from zindex.plan.journal import Source

Int64Array = npt.NDArray[np.int64]


class TokenSpans(NamedTuple):
    """Spans of the token stream of an index; all of one owner are in order, none touch."""

    #: Shape (spans,): which of the things asked for a span is part of.
    owners: Int64Array
    #: Shape (spans,) each: first token, and one after the last.
    starts: Int64Array
    stops: Int64Array


class CutDataset(torch.utils.data.Dataset[dict[str, Any]]):
    """Samples cut anew from what was unused of another source.

    Parameters
    ----------
    source, number
        The source, and its number in the run.
    parent
        The source before.
    used
        Which samples of it were used, by their place in its token stream.
    config
        The configuration, with the sequence length of these samples.
    """

    def __init__(
        self,
        source: Source,
        number: int,
        parent: "GPTDataset | CutDataset",
        used: UsedTable,
        config: GPTDatasetConfig,
    ) -> None:
        assert source.parent is not None
        self.source = source
        self.number = number
        self.parent = parent
        self.used = used
        self.config = config
        self._row = used.rows[source.parent]

    @property
    def base(self) -> GPTDataset:
        """The index whose tokens these are."""
        return self.parent.base if isinstance(self.parent, CutDataset) else self.parent

    def __len__(self) -> int:
        return self.source.num_samples

    def __getitem__(self, idx: int | None) -> dict[str, Any]:
        """Return a sample, as `GPTDataset` does."""
        return self.__getitems__([idx])[0]

    def __getitems__(self, positions: list[int | None]) -> SampleBatch:
        """Return the samples of a batch, read together."""
        if not len(positions):
            return batch_of_items(self, positions)
        where = f"what was left of {self.base._where}"
        numbers, is_padding = resolve_positions(positions, len(self), where)
        return SampleBatch(self.make_tensors(numbers, is_padding))

    def shuffle(self, positions: npt.NDArray[np.integer[Any]]) -> Int64Array:
        """Return the samples that stand at positions."""
        return shuffle_cut(self.source, self.number, self.base.index_split.name, positions)

    def find_tokens(self, starts: Int64Array, stops: Int64Array) -> TokenSpans:
        """Return where in the corpus spans of the token stream lie that is cut here.

        Parameters
        ----------
        starts, stops
            Shape (spans,): ``[starts[i], stops[i])``, none empty.
        """
        length = self.parent.config.sequence_length
        first, last = starts // length, -(-stops // length)
        counts = last - first
        owners = np.repeat(np.arange(len(starts)), counts)
        first_parts = np.cumsum(counts) - counts
        places = np.arange(len(owners)) - first_parts[owners] + first[owners]
        samples = self.used.find(np.full(len(places), self._row), places)
        begins, ends = samples * length, (samples + 1) * length
        begins[first_parts] += starts - first * length
        ends[first_parts + counts - 1] -= last * length - stops
        spans = _join(TokenSpans(owners, begins, ends))
        if isinstance(self.parent, CutDataset):
            deeper = self.parent.find_tokens(spans.starts, spans.stops)
            spans = _join(deeper._replace(owners=spans.owners[deeper.owners]))
        return spans

    def make_tensors(
        self, positions: Int64Array, is_padding: npt.NDArray[np.bool_]
    ) -> dict[str, torch.Tensor]:
        """Return the tensors of a batch, by the names of a GPT item.

        Parameters
        ----------
        positions
            Shape (samples,), from the start.
        is_padding
            Shape (samples,): samples that only fill up the batch.
        """
        length, extra = self.config.sequence_length, int(self.config.add_extra_token_to_sequence)
        samples = self.shuffle(positions)
        spans = self.find_tokens(samples * length, (samples + 1) * length)
        # With its label, which is the next token of the corpus.
        read = read_token_spans(self.base, spans.starts, spans.stops + extra)
        is_last = np.append(np.diff(spans.owners) > 0, True)
        texts, labels = _join_texts(read, spans, is_last, samples, length, extra)
        dataset_ids = np.zeros(len(samples), np.int16) if self.config.with_provenance else None
        is_first = np.append(True, np.diff(spans.owners) > 0)
        epochs = spans.starts[is_first] // self.base._epochs.tokens_per_epoch
        origin = Origin(dataset_ids, epochs if self.config.with_provenance else None)
        pad = self.base._pad_token_id
        tensors = make_tensors(texts, self.config, pad, is_padding, origin)
        _set_labels(tensors, labels, pad, self.config, is_padding)
        return tensors


def _join(spans: TokenSpans) -> TokenSpans:
    """Return spans with those joined that follow one another without a gap."""
    fresh = np.ones(len(spans.owners), np.bool_)
    fresh[1:] = (np.diff(spans.owners) != 0) | (spans.starts[1:] != spans.stops[:-1])
    return TokenSpans(
        spans.owners[fresh], spans.starts[fresh], spans.stops[np.append(fresh[1:], True)]
    )


class _Labels(NamedTuple):
    """Labels that are not the next token of their sample: of the last tokens of spans."""

    rows: Int64Array
    columns: Int64Array
    #: None where no extra token is read: such a token predicts nothing.
    values: npt.NDArray[Any] | None


def _join_texts(
    read: SpanTexts,
    spans: TokenSpans,
    is_last: npt.NDArray[np.bool_],
    samples: Int64Array,
    length: int,
    extra: int,
) -> tuple[Texts, _Labels]:
    """Return the texts of samples made of spans, and the labels at the joints."""
    sizes = spans.stops - spans.starts
    before = np.cumsum(sizes) - sizes
    columns = before - spans.owners * length
    kept = sizes + np.where(is_last, extra, 0)
    read_starts = np.cumsum(sizes + extra) - (sizes + extra)
    tokens = np.empty((len(samples), length + extra), read.tokens.dtype)
    for owner, column, size, start in zip(
        spans.owners.tolist(), columns.tolist(), kept.tolist(), read_starts.tolist(), strict=True
    ):
        tokens[owner, column : column + size] = read.tokens[start : start + size]
    joints = np.flatnonzero(~is_last)
    values = read.tokens[(read_starts + sizes)[joints]] if extra else None
    labels = _Labels(spans.owners[joints], (columns + sizes - 1)[joints], values)
    # A label that is not in its row is no part of a document there.
    stops = np.minimum(read.offsets + read.lengths, kept[read.spans])
    parts = np.flatnonzero(stops > read.offsets)
    owners = spans.owners[read.spans[parts]]
    return (
        Texts(
            tokens=tokens,
            rows=np.arange(len(samples)),
            num_tokens=np.full(len(samples), length + extra),
            samples=samples,
            first_parts=np.flatnonzero(np.append(True, np.diff(owners) > 0)),
            owners=owners,
            documents=read.documents[parts],
            lengths=(stops - read.offsets)[parts],
            offsets=read.offsets[parts] + columns[read.spans[parts]],
        ),
        labels,
    )


def _set_labels(
    tensors: dict[str, torch.Tensor],
    labels: _Labels,
    pad: int,
    config: GPTDatasetConfig,
    is_padding: npt.NDArray[np.bool_],
) -> None:
    """Set the labels at the joints of spans, and their weight in the loss."""
    rows, columns, values = labels
    if not rows.size:
        return
    weight = ~is_padding[rows]
    if values is None:
        weight[:] = False
    else:
        weight &= values != pad
        if config.eod_mask_loss:
            weight &= tensors["tokens"].numpy()[rows, columns] != config.tokenizer.eod
    tensors["labels"].numpy()[rows, columns] = (
        0 if values is None else np.where(values == pad, 0, values)
    )
    tensors["loss_mask"].numpy()[rows, columns] = weight
