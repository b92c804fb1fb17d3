"""Tokenizers of files with Megatron's names: special tokens, metadata, chat templates."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.text.small_tokenizer import save_tokenizer
from tests.text.tokenizers.vocabularies import PIECES, save_pieces
from zindex.datasets.megatron_tokenizer import MegatronTokenizer
from zindex.datasets.text_tokenizers import MegatronTokenizerText, NullTokenizer, WordPieceTokenizer
from zindex.errors import ConfigError


def test_wordpiece_for_bert_and_t5(tmp_path: Path) -> None:
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


def test_null_tokenizer_has_no_padding() -> None:
    tokenizer = NullTokenizer(100)
    assert (tokenizer.vocab_size, tokenizer.eod, tokenizer.eos, tokenizer.cls) == (
        101,
        100,
        100,
        -1,
    )
    assert tokenizer.tokenize("3 5") == [3, 5]
    assert tokenizer.offsets([3, 15, 5], "3 15 5") == [0, 2, 5]
    for name in ("pad", "bos", "unk", "pad_id"):
        with pytest.raises(NotImplementedError, match=r"^NullTokenizer has no attribute '"):
            getattr(tokenizer, name)
    assert tokenizer.special_tokens_dict == {
        "eos_token": 100,
        "sep_token": -1,
        "cls_token": -1,
        "mask_token": -1,
    }
    assert tokenizer.additional_special_tokens_ids == []
    with pytest.raises(
        NotImplementedError, match=r"^MegatronTokenizerText has no attribute 'eod'$"
    ):
        MegatronTokenizerText(None, {"library": "byte-level"}, eos_id=None).eod  # noqa: B018


def test_from_pretrained_by_metadata(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    plain = MegatronTokenizerText.from_pretrained(tmp_path)
    assert (plain.library, plain.chat_template) == ("huggingface", None)
    MegatronTokenizerText.write_metadata(
        tmp_path / "tokenizer.json", "huggingface", model_type="gpt", chat_template="T"
    )
    tokenizer = MegatronTokenizerText.from_pretrained(
        str(tmp_path), use_fast=True, additional_special_tokens=["<new>"]
    )
    assert tokenizer.chat_template == "T"
    assert tokenizer.model_type == "gpt"
    assert tokenizer.additional_special_tokens_ids == [260]
    assert tokenizer.unique_identifiers["use_fast"] == "True"
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.tokenize("a<new>") == tokenizer.tokenize("a<new>") == [again.tokenize("a")[0], 260]
    by_type = MegatronTokenizerText.from_pretrained(
        "BertWordPieceCase", {"library": "megatron"}, vocab_file=save_pieces(tmp_path)
    )
    assert by_type.tokenize("A a") == [1, 9]
    assert by_type.vocab_file == str(tmp_path / "vocab.txt")
    assert by_type.merges_file is None
    by_type.add_special_tokens({"eos_token": "<end>"})
    assert by_type.eos == len(PIECES) + 2


def test_invalid_metadata(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    take, write = MegatronTokenizerText.from_pretrained, MegatronTokenizerText.write_metadata
    file = tmp_path / "tokenizer_metadata.json"
    with pytest.raises(
        ConfigError, match=r"there is no .*none.json; write them with write_metadat"
    ):
        take(tmp_path, tmp_path / "none.json")
    for content, said in (
        ("{", "must hold the metadata of a tokenizer as JSON"),
        ("[]", "of type"),
    ):
        file.write_text(content)
        with pytest.raises(ConfigError, match=said):
            take(tmp_path)
    with pytest.raises(ConfigError, match="metadata_path must be a path or a mapping, got int"):
        take(None, 5)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match=r"must name no class of their own, got 'mine.module': no c"
    ):
        take(tmp_path, {"library": "huggingface", "class_path": "mine.module"})
    with pytest.raises(ConfigError, match="library megatron must be one of BertWordPieceLowerCase"):
        take("OtherTokenizer", {"library": "megatron"})
    with pytest.raises(
        ConfigError, match="GPT2BPETokenizer must have a vocab_file, got none; noth"
    ):
        take("GPT2BPETokenizer", {"library": "megatron"})
    with pytest.raises(ConfigError, match=r"tokenizer_metadata.json exists; pass overwrite=True"):
        write(tmp_path, "huggingface")
    write(tmp_path, "huggingface", tokenizer_class=WordPieceTokenizer, overwrite=True)
    with pytest.raises(ConfigError, match=r"got 'zindex.text.tokenizers.rust_tokenizers': no"):
        take(tmp_path)
    with pytest.raises(ConfigError, match="tokenizer_path must be a tokenizer, there is none at"):
        write(tmp_path / "none", "huggingface")
    with pytest.raises(
        ConfigError, match=r"tokenizer_library must be one of sentencepiece, .*'spac"
    ):
        write(tmp_path, "spacy")
    with pytest.raises(ConfigError, match=r"model_type must be one of default, gpt, .*, got 'x'"):
        write(tmp_path, "huggingface", model_type="x")


def test_chat_templates(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}{{ x }}"
    save_tokenizer(tmp_path, chat_template=template)
    tokenizer = MegatronTokenizerText(tmp_path)
    talk = [{"role": "user", "content": "a"}]
    assert tokenizer.apply_chat_template(talk, tokenize=False, x="!") == "a<eod>!"
    assert tokenizer.apply_chat_template(talk) == tokenizer.tokenize("a<eod>")
    assert tokenizer.apply_chat_template(talk, "{{ messages[0].role }}", tokenize=False) == "user"
    with pytest.raises(ConfigError, match="apply_chat_template needs a chat_template, this tokeni"):
        NullTokenizer(5).apply_chat_template(talk)


def test_tokenizers_are_saved_as_one_file(tmp_path: Path) -> None:
    tokenizer = WordPieceTokenizer(save_pieces(tmp_path), vocab_extra_ids=2)
    tokenizer.save_pretrained(tmp_path / "saved")
    again = MegatronTokenizerText.from_pretrained(tmp_path / "saved")
    assert again.library == "huggingface"
    assert again.vocab == tokenizer.vocab
    assert again.special_tokens_dict == tokenizer.special_tokens_dict
    assert again.additional_special_tokens_ids == tokenizer.additional_special_tokens_ids
    assert again.tokenize("Unable<extra_id_1>[SEP]") == tokenizer.tokenize(
        "unable<extra_id_1>[SEP]"
    )
    with pytest.raises(ConfigError, match="this one is of the library null; copy its file"):
        NullTokenizer(5).save_pretrained(tmp_path)
