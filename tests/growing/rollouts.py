"""Records of rollouts that their first token identifies."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.killing import Killed, death_before
from zindex.growing.writer import append
from zindex.io import files


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


def die_before_write(number: int, work: Callable[[], object]) -> None:
    """Do work that dies before it writes the file of a number, counted from 0."""
    with suppress(Killed), death_before(number, (files, "write_once")):
        work()
