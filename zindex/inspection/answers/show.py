"""Show one document, sample or record: its tokens, text and loss mask."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from zindex.arrays import AnyArray
from zindex.errors import ConfigError
from zindex.formats.keyed.schema_presets import find_masks, find_token_keys
from zindex.indexing.index_arrays import open_index_arrays
from zindex.indexing.packing import PackedArrays
from zindex.ingest.length_source import open_source
from zindex.inspection.answers.documents import Decoder, Documents, as_decoder, source_text
from zindex.inspection.answers.growing_records import holds_records, open_records
from zindex.inspection.answers.run_order import RunOrder
from zindex.inspection.answers.screen import escape, fit, screen_width
from zindex.maintenance.edits.order_sources import OrderSource, StreamSource
from zindex.maintenance.edits.packed_source import PackedSource
from zindex.plan.index_plan import IndexPlan
from zindex.plan.packing import PackingPlan
from zindex.store.folder_group import read_names
from zindex.store.open import Store, open_store
from zindex.store.record_reader import RecordReader
from zindex.store.records import LENGTH_SUFFIX

_YAML = (".yaml", ".yml")

#: Whether a text is trained on; None if unknown.
Flag = bool | None
#: Function that colours a text by its flag.
Style = Callable[[str, Flag], str]

# Maximum number of lines per field in terminal output.
_MAX_LINES = 24


@dataclass(frozen=True, slots=True)
class ShownField:
    """One field, or one span of a document."""

    #: Name of the field, or a description such as ``document 5, tokens 0:64``.
    name: str
    #: Tokens, numbers or text.
    value: Any
    #: Whether each token is trained on; None if unknown.
    mask: list[bool] | None = None
    #: Decoded text for each run of tokens with equal mask; None without a tokenizer.
    texts: tuple[str, ...] | None = None
    #: Fields of the document's source that the corpus keeps, such as id and url.
    source: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, omitting those that are None."""
        known = {"name": self.name, "source": self.source, "value": self.value, "mask": self.mask}
        known["text"] = None if self.texts is None else "".join(self.texts)
        return {name: value for name, value in known.items() if value is not None}

    def to_lines(self, style: Style) -> list[str]:
        """Format the name and the wrapped value for a terminal; ``style`` adds colours."""
        lines = _wrap(self._pieces(), style)
        if len(lines) > _MAX_LINES:
            left_out = len(lines) - _MAX_LINES
            lines = [*lines[:_MAX_LINES], f"  and {left_out:,} more lines; --json has all"]
        source = [] if self.source is None else [fit(f"  {source_text(self.source)}")]
        return [fit(f"{self.name}:"), *source, *lines]

    def _pieces(self) -> list[tuple[str, Flag]]:
        """Split the value into texts, each with its mask."""
        flags: Sequence[Flag] = [None] if self.mask is None else self.mask
        if self.texts is not None:
            return list(zip(self.texts, (flag for flag, _ in groupby(flags)), strict=True))
        if not isinstance(self.value, list):
            return [(str(self.value), None)]
        if self.mask is None:
            flags = [None] * len(self.value)
        pairs = zip(self.value, flags, strict=True)
        return [each for token, flag in pairs for each in ((str(token), flag), (" ", None))]


