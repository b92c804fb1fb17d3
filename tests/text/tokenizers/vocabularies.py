"""Small vocabularies that tests can read."""

from pathlib import Path

PIECES = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("un", "##able", "##s", "cafe", "a", ",", "Caf\u00e9", "\u4e2d"),
]


def save_pieces(folder: Path) -> Path:
    """Write a vocab.txt of WordPiece; return its path."""
    file = folder / "vocab.txt"
    file.write_text("\n".join(PIECES) + "\n", "utf-8")
    return file
