"""Runs of every kind, and what their torch datasets say of each position, token by token."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.conftest import FakeTokenizer, WriteCorpus
from tests.indexing.runs import make_config
from tests.maintenance.edits.walks import ORDERS, edit_here, weighted_run, write_corpora
from zindex.config import DatasetConfig, RunConfig
from zindex.datasets.run_datasets import open_run
from zindex.plan.packing import PackingRules

#: Distance between the first tokens of corpora; see `write_corpora`.
FIRST_TOKEN = 100_000


class Sample(NamedTuple):
    """One position of a run, as its torch dataset gives it."""

    dataset: int
    epoch: int
    sample: int
    #: The document of each input token; -1 in padding.
    documents: list[int]
    #: The inputs, without padding.
    tokens: list[int]
    #: The inputs and the last label, without padding.
    text: list[int]
    #: All tokens that are inputs or labels.
    held: set[int]


class Run(NamedTuple):
    """A run over corpora all of whose tokens differ."""

    config: RunConfig
    split: str
    #: Lengths of the documents of each corpus, by its number.
    lengths: list[list[int]]
    samples: list[Sample]

    def locate(self, token: int) -> tuple[int, int, int]:
        """Return the corpus, the document and the place in it of a token."""
        corpus, place = token // FIRST_TOKEN - 1, token % FIRST_TOKEN
        ends = np.cumsum(self.lengths[corpus])
        document = int(np.searchsorted(ends, place, side="right"))
        return corpus, document, place - int(ends[document] - self.lengths[corpus][document])

    def token(self, corpus: int, document: int, place: int) -> int:
        """Return the token at a place of a document: the inverse of `locate`."""
        return FIRST_TOKEN * (corpus + 1) + sum(self.lengths[corpus][:document]) + place


def read_samples(config: RunConfig, split: str) -> list[Sample]:
    """Return every position of a run from its torch dataset."""
    tokenizer = FakeTokenizer(vocab_size=None, eod=7)
    opened: Any = open_run(config, tokenizer, with_provenance=True, create_attention_mask=False)[
        split
    ]
    dataset = opened[0] if isinstance(opened, list) else opened
    samples = []
    for position in range(len(dataset)):
        item = {name: np.asarray(value) for name, value in dataset[position].items()}
        documents = item["document_ids"].tolist()
        tokens = [int(token) for token in item["tokens"] if token >= FIRST_TOKEN]
        text = [*tokens, *(int(label) for label in item["labels"][-1:] if label >= FIRST_TOKEN)]
        held = {*tokens, *(int(label) for label in item["labels"] if label >= FIRST_TOKEN)}
        names = ("dataset_id", "epoch", "sample_id")
        numbers = (int(item[name]) for name in names)
        samples.append(Sample(*numbers, documents, tokens, text, held))
    return samples


def _draw_lengths(rng: np.random.Generator) -> list[list[int]]:
    return [rng.integers(1, 14, rng.integers(12, 40)).tolist() for _ in range(3)]


def _blended(rng: np.random.Generator, folder: Path, paths: list[str]) -> RunConfig:
    """Return a run by weights, tokens, epochs or sizes."""
    kind = rng.choice(["weight", "tokens", "epochs", "sizes"])
    shares = {"weight": [3.0, 1.0, 0.3], "tokens": [300, 90, 44], "epochs": [2.4, 1.0, 3.1]}
    settings: dict[str, Any] = {"samples": {"train": 120}} if kind == "weight" else {}
    if kind == "sizes":
        return make_config(folder, *paths, blend="sizes", **_draw_settings(rng, settings))
    members = [
        DatasetConfig(path, **{str(kind): share})
        for path, share in zip(paths, shares[str(kind)], strict=True)
    ]
    return make_config(folder, *members, **_draw_settings(rng, settings))


def _draw_settings(rng: np.random.Generator, settings: dict[str, Any]) -> dict[str, Any]:
    order = ORDERS[str(rng.choice(list(ORDERS)))]
    return {
        "split": "100,0,0",
        "seed": int(rng.integers(1000)),
        "sequence_length": int(rng.integers(3, 9)),
        "add_extra_token_to_sequence": bool(rng.integers(2)),
        **order,
        **settings,
    }


def _single(rng: np.random.Generator, folder: Path, paths: list[str]) -> RunConfig:
    """Return a run of one dataset without a blend, whose last sample may be short."""
    settings = {"split": "50,50,0", "drop_last_partial_validation_sequence": False}
    if rng.integers(2):
        settings |= {"samples": {"train": 60, "valid": 33}}
    return make_config(folder, paths[0], **_draw_settings(rng, settings) | {"shuffle": "keyed"})


def _packed(rng: np.random.Generator, folder: Path, paths: list[str]) -> RunConfig:
    """Return a run that packs documents."""
    rules = PackingRules(
        int(rng.integers(1, 4)),
        str(rng.choice(["split", "truncate", "drop"])),  # type: ignore[arg-type]
    )
    config = _draw_settings(rng, {"samples": {"train": 90}, "packing": rules})
    if config.get("store") == "minimal" and config.get("order") != "scalable":
        config["store"] = "all"
    members = [
        DatasetConfig(path, weight=w) for path, w in zip(paths, (2.0, 1.0, 1.0), strict=True)
    ]
    return make_config(folder, *members, **config)


def _edited(rng: np.random.Generator, folder: Path, paths: list[str]) -> RunConfig:
    """Return a run by weights with one to three edits."""
    order = ORDERS[str(rng.choice(list(ORDERS)))]
    config = weighted_run(
        folder, paths[:2], seed=int(rng.integers(1000)), **order,
        add_extra_token_to_sequence=bool(rng.integers(2)),
    )  # fmt: skip
    changes: list[dict[str, Any]] = [
        {"reweight": {paths[1]: 4.0}},
        {"add": {paths[2]: 1.0}},
        {"sequence_length": 7},
        {"skip": (52, 56)},
        {"num_samples": 150},
        {"sequence_length": 3, "reweight": {paths[0]: 0.5}},
    ]
    at = 0
    for number in sorted(rng.choice(len(changes), int(rng.integers(1, 4)), replace=False)):
        at = min(at + int(rng.integers(0, 20)), 50)
        edit_here(config, at, **changes[number])
    return config


#: Makers of runs by kind.
KINDS: dict[str, Callable[[np.random.Generator, Path, list[str]], RunConfig]] = {
    "blended": _blended,
    "single": _single,
    "packed": _packed,
    "edited": _edited,
}


def draw_run(kind: str, seed: int, folder: Path, write_corpus: WriteCorpus) -> Run:
    """Return a random run of a kind, and all of its samples."""
    rng = np.random.default_rng(seed)
    lengths = _draw_lengths(rng)
    paths = write_corpora(write_corpus, lengths)
    config = KINDS[kind](rng, folder, paths)
    split = "valid" if kind == "single" and rng.integers(2) else "train"
    return Run(config, split, lengths, read_samples(config, split))
