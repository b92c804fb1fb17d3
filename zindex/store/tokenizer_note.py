"""The tokenizer kept in a store: a note that describes it, and its files.

::

    STORE/_zindex/tokenizer.json              the note, with its own digest
    STORE/_zindex/tokenizer/<digest>/<name>   the files, whose digests are in the note

They are written before the commit, or added to a committed store later: the note is created once,
after its files, so that a reader sees all of them or none. Arrays and fingerprints do not depend on
them; a store without a note is read as before.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from zindex.errors import FingerprintMismatchError, StoreNotFoundError, VerificationError
from zindex.io import files
from zindex.io.objects import Place
from zindex.store.checked_json import parse_as
from zindex.store.commit import fingerprint, read_sealed, seal

#: Key of the note below a store's root, and of the folder of the files.
NOTE_KEY, FILES_KEY = "_zindex/tokenizer.json", "_zindex/tokenizer"
_FOLDER = "_zindex"
_DIGEST = "tokenizer_sha256"
_REMEDY = "restore it, or remove it and add the tokenizer again"
# Large enough for vocabularies of a million long tokens.
_MAX_NBYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class TokenizerNote:
    """Description of the tokenizer of a store's tokens."""

    #: SHA-256 of its file, or another identity defined by its library.
    identity: str
    #: Ids from 0 on that its tokens may have; None if unknown.
    vocab_size: int | None = None
    #: SHA-256 of the texts of these ids; None if unknown.
    vocabulary: str | None = None
    #: How the texts of ids are written: only vocabularies of the same form can be compared.
    form: str | None = None
    #: Library that opens the files.
    library: str | None = None
    #: SHA-256 of each kept file by its name.
    files: dict[str, str] = field(default_factory=dict)
    #: The file to open, "" for the folder of all; None if it cannot be reopened.
    path: str | None = None
    #: Options to open it with, and special tokens to add.
    options: dict[str, Any] = field(default_factory=dict)
    added: list = field(default_factory=list)  # type: ignore[type-arg]

    @property
    def folder(self) -> str:
        """Key of the folder of the files, named by their digests."""
        return f"{FILES_KEY}/{fingerprint(dict(self.files))[:16]}"

    def same_vocabulary(self, other: "TokenizerNote") -> bool | None:
        """Return whether two tokenizers have the same vocabulary; None if unknown."""
        if self.identity == other.identity:
            return True
        if self.vocabulary is None or other.vocabulary is None:
            return None
        if self.vocabulary == other.vocabulary:
            return True
        return False if self.form == other.form else None


def digest_file(content: bytes) -> str:
    """Return the SHA-256, in hex, of the content of a file."""
    return hashlib.sha256(content).hexdigest()


def read_note(root: Place) -> TokenizerNote | None:
    """Return the note of a store; None if it has none.

    Raises
    ------
    StoreError, VerificationError
        If it is damaged.
    """
    path = root / NOTE_KEY
    try:
        content = read_sealed(path, _DIGEST, _REMEDY)
    except StoreNotFoundError:
        return None
    note = parse_as(TokenizerNote, content, str(path))
    for name in (*note.files, *([] if note.path is None else [note.path])):
        if "/" in name or "\\" in name or name in (".", ".."):
            raise VerificationError(f"{path} must name files of its folder, it names {name!r}")
    return note


def read_kept_file(root: Place, note: TokenizerNote, name: str) -> bytes:
    """Return the content of a kept file.

    Raises
    ------
    VerificationError
        If it is missing, or differs from the kept file.
    """
    path = root / note.folder / name
    try:
        content = files.read_file(path, limit=_MAX_NBYTES)
    except StoreNotFoundError:
        raise VerificationError(f"{path} is missing; {_REMEDY}") from None
    if digest_file(content) != note.files[name]:
        raise VerificationError(f"{path} fails its digest; {_REMEDY}")
    return content


def check_note(root: Place, note: TokenizerNote) -> bool:
    """Return whether a store already has this note; another note is an error.

    Raises
    ------
    FingerprintMismatchError
        If the store keeps another tokenizer.
    """
    found = read_note(root)
    if found is None:
        return False
    if found.same_vocabulary(note) is not True:
        raise FingerprintMismatchError(
            f"{root} keeps the tokenizer {found.identity[:16]}, got {note.identity[:16]}; take "
            f"that one, or remove {root / NOTE_KEY} if it is wrong"
        )
    return bool(found.files) or not note.files


def write_note(root: Place, note: TokenizerNote, contents: Mapping[str, bytes]) -> None:
    """Keep a tokenizer in a store, unless it is already kept.

    Parameters
    ----------
    root
        The store, committed or not.
    note, contents
        The note, and the content of each of its files.

    Raises
    ------
    FingerprintMismatchError
        If the store keeps another tokenizer.
    """
    if check_note(root, note):
        return
    for name, content in contents.items():
        files.write_once(root / note.folder / name, [content])
    # Their names are durable before that of the note.
    for key in (note.folder, FILES_KEY, _FOLDER) if contents else ():
        files.sync_directory(root / key)
    sealed = seal(asdict(note), _DIGEST)
    if not files.write_once(root / NOTE_KEY, [sealed]) and not check_note(root, note):
        files.write_once(root / NOTE_KEY, [sealed], replace=True)  # the other one has no files
    files.sync_directory(root / _FOLDER)


def vocabulary_digest(vocab: Mapping[str, int], stop: int | None = None) -> str:
    """Return the SHA-256, in hex, of a vocabulary: of its ids below a bound, with their texts.

    Examples
    --------
    >>> vocabulary_digest({"a": 0, "b": 1}) == vocabulary_digest({"b": 1, "a": 0, "c": 2}, 2)
    True
    """
    pairs = ((number, text) for text, number in vocab.items() if stop is None or number < stop)
    return fingerprint({"vocabulary": sorted(pairs)})
