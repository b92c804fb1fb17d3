"""Records of rollouts that their first token identifies."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from zindex.keyed.growing.writer import append

KEYS = ("prompts", "responses", "masks", "rewards", "logprobs", "answer")


def rollout(number: int) -> dict[str, Any]:
    """Return a group of two responses, of one to three and of two tokens."""
    sizes = [1 + number % 3, 2]
    return {
        "prompts": [number, 7],
        "responses": [[number] * size for size in sizes],
        "masks": [[1] * size for size in sizes],
        "rewards": [float(number), 0.5],
        "logprobs": [[-0.5] * size for size in sizes],
        "answer": f"answer {number}",
    }


def grow(store: Path | str, numbers: Iterable[int], version: int = 0) -> int:
    """Append rollouts as one generation."""
    return append(store, [rollout(number) for number in numbers], version=version)


def numbers_of(batch: dict[str, Any]) -> list[int]:
    """Return the numbers of the rollouts of a batch."""
    found: list[int] = batch["prompts"][:, 0].tolist()
    return found
