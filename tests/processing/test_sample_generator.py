"""Random choices of samples depend on seed, source, epoch and sample alone."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.streaming.simulated_ranks import Run
from zindex.errors import ConfigError
from zindex.streaming import JsonlIterableDataset, MergedDataset, sample_generator


def draw(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for sample in samples:
        yield {**sample, "drawn": sample_generator(sample).integers(1 << 30)}


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("order", [True, False])
def test_lanes_and_resuming_change_nothing(tmp_path: Path, order: Any, *, compressed: bool) -> None:
    for name in "ab":
        content = "".join(f'{{"id": "{name}:{number}"}}\n' for number in range(40)).encode()
        if compressed:
            import gzip

            (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress(content))
        else:
            (tmp_path / f"{name}.jsonl").write_bytes(content)

    def new(seed: int = 0) -> MergedDataset:
        source: Any = JsonlIterableDataset(tmp_path, draw)
        source.name, source.percent = "files", 1
        return MergedDataset([source], False, shuffle_streaming_subsets=order, seed=seed)

    def drawn(samples: Any) -> dict[str, int]:
        return {sample["id"]: int(sample["drawn"]) for sample in samples}

    dataset = new()
    expected = drawn(dataset)
    assert len({*expected.values()}) == 80
    assert drawn(dataset) != expected
    assert drawn(new(1)) != expected
    assert {s["id"]: int(sample_generator(s).integers(1 << 30)) for s in new()} == expected
    first = Run(new, 3, 2)
    first.advance(31)
    second = Run(new, 1, 0, json.loads(json.dumps(first.merged_states()))).drain()
    assert drawn([*first.samples(), *second.samples()]) == expected


def test_uses_differ_and_other_samples_are_refused() -> None:
    sample = {"__seed__": 1, "__datasetname__": "a", "__epoch__": 0, "__url__": "u", "__key__": "k"}
    crop, flip = (sample_generator(sample, use=use).integers(1 << 30) for use in ("crop", "flip"))
    assert crop != flip
    with pytest.raises(ConfigError, match="this one lacks __seed__, __epoch__; keep these fields"):
        sample_generator({"__datasetname__": "a", "__index__": 3})
