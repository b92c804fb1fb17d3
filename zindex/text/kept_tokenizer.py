"""Save tokenizers in stores, load them, and compare them with given ones."""

import atexit
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from zindex.errors import ConfigError
from zindex.io.objects import Place, PlaceLike, place_of
from zindex.io.request_threads import map_in_threads
from zindex.store.tokenizer_note import (
    TokenizerNote,
    check_note,
    digest_file,
    read_kept_file,
    read_note,
    vocabulary_digest,
    write_note,
)
from zindex.text.text_encoder import TextEncoder, TokenizerLike
from zindex.text.tokenizers.open_tokenizer import open_text_tokenizer
from zindex.text.tokenizers.text_tokenizer import TextTokenizer
from zindex.text.tokenizers.wrapped import wrap_tokenizer

logger = logging.getLogger(__name__)

# Number of threads that read tokenizer notes of many stores.
_NUM_READERS = 8
# Maximum number of corpora that an error names.
_MAX_NAMES = 4

# Words of texts and of code, which are tokens or a few of them in most vocabularies.
_WORDS = (
    *("the", "people", "of", "this", "house", "said", "with", "12", "others", "about"),
    *("return", "import", "value", "number"),
)

# These libraries write vocabularies in the same form as the tokenizers library.
_FORMS = {"bpe": "huggingface", "wordpiece": "huggingface"}


class KeptTokenizer(NamedTuple):
    """A tokenizer as saved in a store."""

    note: TokenizerNote
    #: Contents of its files, by name.
    contents: Mapping[str, bytes]

    def check(self, root: Place) -> None:
        """Raise FingerprintMismatchError if a store has a different tokenizer."""
        check_note(root, self.note)

    def write(self, root: Place) -> None:
        """Save it in a store; raise FingerprintMismatchError if the store has a different one."""
        write_note(root, self.note, self.contents)


def describe_tokenizer(
    tokenizer: TokenizerLike | TextEncoder, *, keep_files: bool = True
) -> KeptTokenizer:
    """Return a tokenizer in the form in which stores save it.

    Parameters
    ----------
    tokenizer
        See `TextEncoder`.
    keep_files
        Whether to include its files, or only the digests of the tokenizer and its vocabulary.

    Raises
    ------
    ConfigError
        If the object is not a tokenizer.
    """
    encoder = tokenizer if isinstance(tokenizer, TextEncoder) else TextEncoder(tokenizer)
    identity = encoder.identity()
    vocab, size = _read_vocab(encoder.tokenizer), encoder.vocab_size()
    if vocab is None:
        return KeptTokenizer(TokenizerNote(identity, size), {})
    size = _count_ids(vocab, size)
    own = _open_own(encoder)
    kept = own.kept_files() if own is not None and keep_files else None
    facts: dict[str, Any] = {}
    if own is not None and kept is not None:
        digests = {name: digest_file(content) for name, content in kept.files.items()}
        facts = {"library": own.library, "files": digests, "path": kept.path}
        facts |= {"options": dict(kept.options), "added": own.added_tokens}
    form = _form_of(own)
    note = TokenizerNote(identity, size, vocabulary_digest(vocab, size), form, **facts)
    return KeptTokenizer(note, {} if kept is None else kept.files)


def read_kept(root: Place) -> KeptTokenizer | None:
    """Return the tokenizer saved in a store, for another store to save; None if it has none."""
    note = read_note(root)
    if note is None:
        return None
    return KeptTokenizer(note, {name: read_kept_file(root, note, name) for name in note.files})


def _open_own(encoder: TextEncoder) -> TextTokenizer | None:
    """Return zindex's tokenizer of an encoder; None if it wraps an object of another library."""
    if encoder.path is not None:
        return open_text_tokenizer(encoder.path, "huggingface")
    own = getattr(encoder.tokenizer, "_tokenizer", encoder.tokenizer)  # has Megatron's interface
    return own if isinstance(own, TextTokenizer) else wrap_tokenizer(encoder.tokenizer)


def _read_vocab(tokenizer: Any) -> Mapping[str, int] | None:
    """Return the vocabulary of a tokenizer, from text to id; None if it has no such listing."""
    if hasattr(tokenizer, "get_vocab"):
        found = tokenizer.get_vocab()
    else:
        found = getattr(tokenizer, "vocab", None)
    return found if isinstance(found, Mapping) else None


