"""Stores keep their tokenizer, open it again, and refuse one that does not fit."""

import json
import logging
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models

import zindex
from tests.conftest import FakeTokenizer, WriteCorpus
from tests.text.small_tokenizer import SPECIAL, make_tokenizer, save_tokenizer
from tests.text.tokenizers.test_wrapped import Slow, make_encoding, make_processor
from zindex.cli import main
from zindex.config import DatasetConfig, RunConfig
from zindex.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from zindex.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from zindex.datasets.run_datasets import open_run
from zindex.datasets.text_tokenizers import MegatronTokenizerText
from zindex.errors import ConfigError, FingerprintMismatchError, VerificationError
from zindex.ingest.keyed.tokenize import describe_tokens
from zindex.store.tokenizer_note import FILES_KEY, NOTE_KEY, read_note
from zindex.text.kept_tokenizer import describe_tokenizer, open_tokenizer
from zindex.text.tokenizers.open_tokenizer import as_tokenizer

TEXTS = ["zindex keeps what it needs", "to show its tokens as text", "\u4e2d\u6587"] * 3


def write_texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


def tokenize(tmp_path: Path, tokenizer: Any, name: str = "web.zarr", **settings: Any) -> Path:
    place = tmp_path / name
    own = {"append_eod": False} | settings
    zindex.tokenize_corpus(write_texts(tmp_path), place, tokenizer=tokenizer, **own)
    return place


def make_run(tmp_path: Path, *places: Path | str, weight: float | None = None) -> RunConfig:
    members = tuple(DatasetConfig(str(place), weight=weight) for place in places)
    samples = {"train": 8} if weight else {}
    own: dict[str, Any] = {"split": "100,0,0", "samples": samples, "index": str(tmp_path / "index")}
    return RunConfig(members, sequence_length=8, **own)


