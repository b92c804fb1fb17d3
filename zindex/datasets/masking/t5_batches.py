"""Batches of T5 samples: text whose masked spans are sentinels, and the spans behind theirs."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from zindex.datasets.masking.masked_batch import MaskedBatch, make_room, raise_problem
from zindex.datasets.masking.sentences import read_sentences
from zindex.datasets.masking.vocabulary import make_rules
from zindex.kernels.masked_rows import (
    DECODER_FULL,
    NO_SENTINEL,
    NOTHING,
    TOO_LONG,
    Problem,
    SampleTexts,
    T5Rows,
    fill_t5_rows,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zindex.datasets.t5_dataset import T5MaskedWordPieceDataset

Int64Array = npt.NDArray[np.int64]


def make_t5_batch(
    datasets: "Sequence[T5MaskedWordPieceDataset]",
    which: Int64Array,
    positions: Int64Array,
    is_padding: npt.NDArray[np.bool_],
    dataset_ids: npt.NDArray[Any] | None,
) -> MaskedBatch:
    """Return samples of T5 datasets of one configuration.

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
        If the tokenizer does not know a token of the data or has too few sentinels, or the decoder
        is too short.
    VerificationError
        If an index gives samples that there cannot be.
    """
    first = datasets[int(which[0])]
    config, pad = first.config, first._pad_token_id
    length = int(config.sequence_length_decoder)
    texts = read_sentences(datasets, which, positions)
    tensors, arrays = make_room(
        {
            "text_enc": config.sequence_length,
            **dict.fromkeys(("text_dec", "labels", "loss_mask"), length),
            "truncated": 0,
            "enc_mask": config.sequence_length,
            "dec_mask": length,
        },
        len(which),
        dataset_ids,
    )
    names = ("text_enc", "text_dec", "labels", "loss_mask", "truncated")
    rows = T5Rows(*(arrays[name] for name in names))
    rows.encoder.fill(pad)
    rows.decoder.fill(pad)
    rows.labels.fill(-1)
    rows.loss_mask.fill(0)
    problem = _fill(first, texts, rows)
    row = problem[0]
    raise_problem(datasets[int(which[row])], int(positions[row]), problem)
    # What looks like padding counts as padding, and gets an id that an embedding has.
    for name, tokens in (("enc_mask", rows.encoder), ("dec_mask", rows.decoder)):
        np.not_equal(tokens, pad, out=arrays[name], casting="unsafe")
        tokens *= arrays[name]
    rows.labels[rows.labels == pad] = 0
    if is_padding.any():
        rows.loss_mask[is_padding] = 0
    return MaskedBatch(tensors)


def _fill(dataset: "T5MaskedWordPieceDataset", texts: SampleTexts, rows: T5Rows) -> Problem:
    """Make samples up to their padding; return what is wrong with one."""
    tokenizer = dataset.config.tokenizer
    bos, eos = int(tokenizer.bos), int(tokenizer.eos)
    sentinels = np.array([*tokenizer.additional_special_tokens_ids], np.int64)
    if dataset._masks_plainly:
        rules = make_rules(dataset.config, replaces=False)
        return fill_t5_rows(texts, rules, bos, eos, sentinels, rows)
    return _fill_one_by_one(dataset, texts, bos, eos, sentinels.tolist(), rows)


def _fill_one_by_one(
    dataset: "T5MaskedWordPieceDataset",
    texts: SampleTexts,
    bos: int,
    eos: int,
    sentinels: list[int],
    rows: T5Rows,
) -> Problem:
    """Make samples as the kernel does, but mask them as the dataset's own class does."""
    stops = np.append(0, np.cumsum(texts.lengths))
    for sample, row in enumerate(texts.rows.tolist()):
        begin, end = stops[texts.firsts[sample : sample + 2]].tolist()
        target = int(texts.targets[sample])
        rows.truncated[row] = end - begin > target
        tokens = texts.tokens[begin : min(end, begin + target)].tolist()
        if len(tokens) > rows.encoder.shape[1]:
            return row, TOO_LONG, len(tokens)
        random_state = np.random.RandomState(int(texts.seeds[sample]))
        masked, _, _, _, spans = dataset._create_masked_lm_predictions(tokens, target, random_state)
        if len(spans) > len(sentinels):
            return row, NO_SENTINEL, len(sentinels)
        encoder: list[int] = []
        labels: list[int] = []
        done = 0
        for sentinel, (places, own) in zip(sentinels, spans, strict=False):
            encoder += [*masked[done : places[0]], sentinel]
            labels += [sentinel, *own]
            done = places[-1] + 1
        encoder += masked[done:]
        if len(labels) >= rows.decoder.shape[1]:
            return row, DECODER_FULL, len(labels) + 1
        rows.encoder[row, : len(encoder)] = encoder
        rows.decoder[row, : len(labels) + 1] = [bos, *labels]
        rows.labels[row, : len(labels) + 1] = [*labels, eos]
        rows.loss_mask[row, : len(labels) + 1] = 1
    return -1, NOTHING, 0
