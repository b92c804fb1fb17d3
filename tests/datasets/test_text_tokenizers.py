"""Tokenizers of files with Megatron's names: special tokens, metadata, chat templates."""

import pickle
from pathlib import Path

import numpy as np

from tests.text.tokenizers.vocabularies import PIECES, save_pieces
from zindex.datasets.megatron_tokenizer import MegatronTokenizer
from zindex.datasets.text_tokenizers import WordPieceTokenizer


def test_wordpiece_as_bert_and_t5_want_it(tmp_path: Path) -> None:
    tokenizer = WordPieceTokenizer(str(save_pieces(tmp_path)), vocab_extra_ids=3)
    size = len(PIECES)
    assert isinstance(tokenizer, MegatronTokenizer)
    assert (tokenizer.pad, tokenizer.unk, tokenizer.cls, tokenizer.sep, tokenizer.mask) == (
        *(0, 1, 2, 3, 4),
    )
    assert (tokenizer.bos, tokenizer.eos, tokenizer.eod) == (size, size + 1, size + 1)
    assert tokenizer.additional_special_tokens_ids == [size + 2, size + 3, size + 4]
    assert tokenizer.inv_vocab[6] == "##able"
    assert tokenizer.vocab_size == len(tokenizer.vocab) == size + 5
    assert tokenizer.tokenize("unable a") == [5, 6, 9]
    assert tokenizer.detokenize(np.array([5, 6])) == "unable"
    assert tokenizer.special_tokens_dict["pad_token"] == 0
    assert list(tokenizer.unique_identifiers.items()) == [
        ("class", "WordPieceTokenizer"),
        ("tokenizer_path", [str(tmp_path / "vocab.txt")]),
        ("lower_case", "True"),
        ("vocab_extra_ids", "3"),
    ]
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.vocab == tokenizer.vocab
    assert again.cls_id == 2
