"""Describe stores and corpora: kind, sizes, tokenizer, source and health."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray
from zindex.formats.keyed.schema_presets import find_token_keys
from zindex.ingest.corpora.pairs import open_pair
from zindex.ingest.driver import MAX_SOURCES, SOURCES
from zindex.io import files
from zindex.io.objects import place_of
from zindex.store.commit import COMMON_ATTRIBUTES, read_plan, read_status
from zindex.store.folder_group import read_names
from zindex.store.layout import parse_layouts
from zindex.store.open import Store, open_store
from zindex.store.receipts import read_manifest
from zindex.store.record_reader import RecordReader
from zindex.store.records import KIND, RecordField, read_fields
from zindex.store.tokenizer_note import read_note

#: Health of a path whose file sizes are complete; `zindex verify` reads every byte.
WHOLE = "whole"

# Maximum number of documents and shards to inspect one by one.
_MAX_DOCUMENTS, _MAX_SHARDS = 1 << 22, 1 << 12
# Display names of indices, by the kind in their description.
_INDICES = {
    "gpt": "index",
    "inverse": "inverse of an index",
    "packed": "packed index",
    "sentence_mapping": "sentence mapping",
}


class Found(NamedTuple):
    """Description of a path."""

    kind: str
    #: `WHOLE`, or what is missing or damaged.
    health: str
    #: Size in bytes; None if unknown.
    nbytes: int | None
    facts: dict[str, Any]


def describe_pair(prefix: str) -> Found:
    """Describe a ``.bin/.idx`` pair; raise SourceError if it is damaged."""
    corpus = open_pair(prefix)
    counts = ("num_documents", "num_sequences", "num_tokens")
    facts: dict[str, Any] = {name: getattr(corpus, name) for name in counts}
    facts |= {"token_dtype": corpus.dtype.name, "has_modes": corpus.has_modes}
    facts["lengths"] = summarise_lengths(
        lambda stop: corpus.read(schema.SEQUENCE_LENGTH.name, 0, stop), corpus.num_sequences
    )
    sizes = [files.file_nbytes(place_of(f"{prefix}{suffix}")) for suffix in (".bin", ".idx")]
    return Found("pair", WHOLE, sum(size or 0 for size in sizes), facts)


def summarise_lengths(read: Callable[[int], AnyArray], num_sequences: int) -> dict[str, Any]:
    """Return the minimum, median, mean and maximum of the first lengths, in tokens.

    Parameters
    ----------
    read
        Function that returns the first n lengths.
    num_sequences
        Total number of sequences; ``first`` is set if only some of them were read.
    """
    count = min(num_sequences, _MAX_DOCUMENTS)
    if not count:
        return {}
    lengths = read(count)
    found: dict[str, Any] = {"min": int(lengths.min()), "median": int(np.median(lengths))}
    found |= {"mean": round(float(lengths.mean()), 1), "max": int(lengths.max())}
    return found if count == num_sequences else found | {"first": count}


def describe_store(path: str) -> Found:
    """Describe a store, committed or unfinished."""
    root = place_of(path)
    status = read_status(root)
    if not status.committed:
        plan = read_plan(root)
        nbytes = sum(layout.nbytes for layout in parse_layouts(plan["arrays"], root))
        health = f"{status.num_done:,} of {status.num_shards:,} shards are built"
        facts = {"split": plan["spec"].get("split"), "fingerprint": plan["fingerprint"]}
        return Found(_name_kind(plan["kind"], plan["spec"]), health, nbytes, facts)
    store = open_store(root)
    manifest = read_manifest(store.root, store.attributes["manifest_sha256"])
    nbytes = sum(int(rows[:, 0].sum()) for rows in manifest.values())
    facts = _store_facts(store) | {"fingerprint": store.fingerprint}
    facts |= {"num_shards": store.num_shards, "format_version": store.attributes["format_version"]}
    return Found(_name_kind(store.kind, store.spec), _check_sizes(store, manifest), nbytes, facts)


def _name_kind(kind: str, spec: Mapping[str, Any]) -> str:
    """Return the display name of a kind of store."""
    if kind == "index":
        return _INDICES.get(spec.get("kind", ""), str(spec.get("kind", kind)))
    if kind == KIND:
        return (
            "keyed store" if "convert" in spec or "train_type" in spec.get("import", {}) else KIND
        )
    return {"tokens": "corpus"}.get(kind, kind)


def _store_facts(store: Store) -> dict[str, Any]:
    """Return the sizes, settings, tokenizer and source of a committed store."""
    spec, facts = store.spec, dict[str, Any]()
    sizes = spec | store.attributes
    for name in ("documents", "sequences", "tokens", "records", "samples", "epochs", "datasets"):
        facts[f"num_{name}"] = sizes.get(f"num_{name}")
    facts |= {name: sizes.get(name) for name in ("num_skipped", "padding_share", "tokenizer")}
    for name in ("split", "sequence_length", "seed", "shuffle", "token_dtype", "link"):
        facts[name] = spec.get(name) or None
    facts["order"] = spec.get("algorithm")
    if store.kind == "tokens":
        reader = store[schema.SEQUENCE_LENGTH.name]
        facts["lengths"] = summarise_lengths(lambda stop: reader.read(0, stop), len(reader))
    elif store.kind == KIND:
        facts["lengths"] = _record_lengths(store)
    if "fields" in spec:
        facts["fields"] = [
            f"{item['name']}: {item['num_values']:,} {item['dtype']}" for item in spec["fields"]
        ]
    made = spec.get("import", {})
    for name in ("train_type", "tokenizer", "vocab_size"):
        facts[name] = made.get(name, facts.get(name))
    note = read_note(store.root)
    if note is not None:
        facts |= {"tokenizer": note.identity, "vocab_size": note.vocab_size}
        facts |= {"tokenizer_library": note.library, "tokenizer_files": list(note.files)}
    facts["source"], num_sources = _find_sources(store)
    facts["num_sources"] = num_sources if num_sources != len(facts["source"]) else None
    facts |= {name: store.attributes.get(name) for name in COMMON_ATTRIBUTES}
    return {name: value for name, value in facts.items() if value is not None}


def _record_lengths(store: Store) -> dict[str, Any]:
    """Return the lengths of the token fields of records, by field."""
    fields = read_fields(store.spec, store.root)

    def summarise(field: RecordField) -> dict[str, Any]:
        bounds = store[field.offset.name]
        return summarise_lengths(lambda stop: np.diff(bounds.read(0, stop + 1)), len(bounds) - 1)

    token_keys = find_token_keys(store.spec)
    return {name: summarise(field) for name, field in fields.items() if name in token_keys}


def _find_sources(store: Store) -> tuple[list[str], int | None]:
    """Return the first corpora or files that a store is made of, and their number."""
    if store.kind == KIND:
        reader = RecordReader(store, [])
        count = len(reader.url_bounds) - 1
        return [reader.name_url(number) for number in range(min(count, MAX_SOURCES))], count
    if SOURCES in store.attributes:
        return list(store.attributes[SOURCES]), store.attributes.get("num_sources")
    named = read_names(store.root.parent).get(store.root.name)
    return ([], None) if named is None else (list(named.corpora), len(named.corpora))


def _check_sizes(store: Store, manifest: Mapping[str, Any]) -> str:
    """Compare the sizes of the shards with the manifest; return the health."""
    num_left = _MAX_SHARDS
    for name, layout in store.layouts.items():
        for shard, nbytes in enumerate(manifest[name][:num_left, 0].tolist()):
            key = layout.shard_key(shard)
            found = files.file_nbytes(store.root / key)
            if found != nbytes:
                has = "is missing" if found is None else f"has {found:,} of {nbytes:,} bytes"
                return f"damaged: {key} {has}"
        num_left = max(0, num_left - layout.num_shards)
    return WHOLE
