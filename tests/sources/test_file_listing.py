"""Lists of files: short texts from which the names, sizes and digests are read again."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.errors import SourceError
from zindex.io.file_list import SourceFile
from zindex.sources.file_listing import (
    ListedFile,
    describe_growth,
    find_listed,
    first_files,
    parse_listing,
    read_listing,
    relative_names,
    write_listing,
)

names = st.text(st.sampled_from("ab,;/%\udc80ä 0"), min_size=1, max_size=8)
numbers = st.none() | st.integers(0, 1 << 50)


@given(st.lists(st.builds(ListedFile, names, numbers, numbers), min_size=1))
def test_lists_are_read_as_written(files: list[ListedFile]) -> None:
    text = write_listing(files)
    assert text.isascii()
    assert read_listing(text) == files


def test_lists_of_shards_are_short() -> None:
    files = [ListedFile(f"part-{n:05}-of-01000.jsonl.gz", 10**9 + n, n << 12) for n in range(1000)]
    assert len(write_listing(files)) < 25_000


def of(*paths: str) -> list[SourceFile]:
    return [SourceFile(path, Path(path), 1) for path in paths]


def listing(*paths: str) -> str:
    return write_listing(ListedFile(name, 1, None) for name in relative_names(of(*paths)))


@pytest.mark.parametrize(
    ("then", "now", "numbers"),
    [
        (["/d/a", "/d/c"], ["/d/a", "/d/b", "/d/c"], [0, 2]),
        (["/d/a", "/d/c"], ["/moved/c", "/moved/a"], [1, 0]),
        # A file in a folder above: names have one more folder.
        (["/d/e/a", "/d/e/c"], ["/d/a", "/d/e/a", "/d/e/c"], [1, 2]),
        # Folders that are read several times.
        (["/d/a", "/d/b", "/d/a"], ["/d/a", "/d/b", "/d/a", "/d/c", "/d/a"], [0, 1, 2]),
    ],
)
def test_files_are_found_again(then: list[str], now: list[str], numbers: list[int]) -> None:
    listed = parse_listing(listing(*then), [])
    assert [*find_listed(listed, relative_names(of(*now)))] == [numbers]


def test_files_may_be_in_several_folders() -> None:
    listed = parse_listing(listing("/d/e/a"), [])
    assert [*find_listed(listed, ["e/a", "b", "a", "f/a"])] == [[2], [0], [3]]


@pytest.mark.parametrize(
    ("text", "now", "message"),
    [
        (listing("/d/a", "/d/b", "/d/c"), ["/d/b"], "^a, c are missing$"),
        (listing(*(f"/d/{n}" for n in range(9))), ["/d/x", "/d/2"], "^0, 1, 3 and 5 more are m"),
        (listing("/d/a", "/d/a", "/d/b"), ["/d/a", "/d/b"], "^a is missing$"),
        (first_files(3), ["/d/a"], "^only 1 of 3 files are there$"),
        ("nonsense", ["/d/a"], "^the list of its files is damaged"),
    ],
)
def test_missing_files_are_named(text: str, now: list[str], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        next(find_listed(parse_listing(text, relative_names(of(*now))), relative_names(of(*now))))


def test_growth_is_described() -> None:
    one, two = ListedFile("a", 5, 1), ListedFile("b", 5, 1)
    assert describe_growth(write_listing([one]), write_listing([one, two])) == "1 more file"
    longer = write_listing([two._replace(nbytes=6), one])
    assert describe_growth(write_listing([one, two]), longer) == "more lines in 1 file"
    assert describe_growth(first_files(1), longer) == "1 more file"
    assert describe_growth(write_listing([two, one]), write_listing([one, two])) == (
        "its files in another order"
    )
