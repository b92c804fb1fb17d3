"""Conversations as ids by a chat template, for tokenizers that make none of conversations."""

from typing import Any

import numpy as np

from zindex.datasets.conversations.packed_rows import IGNORE_INDEX, Encoded
from zindex.errors import ConfigError
from zindex.text.chat_template import open_template
from zindex.text.conversations import RowReader
from zindex.text.loss_masks import DialogueCutter
from zindex.text.piece_encoder import PieceEncoder
from zindex.text.text_checks import check_unicode
from zindex.text.text_encoder import TextEncoder
from zindex.text.tokenizer_settings import TokenizerSettings
from zindex.text.tokenizers.text_tokenizer import TextTokenizer


class ChatTokens:
    """Makes ids of conversations, and says which of them the assistant is to learn.

    It does what ``zindex tokenize --for sft`` does, sample by sample.

    Parameters
    ----------
    tokenizer
        One of `zindex.datasets.text_tokenizers` with a chat template.

    Raises
    ------
    ConfigError
        If it is another one, or has no template.
    """

    def __init__(self, tokenizer: Any) -> None:
        library = getattr(tokenizer, "_tokenizer", None)
        template = getattr(tokenizer, "chat_template", None)
        if not isinstance(library, TextTokenizer) or template is None:
            raise ConfigError(
                "conversations need a tokenizer with tokenize_conversation, or one that zindex "
                f"opens and that has a chat template, got {type(tokenizer).__name__}; give it one "
                "of the two"
            )
        encoder = TextEncoder(library)
        known = TokenizerSettings(library.special_tokens_map, {"default": template})
        opened = open_template(None, known)
        assert opened is not None  # there is a text
        self._reader = RowReader()
        self._cutter = DialogueCutter(opened, ends=encoder.special_texts())
        self._encoder = PieceEncoder(encoder)

    def encode(self, messages: list[dict[str, Any]]) -> Encoded:
        """Return a conversation as ids and targets.

        Raises
        ------
        SourceError
            If nothing of it is to be learned, a message has no content, or one other than text, or
            the template refuses it.
        """
        dialogue = self._reader.read_dialogue({"messages": messages})
        pieces = [piece for piece in self._cutter.cut(dialogue) if piece.text]
        for piece in pieces:
            check_unicode(piece.text)
        within = [number > 0 for number in range(len(pieces))]
        found = self._encoder.encode([piece.text for piece in pieces], within)
        targets = [
            ids if piece.trained else np.full_like(ids, IGNORE_INDEX)
            for piece, ids in zip(pieces, found, strict=True)
        ]
        return Encoded(np.concatenate(found), np.concatenate(targets))
