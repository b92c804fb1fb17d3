"""Check the values of keyed token stores: ids of the vocabulary, and finite floats."""

from collections.abc import Iterator

import numpy as np

from zindex.formats.keyed.schema_presets import find_token_keys
from zindex.formats.keyed.value_rules import describe_invalid, find_invalid
from zindex.io.objects import Place
from zindex.store.open import Store, open_store
from zindex.store.records import KIND, Form, RecordField, read_fields
from zindex.store.tokenizer_note import read_note

# Values per read.
_BLOCK_LENGTH = 1 << 20


def find_invalid_values(root: Place) -> Iterator[tuple[str, str]]:
    """Yield the array and the first invalid value of each key of a sound keyed store.

    Stores of other records, which have no key of token ids, may hold any number.
    """
    store = open_store(root, kind=KIND)
    fields = read_fields(store.spec, root)
    numbers = [field for field in fields.values() if field.form == Form.NUMBERS]
    token_keys = find_token_keys(store.spec)
    if not any(field.name in token_keys for field in numbers):
        return
    note = read_note(root)
    num_ids = None if note is None else note.vocab_size
    for field in numbers:
        is_tokens = field.name in token_keys
        if is_tokens or np.dtype(field.dtype).kind == "f":
            problem = _find_problem(store, field, is_tokens, num_ids)
            if problem is not None:
                yield field.value.name, problem


def _find_problem(
    store: Store, field: RecordField, is_tokens: bool, num_ids: int | None
) -> str | None:
    """Return the problem of the first invalid value of a field, or None."""
    values = store[field.value.name]
    for start in range(0, len(values), _BLOCK_LENGTH):
        block = values[start : start + _BLOCK_LENGTH]
        wrong = find_invalid(block, is_tokens=is_tokens, num_ids=num_ids)
        if wrong is not None:
            bounds = np.asarray(store[field.offset.name])
            record = int(np.searchsorted(bounds, start + wrong, "right")) - 1
            where = f"record {record:,} of {store.root}"
            return describe_invalid(field.name, block[wrong].item(), where, num_ids)
    return None
