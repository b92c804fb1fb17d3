"""Tiny sources in memory and on disk, and process functions, for the tests of streaming."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import Dataset, IterableDataset

Sample = dict[str, Any]
ProcessFn = Callable[[Iterator[Sample]], Iterator[Sample]]


class Items(Dataset[Any]):
    """A map-style dataset whose item i is ``{"id": "name:i"}``, or the given items."""

    def __init__(
        self, name: str, size: int, percent: float = 1.0, *, items: Sequence[Any] | None = None
    ) -> None:
        self.name, self.percent = name, percent
        self.items = items or [{"id": f"{name}:{number}"} for number in range(size)]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self.items):
            raise IndexError(index)
        return self.items[index]


class Parts(IterableDataset[Sample]):
    """Parts of the given sizes in memory; sample k of part p is ``{"id": "name:p:k"}``."""

    num_skipped = 0

    def __init__(
        self,
        name: str,
        sizes: Sequence[int],
        percent: float = 1.0,
        *,
        shuffle_buffer: int = 3,
        process_fn: ProcessFn | None = None,
        tokens_per_sample: int = 0,
    ) -> None:
        self.name, self.sizes, self.percent = name, list(sizes), percent
        self.shuffle_buffer, self.process_fn = shuffle_buffer, process_fn
        self.tokens_per_sample = tokens_per_sample
        self.num_raw_read = 0

    @property
    def num_parts(self) -> int:
        return len(self.sizes)

    @property
    def urls(self) -> list[str]:
        return [f"{self.name}/{part:02}" for part in range(self.num_parts)]

    def read_raw(self, part: int) -> Iterator[Sample]:
        for number in range(self.sizes[part]):
            self.num_raw_read += 1
            name = f"{self.name}:{part}:{number}"
            sample = {"__url__": self.urls[part], "__key__": str(number), "id": name}
            if self.tokens_per_sample:
                # Texts of differing lengths, so that blocks begin and end within them.
                length = 1 + (number * 5 + part) % self.tokens_per_sample
                sample["tokens"] = [f"{name}:{token}" for token in range(length)]
            yield sample

    def read_part(self, part: int) -> Iterator[Sample]:
        raw = self.read_raw(part)
        return raw if self.process_fn is None else iter(self.process_fn(raw))

    def read_url(self, number: int) -> Iterator[Sample]:
        return self.read_part(number)

    def __iter__(self) -> Iterator[Sample]:
        for part in range(self.num_parts):
            yield from self.read_part(part)

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.name} {self.sizes}".encode()).hexdigest()


def pack_tokens(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Join the tokens of all samples and cut them in blocks of 4; the last one may be short."""
    held: list[str] = []
    sample: Sample = {}
    number = 0
    for sample in samples:
        held += sample["tokens"]
        number = 0
        while len(held) >= 4:
            yield _block(sample, number, held[:4])
            held, number = held[4:], number + 1
    if held:
        yield _block(sample, number, held)


def _block(sample: Sample, number: int, tokens: list[str]) -> Sample:
    key = f"{sample['__key__']}@{number}"
    return {"__url__": sample["__url__"], "__key__": key, "ids": tokens}


def drop_and_double(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Leave out every third sample and give every fourth twice."""
    for number, sample in enumerate(samples):
        if number % 3 == 2:
            continue
        yield dict(sample)
        if number % 4 == 3:
            yield {**sample, "id": f"{sample['id']}:again"}


def drop_all(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Yield nothing."""
    for _ in samples:
        pass
    yield from ()


def ids_of(sample: Sample) -> list[str]:
    """Return what a delivered sample is made of."""
    return list(sample["ids"]) if "ids" in sample else [sample["id"]]


def pairs(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Join two samples each; a last one stays alone."""
    held: list[str] = []
    for sample in samples:
        held += ids_of(sample)
        if len(held) >= 2:
            yield {"ids": held}
            held = []
    if held:
        yield {"ids": held}


def late_pairs(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Join two samples each, and yield a pair only after the next one has been read."""
    held: Sample | None = None
    for pair in pairs(samples):
        if held is not None:
            yield held
        held = pair
    if held is not None:
        yield held


def pack_bins(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Sort samples in two bins, of 2 and of 3 samples; a full bin is yielded, others are held."""
    bins: list[list[str]] = [[], []]
    for number, sample in enumerate(samples):
        one = bins[number % 5 % 2]
        one += ids_of(sample)
        if len(one) >= 2 + number % 5 % 2:
            yield {"ids": list(one)}
            one.clear()
    for one in bins:
        if one:
            yield {"ids": one}


def split_in_two(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Yield two outputs of each sample."""
    for sample in samples:
        for half in ("first", "second"):
            yield {"ids": [f"{name}:{half}" for name in ids_of(sample)]}


def drop_by_name(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Leave out samples by what they are."""
    for sample in samples:
        ids = [name for name in ids_of(sample) if not name.endswith("1")]
        if ids:
            yield {"ids": ids}
