"""Samples of whole sentences equal a plain loop over documents, for any document ranges."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.kernels.random_draws import MEMORY_LENGTH, seed_draws
from zindex.kernels.sentence_mapping import (
    LONG_SENTENCE,
    MAX_RATIO,
    block_rule,
    scan_sentences,
    sentence_rule,
)

# Documents as lists of sentence lengths: empty ones, short ones, one too long.
DOCUMENTS = st.lists(
    st.lists(st.sampled_from([0, 1, 3, 8, 20, 512, 513]), max_size=9), min_size=1, max_size=12
)
RULES = [sentence_rule(10, 1, 0), sentence_rule(30, 2, 0), sentence_rule(10, 3, 0)]
RULES += [block_rule(20, one_sentence_blocks=one) for one in (False, True)]


def flatten(documents):
    bounds = np.cumsum([0, *map(len, documents)])
    return bounds, np.array([n for document in documents for n in document], np.int32)


def loop(documents, rule, titles=None):
    """Return rows of (start, stop, target or document) by the rule's words, one by one."""
    rows, first = [], 0
    for number, document in enumerate(documents):
        too_long = len(document) >= rule.long_from and max(document, default=0) > LONG_SENTENCE
        target = rule.target_length - (titles[number] if titles is not None else 0)
        start, length, count = 0, 0, 0
        for place, size in enumerate(document):
            if len(document) < rule.min_sentences or too_long:
                break
            length, count = length + size, count + 1
            left = len(document) - place - 1
            enough = length >= target and count >= rule.min_sentences
            if (enough and left >= rule.min_left) or not left:
                third = target if titles is None else number
                rows.append([first + start, first + place + 1, third])
                start, length, count = place + 1, 0, 0
        first += len(document)
    return rows


@given(documents=DOCUMENTS, rule=st.sampled_from(RULES[:3]))
def test_samples_are_those_of_a_loop(documents, rule):
    samples, drawn = scan_sentences(*flatten(documents), rule)
    assert samples.tolist() == loop(documents, rule)
    assert samples.dtype == np.uint32
    assert drawn == 0


@given(documents=DOCUMENTS, rule=st.sampled_from(RULES[3:]))
def test_blocks_are_those_of_a_loop(documents, rule):
    titles = np.arange(len(documents), dtype=np.int32) % 7
    samples, _ = scan_sentences(*flatten(documents), rule, titles=titles, dtype=np.uint64)
    assert samples.tolist() == loop(documents, rule, titles)
    assert samples.dtype == np.uint64


@given(documents=DOCUMENTS, cut=st.integers(0, 12), way=st.sampled_from(["chained", "keyed"]))
def test_drawn_targets_do_not_depend_on_the_runs_of_documents(documents, cut, way):
    rule, (bounds, lengths) = sentence_rule(20, 1, 0.5), flatten(documents)
    cut = min(cut, len(documents))

    def settings():
        if way == "keyed":
            return {"key": np.array([3, 4], np.uint64)}
        memory = np.empty(MEMORY_LENGTH, np.uint32)
        seed_draws(1, memory)
        return {"memory": memory}

    whole, drawn = scan_sentences(bounds, lengths, rule, **settings())
    shared, parts = settings(), []
    for start, stop in ((0, cut), (cut, len(documents))):
        part = bounds[start : stop + 1]
        inside = lengths[part[0] : part[-1]]
        parts.append(scan_sentences(part, inside, rule, first_document=start, **shared))
    assert np.array_equal(np.concatenate([rows for rows, _ in parts]), whole)
    assert sum(count for _, count in parts) == drawn
    assert ((whole[:, 2] == 20) | ((whole[:, 2] >= 2) & (whole[:, 2] <= 20))).all()


def test_keyed_targets_are_short_as_often_as_asked():
    bounds, lengths = np.arange(40_001), np.ones(40_000, np.int32)
    key = np.array([1, 2], np.uint64)
    samples, _ = scan_sentences(bounds, lengths, sentence_rule(101, 1, 0.1), key=key)
    short = samples[samples[:, 2] < 101, 2]
    # One in ten, less the hundredth of them that draws the whole length: 3960, sd 60.
    assert abs(len(short) - 3960) < 300
    assert abs(short.mean() - 51) < 3


@pytest.mark.parametrize(
    ("share", "ratio"),
    [(0, 0), (1, 1), (0.1, 10), (0.4, 3), (0.3, 3), (1e-9, 10**9), (1e-12, MAX_RATIO)],
)
def test_a_ratio_is_rounded_as_in_cpp(share, ratio):
    assert sentence_rule(8, 1, share).short_ratio == ratio


def test_documents_of_nothing_give_nothing():
    for bounds in ([0], [5], [5, 5, 5]):
        samples, _ = scan_sentences(np.array(bounds), np.empty(0, np.int32), RULES[0])
        assert samples.shape == (0, 3)