def train_other() -> Tokenizer:
    """Return a tokenizer of as many ids as the small one, whose texts differ."""
    other = json.loads(make_tokenizer().to_str())
    vocab = other["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    return Tokenizer.from_str(json.dumps(other))


def read_documents(place: Path) -> list[list[int]]:
    store = zindex.open_store(place)
    offsets = store["sequence_offset"][:]
    tokens = store["tokens"][:]
    return [tokens[i:j].tolist() for i, j in pairwise(offsets)]


def test_a_corpus_keeps_its_tokenizer(tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path / "tokenizer", chat_template="{{ messages }}")
    place = tokenize(tmp_path, folder)
    for file in folder.iterdir():  # the corpus has its own copy
        file.unlink()
    own = open_tokenizer(place)
    assert [own.detokenize(ids) for ids in read_documents(place)] == TEXTS
    assert own.eod == make_tokenizer().token_to_id("<eod>")
    assert own.chat_template == "{{ messages }}"
    assert zindex.verify_store(place).notes == []
    facts = describe_tokens(place)
    assert (facts["train_type"], facts["vocab_size"]) == ("pretrain", 260)


@pytest.mark.parametrize("kind", ["tokenizers", "tiktoken", "sentencepiece"])
def test_tokenizer_objects_are_kept(tmp_path: Path, kind: str) -> None:
    given: Any = make_tokenizer() if kind == "tokenizers" else None
    given = make_encoding() if kind == "tiktoken" else given
    given = make_processor(tmp_path) if kind == "sentencepiece" else given
    place = tokenize(tmp_path, given)
    [first, *_] = read_documents(place)
    assert open_tokenizer(place).detokenize(first) == as_tokenizer(given).detokenize(first)
    batches = zindex.loader(make_run(tmp_path, place), micro_batch_size=2)
    assert torch.equal(
        next(iter(batches))["tokens"],
        next(iter(zindex.loader(make_run(tmp_path, place), given, micro_batch_size=2)))["tokens"],
    )


def test_what_has_no_files_is_identified(tmp_path: Path) -> None:
    place = tmp_path / "slow"
    describe_tokenizer(Slow()).write(place)
    note = read_note(place)
    assert note is not None
    assert (note.vocab_size, note.files, note.path) == (5, {}, None)
    assert note.vocabulary == describe_tokenizer(Slow(), keep_files=False).note.vocabulary
    with pytest.raises(ConfigError, match="keeps not the files of its tokenizer; give the token"):
        open_tokenizer(place)
    describe_tokenizer(lambda text: [1]).write(tmp_path / "function")
    note = read_note(tmp_path / "function")
    assert note is not None
    assert note.vocab_size is None


def test_files_are_not_kept_if_so_told(tmp_path: Path) -> None:
    place = tokenize(tmp_path, make_tokenizer(), keep_tokenizer=False)
    assert not (place / FILES_KEY).exists()
    run = make_run(tmp_path, place)
    with pytest.raises(ConfigError, match=r"a run must name its tokenizer, for .* keep none; give"):
        zindex.loader(run, micro_batch_size=2)
    with pytest.raises(ConfigError, match=r"must have the vocabulary of the tokens of .* another"):
        zindex.loader(run, train_other(), micro_batch_size=2)
    # The files are added by another call.
    describe_tokenizer(make_tokenizer()).write(place)
    assert zindex.loader(run, micro_batch_size=2)


def test_a_converted_corpus_keeps_the_given_tokenizer(
    tmp_path: Path, write_corpus: WriteCorpus
) -> None:
    tokens = [*range(260), *range(240)]
    prefix = write_corpus([100] * 5, tokens=tokens, dtype=np.uint16)
    folder = save_tokenizer(tmp_path / "tokenizer")
    place = tmp_path / "web.zarr"
    [plain] = zindex.convert(prefix, place)
    command = ["convert", prefix, str(place), "--tokenizer", str(folder)]
    assert main(command, standalone_mode=False) == 0
    [again] = zindex.convert(prefix, place, tokenizer=folder)
    assert again.fingerprint == plain.fingerprint
    assert again.attributes == plain.attributes
    assert open_tokenizer(place).identity() == as_tokenizer(folder).identity()
    assert describe_tokens(place)["vocab_size"] == 260
    assert next(iter(zindex.loader(make_run(tmp_path, place), micro_batch_size=2)))
    with pytest.raises(FingerprintMismatchError, match=r"keeps the tokenizer .*; take that one"):
        zindex.convert(prefix, place, tokenizer=train_other())


def test_a_tokenizer_that_lacks_tokens_is_refused_before_anything_is_written(
    tmp_path: Path, write_corpus: WriteCorpus
) -> None:
    prefix = write_corpus([100] * 5, tokens=[*range(500)], dtype=np.uint16)
    message = "must have every token of .*corpus, which has 499, got one of 260 ids; give the tok"
    with pytest.raises(ConfigError, match=message):
        zindex.convert(prefix, tmp_path / "web.zarr", tokenizer=make_tokenizer())
    assert not (tmp_path / "web.zarr").exists()


def test_a_loader_refuses_a_tokenizer_with_too_few_ids(tmp_path: Path) -> None:
    run = make_run(tmp_path, tokenize(tmp_path, make_tokenizer()))
    small = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    for given in (small, FakeTokenizer(vocab_size=50)):
        with pytest.raises(ConfigError, match=r"must have all 260 ids of .* got one of (2|50); g"):
            open_run(run, given)
    more = make_tokenizer()
    more.add_special_tokens(["<late>"])
    assert open_run(run, more)
    assert open_run(run, FakeTokenizer(vocab_size=300))


def test_tokenizers_of_megatron_are_compared(tmp_path: Path) -> None:
    run = make_run(tmp_path, tokenize(tmp_path, make_tokenizer()))
    assert open_run(run, MegatronTokenizerText(save_tokenizer(tmp_path / "same")))
    train_other().save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match=r"must have the vocabulary of the tokens of .* another"):
        open_run(run, MegatronTokenizerText(tmp_path / "tokenizer.json"))


def test_the_command_keeps_no_files_if_so_told(tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path / "tokenizer")
    for name, flags in (("with", []), ("without", ["--no-keep-tokenizer"])):
        command = [str(write_texts(tmp_path)), str(tmp_path / name), "--for", "pretrain", *flags]
        tokenizer = ["--tokenizer", str(folder)]
        assert main(["tokenize", *command, *tokenizer], standalone_mode=False) == 0
        note = read_note(tmp_path / name)
        assert note is not None
        assert bool(note.files) == (name == "with")


