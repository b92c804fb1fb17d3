"""Notes of tokenizers: written once, after their files, and whole."""

from dataclasses import replace
from pathlib import Path

import pytest

from zindex.errors import FingerprintMismatchError, StoreError, VerificationError
from zindex.store.commit import seal
from zindex.store.tokenizer_note import (
    NOTE_KEY,
    TokenizerNote,
    check_note,
    digest_file,
    read_kept_file,
    read_note,
    vocabulary_digest,
    write_note,
)

CONTENTS = {"tokenizer.json": b"{}"}
NOTE = TokenizerNote(
    "one",
    vocab_size=2,
    vocabulary=vocabulary_digest({"a": 0, "b": 1}),
    form="huggingface",
    library="huggingface",
    files={"tokenizer.json": digest_file(b"{}")},
    path="",
)


def test_a_note_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_note(tmp_path) is None
    write_note(tmp_path, NOTE, CONTENTS)
    assert read_note(tmp_path) == NOTE
    assert read_kept_file(tmp_path, NOTE, "tokenizer.json") == b"{}"
    write_note(tmp_path, NOTE, CONTENTS)
    assert check_note(tmp_path, replace(NOTE, identity="the same, saved otherwise"))
    (tmp_path / NOTE.folder / "tokenizer.json").unlink()
    with pytest.raises(VerificationError, match=r"tokenizer.json is missing; restore it, or remo"):
        read_kept_file(tmp_path, NOTE, "tokenizer.json")


def test_files_of_another_call_do_not_matter(tmp_path: Path) -> None:
    other = replace(NOTE, files={"tokenizer.json": digest_file(b"of another one")})
    for note, content in ((other, b"of another one"), (NOTE, b"{}")):
        path = tmp_path / note.folder / "tokenizer.json"
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    write_note(tmp_path, NOTE, CONTENTS)
    assert read_kept_file(tmp_path, NOTE, "tokenizer.json") == b"{}"


def test_files_are_added_to_a_note_without_any(tmp_path: Path) -> None:
    write_note(tmp_path, replace(NOTE, files={}, path=None), {})
    write_note(tmp_path, NOTE, CONTENTS)
    assert read_note(tmp_path) == NOTE


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    write_note(tmp_path, NOTE, CONTENTS)
    others = [
        replace(NOTE, identity="two", vocabulary=vocabulary_digest({"b": 0, "a": 1})),
        TokenizerNote("two"),
    ]
    for other in others:
        with pytest.raises(FingerprintMismatchError, match="keeps the tokenizer one, got two;"):
            write_note(tmp_path, other, CONTENTS)
    assert read_note(tmp_path) == NOTE


def test_vocabularies_are_compared_within_a_form(tmp_path: Path) -> None:
    other = replace(NOTE, identity="two", vocabulary=vocabulary_digest({"b": 0, "a": 1}))
    assert NOTE.same_vocabulary(NOTE) is True
    assert NOTE.same_vocabulary(replace(NOTE, identity="two")) is True
    assert NOTE.same_vocabulary(other) is False
    assert NOTE.same_vocabulary(replace(other, form="tiktoken")) is None
    assert NOTE.same_vocabulary(replace(other, vocabulary=None)) is None


@pytest.mark.parametrize("name", ["..", "a/b", "a\\b"])
def test_names_of_files_stay_in_their_folder(tmp_path: Path, name: str) -> None:
    write_note(tmp_path, replace(NOTE, files={name: ""}), {})
    with pytest.raises(VerificationError, match=r"must name files of its folder, it names '.*'"):
        read_note(tmp_path)


def test_a_note_of_other_facts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / NOTE_KEY
    path.parent.mkdir()
    path.write_bytes(seal({"identity": 5}, "tokenizer_sha256"))
    with pytest.raises(StoreError, match="it was not written by zindex"):
        read_note(tmp_path)
    path.write_bytes(b'{"identity": "x"}')
    with pytest.raises(VerificationError, match="fails its digest; restore it, or remove it and"):
        read_note(tmp_path)
