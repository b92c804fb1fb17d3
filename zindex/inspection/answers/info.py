"""Describe a path: store, run, corpus or sample file, with its sizes and health."""

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from zindex.config import load_config
from zindex.errors import StoreNotFoundError, ZindexError
from zindex.growing.growing_log import is_growing
from zindex.growing.inspection import describe_growing
from zindex.indexing.run_plan import plan_run
from zindex.ingest.corpora.pairs import is_url
from zindex.ingest.length_source import is_store
from zindex.inspection.answers.describe_files import FORMATS, find_format
from zindex.inspection.answers.describe_stores import WHOLE, Found, describe_pair, describe_store
from zindex.inspection.answers.screen import fact_lines, fit, fit_table
from zindex.inspection.tables.formatting import format_nbytes
from zindex.inspection.tables.journal_table import report_edits
from zindex.io import files
from zindex.io.decompression import DamageError
from zindex.io.objects import place_of
from zindex.store.commit import ROOT_KEY
from zindex.store.folder_group import is_group
from zindex.wording import count_noun

_YAML = (".yaml", ".yml")
Kind = tuple[str, Callable[[str], Found]]


@dataclass(frozen=True, slots=True)
class PathInfo:
    """Description of one path."""

    path: str
    #: ``corpus``, ``index``, ``blend``, ``packed index``, ``records``, ``pair``, ``run``, ...
    kind: str
    #: ``whole``, or what is missing or damaged.
    health: str
    #: Total size in bytes; None if it cannot be known without reading the files.
    nbytes: int | None
    #: Last modification, ISO 8601 in UTC; None in object stores.
    modified: str | None
    #: Sizes, tokenizer, source and settings, by name.
    facts: dict[str, Any]

    @property
    def is_whole(self) -> bool:
        """Whether file sizes show nothing missing."""
        return self.health == WHOLE

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self) | {"is_whole": self.is_whole}

    def to_lines(self) -> list[str]:
        """Format the fields for a terminal."""
        size = None if self.nbytes is None else format_nbytes(self.nbytes)
        known = {"size": size, "modified": self.modified, "health": self.health}
        return [fit(f"{self.path}: {self.kind}"), *fact_lines(self.facts | known)]


def info(path: str | os.PathLike[str]) -> PathInfo:
    """Describe a path: its kind, sizes, lengths, tokenizer, source, age and health.

    Parameters
    ----------
    path
        Path or URL of a corpus, index, blend, keyed, record or growing store; a run file; a
        ``.bin/.idx`` pair (either file or the prefix); a ``.jsonl``, ``.tar`` or ``.parquet`` file;
        or a folder.

    Returns
    -------
    info
        ``kind``, ``health``, ``nbytes``, ``modified`` and further facts, such as ``num_tokens``.
        A path that cannot be opened is reported as damaged; no error is raised.

    Raises
    ------
    StoreNotFoundError
        If the path does not exist.

    Notes
    -----
    Cost: reads metadata and the lengths of up to four million documents; scans at most 1 GiB of
    a sample file. Nothing is written. Health compares file sizes with the manifest;
    ``zindex verify`` reads every byte.

    Examples
    --------
    >>> info("pyproject.toml").kind
    'file'
    """
    text = os.fspath(path)
    found = _find_kind(text)
    if found is None:
        if is_url(text) or not os.path.exists(text):
            raise StoreNotFoundError(
                f"there must be a store, run, pair or file of samples at {text}, nothing is there; "
                "check the path"
            )
        found = "file", lambda path: Found("file", "of no kind that zindex reads", None, {})
    kind, describe = found
    if kind == "pair":
        text = _prefix(text)
    try:
        described = describe(text)
    except (ZindexError, DamageError, ValueError) as error:
        described = Found(kind, f"damaged: {' '.join(str(error).split())}", None, {})
    changed = f"{text}.idx" if kind == "pair" else text
    if kind == "store":
        changed = os.path.join(text, ROOT_KEY)
    nbytes = described.nbytes
    if nbytes is None and not is_url(changed) and os.path.isfile(changed):
        nbytes = os.path.getsize(changed)
    facts = {name: value for name, value in described.facts.items() if value not in (None, {}, [])}
    return PathInfo(text, described.kind, described.health, nbytes, _read_time(changed), facts)


def ls(folder: str | os.PathLike[str]) -> list[PathInfo]:
    """Describe each entry of a folder, sorted by name; see `info`.

    Parameters
    ----------
    folder
        Path or URL. The two files of a pair are one entry. Hidden entries and files of unknown
        kinds are skipped.

    Raises
    ------
    StoreNotFoundError
        If the folder does not exist.
    """
    place = place_of(folder)
    names = files.list_names(place)
    if not names and not (isinstance(place, Path) and place.is_dir()):
        raise StoreNotFoundError(
            f"there must be a folder at {place}, there is none; check the path"
        )
    entries = (os.path.join(os.fspath(folder), name) for name in _list_entries(names))
    return [info(path) for path in entries if _find_kind(path) is not None]


