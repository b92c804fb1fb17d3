"""Jobs that follow each other over streams: files, packed texts, items, yield functions.

``python -m tests.harnesses.stream_chains --trials 1000 --seed 0``

Each job has other numbers of ranks and loader workers, lets its ranks run ahead of each other,
prefetches, and ends anywhere. All jobs together deliver each sample of an epoch once.
"""

import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.harnesses.running import main
from tests.streaming.simulated_ranks import Run
from tests.streaming.tiny_sources import Items, pairs
from zindex.streaming import JsonlIterableDataset, MergedDataset, TextPacking

Sample = dict[str, Any]
_SIZES = (0, 1, 3, 40, 300, 2500)


def read_numbers(text: str) -> list[int]:
    """Tokenise "3 4 5" as its numbers."""
    return [int(word) for word in text.split()]


def write_texts(rng: random.Random, folder: Path) -> Counter[Any]:
    """Write files of texts whose tokens count on; return the names of lines and the tokens."""
    expected: Counter[Any] = Counter()
    token = 1
    for file in range(rng.randint(1, 9)):
        num_lines = rng.choice(_SIZES) if rng.random() < 0.4 else rng.randint(1, 60)
        lines = []
        for number in range(max(num_lines, file == 0)):
            numbers = range(token, token + rng.randint(1, 9))
            token = numbers.stop
            text = " ".join(map(str, numbers))
            lines.append(json.dumps({"id": f"{file}:{number}", "text": text}))
            expected.update([f"{file}:{number}", *numbers])
        (folder / f"{file}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return expected


def names_of(sample: Sample) -> list[Any]:
    """Return the names or tokens that a sample is made of."""
    if "tokens" in sample:
        return [token for token in [*sample["tokens"].tolist(), int(sample["labels"][-1])] if token]
    return list(sample["ids"]) if "ids" in sample else [sample["id"]]


def count_names(run: Run) -> Counter[Any]:
    """Return how often each name or token was delivered."""
    return Counter(name for sample in run.samples() for name in names_of(sample))


def trial(rng: random.Random) -> str:
    """Run a chain of jobs over one epoch."""
    with tempfile.TemporaryDirectory() as work:
        kind = rng.choice(("lines", "packed", "yield"))
        written = write_texts(rng, Path(work))
        packing = TextPacking(rng.randint(1, 12), read_numbers, pad_id=0)
        shuffle, percent, seed = rng.random() < 0.8, rng.choice((1, 0.3, 7)), rng.randint(0, 9)
        num_items = rng.randint(1, 50)

        def make() -> MergedDataset:
            texts: Any = JsonlIterableDataset(work, packing if kind == "packed" else None)
            texts.name, texts.percent = "texts", percent
            return MergedDataset(
                [texts, Items("items", num_items)],
                cyclic=False,
                shuffle_streaming_subsets=shuffle,
                seed=seed,
                customized_yield_fn=pairs if kind == "yield" else None,
                yield_segment=segment,
            )

        segment = rng.randint(1, 40)
        wanted = int if kind == "packed" else str
        expected = Counter(name for name in written if isinstance(name, wanted))
        expected.update(f"items:{number}" for number in range(num_items))
        seen, num_lanes = _follow(rng, make, sum(expected.values()))
        # A last token without a label is no sample: one for each worker that ended.
        missing = expected - seen
        assert not seen - expected, f"{kind}: repeated {seen - expected}"
        assert kind == "packed" or not missing, f"{kind}: lost {missing}"
        assert sum(missing.values()) <= num_lanes, f"{kind}: lost {missing}"
    return kind


def _follow(
    rng: random.Random, make: Callable[[], MergedDataset], num_names: int
) -> tuple[Counter[Any], int]:
    """Return what a chain of jobs delivers, and the workers of the last one."""
    seen: Counter[Any] = Counter()
    state: Any = None
    for _ in range(rng.randint(1, 6)):
        job = Run(
            make,
            rng.randint(1, 5),
            rng.randint(0, 3),
            state,
            batch_size=rng.randint(1, 5),
            ahead=rng.randint(0, 3),
        )
        job.advance(rng.randint(1, num_names), lambda step, ranks: rng.randrange(ranks))
        seen += count_names(job)
        if any(job.own_states()):
            state = job.merged_states()
    num_ranks, num_workers = rng.randint(1, 4), rng.randint(0, 2)
    seen += count_names(Run(make, num_ranks, num_workers, state).drain())
    return seen, num_ranks * max(1, num_workers)


if __name__ == "__main__":
    raise SystemExit(main(trial))
