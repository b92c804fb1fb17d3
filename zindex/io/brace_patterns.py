"""Expand brace patterns such as ``part-{00..35}.tar``, after counting the names.

Source: Bash manual, "Brace Expansion", lists and ranges of numbers only.
"""

import re
from math import prod

from zindex.errors import ConfigError

#: Maximum number of names of one pattern.
MAX_NUM_NAMES = 1_000_000
#: Maximum depth of nested braces.
MAX_DEPTH = 8
_RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})(?:\.\.(-?\d{1,18}))?")

# A pattern is a sequence of pieces: text, a range of numbers, or alternatives.
_Piece = str | tuple[range, int] | list["_Pattern"]
_Pattern = list["_Piece"]


def expand_braces(text: str) -> list[str]:
    """Return all names of a pattern, in order.

    Parameters
    ----------
    text
        May hold lists ``{a,b}``, also nested, and ranges ``{first..last}`` or
        ``{first..last..step}`` of whole numbers, which have leading zeros if ``first`` or ``last``
        has. Other braces are literal.

    Raises
    ------
    ConfigError
        If braces are not balanced, or there are too many names.

    Examples
    --------
    >>> expand_braces("{a,b}{08..10}.tar")
    ['a08.tar', 'a09.tar', 'a10.tar', 'b08.tar', 'b09.tar', 'b10.tar']
    """
    if "{" not in text and "}" not in text:
        return [text]
    pattern, _ = _parse(text, 0, 0, text)
    count = _count([pattern])
    if count > MAX_NUM_NAMES:
        raise ConfigError(
            f"a path must expand to at most {MAX_NUM_NAMES:,} files, {text[:200]!r} expands to "
            f"{count:,}; name their folder"
        )
    return _expand(pattern)


def split_at_commas(text: str) -> list[str]:
    """Split a text at commas outside of braces, and strip blanks.

    Examples
    --------
    >>> split_at_commas("a.jsonl, b{1,2}.jsonl")
    ['a.jsonl', 'b{1,2}.jsonl']
    """
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "{") - (letter == "}" and depth > 0)
        if letter == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _parse(text: str, at: int, depth: int, whole: str) -> tuple[_Pattern, int]:
    """Return the pattern from a position to the comma or brace that ends it, and that position."""
    if depth > MAX_DEPTH:
        raise ConfigError(
            f"braces of a path must be nested at most {MAX_DEPTH} deep, got {whole[:200]!r}; "
            "write it with fewer"
        )
    pattern: _Pattern = []
    start = at
    while at < len(text):
        letter = text[at]
        if letter == "{":
            pattern.append(text[start:at])
            piece, at = _parse_braces(text, at, depth, whole)
            pattern.append(piece)
            start = at
            continue
        if letter == "}" and depth == 0:
            raise ConfigError(f"a path must close braces that it opened, got {whole[:200]!r}")
        if depth > 0 and letter in ",}":
            break
        at += 1
    pattern.append(text[start:at])
    return [piece for piece in pattern if piece != ""], at


def _parse_braces(text: str, at: int, depth: int, whole: str) -> tuple[_Piece, int]:
    """Return the alternatives of the braces that open at a position, and their end."""
    found = _RANGE.match(text, at + 1)
    if found is not None and text[found.end() : found.end() + 1] == "}":
        return _parse_range(found, whole), found.end() + 1
    choices: list[_Pattern] = []
    begin = at
    while True:
        pattern, at = _parse(text, at + 1, depth + 1, whole)
        choices.append(pattern)
        if at == len(text):
            raise ConfigError(f"a path must close the braces that it opens, got {whole[:200]!r}")
        if text[at] == "}":
            break
    if len(choices) == 1:
        # Braces around one name are part of it, as in Bash.
        if ".." in text[begin:at]:
            raise ConfigError(
                f"a range in a path must be of whole numbers, got {text[begin : at + 1]!r} in "
                f"{whole[:200]!r}; list the names with commas"
            )
        return [["{", *choices[0], "}"]], at + 1
    return choices, at + 1


def _parse_range(found: re.Match[str], whole: str) -> tuple[range, int]:
    """Return the numbers of a range, and their minimum number of digits."""
    first, last, step = int(found[1]), int(found[2]), int(found[3] or 1)
    if step == 0:
        raise ConfigError(f"a range in a path must have a step, got 0 in {whole[:200]!r}")
    step = abs(step) if first <= last else -abs(step)
    has_zeros = any(re.match(r"-?0\d", text) for text in (found[1], found[2]))
    width = max(len(found[1]), len(found[2])) if has_zeros else 0
    return range(first, last + (1 if step > 0 else -1), step), width


def _count(piece: _Piece) -> int:
    """Return the number of names that a piece expands to."""
    if isinstance(piece, str):
        return 1
    if isinstance(piece, tuple):
        return len(piece[0])
    return sum(prod(map(_count, pattern)) for pattern in piece)


def _expand(pattern: _Pattern) -> list[str]:
    """Return all names of a pattern; the rightmost piece changes fastest."""
    names = [""]
    for piece in pattern:
        if isinstance(piece, str):
            endings = [piece]
        elif isinstance(piece, tuple):
            endings = [f"{number:0{piece[1]}d}" for number in piece[0]]
        else:
            endings = [ending for choice in piece for ending in _expand(choice)]
        names = [name + ending for name in names for ending in endings]
    return names
