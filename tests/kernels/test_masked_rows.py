"""Rows of BERT and T5 samples: what the kernel makes of small texts, and what it refuses."""

from itertools import chain
from typing import Any

import numpy as np
import pytest

from zindex.kernels.masked_rows import (
    DECODER_FULL,
    NO_SENTINEL,
    NOTHING,
    ONE_SENTENCE,
    TOO_LONG,
    UNKNOWN_TOKEN,
    BertRows,
    SampleTexts,
    T5Rows,
    fill_bert_rows,
    fill_t5_rows,
)
from zindex.kernels.masking import PIECE, SEPARATOR, WORD, MaskingRules

CLS, SEP, MASK = 1, 2, 3
#: Ids 0 to 19: three special tokens, then words of one to three pieces.
KINDS = np.array([0, SEPARATOR, SEPARATOR, WORD, *([WORD, PIECE, PIECE, WORD] * 4)], np.uint8)


def make_rules(**settings: Any) -> MaskingRules:
    defaults: dict[str, Any] = {
        "probability": 0.3,
        "max_ngram": 1,
        "ngram_bounds": np.ones(1),
        "of_words": True,
        "is_geometric": False,
        "permutes": False,
        "kinds": KINDS,
        "mask": MASK,
        "replacements": np.empty(0, np.int64),
    }
    return MaskingRules(**(defaults | settings))


def make_texts(sentences: list[list[int]], target: int, seed: int = 0) -> SampleTexts:
    """Return one sample of sentences."""
    return SampleTexts(
        np.zeros(1, np.int64),
        np.array([*chain.from_iterable(sentences)], np.int64),
        np.array([*map(len, sentences)], np.int64),
        np.array([0, len(sentences)]),
        np.array([target]),
        np.array([seed]),
    )


def bert_rows(width: int) -> BertRows:
    planes = [np.full((1, width), value, np.int64) for value in (0, 0, -1, 0)]
    return BertRows(*planes, np.zeros(1, np.int64), np.zeros(1, np.int64))


def t5_rows(width: int, decoder: int) -> T5Rows:
    planes = [np.full((1, decoder), value, np.int64) for value in (0, -1, 0)]
    return T5Rows(np.zeros((1, width), np.int64), *planes, np.zeros(1, np.int64))


@pytest.mark.parametrize("seed", range(5))
def test_whole_words_are_masked(seed: int) -> None:
    words = [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
    rows = bert_rows(16)
    texts = make_texts([words], 12, seed)
    assert fill_bert_rows(texts, make_rules(), CLS, SEP, False, rows) == (-1, NOTHING, 0)
    text = [CLS, *words, SEP]
    is_masked = rows.loss_mask[0, :14] == 1
    assert 1 <= is_masked.sum() <= 4
    assert rows.text[0].tolist() == [*np.where(is_masked, MASK, text), 0, 0]
    assert rows.labels[0].tolist() == [*np.where(is_masked, text, -1), -1, -1]
    for first in (1, 5, 9):  # words of three pieces and of one
        assert len(set(is_masked[first : first + 3].tolist())) == 1


def test_pieces_are_masked_apart_and_permuted() -> None:
    words = [4, 5, 6, 7] * 6
    rules = make_rules(of_words=False, permutes=True, replacements=np.arange(4, 20))
    rows = bert_rows(27)
    assert fill_bert_rows(make_texts([words], 24), rules, CLS, SEP, False, rows)[1] == NOTHING
    assert rows.loss_mask.sum() == 7 + 7  # min(0.3 * 24, round(0.3 * 26)), and as many moved
    is_label = rows.labels[0] >= 0
    assert (is_label == (rows.loss_mask[0] == 1)).all()
    assert (np.array([CLS, *words, SEP, 0])[is_label] == rows.labels[0][is_label]).all()


def test_two_segments_are_cut() -> None:
    sentences = [[7] * 9, [11] * 5]
    rows = bert_rows(11)
    assert fill_bert_rows(make_texts(sentences, 8), make_rules(), CLS, SEP, True, rows)[1] == 0
    assert rows.types[0].tolist() == [0] * 6 + [1] * 5
    assert rows.truncated[0] == 1
    assert (rows.text[0] == SEP).sum() == 2


def test_spans_go_to_the_decoder() -> None:
    words = [7, 11, 15, 19, 7, 11, 15, 19]
    rows = t5_rows(10, 12)
    sentinels = np.array([50, 51, 52, 53])
    assert fill_t5_rows(make_texts([words], 8), make_rules(), 40, 41, sentinels, rows)[1] == 0
    used = int(rows.loss_mask.sum())
    labels = rows.labels[0, :used].tolist()
    assert labels[-1] == 41
    assert rows.decoder[0, :used].tolist() == [40, *labels[:-1]]
    spans = dict(zip(labels[:-1:2], labels[1:-1:2], strict=True))
    encoder = rows.encoder[0, :8].tolist()
    assert [spans.get(token, token) for token in encoder] == words


@pytest.mark.parametrize(
    ("sentences", "target", "problem"),
    [
        ([[4, 0, 5]], 4, (0, UNKNOWN_TOKEN, 0)),
        ([[4, 99]], 4, (0, UNKNOWN_TOKEN, 99)),
        ([[4] * 20], 20, (0, TOO_LONG, 22)),
    ],
)
def test_problems_of_bert(sentences: Any, target: int, problem: Any) -> None:
    texts = make_texts(sentences, target)
    assert fill_bert_rows(texts, make_rules(), CLS, SEP, False, bert_rows(10)) == problem


def test_a_single_sentence_cannot_be_a_pair() -> None:
    texts = make_texts([[4, 5]], 4)
    found = fill_bert_rows(texts, make_rules(), CLS, SEP, True, bert_rows(10))
    assert found == (0, ONE_SENTENCE, 1)


@pytest.mark.parametrize(
    ("tokens", "decoder", "num_sentinels", "problem"),
    [
        ([4, 0], 9, 9, (0, UNKNOWN_TOKEN, 0)),
        ([7] * 11, 9, 9, (0, TOO_LONG, 11)),
        ([7] * 8, 9, 1, (0, NO_SENTINEL, 1)),
        ([7] * 8, 4, 9, (0, DECODER_FULL, 5)),
        ([], 0, 9, (0, DECODER_FULL, 1)),
    ],
)
def test_problems_of_t5(tokens: Any, decoder: int, num_sentinels: int, problem: Any) -> None:
    rows = t5_rows(10, decoder)
    texts, sentinels = make_texts([tokens], 20), np.arange(num_sentinels)
    assert fill_t5_rows(texts, make_rules(), 40, 41, sentinels, rows) == problem
