"""Paths of nested mixtures in the states of a stream, which follow the mixtures to other places."""

from collections.abc import Iterator, Mapping
from typing import Any

from zindex.mixing.mixture_tree import Mixtures


def match_paths(
    old: Mixtures, new: Mixtures, path: str = "/", now: str | None = "/"
) -> Iterator[tuple[str, str]]:
    """Yield the paths of an earlier mixture and of those within it, each with its path now.

    Nested mixtures are known by their names or, without one, by their places.

    Parameters
    ----------
    old, new
        The mixtures then and now.
    path, now
        Path of a mixture then and now; None if it is no longer there.

    Examples
    --------
    >>> old = {"/": ["", [["web", 1], ["code", 1]]], "/1/": ["", [["python", 1]]]}
    >>> new = {"/": ["", [["code", 1], ["web", 1]]], "/0/": ["", [["python", 1]]]}
    >>> dict(match_paths(old, new))
    {'/': '/', '/1/': '/0/'}
    """
    yield path, now or f"{path}dropped/"
    names = [name for name, *_ in new[now][1]] if now else []
    for number, (name, *_) in enumerate(old[path][1]):
        if (inner := f"{path}{number}/") in old:
            name = f"{now}{number}/" if name == inner else name
            place = f"{now}{names.index(name)}/" if name in names else ""
            yield from match_paths(old, new, inner, place if place in new else None)


def rename_paths(values: Any, paths: Mapping[str, str]) -> Any:
    """Return JSON values of a state with other paths, which may be the last word of a text.

    Examples
    --------
    >>> rename_paths({"mix /1/": 7, "leaf web": [3, 0, 0]}, {"/1/": "/0/"})
    {'mix /0/': 7, 'leaf web': [3, 0, 0]}
    """
    if isinstance(values, str):
        kind, space, path = values.rpartition(" ")
        return f"{kind}{space}{paths.get(path, path)}"
    if isinstance(values, Mapping):
        return {rename_paths(key, paths): rename_paths(one, paths) for key, one in values.items()}
    return [rename_paths(one, paths) for one in values] if isinstance(values, list) else values