def ls_lines(found: list[PathInfo]) -> list[str]:
    """Format the entries of a folder as a table."""
    rows = [
        {
            "name": os.path.basename(item.path),
            "kind": item.kind,
            "content": _summarise(item.facts),
            "size": "" if item.nbytes is None else format_nbytes(item.nbytes),
            "health": fit(item.health, 24),
        }
        for item in found
    ]
    columns = ("name", "kind", "content", "health")
    return fit_table(rows, text_columns=columns, wide="name") or ["nothing that zindex reads"]


def info_lines(found: list[PathInfo]) -> list[str]:
    """Format several descriptions, separated by blank lines."""
    return [line for item in found for line in ("", *item.to_lines())][1:]


def _list_entries(names: set[str]) -> list[str]:
    """Return the sorted names of a folder; a pair appears once, without suffix."""
    pairs = {name[:-4] for name in names if name.endswith(".idx")}
    halves = {f"{name}{suffix}" for name in pairs for suffix in (".bin", ".idx")}
    return sorted(name for name in (names - halves) | pairs if not name.startswith("."))


def _summarise(facts: Mapping[str, Any]) -> str:
    """Return the count of the largest unit that is known."""
    for noun, nouns in (("token", ""), ("sample", ""), ("record", ""), ("entry", "entries")):
        count = facts.get(f"num_{nouns or f'{noun}s'}")
        if count is not None:
            return count_noun(count, noun, nouns)
    return ""


def _read_time(path: str) -> str | None:
    """Return the modification time of a local file."""
    changed = files.modified_at(path)
    return datetime.fromtimestamp(int(changed) // 10**9, UTC).isoformat() if changed else None


def _find_kind(path: str) -> Kind | None:
    """Return the kind of a path and the function that describes it; None if it is unknown."""
    if not is_url(path):
        if path.endswith(_YAML) and os.path.isfile(path):
            if _is_mixture(path):
                return "mixture", lambda path: Found("mixture", WHOLE, None, {})
            return "run", _describe_run
        if os.path.isfile(f"{_prefix(path)}.idx"):
            return "pair", describe_pair
        suffix = find_format(path)
        if suffix in FORMATS and os.path.isfile(path):
            kind, describe = suffix.removeprefix("."), FORMATS[suffix]
            return kind, lambda path: Found(kind, WHOLE, None, describe(path))
    if is_growing(path):
        return "growing store", _describe_growing
    if is_store(path) and not is_group(place_of(path)):
        return "store", describe_store
    if not is_url(path) and os.path.isdir(path):
        return "folder", _describe_folder
    return None


def _is_mixture(path: str) -> bool:
    """Return whether a YAML file holds an object, as the files of streams do, and no run."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return any(line.startswith(("target:", "include:")) for line in file)
    except OSError:  # reported when it is read as a run
        return False


def _prefix(path: str) -> str:
    return path.removesuffix(".idx").removesuffix(".bin")


def _describe_run(path: str) -> Found:
    """Describe a run file: its settings, and how much of the run is built."""
    config = load_config(path)
    names = ("order", "seed", "sequence_length", "split", "index")
    facts: dict[str, Any] = {name: getattr(config, name) for name in names}
    facts["datasets"] = [
        item.path if item.share is None else f"{item.path}, {item.share_kind} {item.share:,g}"
        for item in config.datasets
    ]
    plan = plan_run(config, require_bin=False)
    facts["samples"] = {item.split: item.plan.num_samples for item in plan.blends}
    statuses = [item.plan.store_plan(config.index).read_status() for item in plan]
    num_built = sum(status.committed for status in statuses)
    facts |= {"num_stores": len(statuses), "num_built": num_built}
    edits, _ = report_edits(config)
    facts["num_edits"] = sum(map(len, edits.get("edits", {}).values()))
    is_built = num_built == len(statuses)
    health = WHOLE if is_built else f"{num_built:,} of {len(statuses):,} stores are built"
    return Found("run", health, None, facts)


def _describe_growing(path: str) -> Found:
    """Describe a growing store at its head."""
    nbytes, facts = describe_growing(path)
    return Found("growing store", WHOLE, nbytes, facts)


def _describe_folder(path: str) -> Found:
    """Count the entries of a folder by kind, without opening them."""
    counts = Counter[str]()
    for name in _list_entries(files.list_names(place_of(path))):
        found = _find_kind(os.path.join(path, name))
        if found is not None:
            counts[found[0]] += 1
    facts = {"num_entries": counts.total(), "content": dict(sorted(counts.items()))}
    return Found("folder", WHOLE, None, facts)
