"""Sources of records in memory, and files of them, for tests of imports."""

import hashlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

from zindex.errors import SourceError


class ListFiles:
    """Files that are lists of parts, which are lists of records."""

    def __init__(self, files: dict[str, Sequence[Sequence[dict[str, Any]]]]) -> None:
        self.urls = list(files)
        self.parts = [
            (number, list(part)) for number, url in enumerate(self.urls) for part in files[url]
        ]
        self.num_skipped = 0
        #: Reading a part that is here fails.
        self.broken: set[int] = set()

    @property
    def num_parts(self) -> int:
        return len(self.parts)

    def part_url(self, part: int) -> str:
        return self.urls[self.parts[part][0]]

    def url_parts(self, url_number: int) -> range:
        numbers = [i for i, (number, _) in enumerate(self.parts) if number == url_number]
        return range(numbers[0], numbers[-1] + 1) if numbers else range(0)

    def part_nbytes(self, part: int) -> int | None:
        return 1 << 20

    def read_part(self, part: int) -> Iterator[dict[str, Any]]:
        for i, record in enumerate(self.parts[part][1]):
            yield {"__key__": f"{part}/{i}"} | record | {"__url__": self.part_url(part)}
        if part in self.broken:
            raise SourceError(f"part {part} is broken")

    def records(self) -> list[dict[str, Any]]:
        """All records, in order."""
        return [record for part in range(self.num_parts) for record in self.read_part(part)]

    def fingerprint(self) -> str:
        text = repr((self.urls, [(number, len(part)) for number, part in self.parts]))
        return hashlib.sha256(text.encode()).hexdigest()


def draw_value(rng: random.Random) -> Any:
    """Return bytes, text or a JSON value."""
    kind = rng.randrange(9)
    if kind == 0:
        return rng.randbytes(rng.randrange(40))
    if kind == 1:
        return "".join(rng.choices('aé\n\x00"\U0001f600\ud800', k=rng.randrange(9)))
    simple = [None, True, False, 0, -1, 2**80, -(2**64), 1.5, -0.0, 1e300, 0.1, "", "x", b""]
    if kind == 2:
        return [rng.choice(simple[:-1]) for _ in range(rng.randrange(4))]
    if kind == 3:
        return {rng.choice(["a", "", "ü"]): [rng.choice(simple[:-1])] for _ in range(2)}
    return rng.choice(simple)


def draw_files(seed: int) -> ListFiles:
    """Return some files of records with varying fields."""
    rng = random.Random(seed)
    names = ["text", "jpg", "a/b", "ß", "seg.png", "", "..", "text_value"]
    files = {}
    for number in range(rng.randint(1, 4)):
        parts = []
        for _ in range(rng.randint(1, 4)):
            chosen = rng.sample(names, rng.randint(0, len(names)))
            parts.append(
                [
                    {name: draw_value(rng) for name in chosen if rng.random() < 0.8}
                    for _ in range(rng.choice([0, 1, 3, 17]))
                ]
            )
        files[f"/data/{number}.x"] = parts
    return ListFiles(files)
