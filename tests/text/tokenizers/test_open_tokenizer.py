"""Which tokenizer a path is."""

import json
from pathlib import Path

import pytest

from tests.text.small_tokenizer import save_tokenizer
from tests.text.tokenizers.vocabularies import save_pieces, save_rank_list, save_ranks
from zindex.errors import ConfigError
from zindex.text.tokenizers.open_tokenizer import find_library, open_text_tokenizer


def test_libraries_are_inferred_from_files(tmp_path: Path) -> None:
    assert find_library(save_pieces(tmp_path)) == find_library(tmp_path) == "wordpiece"
    assert find_library(save_rank_list(tmp_path)[0]) == "tiktoken"
    assert find_library(save_ranks(tmp_path)) == "tiktoken"
    assert find_library(save_ranks(tmp_path, "tokenizer.model")) == "tiktoken"
    assert find_library(tmp_path / "none.model") == "sentencepiece"
    assert find_library(tmp_path / "none.json") == "huggingface"
    (tmp_path / "merges.txt").write_text("")
    assert find_library(tmp_path / "merges.txt") == "bpe"
    save_tokenizer(tmp_path)
    assert find_library(tmp_path) == "huggingface"
    (tmp_path / "plain").write_text(json.dumps({}))
    assert find_library(tmp_path / "plain") == "huggingface"
    with pytest.raises(
        ConfigError, match=r"a .tiktoken file, a vocab.txt, or a folder with one, g"
    ):
        find_library(tmp_path / "none.bin")


def test_libraries_by_name(tmp_path: Path) -> None:
    file = save_pieces(tmp_path)
    assert open_text_tokenizer(file).text_to_ids("A") == [9]
    assert open_text_tokenizer(tmp_path, "BertWordPieceCase").text_to_ids("A") == [1]
    assert open_text_tokenizer(None, "null", vocab_size=5).vocab_size == 6
    with pytest.raises(ConfigError, match="the library of a tokenizer must be one of huggingface"):
        open_text_tokenizer(file, "spacy")
    with pytest.raises(ConfigError, match=r"options of a wordpiece tokenizer must be among lower_"):
        open_text_tokenizer(file, pattern="v1")
    with pytest.raises(ConfigError, match="of the library wordpiece must have a path, got none; g"):
        open_text_tokenizer(None, "wordpiece")
    with pytest.raises(ConfigError, match="must have a path or a library, got neither; give one"):
        open_text_tokenizer()
