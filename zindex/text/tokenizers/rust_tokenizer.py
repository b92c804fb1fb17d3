"""What the tokenizers of the `tokenizers` library have in common."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from zindex.text.tokenizers.text_tokenizer import TextTokenizer


class RustTokenizer(TextTokenizer):
    """Base of tokenizers that are a ``tokenizers.Tokenizer``; it releases Python's lock.

    Parameters
    ----------
    tokenizer
        That tokenizer; texts are neither cut nor filled up by it.
    files, options
        See `TextTokenizer`.
    """

    #: Whether the text of ids leaves out special tokens.
    skips_special = True

    def __init__(self, tokenizer: Any, *files: Path, **options: Any) -> None:
        super().__init__(*files, **options)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer

    @property
    def vocab_size(self) -> int:
        """Number of ids, with those of added tokens."""
        return int(self.tokenizer.get_vocab_size())

    @property
    def vocab(self) -> dict[str, int]:
        """Texts of tokens to ids, by id."""
        found = self.tokenizer.get_vocab()
        return dict(sorted(found.items(), key=lambda pair: pair[1]))

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True
    ) -> list[list[int]]:
        """Return the ids of each text."""
        found = self.tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in found]

    def ids_to_text(self, ids: Iterable[int]) -> str:
        """Return the text of ids, without special tokens."""
        numbers = [int(number) for number in ids]
        return str(self.tokenizer.decode(numbers, skip_special_tokens=self.skips_special))

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token's text, or None."""
        found: int | None = self.tokenizer.token_to_id(token)
        return found

    def id_to_token(self, number: int) -> str | None:
        """Return the text of an id's token, or None."""
        if number < 0:
            return None
        found: str | None = self.tokenizer.id_to_token(number)
        return found

    def offsets(self, ids: Sequence[int], text: str) -> list[int]:
        """Return the character of a text at which each of its tokens starts."""
        spans = self.tokenizer.encode(text, add_special_tokens=False).offsets
        starts = [start for start, _ in spans[: len(ids)]]
        end = spans[-1][1] if spans else 0
        return starts + [end] * (len(ids) - len(starts))

    def _add_tokens(self, tokens: Sequence[str]) -> None:
        from tokenizers import AddedToken

        self.tokenizer.add_special_tokens(
            [AddedToken(text, special=True, normalized=False) for text in tokens]
        )
