"""Forged metadata with valid digests: every reader refuses it with an error of zindex, or reads it.

A forger computes every digest again, so only the checks of values protect a reader. Each trial
changes some values of one metadata file of a small store or journal, seals it, and lets every
reader at it. Wrong are errors of other classes, and files that are opened outside the store.
"""

import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import xarray

import zindex
from tests.harnesses.running import main
from tests.text.small_tokenizer import save_tokenizer
from zindex.config import DatasetConfig, RunConfig
from zindex.datasets.zarr_dataset import ZarrIndexedDataset
from zindex.errors import ZindexError
from zindex.execution.executor import SerialExecutor
from zindex.formats.idx_writer import write_index
from zindex.ingest.corpora.document_fields import find_documents, open_fields
from zindex.ingest.records.import_records import import_records
from zindex.maintenance.edits.edit import edit
from zindex.maintenance.edits.journal import open_journal
from zindex.maintenance.garbage import find_garbage
from zindex.maintenance.repairs.named_stores import find_stores
from zindex.store.commit import canonical_json, fingerprint, read_plan, read_status
from zindex.store.folder_group import write_group
from zindex.store.layout import ChunkGrid
from zindex.store.open import open_store
from zindex.store.reader import forget_all_files
from zindex.store.record_reader import RecordReader
from zindex.store.tokens import open_tokens
from zindex.store.verify import verify_store

CANARY = "canary"
_SERIAL = SerialExecutor()
_VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 7, 255, 1 << 16, 1 << 31, 1 << 40, 1 << 62, 1 << 63),
    *(1 << 64, -(1 << 63), 10**30, 0.5, -0.0, 1e308, 1e-308, "", "x", "tokens", "index", "records"),
    *(
        "int32",
        "float16",
        "object",
        "O",
        "datetime64",
        "V100000000000",
        "U99",
        "zstd",
        "none",
        "pickle",
    ),
    *("..", ".", "/", "../" * 9 + CANARY, "\0", "a\0b", "\ud800", "a" * 5000, "c/0", "zarr.json"),
    *(
        [],
        {},
        [[]],
        [1],
        [None],
        {"a": 1},
        [1, 2, 3],
        [[1, 2]],
        {"path": "/etc/passwd", "nbytes": 9},
    ),
]


@dataclass(frozen=True)
class Victim:
    """A store or a journal, its sealed files, and its readers."""

    root: Path
    #: Metadata files that are forged, by key.
    keys: tuple[str, ...]
    readers: tuple[Callable[[Path], Any], ...]


def _write_corpus(prefix: Path, lengths: list[int]) -> str:
    np.arange(sum(lengths), dtype=np.int32).tofile(f"{prefix}.bin")
    write_index(f"{prefix}.idx", np.int32, lengths, np.arange(len(lengths) + 1))
    return str(prefix)


def _read_arrays(root: Path) -> None:
    """Read the ends of every array, many rows and few."""
    store = open_store(root)
    for name in store.layouts:
        with suppress(ZindexError):
            reader = store[name]
            for start in (0, len(reader) - 2):
                reader.read(max(0, start), min(len(reader), max(0, start) + 2))
            if reader.nbytes < 1 << 20:
                np.asarray(reader)
    with suppress(ZindexError):
        open_tokens(store).read(0, 1)


def _read_records(root: Path) -> None:
    reader = RecordReader(open_store(root, kind="records"))
    for record in (0, len(reader) - 1):
        if 0 <= record < len(reader):
            with suppress(ZindexError, IndexError):  # offsets are values, which have no schema
                reader.read(record)


def _read_fields(root: Path) -> None:
    fields = open_fields(str(root))
    if fields is not None:
        fields.read([0, 1])
        find_documents(root, ["d1"], client=_SERIAL)


def _read_dataset(root: Path) -> None:
    dataset = ZarrIndexedDataset(str(root))
    if len(dataset):
        with suppress(IndexError):
            dataset[0]


def _describe(root: Path) -> None:
    """Write the group of the store's folder, and remove it."""
    try:
        write_group(root.parent)
    finally:
        (root.parent / "zarr.json").unlink(missing_ok=True)


def _view(root: Path) -> None:
    view = xarray.open_dataset(root, engine="zindex")
    for name in view.variables:
        if view[name].nbytes < 1 << 20:
            with suppress(ZindexError):
                view[name].load()


_STORE_READERS = (
    _read_arrays,
    _describe,
    _view,
    lambda root: find_garbage(root.parent),
    verify_store,
    read_status,
    lambda root: open_store(root, follow=0).layouts,
    lambda root: [each.num_shards for each in find_stores(root)],
)


