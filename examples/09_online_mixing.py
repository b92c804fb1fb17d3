"""Mix data online by loss: a bandit gives most samples to sources that the model learns from.

    python examples/09_online_mixing.py

A small model learns to predict the next byte of three sources: Python code, random letters, of
which nothing can be learned, and one repeated sentence, which is learned at once. After every few
steps, a bandit (EXP3, with the decrease of the loss as reward) sets the percents of the stream,
while its loader workers prefetch. The state has the percents, so a job that resumes from the middle
trains on the same samples.
"""

import argparse
import itertools
import json
import math
import random
import sysconfig
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import zindex
from zindex.streaming import JsonlIterableDataset, MergedDataset, TextPacking

NAMES = ("code", "letters", "sentence")
SEQUENCE_LENGTH, BATCH_SIZE, NUM_WORKERS = 32, 16, 2
STEPS_PER_ROUND, RATE, EXPLORATION = 10, 8.0, 0.15


class Bandit:
    """Percents of sources, by how much the loss of each decreases."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.gains, self.smooth = dict.fromkeys(names, 0.0), dict[str, float]()

    def choose(self, losses: dict[str, float]) -> dict[str, float]:
        """Return percents after some steps, from the mean loss of each source in them."""
        for name, loss in losses.items():
            before = self.smooth.get(name, loss)
            self.smooth[name] = 0.7 * before + 0.3 * loss
            self.gains[name] = 0.5 * self.gains[name] + before - self.smooth[name]
        weights = {name: math.exp(RATE * gain) for name, gain in self.gains.items()}
        floor, whole = EXPLORATION / len(weights), sum(weights.values())
        return {n: (1 - EXPLORATION) * weight / whole + floor for n, weight in weights.items()}


class NextByte(nn.Module):
    """Predicts a byte from the eight before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 16)
        self.read = nn.Conv1d(16, 96, 8)
        self.predict = nn.Linear(96, 256)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of each sample."""
        embedded = functional.pad(self.embed(tokens).transpose(1, 2), (7, 0))
        logits = self.predict(torch.relu(self.read(embedded)).transpose(1, 2))
        loss = functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
        return loss.mean(1)


def to_bytes(text: str) -> list[int]:
    return list(text.encode())


def write_texts(folder: Path, num_files: int) -> None:
    rng = random.Random(1)
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:num_files]
    texts = {
        "code": [path.read_text("utf-8", "replace")[:20_000] for path in modules],
        "letters": ["".join(rng.choices("abcdefghijklmnop", k=9_000)) for _ in range(num_files)],
        "sentence": ["All work and no play makes Jack a dull boy. " * 200] * num_files,
    }
    for name, lines in texts.items():
        rows = (json.dumps({"text": line}) for line in lines)
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")


def open_loader(folder: Path) -> Any:
    sources = []
    for name in NAMES:
        source: Any = JsonlIterableDataset(
            folder / f"{name}.jsonl", TextPacking(SEQUENCE_LENGTH, to_bytes)
        )
        source.name, source.percent = name, 1 / len(NAMES)
        sources.append(source)
    return zindex.stream_loader(MergedDataset(sources), BATCH_SIZE, num_workers=NUM_WORKERS)


def train(loader: Any, num_rounds: int) -> tuple[list[list[int]], dict[str, Any], int]:
    """Train, and return the first tokens of all samples, and a state with its step."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model, bandit, seen = NextByte(), Bandit(NAMES), list[list[int]]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses: dict[str, list[float]] = defaultdict(list)
    state: dict[str, Any] = {}
    middle = num_rounds * STEPS_PER_ROUND // 2 + 3
    for step, batch in enumerate(loader, 1):
        tokens = torch.stack([sample["tokens"] for sample in batch])
        loss = model(tokens, torch.stack([sample["labels"] for sample in batch]))
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
        seen += tokens[:, :8].tolist()
        # With several ranks, average the losses over them: all must set the same.
        for sample, value in zip(batch, loss.tolist(), strict=True):
            losses[sample["__datasetname__"]].append(value)
        if step % STEPS_PER_ROUND == 0:
            means = {name: sum(found) / len(found) for name, found in losses.items()}
            percents = bandit.choose(means)
            loader.set_percents(percents)
            losses.clear()
            if step % (STEPS_PER_ROUND * 4) == 0:
                shown = (f"{n} {percents[n]:.2f} (loss {bandit.smooth[n]:.2f})" for n in NAMES)
                print(f"   step {step:4}  {', '.join(shown)}", flush=True)
        if step == middle:
            state = json.loads(json.dumps(loader.state_dict()))
        if step == num_rounds * STEPS_PER_ROUND:
            break
    return seen, state, middle


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("online-mixing"), help="where to write")
    parser.add_argument("--rounds", type=int, default=40, help="changes of percents (default: 40)")
    parser.add_argument("--files", type=int, default=60, help="texts per source (default: 60)")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()

    print("1. Write code, random letters, and one sentence")
    write_texts(arguments.folder, arguments.files)

    print("2. Train, and set the percents by the decrease of the losses")
    seen, state, middle = train(open_loader(arguments.folder), arguments.rounds)

    print(f"3. Resume from step {middle}, until the percents that were set by then end")
    loader = open_loader(arguments.folder)
    loader.load_state_dict(state)
    batches = itertools.islice(loader, 4)
    again = [sample["tokens"][:8].tolist() for batch in batches for sample in batch]
    expected = seen[middle * BATCH_SIZE :][: len(again)]
    print(f"samples that differ: {sum(a != b for a, b in zip(again, expected, strict=True))}")
    print(f"{time.monotonic() - start:.0f} s in all")
    return 0 if again == expected else 1


if __name__ == "__main__":
    raise SystemExit(main())
