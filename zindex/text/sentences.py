"""Split texts into sentences by the rules of their language."""

from importlib.metadata import version
from typing import Any

from zindex.lazy import need

_LIBRARY = "sentencex"


class SentenceSplitter:
    """Splits texts into sentences.

    Parameters
    ----------
    language
        ISO 639-1 code, such as ``"en"``. For an unknown language, the rules of the nearest known
        one are used, or those of English.

    Raises
    ------
    ConfigError
        If the library is not installed.

    Notes
    -----
    The library is sentencex of the Wikimedia Foundation: compiled rules for about 300 languages,
    without downloads. It splits at white space, and at line ends between paragraphs; sentences are
    stripped, and none is empty. Megatron's own tool uses nltk's Punkt models, which split
    differently in places.
    """

    def __init__(self, language: str = "en") -> None:
        self.language = language
        self._segment: Any = need(_LIBRARY, "cutting texts into sentences").segment

    def __reduce__(self) -> tuple[Any, ...]:
        return SentenceSplitter, (self.language,)

    def identity(self) -> dict[str, str]:
        """Return the identity of the sentence rules, as JSON values."""
        return {"language": self.language, "library": f"{_LIBRARY} {version(_LIBRARY)}"}

    def split(self, text: str) -> list[str]:
        """Return the sentences of a text."""
        found = (sentence.strip() for sentence in self._segment(self.language, text))
        return [sentence for sentence in found if sentence]
