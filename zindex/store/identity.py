"""Canonical JSON and the fingerprint of a content description."""

import hashlib
import json
from typing import Any

from zindex.errors import StoreError

#: Version of every description and layout written by this package; bumped when bytes change.
FORMAT_VERSION = 1


def canonical_json(value: Any) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces, ASCII, finite numbers.

    Examples
    --------
    >>> canonical_json({"b": 1, "a": [0.1, None]})
    '{"a":[0.1,null],"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def fingerprint(spec: dict[str, Any]) -> str:
    """Return the SHA-256, in hex, of the canonical JSON of a description.

    Examples
    --------
    >>> fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(canonical_json(spec).encode()).hexdigest()


def parse_json(content: bytes, where: str) -> dict[str, Any]:
    """Return the JSON object that a small file holds.

    Raises
    ------
    StoreError
        If the bytes are not one JSON object.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{where} must hold JSON, got {content[:40]!r}; build it again") from error
    if not isinstance(value, dict):
        raise StoreError(f"{where} must hold a JSON object, got {type(value).__name__}")
    return value
