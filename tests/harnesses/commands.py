"""Small runs of the commands that write files, and what a reader may see of each at any time."""

import atexit
import contextlib
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.ingest.keyed.keyed_files import sft_records, write_bin
from tests.sources.archives import write_jsonl
from tests.text.small_tokenizer import save_tokenizer
from tests.trees import all_files
from zindex.config import DatasetConfig, RunConfig
from zindex.execution.executor import SerialExecutor
from zindex.formats.bin_writer import PairWriter
from zindex.indexing.run import build
from zindex.ingest.convert import convert
from zindex.ingest.corpora.corpus import CorpusForm
from zindex.ingest.corpora.tokenize_corpus import tokenize_corpus
from zindex.ingest.keyed.convert_keyed import convert_keyed
from zindex.ingest.keyed.export_keyed import export_keyed
from zindex.ingest.merge import merge
from zindex.ingest.records.import_records import import_records
from zindex.io import files
from zindex.maintenance.edits.edit import edit
from zindex.maintenance.edits.journal import open_journal
from zindex.maintenance.repairs.repair import repair
from zindex.store.commit import PLAN_KEY
from zindex.store.layout import ChunkGrid

SERIAL = SerialExecutor()
_GRID = ChunkGrid(16, 64)


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    Parameters
    ----------
    prepare
        Writes what the command reads, and what it replaces, into a folder.
    run
        Writes below ``out`` of the folder.
    groups
        The file of each group of files that a reader looks for first; the others of its folder
        belong to it. None: each file is a group.
    optional
        Pattern of the names of files that it may leave out: no reader of zindex needs them.
    """

    prepare: Callable[[Path], object]
    run: Callable[[Path], object]
    groups: str | None = None
    optional: str = ""

    def needed(self, files: dict[str, bytes]) -> dict[str, bytes]:
        """Return the files without those that may be left out."""
        pattern = re.compile(self.optional or "(?!)")
        return {name: item for name, item in files.items() if not pattern.fullmatch(name)}


def write_pair(prefix: Path, start: int) -> None:
    writer = PairWriter(f"{prefix}.bin", np.int32)
    writer.append(np.arange(start, start + 90), [40, 0, 50])
    writer.append_document_ends(np.array([1, 3]))
    writer.finalize(f"{prefix}.idx")


def _make_pairs(folder: Path, *, old: bool = False) -> None:
    for number in range(2):
        write_pair(folder / f"part-{number}", 100 * number)
    if old:
        (folder / "out").mkdir()
        write_pair(folder / "out" / "all", 1000)


def _make_keyed(folder: Path, *, kind: str, old: bool = False) -> None:
    records = sft_records()
    convert_keyed(write_bin(folder / "in", records), folder / "s", grid=_GRID, client=SERIAL)
    if old:
        for shard in records:
            for record in shard:
                record["sequence"] = record["sequence"] + 1000
        convert_keyed(write_bin(folder / "in2", records), folder / "t", grid=_GRID, client=SERIAL)
        export_keyed(folder / "t", folder / "out", storage_type=kind, client=SERIAL)


def _damage(folder: Path) -> None:
    _make_pairs(folder)
    (folder / "out").mkdir()
    _convert(folder)
    (folder / "out" / "s" / "tokens" / "c" / "0").unlink()
    (folder / "out" / "s" / "_zindex" / "manifest.json").write_bytes(b"{}")


def _convert(folder: Path) -> None:
    convert(folder / "part-0", folder / "out" / "s", client=SERIAL, grid=_GRID)


def _merge(folder: Path, overwrite: bool) -> None:
    sources = [str(folder / "part-0"), str(folder / "part-1")]
    merge(sources, folder / "out" / "all", client=SERIAL, overwrite=overwrite)


def _export(folder: Path, kind: str) -> None:
    export_keyed(folder / "s", folder / "out", storage_type=kind, overwrite=True, client=SERIAL)


def _make_texts(folder: Path) -> None:
    save_tokenizer(folder / "tokenizer")
    write_jsonl(folder / "texts" / "a.jsonl", [{"text": f"Text {i}. " * i} for i in range(5)])


def _tokenize(folder: Path, to: CorpusForm) -> None:
    place = folder / "out" / ("s" if to == "zarr" else "all")
    settings: Any = {"tokenizer": folder / "tokenizer", "to": to, "client": SERIAL}
    tokenize_corpus(folder / "texts", place, grid=_GRID, part_nbytes=100, **settings)


def _import(folder: Path) -> None:
    with contextlib.chdir(folder):
        import_records("texts", folder / "out" / "s", part_nbytes=100, client=SERIAL)


def _config(folder: Path) -> RunConfig:
    # Relative, as an edit records paths.
    members = [DatasetConfig(f"part-{number}", weight=1.0) for number in range(2)]
    settings: Any = {"sequence_length": 4, "split": "100,0,0", "samples": {"train": 20}}
    index = str(folder / "out" / "index")
    return RunConfig(tuple(members), index=index, grid=ChunkGrid(8, 16), **settings)


def _build(folder: Path) -> None:
    with contextlib.chdir(folder):
        build(_config(folder), client=SERIAL)


def _make_run(folder: Path) -> None:
    _make_pairs(folder)
    _build(folder)


def _edit_run(folder: Path) -> None:
    with contextlib.chdir(folder):
        config = _config(folder)
        if not open_journal(config).entries:
            edit(config, 8, reweight={"part-1": 3.0}, client=SERIAL)


def _edit(folder: Path) -> None:
    path = folder / "out" / "journal" / "000001.json"
    files.make_folder(path.parent)
    files.write_once(path, [b"edit"])
    files.sync_directory(path.parent)


COMMANDS = {
    "convert": Command(_make_pairs, _convert, "zarr.json"),
    "merge": Command(_make_pairs, partial(_merge, overwrite=False), ".idx"),
    "merge over": Command(partial(_make_pairs, old=True), partial(_merge, overwrite=True), ".idx"),
    "writer over": Command(
        partial(_make_pairs, old=True), lambda folder: write_pair(folder / "out" / "all", 0), ".idx"
    ),
    "edit": Command(lambda folder: (folder / "out").mkdir(), _edit),
    "edit run": Command(_make_run, _edit_run, "zarr.json"),
    "build": Command(_make_pairs, _build, "zarr.json", r"index/(zarr|names-\w+)\.json"),
    "tokenize": Command(_make_texts, partial(_tokenize, to="zarr"), "zarr.json"),
    "tokenize bin": Command(_make_texts, partial(_tokenize, to="bin"), ".idx"),
    "import": Command(_make_texts, _import, "zarr.json"),
    "repair": Command(
        _damage, lambda folder: repair(folder / "out" / "s", source=str(folder / "part-0")), "none"
    ),
}
for _kind, _first in (("jsonl", None), ("bin", "meta.json"), ("h5", None)):
    _run = partial(_export, kind=_kind)
    COMMANDS[f"export {_kind}"] = Command(partial(_make_keyed, kind=_kind), _run, _first)
    COMMANDS[f"export {_kind} over"] = Command(
        partial(_make_keyed, kind=_kind, old=True), _run, _first
    )


@cache
def prepare(name: str) -> tuple[Path, dict[str, bytes], dict[str, bytes]]:
    """Return a folder that has what a command needs, and its files before and after."""
    command, folder = COMMANDS[name], Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    command.prepare(folder)
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        command.run(Path(copy))
        return folder, read_out(folder), read_out(Path(copy))


def check_seen(
    command: Command, seen: dict[str, bytes], old: dict[str, bytes], new: dict[str, bytes]
) -> str:
    """Check that each group of files is that of before, or of after, or that readers see none.

    Parameters
    ----------
    command
        The command.
    seen, old, new
        Content of the files below ``out`` by their names: now, before and after the command.

    Returns
    -------
    outcome
        ``"new"``, ``"old"`` or ``"nothing"``, or several.
    """
    seen = {name: content for name, content in seen.items() if _is_final(name)}
    outcomes = set()
    for names in _groups(command, new):
        parts = [{name: found.get(name) for name in names} for found in (seen, old, new)]
        first = [name for name in names if command.groups and name.endswith(command.groups)]
        if parts[0] == parts[2]:
            outcomes.add("new")
        elif parts[0] == parts[1]:
            outcomes.add("old")
        else:
            # An empty .idx is refused, and what is seen of a repair is refused or repaired again.
            assert command.groups == "none" or (first and not parts[0][min(first, key=len)]), names
            outcomes.add("nothing")
    return " ".join(sorted(outcomes))


def _is_final(name: str) -> bool:
    return not name.endswith(".partial") and ".work" not in name


def _groups(command: Command, new: dict[str, bytes]) -> list[list[str]]:
    """Return the names of each group of files."""
    names = sorted(filter(_is_final, new))
    if command.groups is None:
        return [[name] for name in names]
    if command.groups == "meta.json":
        folders = sorted({name.rpartition("/")[0] for name in names})
        return [[name for name in names if name.rpartition("/")[0] == item] for item in folders]
    if command.groups == "zarr.json":
        plans = {name.removesuffix(PLAN_KEY) for name in names if name.endswith(PLAN_KEY)}
        stores = [[name for name in names if name.startswith(plan)] for plan in sorted(plans)]
        return [*stores, *([name] for name in names if not name.startswith(tuple(plans)))]
    return [names]


def read_out(folder: Path) -> dict[str, bytes]:
    """Return the files that a command has written."""
    return all_files(folder / "out") if (folder / "out").exists() else {}
