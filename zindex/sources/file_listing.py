"""Lists of the files of a source as short texts, by which the same files are found again later.

Names are relative to the folder of all files, so that moved files are the same. Of each name only
what differs from the one before is written.
"""

import os
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from operator import eq
from typing import NamedTuple
from urllib.parse import quote, unquote

from zindex.errors import SourceError
from zindex.io.file_list import SourceFile
from zindex.wording import count_noun

# In the place of a size or digest that is not known.
_UNKNOWN = -1
#: Bits of the digest of a file: they name the file that has changed.
DIGEST_BITS = 24
# In a state of an earlier version: so many of the first files.
_FIRST = "first "


class ListedFile(NamedTuple):
    """A file of a list."""

    name: str
    #: Its bytes, and the last bits of a digest of its content; None if that is not known.
    nbytes: int | None
    digest: int | None


def relative_names(files: Iterable[SourceFile]) -> list[str]:
    """Return the names of files, relative to their common folder."""
    places = [str(file.place) for file in files]
    folder = os.path.commonprefix(places).rpartition("/")[0]  # noqa: RUF071
    return [place[len(folder) :].lstrip("/") for place in places]


def write_listing(files: Iterable[ListedFile]) -> str:
    """Return a list as a text, the same on all machines.

    Examples
    --------
    >>> write_listing([ListedFile("a-01.gz", 999, 1), ListedFile("a-02.gz", 999, None)])
    '0,0,a-01.gz,3e7,1;3,3,2,3e7,-1'
    """
    before, rows = "", []
    for name, *numbers in files:
        start = _count_equal(before, name)
        stop = _count_equal(before[start:][::-1], name[start:][::-1])
        middle = quote(name[start : len(name) - stop], errors="surrogateescape")
        values = [_UNKNOWN if number is None else number for number in numbers]
        rows.append(f"{start},{stop},{middle},{values[0]:x},{values[1]:x}")
        before = name
    return ";".join(rows)


def _count_equal(one: str, other: str) -> int:
    """Return the number of characters with which two texts both start."""
    return sum(1 for _ in takewhile(bool, map(eq, one, other)))


def read_listing(text: str) -> list[ListedFile]:
    """Return the files of a list; ValueError if it is damaged."""
    before, files = "", []
    for row in text.split(";"):
        start, stop, middle, *numbers = row.split(",")
        end = before[len(before) - int(stop) :]
        before = before[: int(start)] + unquote(middle, errors="surrogateescape") + end
        nbytes, digest = (int(number, 16) for number in numbers)
        known = (None if number == _UNKNOWN else number for number in (nbytes, digest))
        files.append(ListedFile(before, *known))
    return files


def first_files(count: int) -> str:
    """Return a list of the first files, whatever they are."""
    return f"{_FIRST}{count}"


def parse_listing(text: str, names: Sequence[str]) -> list[ListedFile]:
    """Return the files of a list of any version; SourceError if it is damaged.

    Parameters
    ----------
    text
        The list.
    names
        Of the files that are there now.
    """
    if text.startswith(_FIRST):
        count = int(text.removeprefix(_FIRST))
        if count > len(names):
            raise SourceError(f"only {len(names)} of {count} files are there")
        return [ListedFile(name, None, None) for name in names[:count]]
    try:
        return read_listing(text)
    except ValueError as error:
        raise SourceError(f"the list of its files is damaged: {error}") from None


def find_listed(listed: Sequence[ListedFile], names: Sequence[str]) -> Iterator[list[int]]:
    """Yield the numbers of listed files, once for each folder in which all of them are.

    Parameters
    ----------
    listed
        The files.
    names
        Of the files that are there now. Their folder may be above that of the list.

    Raises
    ------
    SourceError
        If there is no such folder: the names of files that are missing.
    """
    known = set(names)
    ends = {listed[place].name for place in (0, len(listed) // 2, -1)}
    folders = {
        name[: len(name) - len(end)]
        for end in ends
        for name in known
        if name == end or name.endswith(f"/{end}")
    }
    counts = {one: sum(one + file.name in known for file in listed) for one in folders}
    best = max(counts.values(), default=0)
    for folder in sorted(one for one in folders if counts[one] == best) or [""]:
        numbers: dict[str, deque[int]] = defaultdict(deque)
        for number, name in enumerate(names):
            numbers[name].append(number)
        found, missing = list[int](), list[str]()
        for file in listed:
            if left := numbers[folder + file.name]:
                found.append(left.popleft())
            else:
                missing.append(file.name)
        if missing:
            raise SourceError(f"{join_names(missing)} missing")
        yield found


def join_names(names: Sequence[str]) -> str:
    """Return the first of some names, and the verb for their number."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more} {'is' if len(names) == 1 else 'are'}"


def describe_growth(before: str, now: str) -> str:
    """Return what a list has more than one before."""
    files = read_listing(now)
    if before.startswith(_FIRST):
        return count_noun(len(files) - int(before.removeprefix(_FIRST)), "more file")
    old = read_listing(before)
    sizes = Counter(file.nbytes for file in old)
    longer = (sizes - Counter(file.nbytes for file in files)).total()
    found = [count_noun(len(files) - len(old), "more file")] * (len(files) > len(old))
    found += [f"more lines in {count_noun(longer, 'file')}"] * bool(longer)
    return " and ".join(found) or "its files in another order"