@cache
def make_victims() -> tuple[Victim, ...]:
    """Build the victims once, in a folder with a canary next to them."""
    folder = Path(tempfile.mkdtemp(prefix="zindex-fuzz-"))
    (folder / CANARY).mkdir()
    for name in ("zarr.json", "0"):
        (folder / CANARY / name).write_bytes(bytes(64))
    (folder / "home").mkdir()
    home = folder / "home"
    grid = ChunkGrid(chunk_length=4, shard_length=8)
    prefix = _write_corpus(home / "corpus", [3, 5, 2, 7, 4])
    zindex.convert(prefix, home / "tokens", client=_SERIAL, grid=grid)
    zindex.convert(prefix, home / "linked", client=_SERIAL, link=True)
    lines = [{"text": f"text {number}", "ids": [number, 2]} for number in range(5)]
    (home / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options: Any = {"client": _SERIAL, "dtypes": {"ids": "int32"}}
    import_records(home / "a.jsonl", home / "records", **options)
    config = RunConfig(
        datasets=(DatasetConfig(prefix, weight=1.0),),
        sequence_length=4,
        seed=1,
        split="100,0,0",
        samples={"train": 20},
        index=str(home / "index"),
    )
    entry = edit(config, 5, client=_SERIAL, num_samples=18)
    assert entry.number == 1
    described = [line | {"id": f"d{number}"} for number, line in enumerate(lines)]
    (home / "b.jsonl").write_text("".join(json.dumps(line) + "\n" for line in described))
    zindex.tokenize_corpus(
        home / "b.jsonl", home / "described", tokenizer=save_tokenizer(folder / "t"), client=_SERIAL
    )
    journal = Path(str(open_journal(config).folder))
    index = min((home / "index").glob("*/zarr.json")).parent
    keys = ("zarr.json", "_zindex/plan.json", "_zindex/manifest.json")
    shutil.copytree(home / "tokens", home / "unfinished")
    (home / "unfinished" / "zarr.json").unlink()
    return (
        Victim(home / "tokens", keys, (*_STORE_READERS, _read_dataset)),
        Victim(home / "linked", keys, (*_STORE_READERS, _read_dataset)),
        Victim(home / "records", keys, (*_STORE_READERS, _read_records)),
        Victim(home / "described", keys, (*_STORE_READERS, _read_fields)),
        Victim(index, keys, _STORE_READERS),
        Victim(home / "unfinished", keys[1:2], (*_STORE_READERS, read_plan)),
        Victim(journal, ("000001.json",), (lambda root: open_journal(config).state,)),
    )


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a JSON value."""
    yield path
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for name, item in items:
        yield from _places(item, (*path, name))


def forge(content: Any, rng: random.Random) -> None:
    """Change one value of a JSON object, or its keys."""
    places = [path for path in _places(content) if path]
    if not places:
        return
    *above, last = rng.choice(places)
    parent = content
    for name in above:
        parent = parent[name]
    change = rng.randrange(10)
    if change == 0:
        del parent[last]
    elif change == 1 and isinstance(parent, dict):
        parent[rng.choice(["extra", "../x", *parent])] = rng.choice(_VALUES)
    elif change == 2 and isinstance(parent, list):
        parent.append(parent[last])
    elif change == 3 and type(parent[last]) is int:
        parent[last] += rng.choice([-1, 1, 8, 1 << 20])
    elif change == 4:
        deep: Any = 0
        for _ in range(rng.choice([10, 400])):
            deep = [deep]
        parent[last] = deep
    else:
        parent[last] = json.loads(json.dumps(rng.choice(_VALUES)))


def seal_again(root: Path, key: str, content: Any, *, renamed: bool) -> None:
    """Write a forged file with all digests of it, as a forger does."""
    if key == "_zindex/manifest.json":
        (root / key).write_bytes(_dump(content))
        top = json.loads((root / "zarr.json").read_bytes())
        digest = hashlib.sha256((root / key).read_bytes()).hexdigest()
        top["attributes"]["zindex"]["manifest_sha256"] = digest
        seal_again(root, "zarr.json", top, renamed=False)
        return
    facts, name = content, "plan_sha256" if "_zindex" in key else "fingerprint"
    with suppress(KeyError, TypeError, AttributeError):
        if key == "zarr.json":
            facts, name = content["attributes"]["zindex"], "root_sha256"
        if renamed and name != "fingerprint":
            facts["fingerprint"] = fingerprint({"kind": facts["kind"], "spec": facts["spec"]})
        facts.pop(name, None)
        facts[name] = fingerprint(content)
    (root / key).write_bytes(_dump(content))


def _dump(content: Any) -> bytes:
    return canonical_json(content).encode()


_opened: list[str] = []
_is_hooked = _is_heard = False


def _note_opened(event: str, arguments: Any) -> None:
    if _is_heard and event == "open" and isinstance(arguments[0], str | bytes):
        _opened.append(os.fsdecode(arguments[0]))


def trial(rng: random.Random) -> str:
    """Forge one file and let every reader at it; return the outcome."""
    global _is_hooked, _is_heard
    victims = make_victims()
    if not _is_hooked:
        sys.addaudithook(_note_opened)
        _is_hooked = True
    victim = rng.choice(victims)
    key = rng.choice(victim.keys)
    kept = {each: (victim.root / each).read_bytes() for each in victim.keys}
    content = json.loads(kept[key])
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        forge(content, rng)
    outcome = "read"
    try:
        seal_again(victim.root, key, content, renamed=rng.random() < 0.8)
        for reader in victim.readers:
            forget_all_files()
            _opened.clear()
            _is_heard = True
            try:
                reader(victim.root)
            except ZindexError:
                outcome = "refused"
            finally:
                _is_heard = False
            outside = [
                path
                for path in _opened
                if CANARY in os.path.realpath(path.replace("\0", "")) or path == "/etc/passwd"
            ]
            if outside:
                raise AssertionError(f"{key} of {victim.root.name}: {outside} was opened")
    except Exception:
        print(f"{key} of {victim.root.name}: {_dump(content)[:2000]!r}", file=sys.stderr)
        raise
    finally:
        for each, old in kept.items():
            (victim.root / each).write_bytes(old)
    return outcome


if __name__ == "__main__":
    sys.exit(main(trial))
