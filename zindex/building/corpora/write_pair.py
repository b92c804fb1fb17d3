"""A corpus as a ``.bin/.idx`` pair: spans of its tokens, written side by side.

::

    PREFIX.work/_zindex/tokens.partial  the .bin while it is written
    PREFIX.work/_zindex/index.partial   the .idx, once all tokens are there
    PREFIX.bin, PREFIX.idx              the same files, renamed
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import Any, Protocol

import numpy as np

from zindex.building.corpora.any_corpus import SequenceIndex, TokenSpans
from zindex.building.executor import Executor, run_together
from zindex.errors import StoreError
from zindex.formats.idx_writer import IdxStreamWriter
from zindex.store import files
from zindex.store.objects import Place
from zindex.store.scratch import SCRATCH_KEY, read_note, write_note

# Tokens that one task writes, and rows of the .idx that are written at once.
SPAN_TOKENS = 1 << 24
_BLOCK = 1 << 20
_TOKENS, _INDEX = "_zindex/tokens.partial", "_zindex/index.partial"
_DONE, _SPAN = "pair", "-span-"


class PairCorpus(SequenceIndex, TokenSpans, Protocol):
    """A corpus on its way to a pair: at once what has the sequences, and what has the tokens."""

    @property
    def root(self) -> Place:
        """The folder beside whose files it is kept what is done."""
        ...

    @property
    def tag(self) -> str:
        """What that is called there."""
        ...


def work_folder(base: str) -> Path:
    """Return the folder that holds a pair's work while it is not finished."""
    return Path(f"{base}.work")


def check_pair(base: str, *, overwrite: bool) -> None:
    """Refuse to replace a finished pair, unless that is asked for.

    Raises
    ------
    StoreError
        If a file is there that this work has not renamed itself.
    """
    work = work_folder(base)
    if overwrite or read_note(work, _DONE) is not None:
        return
    for path in (f"{base}.bin", f"{base}.idx"):
        if os.path.exists(path):
            raise StoreError(
                f"{path} exists; choose another prefix, or replace it with overwrite=True "
                "(--overwrite)"
            )


def finish_pair(base: str, *, replace: bool = False) -> dict[str, Any] | None:
    """Rename the files of a finished pair and remove its work, if all tokens are there.

    Parameters
    ----------
    base
        Path of the pair without suffix.
    replace
        Whether an older pair may be there, whose ``.idx`` then goes first.

    Returns
    -------
    facts
        What `write_pair` was given; None if not all tokens are there.
    """
    work = work_folder(base)
    facts = read_note(work, _DONE)
    if facts is None:
        return None
    tokens, index = work / _TOKENS, work / _INDEX
    if tokens.exists():  # a new .bin never stands beside an old .idx
        if replace:
            with suppress(FileNotFoundError):
                os.unlink(f"{base}.idx")
        os.replace(tokens, f"{base}.bin")
    with suppress(FileNotFoundError):  # another who finishes the same was faster
        os.replace(index, f"{base}.idx")
    files.sync_directory(work.parent)
    # Renamed, it is gone at once: half removed, it would not tell that its pair is finished.
    old = work.with_name(f"{work.name}.old")
    rmtree(old, ignore_errors=True)
    with suppress(FileNotFoundError):
        os.replace(work, old)
    rmtree(old, ignore_errors=True)  # another who finishes the same may be at it
    return facts


async def write_pair(
    corpus: PairCorpus,
    base: str,
    executor: Executor,
    advance: Callable[[int], None],
    facts: dict[str, Any],
) -> None:
    """Write the pair of a corpus to its work folder; spans that are there already stay.

    Parameters
    ----------
    corpus
        Whose root is the work folder.
    base
        Path of the pair without suffix.
    executor
        Where the tasks run.
    advance
        Called with 1 after each.
    facts
        What `finish_pair` returns.
    """
    work = work_folder(base)
    path = work / _TOKENS
    if not path.exists():  # spans that were written are gone with it
        for name in files.list_names(work / SCRATCH_KEY):
            if name.startswith(f"{corpus.tag}{_SPAN}"):
                files.remove_file(work / SCRATCH_KEY / name)
    # Whoever writes the same at the same time finds the file and writes the same bytes.
    with open(path, "ab") as stream:
        stream.truncate(corpus.bin_nbytes)

    async def write(start: int) -> None:
        stop = min(start + SPAN_TOKENS, corpus.num_tokens)
        key = f"pair-{work.name[:28]}-{start}"
        await executor.run(write_span, corpus, str(path), start, stop, key=key)
        advance(1)

    await run_together(map(write, range(0, corpus.num_tokens, SPAN_TOKENS)))
    await asyncio.to_thread(_write_index, corpus, str(work / _INDEX))
    write_note(work, _DONE, facts)


def write_span(corpus: PairCorpus, path: str, start: int, stop: int) -> None:
    """Task: write tokens ``[start, stop)`` at their place in the file, unless they are there."""
    name = f"{corpus.tag}{_SPAN}{start:012d}"
    if read_note(corpus.root, name) is not None:
        return
    itemsize = corpus.dtype.itemsize
    values = corpus.read(corpus.dtype, stop - start, start * itemsize)
    with open(path, "r+b") as stream:
        stream.seek(start * itemsize)
        stream.write(values.data)
        stream.flush()
        os.fsync(stream.fileno())
    write_note(corpus.root, name, {"stop": stop})


def _write_index(corpus: PairCorpus, path: str) -> None:
    """Write the ``.idx``, in blocks."""
    num_sequences, num_documents = corpus.num_sequences, corpus.num_documents
    with IdxStreamWriter(
        path,
        corpus.dtype,
        num_sequences=num_sequences,
        num_documents=num_documents,
        has_modes=corpus.has_modes,
    ) as writer:
        for start in range(0, num_sequences, _BLOCK):
            stop = min(start + _BLOCK, num_sequences)
            modes = corpus.sequence_modes(start, stop) if corpus.has_modes else None
            writer.write_sequences(
                np.ascontiguousarray(corpus.sequence_lengths(start, stop)), modes
            )
        for start in range(0, num_documents + 1, _BLOCK):
            writer.write_document_indices(
                corpus.document_indices(start, min(start + _BLOCK, num_documents + 1))
            )
