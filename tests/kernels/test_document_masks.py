"""Documents of samples, against a loop over lists."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zindex.kernels.document_masks import mark_documents

WIDTH = 6
SAMPLES = st.lists(st.lists(st.integers(1, WIDTH + 1), max_size=4), min_size=1, max_size=4)


@given(SAMPLES)
def test_every_token_is_marked(samples: list[list[int]]) -> None:
    parts, wanted = [], []
    for row, lengths in enumerate(samples):
        tokens: list[tuple[int, int, bool]] = []
        for number, length in enumerate(lengths):
            kept = min(length, WIDTH + 1 - len(tokens))
            if kept > 0:
                parts.append((row, len(tokens), kept))
                tokens += [(number, k, k + 1 < kept) for k in range(kept)]
        wanted.append((tokens + [(-1, 0, False)] * WIDTH)[:WIDTH])
    columns = np.array(parts, np.int64).reshape(-1, 3).T.copy()
    plane = len(samples), WIDTH
    marks = np.empty(plane, np.int64), np.empty(plane, np.int64), np.empty(plane, np.bool_)
    for run in (mark_documents, mark_documents.py_func):  # type: ignore[attr-defined]
        for array in marks:
            array.fill(7)
        run(*columns, *marks)
        found = [
            [(int(a), int(b), bool(c)) for a, b, c in zip(*row, strict=True)]
            for row in zip(*marks, strict=True)
        ]
        assert found == wanted