def test_a_tokenizer_of_another_library_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tokenize(tmp_path, make_tokenizer(), keep_tokenizer=False)
    with caplog.at_level(logging.WARNING):
        open_run(make_run(tmp_path, place), make_encoding())
    assert "is of huggingface, the given one of tiktoken; their vocabularies cannot be" in (
        caplog.text
    )


@pytest.mark.parametrize("is_packed", [False, True])
def test_tokens_of_plain_corpora_are_checked_when_they_are_read(
    tmp_path: Path, write_corpus: WriteCorpus, is_packed: bool
) -> None:
    prefix = write_corpus([100] * 5, tokens=[*range(500)], dtype=np.uint16)
    run = make_run(tmp_path, prefix)
    if is_packed:
        run = RunConfig.from_json(
            {
                "datasets": [prefix],
                "sequence_length": 8,
                "packing": {},
                "split": "100,0,0",
                "index": str(tmp_path / "packed"),
            }
        )
    message = "tokens must be ids of the tokenizer, below 50, a sample has [0-9]+; give the tok"
    with pytest.raises(ConfigError, match=message):
        list(zindex.loader(run, FakeTokenizer(vocab_size=50), micro_batch_size=4))
    [dataset] = open_run(run, FakeTokenizer(vocab_size=50))["train"]
    with pytest.raises(ConfigError, match=message):
        [dataset[i] for i in range(len(dataset))]
    assert list(zindex.loader(run, FakeTokenizer(vocab_size=500), micro_batch_size=4))


def test_corpora_of_different_tokenizers_are_not_blended(tmp_path: Path) -> None:
    first = tokenize(tmp_path, make_tokenizer())
    second = tokenize(tmp_path, train_other(), "code.zarr")
    run = make_run(tmp_path, first, second, weight=1)
    message = r"must have one tokenizer, got different vocabularies of .*web.zarr \(260 ids\) and"
    for work in (zindex.build, lambda config: open_run(config, make_tokenizer())):
        with pytest.raises(ConfigError, match=message):
            work(run)
    with pytest.raises(ConfigError, match=message):
        zindex.merge([first, second], tmp_path / "both.zarr")
    assert not (tmp_path / "both.zarr").exists()


def test_a_vocabulary_that_begins_with_another_one_is_blended(tmp_path: Path) -> None:
    more = make_tokenizer()
    more.add_special_tokens(["<late>"])
    run = make_run(
        tmp_path,
        tokenize(tmp_path, make_tokenizer()),
        tokenize(tmp_path, more, "code.zarr"),
        weight=1,
    )
    blend = open_run(run)["train"]
    assert not isinstance(blend, list)
    assert blend.config.tokenizer.vocab_size == 261


def make_same_encoding() -> Any:
    """Return the vocabulary of `make_tokenizer` as one of tiktoken."""
    tiktoken = pytest.importorskip("tiktoken")
    own = make_tokenizer()
    letters = {bytes([each]): own.encode(chr(each)).ids[1] for each in range(128)}
    rest = sorted({*range(256)} - {*letters.values()})
    late = {bytes([byte]): number for byte, number in zip(range(128, 256), rest, strict=True)}
    special = {text: own.token_to_id(text) for text in SPECIAL}
    return tiktoken.Encoding(
        "same", pat_str=r"\S+|\s+", mergeable_ranks=letters | late, special_tokens=special
    )


@pytest.mark.parametrize("keeps", [False, True])
def test_libraries_are_compared_by_what_they_decode(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, keeps: bool
) -> None:
    """Vocabularies of different libraries have no common form."""
    first = tokenize(tmp_path, make_tokenizer())
    other = tokenize(tmp_path, make_encoding(), "other.zarr", keep_tokenizer=keeps)
    same = tokenize(tmp_path, make_same_encoding(), "same.zarr")
    with caplog.at_level(logging.WARNING):
        zindex.build(make_run(tmp_path / "same", first, same, weight=1))
    message = "may have different tokenizers: their vocabularies cannot be compared"
    assert f"{message}, but they decode some words alike" in caplog.text
    caplog.clear()
    run = make_run(tmp_path, first, other, weight=1)
    if keeps:
        with pytest.raises(ConfigError, match="must have one tokenizer, got different vocabular"):
            zindex.build(run)
    else:
        with caplog.at_level(logging.WARNING):
            zindex.build(run)
        assert message in caplog.text
        assert "alike" not in caplog.text
    with caplog.at_level(logging.WARNING):
        open_run(make_run(tmp_path / "first", first), make_same_encoding())
    assert "cannot be compared, but they decode some words alike" in caplog.text
    with pytest.raises(ConfigError, match=r"must have the vocabulary of the tokens of .*web.zarr"):
        open_run(make_run(tmp_path / "first", first), make_encoding())


