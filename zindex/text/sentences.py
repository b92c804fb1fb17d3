"""Texts cut into sentences, by the rules of their language."""

from importlib.metadata import version
from typing import Any

from zindex.text.tokenizers.text_tokenizer import need

_LIBRARY = "sentencex"


class SentenceSplitter:
    """Cuts texts into sentences.

    Parameters
    ----------
    language
        Its ISO 639-1 code, such as ``"en"``. One that is not known is cut by the rules of the
        nearest that is, in the end of English.

    Raises
    ------
    ConfigError
        If the library is not installed.

    Notes
    -----
    The library is sentencex of the Wikimedia Foundation: rules for about 300 languages in compiled
    code, without models to download. It cuts before white space, and at line ends between
    paragraphs; sentences come without the white space around them, and none is empty.
    Megatron's own tool takes the Punkt models of nltk, whose cuts differ in places.
    """

    def __init__(self, language: str = "en") -> None:
        self.language = language
        self._segment: Any = need(_LIBRARY, "cutting texts into sentences").segment

    def __getstate__(self) -> dict[str, Any]:
        return {"language": self.language}

    def __setstate__(self, state: dict[str, Any]) -> None:
        SentenceSplitter.__init__(self, **state)

    def identity(self) -> dict[str, str]:
        """Return what decides the cuts, as JSON values."""
        return {"language": self.language, "library": f"{_LIBRARY} {version(_LIBRARY)}"}

    def split(self, text: str) -> list[str]:
        """Return the sentences of a text.

        Parameters
        ----------
        text
            The text.
        """
        found = (sentence.strip() for sentence in self._segment(self.language, text))
        return [sentence for sentence in found if sentence]
