"""Whole documents fill sequences, and those that are left determine the next sequences."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zindex.plan.packing import PackingRules
from zindex.processing.document_window import DocumentWindow, PackedText, Piece

LENGTHS = st.lists(st.integers(0, 25), max_size=40)
ROOM = 10


def make_texts(lengths: list[int]) -> list[tuple[PackedText, Any]]:
    """Return texts whose tokens are 0, 1, 2, ..., with their numbers as places."""
    sample: dict[str, Any] = {"__url__": "a", "__key__": "k"}
    return [
        (PackedText(sample, place=number), np.arange(length))
        for number, length in enumerate(lengths)
    ]


def run(
    texts: Iterator[Any], held: list[tuple[PackedText, Any]], size: int, **settings: Any
) -> Iterator[tuple[list[Piece], list[tuple[Any, int]]]]:
    """Yield the pieces of each sequence, and what is left."""
    rules = PackingRules(
        settings.pop("max_documents", 256), settings.pop("long_documents", "split")
    )
    window = DocumentWindow(ROOM, settings.pop("overlap", 0), rules, size)
    for text, ids in held:
        window.add(text, ids)

    def fill(window: DocumentWindow) -> None:
        while not window.is_full and (found := next(texts, None)) is not None:
            window.add(*found)

    for pieces in window.sequences(fill):
        yield pieces, window.places()


def name(pieces: list[Piece]) -> list[tuple[Any, int]]:
    return [(piece.place, piece.number) for piece in pieces]


@given(LENGTHS, st.integers(1, 12), st.sampled_from([0, 1]), st.integers(1, 4))
def test_every_token_is_in_one_sequence(
    lengths: list[int], size: int, overlap: int, max_documents: int
) -> None:
    texts = iter(make_texts(lengths))
    found: dict[int, list[int]] = {}
    for pieces, _ in run(texts, [], size, overlap=overlap, max_documents=max_documents):
        assert 0 < sum(len(piece.tokens) for piece in pieces) <= ROOM
        assert len(pieces) <= max_documents
        for piece in pieces:
            own = piece.tokens.tolist()
            found.setdefault(piece.place, []).extend(own[overlap if piece.number else 0 :])
    for number, length in enumerate(lengths):
        assert sorted(found.get(number, [])) == list(range(length))


@given(LENGTHS, st.integers(1, 12), st.integers(0, 30))
def test_pieces_that_are_left_determine_the_rest(lengths: list[int], size: int, cut: int) -> None:
    texts = make_texts(lengths)
    rest = iter(texts)
    made = []
    left: list[tuple[Any, int]] = []
    num_read = 0
    for pieces, places in run(rest, [], size):
        made.append(name(pieces))
        if len(made) == cut:
            left, num_read = places, len(texts) - len(list(rest))
            rest = iter(texts[num_read:])
            break
    else:
        return
    wanted = {place: {number for at, number in left if at == place} for place, _ in left}
    held = [(texts[at][0]._replace(pieces=wanted[at]), texts[at][1]) for at in wanted]
    resumed = [name(pieces) for pieces, _ in run(rest, held, size)]
    whole = [name(pieces) for pieces, _ in run(iter(texts), [], size)]
    assert made + resumed == whole


def test_the_oldest_document_is_next_and_the_emptiest_sequence_waits() -> None:
    made = [name(pieces) for pieces, _ in run(iter(make_texts([2, 10, 7, 9, 3, 1])), [], 6)]
    assert made == [[(1, 0)], [(2, 0), (4, 0)], [(3, 0), (5, 0)], [(0, 0)]]


def test_long_documents() -> None:
    def lengths_of(**settings: Any) -> list[list[int]]:
        made = run(iter(make_texts([21, 3])), [], 8, **settings)
        return [[len(piece.tokens) for piece in pieces] for pieces, _ in made]

    assert lengths_of() == [[10], [10], [1, 3]]
    assert lengths_of(overlap=1) == [[10], [10], [3, 3]]
    assert lengths_of(long_documents="truncate") == [[10], [3]]
    assert lengths_of(long_documents="drop") == [[3]]