def test_merged_corpora_keep_their_tokenizer(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    first = tokenize(tmp_path, make_tokenizer(), token_dtype="uint16")
    second = tokenize(tmp_path, make_tokenizer(), "code.zarr", token_dtype="uint16")
    zindex.merge([first, second], tmp_path / "both.zarr")
    assert open_tokenizer(tmp_path / "both.zarr").vocab_size == 260
    plain = write_corpus([5], dtype=np.uint16)
    zindex.merge([first, plain], tmp_path / "some.zarr", to="zarr")
    assert read_note(tmp_path / "some.zarr") is None


def test_keyed_stores_keep_their_tokenizer(tmp_path: Path) -> None:
    place = tmp_path / "sft"
    own = save_tokenizer(tmp_path / "tokenizer")
    zindex.tokenize(write_texts(tmp_path), place, "seq", tokenizer=own)
    assert open_tokenizer(place).all_special_tokens[:1] == [SPECIAL[3]]
    assert zindex.verify_store(place).notes == []


@pytest.mark.parametrize("is_file", [False, True])
def test_damage_is_found(tmp_path: Path, is_file: bool) -> None:
    place = tokenize(tmp_path, make_tokenizer())
    note = read_note(place)
    assert note is not None
    key = f"{note.folder}/tokenizer.json" if is_file else NOTE_KEY
    content = (place / key).read_bytes()
    (place / key).write_bytes(content.replace(b"a", b"b", 1))
    assert [damage.key for damage in zindex.verify_store(place).damages] == [key]
    with pytest.raises(VerificationError, match="fails its digest; restore it, or remove it and"):
        open_tokenizer(place)


def test_a_tokenizer_is_kept_in_object_storage(tmp_path: Path, objects: Any) -> None:
    zindex.tokenize_corpus(
        write_texts(tmp_path), objects, tokenizer=make_tokenizer(), append_eod=False
    )
    assert open_tokenizer(objects).tokenize("ab") == as_tokenizer(make_tokenizer()).tokenize("ab")


def open_blend(tokenizer: Any, *places: Path) -> Any:
    """Return a blend as a Megatron script opens it."""
    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=8,
        blend=([str(place) for place in places], None),
        split="100,0,0",
        tokenizer=tokenizer,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
    )
    builder = BlendedMegatronDatasetBuilder(GPTDataset, (4, 0, 0), lambda: True, config)
    return builder.build()[0]


def test_builders_of_megatron_scripts_check_the_tokenizer(tmp_path: Path) -> None:
    first = tokenize(tmp_path, make_tokenizer())
    second = tokenize(tmp_path, train_other(), "code.zarr")
    assert len(open_blend(FakeTokenizer(vocab_size=260), first))
    with pytest.raises(ConfigError, match=r"must have all 260 ids of .* got one of 50; give"):
        open_blend(FakeTokenizer(vocab_size=50), first)
    with pytest.raises(ConfigError, match="must have one tokenizer, got different vocabularies of"):
        open_blend(FakeTokenizer(vocab_size=260), first, second)


def test_edits_add_no_corpus_of_another_tokenizer(tmp_path: Path) -> None:
    first = tokenize(tmp_path, make_tokenizer())
    second = tokenize(tmp_path, train_other(), "code.zarr")
    run = make_run(tmp_path, first, weight=1)
    zindex.build(run)
    with pytest.raises(ConfigError, match="must have one tokenizer, got different vocabularies of"):
        zindex.edit(run, at=4, add={str(second): 1.0})
    same = tokenize(tmp_path, make_tokenizer(), "same.zarr")
    zindex.edit(run, at=4, add={str(same): 1.0})
