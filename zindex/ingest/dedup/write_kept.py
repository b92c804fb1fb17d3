"""The third stage: write the kept lines of a block, and a list of its dropped ones."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zindex.arrays import AnyArray, Int64Array
from zindex.ingest.dedup.duplicates import Reason
from zindex.ingest.dedup.sketches import STREAMS, Block, Sketcher
from zindex.io import files
from zindex.io.objects import Place

#: Folder of the lists of dropped records, and the suffix of a list: a search of the target for
#: jsonl files does not find it.
DROPPED, _SUFFIX = "dropped", ".ndjson"
_NUMBERS = {name: stream for stream, (name, _, _) in enumerate(STREAMS)}


class Dropped(NamedTuple):
    """The dropped records of one block, ascending: one element per record."""

    #: Number of the record in the block, and why it is dropped.
    rows: Int64Array
    reasons: AnyArray
    #: File and line, from 0, of the record that it duplicates; or the number of the benchmark.
    other_urls: Int64Array
    other_numbers: Int64Array
    similarities: AnyArray


class Written(NamedTuple):
    """What was written of one block."""

    num_kept: int
    nbytes: int


def write_kept(
    sketcher: Sketcher,
    root: Place,
    folder: Path,
    name: str,
    block: Block,
    dropped: Dropped,
    keeps_lines: bool,
) -> Written:
    """Task: write the kept lines of a block, unchanged, and the list of its dropped records.

    Parameters
    ----------
    sketcher
        The source, and what was compared.
    root, folder
        The work folder, and the folder of the results.
    name
        Name of the files, without suffix.
    block, dropped
        The block, and its dropped records.
    keeps_lines
        Whether to write the lines, or only the list.
    """
    num_records = block.num_records
    is_kept = np.ones(num_records, bool)
    is_kept[dropped.rows] = False
    lengths = block.read(root, _NUMBERS["length"], "int64", 0, num_records)
    written = Written(num_records - len(dropped.rows), int((lengths[is_kept] + 1).sum()))
    path, listed = folder / f"{name}.jsonl", folder / DROPPED / f"{name}{_SUFFIX}"
    has_lines = not keeps_lines or not written.num_kept or files.exists(path)
    if has_lines and (not len(dropped.rows) or files.exists(listed)):
        return written
    ends = np.concatenate(([0], np.cumsum(lengths)))
    lines = block.read(root, _NUMBERS["line"], "uint8", 0, int(ends[-1])).data
    if len(dropped.rows):
        entries = list(_describe(sketcher, root, block, dropped, lines, ends))
        files.write_once(listed, [b"".join(entries)])
    if not has_lines:
        spans = zip(ends[:-1][is_kept].tolist(), ends[1:][is_kept].tolist(), strict=True)
        content = b"".join(part for start, stop in spans for part in (lines[start:stop], b"\n"))
        files.write_once(path, [content])
    return written


def _describe(
    sketcher: Sketcher,
    root: Place,
    block: Block,
    dropped: Dropped,
    lines: memoryview,
    ends: Int64Array,
) -> Iterator[bytes]:
    """Yield a line of JSON for each dropped record."""
    numbers = block.read(root, _NUMBERS["number"], "int64", 0, block.num_records)
    places = block.read(root, _NUMBERS["place"], "int32", 0, block.num_records)
    urls = np.repeat(*np.array(block.urls, np.int64).T)
    for row, reason, url, number, similarity in zip(*(x.tolist() for x in dropped), strict=True):
        fact: dict[str, Any] = _name(sketcher, int(urls[row]), int(numbers[row]))
        fact["reason"] = Reason(reason).name.lower()
        if reason == Reason.CONTAMINATED:
            assert sketcher.benchmarks is not None
            words = sketcher.read(bytes(lines[int(ends[row]) : int(ends[row + 1])])).words()
            place = int(places[row])
            fact["benchmark"] = sketcher.benchmarks.files[url].url
            fact["ngram"] = " ".join(words[place : place + sketcher.benchmarks.length])
        else:
            fact["of"] = _name(sketcher, url, number)
        if reason == Reason.NEAR:
            fact["similarity"] = round(similarity, 6)
        yield json.dumps(fact).encode() + b"\n"


def _name(sketcher: Sketcher, url: int, number: int) -> dict[str, Any]:
    """Return the file and the line, from 1, of a record."""
    return {"file": sketcher.source.urls[url], "line": number + 1}
