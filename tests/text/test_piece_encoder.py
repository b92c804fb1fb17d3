"""Pieces of a text have the ids that they have inside it."""

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

from zindex.text.piece_encoder import PieceEncoder
from zindex.text.text_encoder import TextEncoder

TEXTS = ["one two three\nfour", "two one\n\nthree", "four four"]


def train(kind: str) -> Tokenizer:
    """Return a small tokenizer of a kind that is common."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    alphabet = ["\n", " ", "▁"]
    if kind == "metaspace":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    else:
        space = kind == "bytes with a blank"
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(
        vocab_size=400,
        initial_alphabet=alphabet,
        special_tokens=["<s>", "<unk>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 0)])
    return tokenizer


@pytest.mark.parametrize("kind", ["bytes", "bytes with a blank", "metaspace"])
def test_joined_pieces_are_the_text(kind: str) -> None:
    tokenizer = train(kind)
    encoder = PieceEncoder(TextEncoder(tokenizer))
    pieces = ["one two", " three\n", "four", "two"]
    ids = encoder.encode(pieces, [False, True, True, True])
    assert tokenizer.decode([i for part in ids for i in part.tolist()]).strip() == "".join(pieces)
    # The first piece is as it is where a model reads it, but nothing is put before it.
    assert ids[0].tolist() == tokenizer.encode("one two", add_special_tokens=False).ids
    assert 0 not in [i for part in ids for i in part.tolist()]
    assert encoder.encode([], []) == []


def test_a_lead_that_melts_into_the_text_is_not_used() -> None:
    tokenizer = train("metaspace")
    encoder = PieceEncoder(TextEncoder(tokenizer))
    assert encoder._lead is not None
    encoder._lead = encoder._lead + 1  # as if a lead were never found again
    [alone] = encoder.encode(["two"], [True])
    assert alone.tolist() == tokenizer.encode("two", add_special_tokens=False).ids


def test_tokenizers_that_cannot_decode() -> None:
    def count(text: str) -> list[int]:
        return [len(text)]

    encoder = PieceEncoder(TextEncoder(count))
    assert [ids.tolist() for ids in encoder.encode(["ab", "c"], [False, True])] == [[2], [1]]


def test_objects_are_asked_for_no_special_tokens() -> None:
    class Spied:
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return [1, 7] if add_special_tokens else [7]

    class Old:
        def encode(self, text: str) -> list[int]:
            return [8]

    for found, ids in ((Spied(), [7]), (Old(), [8])):
        encoder: Any = PieceEncoder(TextEncoder(found))
        assert encoder.encode(["x"], [False])[0].tolist() == ids
    assert TextEncoder(Spied()).encode(["x"])[0].tolist() == [1, 7]
