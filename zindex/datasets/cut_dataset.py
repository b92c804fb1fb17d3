"""The unused samples of a dataset at a change of the sequence length, as samples of the new length.

The unused samples of the previous source, concatenated, form a token stream, so a new sample may
consist of several spans of the corpus.
"""

import numpy as np

from zindex.arrays import BoolArray, Int64Array, IntegerArray
from zindex.datasets.gpt_config import GPTDatasetConfig
from zindex.datasets.gpt_dataset import GPTDataset
from zindex.datasets.sample_dataset import SampleDataset
from zindex.maintenance.edits.consumed import ConsumedTable
from zindex.maintenance.edits.cut_tokens import find_cut_tokens
from zindex.maintenance.edits.draws import shuffle_cut
from zindex.plan.journal import Source
from zindex.samples.batch import SampleBatch
from zindex.samples.token_spans import TokenSpans, make_span_tensors


class CutDataset(SampleDataset):
    """The unused samples of another source, as samples of a new length.

    Parameters
    ----------
    source, number
        The source, and its number in the run.
    parent
        The previous source.
    consumed
        The consumed samples of each source, in the order of its token stream.
    config
        The configuration, with the sequence length of these samples.
    """

    def __init__(
        self,
        source: Source,
        number: int,
        parent: "GPTDataset | CutDataset",
        consumed: ConsumedTable,
        config: GPTDatasetConfig,
    ) -> None:
        assert source.parent is not None
        self.source = source
        self.number = number
        self.parent = parent
        self.consumed = consumed
        self.config = config
        self._row = consumed.rows[source.parent]

    @property
    def base(self) -> GPTDataset:
        """The dataset that holds the tokens."""
        return self.parent.base if isinstance(self.parent, CutDataset) else self.parent

    def __len__(self) -> int:
        return self.source.num_samples

    @property
    def _where(self) -> str:
        """Name of the dataset in messages."""
        return f"what was left of {self.base._where}"

    def _read_batch(self, positions: Int64Array, is_padding: BoolArray) -> SampleBatch:
        """Return the samples at positions, with the tensors of a GPT item."""
        length, base = self.config.sequence_length, self.base
        samples = self.shuffle(positions)
        spans = self.find_tokens(samples * length, (samples + 1) * length)
        dataset_ids = epochs = None
        if self.config.with_provenance:
            dataset_ids = np.zeros(len(samples), np.int16)
            is_first = np.append(True, np.diff(spans.owners) > 0)
            epochs = spans.starts[is_first] // base._epochs.tokens_per_epoch
        settings = self.config.text_settings(base._pad_token_id)
        tensors = make_span_tensors(
            base.open_text(), spans, settings, samples, is_padding, dataset_ids, epochs
        )
        return SampleBatch(tensors)

    def shuffle(self, positions: IntegerArray) -> Int64Array:
        """Return the samples at positions."""
        return shuffle_cut(self.source, self.number, self.base.index_split.name, positions)

    def find_tokens(self, starts: Int64Array, stops: Int64Array) -> TokenSpans:
        """Return the spans of the corpus that make up spans of this token stream.

        Parameters
        ----------
        starts, stops
            Shape (spans,): ``[starts[i], stops[i])``, none empty.
        """
        length = self.parent.config.sequence_length
        spans = find_cut_tokens(self.consumed, self._row, length, starts, stops)
        if isinstance(self.parent, CutDataset):
            deeper = self.parent.find_tokens(spans.starts, spans.stops)
            spans = deeper._replace(owners=spans.owners[deeper.owners]).merge()
        return spans
