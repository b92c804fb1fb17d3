"""Batches of BERT samples: one or two segments between separators, with masked tokens."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from zindex.datasets.masking.masked_batch import MaskedBatch, make_room, raise_problem
from zindex.datasets.masking.sentences import read_sentences
from zindex.datasets.masking.vocabulary import make_rules
from zindex.kernels.masked_rows import (
    NOTHING,
    ONE_SENTENCE,
    TOO_LONG,
    BertRows,
    Problem,
    SampleTexts,
    fill_bert_rows,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zindex.datasets.bert_dataset import BERTMaskedWordPieceDataset

Int64Array = npt.NDArray[np.int64]


def make_bert_batch(
    datasets: "Sequence[BERTMaskedWordPieceDataset]",
    which: Int64Array,
    positions: Int64Array,
    is_padding: npt.NDArray[np.bool_],
    dataset_ids: npt.NDArray[Any] | None,
) -> MaskedBatch:
    """Return samples of BERT datasets of one configuration.

    Parameters
    ----------
    datasets
        The datasets.
    which, positions
        Shape (samples,): the dataset of each sample, and its position there from the start.
    is_padding
        Shape (samples,): samples that only fill up the batch.
    dataset_ids
        Shape (samples,): what items say of their dataset; None lets them say nothing.

    Raises
    ------
    ConfigError
        If the tokenizer does not know a token of the data.
    VerificationError
        If an index gives samples that there cannot be.
    """
    first = datasets[int(which[0])]
    config, pad = first.config, first._pad_token_id
    length = config.sequence_length
    texts = read_sentences(datasets, which, positions)
    tensors, arrays = make_room(
        {
            **dict.fromkeys(("text", "types", "labels"), length),
            "is_random": 0,
            **dict.fromkeys(("padding_mask", "loss_mask"), length),
            "truncated": 0,
        },
        len(which),
        dataset_ids,
    )
    rows = BertRows(**{name: arrays[name] for name in BertRows._fields})
    rows.text.fill(pad)
    rows.types.fill(pad)
    rows.labels.fill(-1)
    rows.loss_mask.fill(0)
    if first._masks_plainly:
        tokenizer, rules = config.tokenizer, make_rules(config, replaces=True)
        head = bool(config.classification_head)
        problem = fill_bert_rows(texts, rules, int(tokenizer.cls), int(tokenizer.sep), head, rows)
    else:
        problem = _fill_one_by_one(first, texts, rows)
    row = problem[0]
    raise_problem(datasets[int(which[row])], int(positions[row]), problem)
    # What looks like padding counts as padding, and gets an id that an embedding has.
    is_pad = rows.text == pad
    padding_mask = arrays["padding_mask"]
    padding_mask.fill(1)
    padding_mask[is_pad] = pad
    rows.text[is_pad] = 0
    rows.labels[rows.labels == pad] = 0
    if is_padding.any():
        rows.loss_mask[is_padding] = 0
    return MaskedBatch(tensors)


def _fill_one_by_one(
    dataset: "BERTMaskedWordPieceDataset", texts: SampleTexts, rows: BertRows
) -> Problem:
    """Make samples as the kernel does, but mask them as the dataset's own class does."""
    tokenizer = dataset.config.tokenizer
    stops = np.cumsum(texts.lengths)
    for sample, row in enumerate(texts.rows.tolist()):
        first, last = texts.firsts[sample : sample + 2].tolist()
        target = int(texts.targets[sample])
        bounds = stops[first:last] - texts.lengths[first:last]
        random_state = np.random.RandomState(int(texts.seeds[sample]))
        middle = end = int(stops[last - 1])
        begin = int(bounds[0])
        is_random = False
        if dataset.config.classification_head:
            if last - first < 2:
                return row, ONE_SENTENCE, last - first
            middle = int(bounds[random_state.randint(1, last - first) if last - first > 2 else 1])
            is_random = bool(random_state.random_sample() < 0.5)
        segments = [texts.tokens[begin:middle], texts.tokens[middle:end]]
        if is_random:
            segments.reverse()
        rows.is_random[row] = is_random
        rows.truncated[row] = end - begin > target
        while sum(map(len, segments)) > target:
            longer = 0 if len(segments[0]) > len(segments[1]) else 1
            part = slice(1, None) if random_state.random_sample() < 0.5 else slice(None, -1)
            segments[longer] = segments[longer][part]
        tokens, size = [int(tokenizer.cls)], 0
        for number, segment in enumerate(segments):
            if number == 0 or len(segment):
                tokens += [*segment.tolist(), int(tokenizer.sep)]
                rows.types[row, size : len(tokens)] = number
                size = len(tokens)
        if size > rows.text.shape[1]:
            return row, TOO_LONG, size
        masked, places, labels, _, _ = dataset._create_masked_lm_predictions(
            tokens, target, random_state
        )
        rows.text[row, :size] = masked
        rows.labels[row, places] = labels
        rows.loss_mask[row, places] = 1
    return -1, NOTHING, 0
