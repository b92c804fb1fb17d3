"""Write a corpus as a ``.bin/.idx`` pair, one task per span of tokens; resumable.

::

    PREFIX.work/_zindex/tokens.partial  the .bin while it is written
    PREFIX.work/_zindex/index.partial   the .idx, once all tokens are written
    PREFIX.bin, PREFIX.idx              the same files, renamed
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from shutil import rmtree
from typing import Any

from zindex import schema
from zindex.arrays import AnyArray
from zindex.errors import StoreError
from zindex.execution.executor import run_together
from zindex.formats.idx_writer import write_index_blocks
from zindex.ingest.corpora.corpus import Corpus
from zindex.ingest.driver import Workers
from zindex.io import files
from zindex.store.scratch import SCRATCH_KEY, read_note, write_note

#: Tokens that one task writes.
SPAN_TOKENS = 1 << 24
# Rows of the .idx that are written at once.
_BLOCK = 1 << 20
_TOKENS, _INDEX = "_zindex/tokens.partial", "_zindex/index.partial"
_DONE, _SPAN = "pair", "-span-"


def work_folder(base: str) -> Path:
    """Return the folder that holds an unfinished pair."""
    return Path(f"{base}.work")


def check_pair(base: str, *, overwrite: bool) -> None:
    """Refuse to replace a finished pair without ``overwrite``, and make its folder.

    Raises
    ------
    StoreError
        If there is a file that this pair's own writer has not renamed.
    """
    if not overwrite and read_note(work_folder(base), _DONE) is None:
        for path in (f"{base}.bin", f"{base}.idx"):
            if os.path.exists(path):
                raise StoreError(
                    f"{path} exists; choose another prefix, or replace it with overwrite=True "
                    "(--overwrite)"
                )
    os.makedirs(os.path.dirname(base), exist_ok=True)


def finish_pair(base: str, *, replace: bool = False) -> dict[str, Any] | None:
    """Rename the files of a written pair and remove its work folder.

    Parameters
    ----------
    base
        Path of the pair without suffix.
    replace
        Whether an older pair may be there; its ``.idx`` is then removed first.

    Returns
    -------
    facts
        As given to `write_pair`; None if the pair is not written yet.
    """
    work = work_folder(base)
    facts = read_note(work, _DONE)
    if facts is None:
        return None
    if (work / _TOKENS).exists():
        if replace:  # a new .bin must never have an old .idx
            Path(f"{base}.idx").unlink(missing_ok=True)
        os.replace(work / _TOKENS, f"{base}.bin")
    with suppress(FileNotFoundError):  # a concurrent call was faster
        os.replace(work / _INDEX, f"{base}.idx")
    files.sync_directory(work.parent)
    # Renamed before it is removed: a half-removed folder would no longer say that it is finished.
    old = work.with_name(f"{work.name}.old")
    rmtree(old, ignore_errors=True)
    with suppress(FileNotFoundError):
        os.replace(work, old)
    rmtree(old, ignore_errors=True)  # a concurrent call may remove it too
    return facts


async def write_pair(
    corpus: Corpus,
    tag: str,
    base: str,
    workers: Workers,
    facts: dict[str, Any],
    *,
    verb: str,
    replace: bool,
) -> None:
    """Write a corpus to the work folder of a pair and finish it; written spans are kept.

    Parameters
    ----------
    corpus
        The corpus.
    tag
        Prefix of the notes on written spans.
    base
        Path of the pair without suffix.
    workers, verb
        Where tasks run and progress is shown, and the name of the step.
    facts
        Returned by `finish_pair`.
    replace
        See `finish_pair`.
    """
    work = work_folder(base)
    path = work / _TOKENS
    if not path.exists():  # the notes of a lost file are stale
        for name in files.list_names(work / SCRATCH_KEY):
            if name.startswith(f"{tag}{_SPAN}"):
                files.remove_file(work / SCRATCH_KEY / name)
    # Concurrent calls share this file and write the same bytes.
    with open(path, "ab") as stream:
        stream.truncate(corpus.num_tokens * corpus.dtype.itemsize)
    starts = range(0, corpus.num_tokens, SPAN_TOKENS)
    with workers.shown.step(f"{corpus.prefix}: {verb}", len(starts)) as advance:

        async def write(start: int) -> None:
            stop = min(start + SPAN_TOKENS, corpus.num_tokens)
            key = f"pair-{work.name[:28]}-{start}"
            await workers.executor.run(write_span, corpus, work, tag, start, stop, key=key)
            advance(1)

        await run_together(map(write, starts))
        await asyncio.to_thread(write_idx, corpus, work / _INDEX)
        write_note(work, _DONE, facts)
    await asyncio.to_thread(finish_pair, base, replace=replace)


def write_span(corpus: Corpus, work: Path, tag: str, start: int, stop: int) -> None:
    """Task: write tokens ``[start, stop)`` unless a note says that they are written."""
    name = f"{tag}{_SPAN}{start:012d}"
    if read_note(work, name) is not None:
        return
    values = corpus.read(schema.TOKENS.name, start, stop)
    with open(work / _TOKENS, "r+b") as stream:
        stream.seek(start * values.dtype.itemsize)
        stream.write(values.data)
        stream.flush()
        os.fsync(stream.fileno())
    write_note(work, name, {"stop": stop})


def write_idx(corpus: Corpus, path: str | Path) -> None:
    """Write the ``.idx`` of a corpus in blocks."""

    def read(array: schema.ArraySpec) -> Iterator[AnyArray]:
        num_rows, _ = corpus.shape_of(array.name)
        for start in range(0, num_rows, _BLOCK):
            yield corpus.read(array.name, start, min(start + _BLOCK, num_rows))

    modes = read(schema.SEQUENCE_MODE) if corpus.has_modes else repeat(None)
    write_index_blocks(
        path,
        corpus.dtype,
        zip(read(schema.SEQUENCE_LENGTH), modes, strict=False),
        read(schema.DOCUMENT_OFFSET),
        num_sequences=corpus.num_sequences,
        num_documents=corpus.num_documents,
        has_modes=corpus.has_modes,
    )
