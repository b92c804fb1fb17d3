"""Describe sample files: JSON lines, tar archives and Parquet."""

import os
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from zindex.errors import SourceError
from zindex.formats import tar_headers
from zindex.formats.json_lines import parse_object
from zindex.io import files
from zindex.io.decompression import DamageError
from zindex.io.file_list import COMPRESSIONS, SourceFile
from zindex.sources.jsonl_files import count_breaks, read_lines
from zindex.sources.parquet_files import load_parquet
from zindex.sources.tar_members import FileBuffer, iterate_members

# Bytes of a text file that are read to count its lines.
_MAX_NBYTES = 1 << 30


def find_format(path: str) -> str:
    """Return the extension of a file, without the compression suffix.

    Examples
    --------
    >>> find_format("a/b.jsonl.gz"), find_format("b.tar")
    ('.jsonl', '.tar')
    """
    stem, ending = os.path.splitext(path)
    return os.path.splitext(stem)[1] if ending in COMPRESSIONS else ending


def _source_file(path: str) -> SourceFile:
    compression = COMPRESSIONS.get(os.path.splitext(path)[1])
    return SourceFile(path, Path(path), os.path.getsize(path), compression)


def describe_jsonl(path: str) -> dict[str, Any]:
    """Return the fields of the first JSON line, and the number of lines."""
    file = _source_file(path)
    nbytes = file.nbytes or 0
    lines = read_lines(file)
    with closing(lines):  # type: ignore[type-var]
        first = next((line for _, line in lines if line.strip()), None)
    facts: dict[str, Any] = {"compression": file.compression}
    facts["fields"] = None if first is None else list(parse_object(first))
    if file.is_cut and nbytes <= _MAX_NBYTES:
        [count] = count_breaks(file, [0, nbytes])
        is_open = nbytes and files.read_range(file.place, nbytes - 1, nbytes) != b"\n"
        facts["num_records"] = count + bool(is_open)
    return facts


def describe_tar(path: str) -> dict[str, Any]:
    """Return the number of samples in a tar archive and their fields, from its member headers."""
    file = _source_file(path)
    facts: dict[str, Any] = {"compression": file.compression}
    if not file.is_cut:
        return facts
    keys, fields = set[str](), Counter[str]()
    with open(path, "rb", buffering=0) as stream:
        archive = FileBuffer(file, stream.fileno(), tar_headers.BLOCK_NBYTES)
        for _, name, content in iterate_members(archive, 0, with_content=False):
            if isinstance(content, DamageError):
                raise SourceError(str(content))
            key, _, field = os.path.basename(name).partition(".")
            keys.add(f"{os.path.dirname(name)}/{key}")
            fields[field] += 1
    facts["num_records"] = len(keys)
    facts["fields"] = [f"{name}: {count:,}" for name, count in sorted(fields.items())]
    return facts


def describe_parquet(path: str) -> dict[str, Any]:
    """Return the rows and columns of a Parquet file, from its footer."""
    with load_parquet().ParquetFile(path) as file:
        return {"num_records": file.metadata.num_rows, "fields": list(file.schema_arrow.names)}


#: Functions that describe a file, by extension.
FORMATS = {".jsonl": describe_jsonl, ".tar": describe_tar, ".parquet": describe_parquet}
