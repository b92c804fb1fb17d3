"""Write a corpus as a ``.bin/.idx`` pair, one task per span of tokens; resumable.

::

    PREFIX.work/_zindex/tokens-<name>.partial  the .bin while it is written
    PREFIX.work/_zindex/index-<name>.partial   the .idx, once all tokens are written
    PREFIX.bin, PREFIX.idx                     the same files, renamed

The random name is noted once, so that concurrent calls share the file. It is made before it is
noted and never again: a call that finds it gone knows that another one has finished the pair, and
the notes of its spans are no other file's.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import repeat
from pathlib import Path
from typing import Any
from uuid import uuid4

from zindex import schema
from zindex.arrays import AnyArray
from zindex.errors import StoreError, VerificationError
from zindex.execution.executor import run_together
from zindex.formats.idx_writer import write_index_blocks
from zindex.ingest.corpora.corpus import Corpus
from zindex.ingest.driver import Workers
from zindex.io import files
from zindex.io.create_only import open_descriptor, partial_path
from zindex.io.system_errors import reading, writing
from zindex.store.scratch import SCRATCH_KEY, read_note, write_note

#: Tokens that one task writes.
SPAN_TOKENS = 1 << 24
# Rows of the .idx that are written at once.
_BLOCK = 1 << 20
_FILE, _DONE = "pair-file", "pair"


def _work_files(work: Path, name: str) -> tuple[Path, ...]:
    """Return the .bin and the .idx of an unfinished pair, and what takes an old .idx's name."""
    kinds = ("tokens", "index", "none")
    return tuple(work / f"_zindex/{kind}-{name}.partial" for kind in kinds)


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
        # Listed: a client of a network file system may still remember that they were missing.
        names = files.list_names(Path(base).parent)
        for path in (f"{base}.bin", f"{base}.idx"):
            if os.path.basename(path) in names:
                raise StoreError(
                    f"{path} exists; choose another prefix, or replace it with overwrite=True "
                    "(--overwrite)"
                )
    files.make_folder(Path(base).parent)


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
    tokens, index, none = _work_files(work, facts.pop("file"))
    # Each rename is done once, by this call or a concurrent one. A new .bin must never have an old
    # .idx, not even after a power loss.
    steps = [(tokens, "bin"), (index, "idx")]
    if replace:
        steps.insert(0, (none, "idx"))
    for source, suffix in steps:
        with writing(f"{base}.{suffix}"), suppress(FileNotFoundError):
            os.replace(source, f"{base}.{suffix}")
            files.sync_directory(work.parent)
    # Renamed before it is removed: a half-removed folder would no longer say that it is finished.
    aside = Path(partial_path(work))
    with writing(work), suppress(FileNotFoundError):
        os.replace(work, aside)
    files.remove_tree(aside)
    return facts


@contextmanager
def shared(base: str, *, replace: bool) -> Iterator[None]:
    """Raise StoreError if files are gone because a concurrent call finishes the pair."""
    try:
        yield
    except FileNotFoundError as error:  # such as StoreNotFoundError
        if finish_pair(base, replace=replace) is None and not os.path.exists(f"{base}.idx"):
            raise
        raise StoreError(
            f"{base}.bin must be one call's alone, another one has finished it meanwhile; use it"
        ) from error


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
    name = await asyncio.to_thread(_share_file, work, corpus.num_tokens * corpus.dtype.itemsize)
    starts = range(0, corpus.num_tokens, SPAN_TOKENS)
    with workers.shown.step(f"{corpus.prefix}: {verb}", len(starts)) as advance:

        async def write(start: int) -> None:
            stop = min(start + SPAN_TOKENS, corpus.num_tokens)
            key = f"pair-{work.name[:28]}-{start}"
            await workers.executor.run(write_span, corpus, work, tag, name, start, stop, key=key)
            advance(1)

        await run_together(map(write, starts))
        tokens, index, _ = _work_files(work, name)
        await asyncio.to_thread(write_idx, corpus, index)
        await asyncio.to_thread(_check_spans, work, tokens, [f"{tag}-{name}-{i}" for i in starts])
        write_note(work, _DONE, facts | {"file": name})
    await asyncio.to_thread(finish_pair, base, replace=replace)


def _share_file(work: Path, nbytes: int) -> str:
    """Return the name of the files that all calls share; the file for tokens is made before it."""
    note = read_note(work, _FILE)
    if note is not None and not files.exists(_work_files(work, note["name"])[0]):
        if read_note(work, _DONE) is not None:
            raise FileNotFoundError(f"{work} is finished by a concurrent call")
        files.remove_file(work / SCRATCH_KEY / f"{_FILE}.json")  # somebody removed the tokens
        note = None
    if note is None:
        name = uuid4().hex[:12]
        path, _, none = _work_files(work, name)
        with writing(path, nbytes), writing(none):
            with open(path, "xb") as stream:
                stream.truncate(nbytes)
            none.touch()
        write_note(work, _FILE, {"name": name})
        note = read_note(work, _FILE) or {"name": name}
        if note["name"] != name:
            files.remove_file(path)
            files.remove_file(none)
    return str(note["name"])


def write_span(corpus: Corpus, work: Path, tag: str, name: str, start: int, stop: int) -> None:
    """Task: write tokens ``[start, stop)`` unless a note says that they are written."""
    key = f"{tag}-{name}-{start}"
    if read_note(work, key) is not None:
        return
    values = corpus.read(schema.TOKENS.name, start, stop)
    path = _work_files(work, name)[0]
    with writing(path, values.nbytes), open(path, "r+b", opener=open_descriptor) as stream:
        stream.seek(start * values.dtype.itemsize)
        stream.write(values.data)
        stream.flush()
        os.fsync(stream.fileno())
        inode = os.fstat(stream.fileno()).st_ino
    write_note(work, key, {"inode": inode})


def _check_spans(work: Path, tokens: Path, keys: list[str]) -> None:
    """Check that every span was written to this very file."""
    for key in keys:
        note = read_note(work, key)
        with reading(tokens):  # gone once a concurrent call finishes the pair
            inode = tokens.stat().st_ino
        if note is None or note["inode"] != inode:
            files.remove_file(work / SCRATCH_KEY / f"{key}.json")
            raise VerificationError(
                f"{tokens} must be the file that all spans were written to, {key} was written to "
                "another one; run again"
            )


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