@dataclass(frozen=True, slots=True)
class Shown:
    """Result of `show`."""

    #: The path and the requested number.
    title: str
    fields: tuple[ShownField, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {"title": self.title, "fields": [field.to_json() for field in self.fields]}

    def to_lines(self, style: Style | None = None) -> list[str]:
        """Format the fields for a terminal; without ``style``, no colours are added."""
        style = style or (lambda text, mask: text)
        return [fit(self.title), *(line for each in self.fields for line in each.to_lines(style))]


def show(
    path: str | os.PathLike[str],
    *,
    document: int | None = None,
    sample: int | None = None,
    record: int | None = None,
    split: str = "train",
    tokenizer: Any = None,
    generation: int | None = None,
) -> Shown:
    """Return the tokens, text and loss mask of a document, sample or record.

    Parameters
    ----------
    path
        A corpus or ``.bin/.idx`` pair for a document; a run file, or an index in the folder of a
        run, for a sample; a keyed, record or growing store for a record.
    document, sample, record
        Number of the item to show, from 0; give exactly one. A document is a corpus sequence,
        a sample is a position of the run or of the index.
    split
        The split of a run.
    tokenizer
        A tokenizer, or the path of its file or folder, to decode tokens; True uses the one saved
        with the corpus or store, None does not decode.
    generation
        Generation of a growing store; None is its head.

    Returns
    -------
    shown
        The spans of the document or sample, or the fields of the record.

    Raises
    ------
    ConfigError
        If the path does not contain such items, or the number is out of range.
    """
    asked = {"document": document, "sample": sample, "record": record}
    given = [(name, number) for name, number in asked.items() if number is not None]
    if len(given) != 1:
        raise ConfigError(
            "show needs one of document (--document), sample (--sample) and record (--record), "
            f"got {len(given)}; name one"
        )
    [(name, number)] = given
    text = os.fspath(path)
    if name == "document":
        fields = [_show_document(text, number, tokenizer)]
    elif name == "sample":
        fields = _show_sample(text, number, split, tokenizer)
    else:
        fields = _show_record(text, number, tokenizer, generation)
    return Shown(f"{text}, {name} {number:,}", tuple(fields))


def _show_document(path: str, number: int, tokenizer: Any) -> ShownField:
    """Return one document of a corpus."""
    documents, prefix = Documents(), path.removesuffix(".idx").removesuffix(".bin")
    length = documents.length(prefix, number)
    return _show_part(documents, prefix, number, (0, length), as_decoder(tokenizer, [prefix]))


def _show_part(
    documents: Documents, path: str, number: int, span: tuple[int, int], decode: Decoder | None
) -> ShownField:
    """Return one span of a document."""
    tokens = documents.read(path, number, *span).tolist()
    texts = None if decode is None else (decode(tokens),)
    name = f"{os.path.basename(path)}, document {number:,}, tokens {span[0]}:{span[1]}"
    [source] = documents.read_sources(path, [number])
    return ShownField(name, tokens, texts=texts, source=source)


def _show_sample(path: str, number: int, split: str, tokenizer: Any) -> list[ShownField]:
    """Return the document spans of one sample of a run or index."""
    position = np.array([number], np.int64)
    if path.endswith(_YAML):
        order = RunOrder(path, split)
        order.check(number, number + 1)
        found = order.read(position)
        corpus, parts = order.paths[int(found.datasets[0])], found.parts
    else:
        source, num_samples = _open_index(open_store(path, kind="index"))
        _check_number(number, num_samples, "sample", path)
        corpus, parts = source.path, source.parts_of(source.samples_at(position))
    documents, decode = Documents(), as_decoder(tokenizer, [corpus])
    return [
        _show_part(documents, corpus, document, (start, stop), decode)
        for _, document, start, stop in zip(*(column.tolist() for column in parts), strict=True)
    ]


def _open_index(store: Store) -> tuple[OrderSource, int]:
    """Return the samples of an index, and their number."""
    named = read_names(store.root.parent).get(store.root.name)
    if store.spec["kind"] not in ("gpt", "packed"):
        raise ConfigError(
            f"samples are shown of runs and of indices of one corpus, {store.root} is a "
            f"{store.spec['kind']}; give the run's YAML file"
        )
    if named is None:
        raise ConfigError(
            f"the corpus of {store.root} must be known to show samples, no run in its folder names "
            "it; give the run's YAML file"
        )
    source = open_source(named.corpora[0])
    if store.spec["kind"] == "packed":
        arrays = PackedArrays.open(store)
        assert isinstance(arrays.plan, PackingPlan)
        return PackedSource(source.path, source, arrays), len(arrays.shuffle_index)
    plan = IndexPlan.from_spec(store.spec)
    return StreamSource(source.path, plan, source, open_index_arrays(store)), plan.num_samples


def _check_number(number: int, count: int, what: str, path: str) -> None:
    if not 0 <= number < count:
        raise ConfigError(
            f"a {what} must be in [0, {count:,}), those of {path}, got {number:,}; name one of "
            "these"
        )


def _show_record(
    path: str, number: int, tokenizer: Any, generation: int | None
) -> list[ShownField]:
    """Return the fields of one record."""
    if not holds_records(path):
        raise ConfigError(f"records are shown of stores, {path} is none; import or convert it")
    reader = RecordReader(open_records(path, generation))
    token_keys = find_token_keys(reader.store.spec)
    _check_number(number, len(reader), "record", path)
    record, decode = reader.read(number), as_decoder(tokenizer, [path])
    mask_names = find_masks(reader.store.spec, record)
    found = {name: _find_parts(record, name, mask_names.get(name)) for name in record}
    hidden = {mask_names[name] for name, (mask, _) in found.items() if mask is not None}
    hidden |= {f"{name}{LENGTH_SUFFIX}" for name, (_, items) in found.items() if items is not None}
    fields = []
    for name, (mask, items) in found.items():
        value, is_tokens = record[name], name in token_keys
        if name in hidden:
            continue
        if items is None:
            fields.append(_show_field(name, value, mask, decode, is_tokens))
            continue
        cuts = np.cumsum(items)[:-1]
        masks = [None] * len(items) if mask is None else np.split(mask, cuts)
        for item, (part, own) in enumerate(zip(np.split(value, cuts), masks, strict=True)):
            fields.append(_show_field(f"{name} {item}", part, own, decode, is_tokens))
    return fields


def _find_parts(
    record: Mapping[str, Any], name: str, mask_name: str | None
) -> tuple[AnyArray | None, AnyArray | None]:
    """Return the mask of a field, and the lengths of its items; None if it has none."""
    if not isinstance(record[name], np.ndarray):
        return None, None
    num_values = len(record[name])
    mask = None if mask_name is None else _find_values(record, mask_name)
    items = _find_values(record, f"{name}{LENGTH_SUFFIX}")
    return (
        mask if mask is not None and len(mask) == num_values else None,
        items if items is not None and items.sum() == num_values else None,
    )


def _find_values(record: Mapping[str, Any], name: str) -> AnyArray | None:
    """Return the numbers of a field of a record; None if it has none."""
    value = record.get(name)
    return value if isinstance(value, np.ndarray) else None


def _show_field(
    name: str, value: Any, mask: AnyArray | None, decode: Decoder | None, is_tokens: bool
) -> ShownField:
    """Return one field of a record."""
    if not isinstance(value, np.ndarray):
        shown = f"{len(value):,} bytes" if isinstance(value, bytes) else value
        return ShownField(name, shown)
    tokens = value.tolist()
    flags = None if mask is None or len(mask) != len(tokens) else [bool(flag) for flag in mask]
    if decode is None or not tokens or (mask is None and not is_tokens):
        return ShownField(name, tokens, flags)
    known: Sequence[Flag] = [None] * len(tokens) if flags is None else flags
    runs = groupby(zip(tokens, known, strict=True), key=lambda each: each[1])
    texts = tuple(decode([token for token, _ in run]) for _, run in runs)
    return ShownField(name, tokens, flags, texts)


def _wrap(pieces: Sequence[tuple[str, Flag]], style: Style) -> list[str]:
    """Wrap texts to the width of the terminal, also at newlines."""
    lines: list[str] = []
    line, column, room = "", 0, screen_width() - 2
    for text, flag in pieces:
        for number, row in enumerate(escape(text, "\n").split("\n")):
            if number:
                lines, line, column = [*lines, line], "", 0
            while column + len(row.rstrip(" ")) > room:
                # Numbers stay whole; text may break anywhere.
                taken = room - column if len(row) > room // 2 else 0
                line += style(row[:taken], flag) if taken else ""
                lines, line, column, row = [*lines, line], "", 0, row[taken:]
            line += style(row, flag) if row else ""
            column += len(row)
    return [f"  {text}".rstrip() for text in [*lines, line]]
