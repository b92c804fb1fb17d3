"""Pieces of texts to token ids: what is joined afterwards has no blanks that were not there."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex.text.text_encoder import TextEncoder

Int64Array = npt.NDArray[np.int64]

# Some tokenizers put a blank before every text. This is of private use: nobody has learnt to join
# it with what comes behind it.
_LEAD = "\ue000"


class PieceEncoder:
    """Encodes pieces of texts, without any special token that is not written in them.

    Parameters
    ----------
    encoder
        Of texts.

    Notes
    -----
    Tokenizers that put a blank before each text would put one before each piece. Where the decoded
    ids show that one does, pieces within a text are encoded behind another character, whose
    ids are taken off again.
    """

    def __init__(self, encoder: TextEncoder) -> None:
        self.encoder = encoder
        self._lead = self._find_lead()

    def encode(self, texts: Sequence[str], within: Sequence[bool]) -> list[Int64Array]:
        """Return the ids of pieces.

        Parameters
        ----------
        texts
            The pieces.
        within
            Whether there is text before a piece.
        """
        lead = self._lead
        if lead is None:
            return self.encoder.encode(texts, special_tokens=False)
        pairs = list(zip(texts, within, strict=True))
        behind = [_LEAD + text if inside else text for text, inside in pairs]
        found = self.encoder.encode(behind, special_tokens=False)
        # A lead that has become one token with what comes behind it cannot be taken off.
        again = [
            number
            for number, (_, inside) in enumerate(pairs)
            if inside and not np.array_equal(found[number][: len(lead)], lead)
        ]
        plain = self.encoder.encode([texts[number] for number in again], special_tokens=False)
        ids = [x[len(lead) :] if inside else x for x, inside in zip(found, within, strict=True)]
        for number, alone in zip(again, plain, strict=True):
            ids[number] = alone
        return ids

    def _find_lead(self) -> Int64Array | None:
        """Return the ids of the lead if the tokenizer puts a blank before texts, or None."""
        decode: Any = getattr(self.encoder.tokenizer, "decode", None)
        if decode is None:
            return None
        lead, word, both = self.encoder.encode([_LEAD, "a", f"{_LEAD}a"], special_tokens=False)
        joined = np.concatenate((lead, word))
        if decode(joined.tolist()) == decode(both.tolist()):
            return None
        return lead
