"""Spans of the token stream of an index, wherever they begin and end."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import FakeTokenizer, WriteCorpus
from tests.maintenance.edits.walks import weighted_run, write_corpora
from zindex.datasets.run_datasets import open_run
from zindex.errors import VerificationError
from zindex.samples.token_spans import read_token_spans

LENGTHS = [5, 7, 0, 3, 9, 1, 6] * 9


@pytest.fixture(params=[True, False], ids=["extra token", "no extra token"])
def member(request: pytest.FixtureRequest, tmp_path: Path, write_corpus: WriteCorpus) -> Any:
    paths = write_corpora(write_corpus, [LENGTHS])
    config = weighted_run(
        tmp_path, paths, samples={"train": 150}, add_extra_token_to_sequence=request.param
    )
    return open_run(config, FakeTokenizer(vocab_size=None))["train"].datasets[0]


def test_spans_are_those_of_the_stream(member: Any) -> None:
    documents = np.asarray(member.document_index)
    starts = np.concatenate([[0], np.cumsum(LENGTHS)]) + 100_000
    stream = np.concatenate([np.arange(starts[d], starts[d + 1]) for d in documents])
    owners = np.repeat(documents, np.array(LENGTHS)[documents])
    extra = int(member.config.add_extra_token_to_sequence)
    total = 4 * len(member) + extra
    rng = np.random.default_rng(3)
    bounds = np.sort(rng.integers(0, total + 1, (60, 2)), axis=1)
    bounds = np.concatenate([bounds, [[0, total], [0, 1], [total - 1, total], [4, 8], [4, 5]]])
    bounds = bounds[bounds[:, 0] < bounds[:, 1]]
    first, stop = bounds.T
    read = read_token_spans(member.open_text(), first, stop)
    wanted = [stream[a:b] for a, b in zip(first, stop, strict=True)]
    assert read.tokens.tolist() == np.concatenate(wanted).tolist()
    # Parts of documents tile each span.
    tokens = [owners[a:b] for a, b in zip(first, stop, strict=True)]
    assert np.repeat(read.documents, read.lengths).tolist() == np.concatenate(tokens).tolist()
    sizes = np.bincount(read.spans, read.lengths)
    assert sizes.tolist() == (stop - first).tolist()
    for span in range(len(first)):
        parts = np.flatnonzero(read.spans == span)
        ends = np.cumsum(read.lengths[parts])
        assert read.offsets[parts].tolist() == [0, *ends[:-1].tolist()]


def test_an_index_of_another_corpus_is_an_error(member: Any) -> None:
    arrays = member._open_arrays()
    bounds = np.array(arrays.sample_index)
    for column, change in [(1, 50), (0, -20)]:
        wrong = bounds.copy()
        wrong[3:, column] += change
        member._arrays, member._text = arrays._replace(sample_index=wrong), None
        with pytest.raises(VerificationError, match=r"tokens \[8, 20\) of train of .* more than"):
            read_token_spans(member.open_text(), np.array([8]), np.array([20]))
