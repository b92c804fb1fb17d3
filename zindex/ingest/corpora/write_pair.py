"""Write a corpus as a ``.bin/.idx`` pair, one task per span of tokens; resumable.

::

    PREFIX.work/_zindex/tokens-<name>.partial  the .bin while it is written
    PREFIX.work/_zindex/index-<name>.partial   the .idx, once all tokens are written
    PREFIX.bin, PREFIX.idx                     the same files, renamed

The random name is recorded once, so that concurrent calls share the file. The file is created
before its name is recorded, and never again: a call that finds it missing knows that another one
has finished the pair, so the records of its spans cannot belong to another file.
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

#: Tokens per task.
SPAN_TOKENS = 1 << 24
# Rows of the .idx per write.
_BLOCK = 1 << 20
_FILE, _DONE = "pair-file", "pair"


def _work_files(work: Path, name: str) -> tuple[Path, ...]:
    """Return the .bin and the .idx of an unfinished pair, and the name to move an old .idx to."""
    kinds = ("tokens", "index", "none")
    return tuple(work / f"_zindex/{kind}-{name}.partial" for kind in kinds)


def work_folder(base: str) -> Path:
    """Return the work folder of an unfinished pair."""
    return Path(f"{base}.work")


def check_pair(base: str, *, overwrite: bool) -> None:
    """Raise if a finished pair exists without ``overwrite``; else create its folder.

    Raises
    ------
    StoreError
        If a file exists that was not renamed by this pair's own writer.
    """
    if not overwrite and read_note(work_folder(base), _DONE) is None:
        # Listed, because a client of a network file system may have cached that they were missing.
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
        Whether an older pair may exist; its ``.idx`` is then removed first.

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
    # Each rename happens once, by this call or a concurrent one. A new .bin must never be combined
    # with an old .idx, not even after a power loss.
    steps = [(tokens, "bin"), (index, "idx")]
    if replace:
        steps.insert(0, (none, "idx"))
    for source, suffix in steps:
        with writing(f"{base}.{suffix}"), suppress(FileNotFoundError):
            os.replace(source, f"{base}.{suffix}")
            files.sync_directory(work.parent)
    # Renamed before it is removed: a half-removed folder would no longer mark the pair as finished.
    aside = Path(partial_path(work))
    with writing(work), suppress(FileNotFoundError):
        os.replace(work, aside)
    files.remove_tree(aside)
    return facts


@contextmanager
def shared(base: str, *, replace: bool) -> Iterator[None]:
    """Raise StoreError if files are missing because a concurrent call finishes the pair."""
    try:
        yield
    except FileNotFoundError as error:  # such as StoreNotFoundError
        if finish_pair(base, replace=replace) is None and not os.path.exists(f"{base}.idx"):
            raise
        raise StoreError(
            f"{base}.bin must have one writer at a time, another call has finished it; use it"
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
    """Write a corpus to the work folder of a pair and finish it, keeping written spans.

    Parameters
    ----------
    corpus
        The corpus.
    tag
        Prefix of the records of written spans.
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
    """Return the name of the shared files; the token file is created before it."""
    note = read_note(work, _FILE)
    if note is not None and not files.exists(_work_files(work, note["name"])[0]):
        if read_note(work, _DONE) is not None:
            raise FileNotFoundError(f"{work} is finished by a concurrent call")
        files.remove_file(work / SCRATCH_KEY / f"{_FILE}.json")  # the tokens were removed
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
    """Task: write tokens ``[start, stop)`` unless they are recorded as written."""
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
    """Check that every span was written to this file."""
    for key in keys:
        note = read_note(work, key)
        with reading(tokens):  # missing once a concurrent call finishes the pair
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
