"""Tokenizer saved in a store: a note that describes it, and its files.

::

    STORE/_zindex/tokenizer.json              the note, with its own digest
    STORE/_zindex/tokenizer/<digest>/<name>   the files, whose digests are in the note

They are written before the commit, or added later to a committed store. The note is created once,
after its files, so that readers see all of them or none. Arrays and fingerprints do not depend on
them; stores without a note remain readable.
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

#: Keys of the note and of the folder of its files, relative to the store's root.
NOTE_KEY, FILES_KEY = "_zindex/tokenizer.json", "_zindex/tokenizer"
_FOLDER = "_zindex"
_DIGEST = "tokenizer_sha256"
_REMEDY = "restore it, or remove it and add the tokenizer again"
# Maximum size of a note or file; allows vocabularies of a million long tokens.
_MAX_NBYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class TokenizerNote:
    """Description of the tokenizer that produced a store's tokens."""

    #: SHA-256 of its file, or another identity defined by its library.
    identity: str
    #: Number of ids, starting at 0; None if unknown.
    vocab_size: int | None = None
    #: SHA-256 of the vocabulary of these ids; None if unknown.
    vocabulary: str | None = None
    #: How texts of ids are written; only vocabularies of the same form are comparable.
    form: str | None = None
    #: Library that opens the files.
    library: str | None = None
    #: SHA-256 of each saved file, by name.
    files: dict[str, str] = field(default_factory=dict)
    #: File to open, or "" for the folder; None if the tokenizer cannot be reopened.
    path: str | None = None
    #: Options for opening it, and special tokens to add.
    options: dict[str, Any] = field(default_factory=dict)
    added: list = field(default_factory=list)  # type: ignore[type-arg]

    @property
    def folder(self) -> str:
        """Key of the folder of its files, which contains their digest."""
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
    """Return the SHA-256 of a file's content, in hex."""
    return hashlib.sha256(content).hexdigest()


def read_note(root: Place) -> TokenizerNote | None:
    """Read the note of a store; None if it has none.

    Raises
    ------
    StoreError, VerificationError
        If the note is damaged.
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
    """Read a saved file, and verify its digest.

    Raises
    ------
    VerificationError
        If it is missing, or its digest does not match.
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
    """Return whether a store already has this note; raise if it has a different one.

    Raises
    ------
    FingerprintMismatchError
        If the store has a different tokenizer.
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
    """Save a tokenizer in a store; do nothing if it is already saved.

    Parameters
    ----------
    root
        The store, committed or not.
    note, contents
        The note, and the content of each of its files.

    Raises
    ------
    FingerprintMismatchError
        If the store has a different tokenizer.
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
        files.write_once(root / NOTE_KEY, [sealed], replace=True)  # the existing note has no files
    files.sync_directory(root / _FOLDER)


def vocabulary_digest(vocab: Mapping[str, int], stop: int | None = None) -> str:
    """Return the SHA-256 of a vocabulary in hex, limited to ids below ``stop``.

    Examples
    --------
    >>> vocabulary_digest({"a": 0, "b": 1}) == vocabulary_digest({"b": 1, "a": 0, "c": 2}, 2)
    True
    """
    pairs = ((number, text) for text, number in vocab.items() if stop is None or number < stop)
    return fingerprint({"vocabulary": sorted(pairs)})