def count_ids(encoder: TextEncoder) -> int | None:
    """Return the number of ids of a tokenizer, including gaps; None if unknown."""
    vocab, size = _read_vocab(encoder.tokenizer), encoder.vocab_size()
    return size if vocab is None else _count_ids(vocab, size)


def _count_ids(vocab: Mapping[str, int], size: int | None) -> int:
    """Return the number of ids, starting at 0 and including gaps."""
    return max(size or 0, 1 + max(vocab.values(), default=-1))


def _form_of(tokenizer: Any) -> str | None:
    """Return how a tokenizer writes the texts of its ids; None if unknown."""
    own = getattr(tokenizer, "_tokenizer", tokenizer)  # has Megatron's interface
    library = getattr(own, "library", None)
    return _FORMS.get(library, library) if isinstance(library, str) else None


def open_tokenizer(store: PlaceLike) -> TextTokenizer:
    """Open the tokenizer saved in a store.

    Parameters
    ----------
    store
        Path or URL of a store that was written by ``tokenize``, or by ``convert`` with a tokenizer.

    Raises
    ------
    ConfigError
        If the store has no tokenizer, or was saved without its files.
    VerificationError
        If a file is damaged.
    """
    root = place_of(store)
    note = read_note(root)
    if note is None or note.path is None:
        what = "no tokenizer" if note is None else "not the files of its tokenizer"
        raise ConfigError(
            f"{root} keeps {what}; give the tokenizer, or add it with `zindex convert --tokenizer`"
        )
    return _open_files(root, note)


def _open_files(root: Place, note: TokenizerNote) -> TextTokenizer:
    """Verify the saved files, and open the tokenizer."""
    assert note.path is not None
    contents = {name: read_kept_file(root, note, name) for name in note.files}
    folder = root / note.folder
    if not isinstance(folder, Path):
        folder = _local_copy(str(root), note.identity)
        for name, content in contents.items():
            (folder / name).write_bytes(content)
    options = dict(note.options)
    found = open_text_tokenizer(folder / note.path if note.files else None, note.library, **options)
    for tokens in note.added:
        found.add_special_tokens(tokens)
    return found


@cache
def _local_copy(url: str, identity: str) -> Path:
    """Return a temporary folder, private to this process, for files from object storage."""
    folder = tempfile.mkdtemp(prefix="zindex-tokenizer-")

    def remove(owner: int = os.getpid()) -> None:
        if os.getpid() == owner:  # not a forked child
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return Path(folder)


def check_fit(tokenizer: Any, store: PlaceLike, note: TokenizerNote) -> None:
    """Check that a tokenizer matches the tokens of a store; extra ids at its end are allowed.

    Parameters
    ----------
    tokenizer
        See `zindex.text.tokenizers.open_tokenizer.as_tokenizer`.
    store, note
        The store, for the message, and its description of the tokenizer.

    Raises
    ------
    ConfigError
        If it has fewer ids, or different texts for them. Vocabularies of different libraries cannot
        be compared: logs a warning unless they decode most of some words differently.
    """
    size: int | None = tokenizer.vocab_size
    if note.vocab_size is None or size is None:
        return
    vocab = None
    if size < note.vocab_size or note.vocabulary is not None:
        vocab = _read_vocab(tokenizer)
        size = size if vocab is None else _count_ids(vocab, size)
    if size < note.vocab_size:
        raise ConfigError(
            f"a tokenizer must have all {note.vocab_size:,} ids of the tokens of {store}, got one "
            f"of {size:,}; give the tokenizer that the corpus was made with"
        )
    if vocab is None or note.vocabulary is None:
        return
    if vocabulary_digest(vocab, note.vocab_size) == note.vocabulary:
        return
    is_alike = None
    if _form_of(tokenizer) != note.form and note.path is not None:
        is_alike = _decode_alike(_open_files(place_of(store), note), tokenizer)
    if _form_of(tokenizer) == note.form or is_alike is False:
        raise ConfigError(
            f"a tokenizer must have the vocabulary of the tokens of {store}, got another of "
            f"{size:,} ids; give the tokenizer that the corpus was made with"
        )
    logger.warning(
        "%s: its tokenizer is of %s, the given one of %s; their vocabularies cannot be compared"
        + ("" if is_alike is None else ", but they decode some words alike"),
        *(store, note.form, _form_of(tokenizer) or type(tokenizer).__name__),
    )


