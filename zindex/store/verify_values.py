"""Check the values of keyed token stores: ids of the vocabulary, and finite floats."""

from collections.abc import Iterator, Mapping
from threading import Lock
from typing import Any

import numpy as np

from zindex.arrays import AnyArray
from zindex.errors import StoreError, VerificationError
from zindex.formats.keyed.schema_presets import find_token_keys
from zindex.formats.keyed.value_rules import describe_invalid, find_invalid
from zindex.io.objects import Place
from zindex.store.open import open_store
from zindex.store.records import KIND, Form, read_fields
from zindex.store.tokenizer_note import read_note


class ValueChecks:
    """First invalid value of each array of a keyed store, of the chunks that were inspected.

    Stores of other records, which have no key of token ids, may hold any number. Threads may
    inspect chunks concurrently, in any order.

    Parameters
    ----------
    spec, root
        Description and place of the store.
    token_keys, num_ids
        Keys of token ids, and the number of ids of the vocabulary; None are those of the store.
    """

    def __init__(
        self,
        spec: Mapping[str, Any],
        root: Place,
        token_keys: frozenset[str] | None = None,
        num_ids: int | None = None,
    ) -> None:
        self._root, self._num_ids = root, num_ids
        self._found: dict[str, tuple[int, int | float]] = {}
        self._lock = Lock()
        fields = [each for each in read_fields(spec, root).values() if each.form == Form.NUMBERS]
        self._token_keys = find_token_keys(spec) if token_keys is None else token_keys
        is_keyed = any(field.name in self._token_keys for field in fields)
        #: Fields whose values are checked, by array.
        self.fields = {
            field.value.name: field
            for field in fields
            if is_keyed and (field.name in self._token_keys or np.dtype(field.dtype).kind == "f")
        }
        if self.fields and num_ids is None:
            try:
                note = read_note(root)
            except (StoreError, VerificationError):  # damage, which is reported by itself
                note = None
            self._num_ids = None if note is None else note.vocab_size

    def inspect(self, array: str, first: int, values: AnyArray) -> None:
        """Check values of an array in `fields`: shape (values,), from row ``first`` on."""
        is_tokens = self.fields[array].name in self._token_keys
        wrong = find_invalid(values, is_tokens=is_tokens, num_ids=self._num_ids)
        if wrong is None:
            return
        found = first + wrong, values[wrong].item()
        with self._lock:
            self._found[array] = min(found, self._found.get(array, found), key=lambda each: each[0])

    def describe(self) -> Iterator[tuple[str, str]]:
        """Yield each array with an invalid value, and the problem; the store must be sound."""
        for array, field in self.fields.items():
            if array in self._found:
                row, value = self._found[array]
                bounds = np.asarray(open_store(self._root, kind=KIND)[field.offset.name])
                record = int(np.searchsorted(bounds, row, "right")) - 1
                where = f"record {record:,} of {self._root}"
                yield array, describe_invalid(field.name, value, where, self._num_ids)
