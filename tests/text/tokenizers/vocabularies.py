"""Small vocabularies that tests can read."""

import base64
import io
import json
from pathlib import Path

PIECES = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("un", "##able", "##s", "cafe", "a", ",", "Caf\u00e9", "\u4e2d"),
]
_WORDS = "the quick brown fox jumps over a lazy dog's tail, n\u00e9e Caf\u00e9 and 12 others said"
#: Tokens of more than a byte that byte pairs join, each after those that it is made of.
JOINED = [b"th", b"the", b" t", b" the", b"ab", "\u4e2d".encode()[:2], "\u4e2d".encode()]


def save_pieces(folder: Path) -> Path:
    """Write a vocab.txt of WordPiece; return its path."""
    file = folder / "vocab.txt"
    file.write_text("\n".join(PIECES) + "\n", "utf-8")
    return file


def save_sentence_pieces(folder: Path, *, num_pieces: int = 45) -> Path:
    """Train a SentencePiece model on some words; return its path."""
    import sentencepiece

    words = _WORDS.split()
    texts = [" ".join(words[i % 7 :] + words[: i % 5]) for i in range(200)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=num_pieces,
        pad_id=3,
        minloglevel=2,
        num_threads=1,
    )
    file = folder / "tokenizer.model"
    file.write_bytes(model.getvalue())
    return file


def save_rank_list(folder: Path) -> tuple[Path, int]:
    """Write Megatron's JSON vocabulary of tiktoken; return its path and its tokens."""
    tokens = [bytes([number]) for number in range(256)] + JOINED
    rows = [
        {
            "rank": rank,
            "token_bytes": base64.b64encode(token).decode(),
            "token_str": token.decode(errors="replace"),
        }
        for rank, token in enumerate(tokens)
    ]
    file = folder / "vocabulary.json"
    file.write_text(json.dumps(rows))
    return file, len(tokens)


def save_ranks(folder: Path, name: str = "ranks.tiktoken") -> Path:
    """Write a plain file of ranks; return its path."""
    tokens = [bytes([number]) for number in range(256)] + JOINED
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens)]
    file = folder / name
    file.write_text("\n".join(lines) + "\n")
    return file