def check_stores(tokenizer: Any, stores: Mapping[str, Place]) -> None:
    """Check that the stores of a blend match each other and a tokenizer.

    Parameters
    ----------
    tokenizer
        See `check_fit`.
    stores
        Locations of the stores, by path.

    Raises
    ------
    ConfigError
        See `check_blend` and `check_fit`.
    """
    found = map_in_threads(min(_NUM_READERS, len(stores)), read_note, stores.values())
    notes = dict(zip(stores, found, strict=True))
    check_blend(notes)
    for path, note in distinct_notes(notes):
        check_fit(tokenizer, path, note)


def choose_tokenizer(notes: Mapping[str, TokenizerNote | None]) -> TextTokenizer:
    """Return the tokenizer saved in the stores of a run.

    Parameters
    ----------
    notes
        Descriptions by store path; None for stores without one. They must be compatible, as
        checked by `check_blend`.

    Raises
    ------
    ConfigError
        If no store has the files of a tokenizer.
    """
    kept = [(path, note) for path, note in notes.items() if note and note.path is not None]
    if not kept:
        paths = list(notes)
        names = ", ".join(paths[:_MAX_NAMES])
        if len(paths) > _MAX_NAMES:
            names += f" and {len(paths) - _MAX_NAMES:,} others"
        raise ConfigError(
            f"a run must name its tokenizer, for {names} keep none; give it, or add it with "
            "`zindex convert --tokenizer`"
        )
    path, note = max(kept, key=lambda pair: pair[1].vocab_size or 0)
    return _open_files(place_of(path), note)


def check_blend(notes: Mapping[str, TokenizerNote | None]) -> None:
    """Check that the stores of a blend use the same vocabulary.

    Parameters
    ----------
    notes
        Descriptions by store path. Stores without one are not compared.

    Raises
    ------
    ConfigError
        If two tokenizers have different texts for the same id.
    """
    known = distinct_notes(notes)
    if len(known) < 2:
        return
    first, *others = sorted(known, key=lambda pair: -(pair[1].vocab_size or 0))
    for other in others:
        verdict = first[1].same_vocabulary(other[1])
        if verdict is False:
            verdict = _is_beginning(first, other)
        is_alike = _open_and_compare(first, other) if verdict is None else None
        if verdict is False or is_alike is False:
            sizes = [f"{path} ({note.vocab_size:,} ids)" for path, note in (first, other)]
            raise ConfigError(
                "corpora that are blended must have one tokenizer, got different vocabularies of "
                f"{' and '.join(sizes)}; tokenise one of them again, or leave it out"
            )
        if verdict is None:
            logger.warning(
                "%s and %s may have different tokenizers: their vocabularies cannot be compared"
                + ("" if is_alike is None else ", but they decode some words alike"),
                *(first[0], other[0]),
            )


def distinct_notes(
    notes: Mapping[str, TokenizerNote | None],
) -> list[tuple[str, TokenizerNote]]:
    """Return the first store of each vocabulary, with its description."""
    found: dict[str, tuple[str, TokenizerNote]] = {}
    for path, note in notes.items():
        if note is not None:
            found.setdefault(note.vocabulary or note.identity, (path, note))
    return list(found.values())


def _open_and_compare(
    first: tuple[str, TokenizerNote], second: tuple[str, TokenizerNote]
) -> bool | None:
    """Return whether two saved tokenizers decode alike; None if they are not saved."""
    if first[1].path is None or second[1].path is None:
        return None
    opened = [_open_files(place_of(path), note) for path, note in (second, first)]
    return _decode_alike(*opened)


def _decode_alike(known: TextTokenizer, other: Any) -> bool | None:
    """Return whether another tokenizer decodes most words from their tokens as the known one does.

    Libraries write the same vocabulary in different forms, but decode its tokens to the same texts,
    apart from spaces. None if the other one cannot decode.
    """
    decode = getattr(other, "detokenize", None)
    if decode is None:
        return None
    num_alike = 0
    for word in _WORDS:
        ids = known.tokenize(word)
        try:
            found = decode(ids)
        except Exception:  # of any library, for ids that it does not have
            continue
        num_alike += "".join(found.split()) == "".join(known.detokenize(ids).split())
    return 2 * num_alike > len(_WORDS)


def _is_beginning(long: tuple[str, TokenizerNote], short: tuple[str, TokenizerNote]) -> bool:
    """Return whether the vocabulary of a saved tokenizer is a prefix of another one."""
    (path, note), size = long, short[1].vocab_size
    if note.path is None or size is None:
        return False
    vocab = _read_vocab(_open_files(place_of(path), note))
    return vocab is not None and vocabulary_digest(vocab, size) == short[1].vocabulary
