"""Corpora of sentences and tokenizers of word pieces, drawn at random."""

from collections import OrderedDict
from typing import Any

import numpy as np

from zindex.formats.bin_writer import PairWriter


class PieceTokenizer:
    """Only what masked datasets ask of a tokenizer; its ids are in no order."""

    def __init__(
        self, rng: np.random.Generator, *, size: int = 60, pad: int | None = 0, sentinels: int = 400
    ) -> None:
        ids = rng.permutation(size).tolist()
        self.inv_vocab = {i: f"{'##' if rng.random() < 0.4 else ''}w{i}" for i in ids}
        self.vocab_size = size
        self.cls, self.sep, self.mask, self.bos, self.eos = 1, 2, 3, 4, 5
        if pad is not None:
            self.pad = pad
        self.additional_special_tokens_ids = list(range(size, size + sentinels))
        self.unique_identifiers: OrderedDict[str, Any] = OrderedDict(size=size, pad=str(pad))


def write_sentences(prefix: str, rng: np.random.Generator, *, size: int = 60) -> None:
    """Write documents of no, one or several sentences, some of them empty or too long."""
    writer = PairWriter(f"{prefix}.bin", np.uint16, has_modes=False)
    for _ in range(int(rng.integers(8, 30))):
        for _ in range(int(rng.integers(0, 9)) if rng.random() < 0.8 else 1):
            is_long = rng.random() < 0.04
            length = int(rng.integers(100, 600) if is_long else rng.integers(0, 40))
            writer.append(rng.integers(0, size, length), [length])
        writer.end_document()
    for length in (9, 9):  # at least one document gives samples
        writer.append(rng.integers(0, size, length), [length])
    writer.end_document()
    writer.finalize(f"{prefix}.idx")


def draw_settings(rng: np.random.Generator, kind: str) -> dict[str, Any]:
    """Return random settings of ``"bert"`` or ``"t5"`` datasets."""
    is_geometric = bool(rng.random() < 0.3)
    settings: dict[str, Any] = {
        "random_seed": int(rng.integers(2**31)),
        "sequence_length": int(rng.integers(8, 120)),
        "masking_probability": float(rng.choice([0.01, 0.15, 0.3, 0.6, 0.95])),
        "short_sequence_probability": float(rng.choice([0, 0.1, 0.5, 1])),
        "masking_max_ngram": int(rng.integers(1, 13)),
        "masking_do_full_word": bool(rng.random() < 0.5),
        "masking_do_permutation": not is_geometric and bool(rng.random() < 0.3),
        "masking_use_longer_ngrams": bool(rng.random() < 0.5),
        "masking_use_geometric_distribution": is_geometric,
        "allow_ambiguous_pad_tokens": bool(rng.random() < 0.2),
    }
    if kind == "bert":
        return settings | {"classification_head": bool(rng.random() < 0.5)}
    return settings | {"sequence_length_decoder": 4 * settings["sequence_length"]}


def with_own_masks(cls: Any) -> Any:
    """Return a subclass whose masks are as those of the class, but not known to be."""

    def mask(self: Any, numpy_random_state: np.random.RandomState) -> Any:
        return cls._get_token_mask(self, numpy_random_state)

    return type(f"Own{cls.__name__}", (cls,), {"_get_token_mask": mask})
