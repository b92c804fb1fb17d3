"""Reports of runs with hostile names and texts, and a parser of pages."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from tests.conftest import WriteCorpus
from tests.indexing.runs import make_config
from zindex.config import DatasetConfig, RunConfig
from zindex.reporting.report import report

#: A text that changes the title of the page if it is run or parsed as markup.
HOSTILE = '"><script>document.title="taken"</script><img src=x onerror="document.title=`taken`">'
_VOID = {"meta", "br"}


class HostileTokenizer:
    """A tokenizer all of whose texts are hostile."""

    def decode(self, tokens: list[int]) -> str:
        return HOSTILE + "\x00\u202e'&"


def hostile_run(folder: Path, write_corpus: WriteCorpus, num_samples: int = 3000) -> RunConfig:
    """Return a run with a dataset of a hostile name."""
    rng = np.random.default_rng(0)
    names = ["web", HOSTILE.replace("/", ":")]
    paths = [write_corpus(rng.integers(5, 90, 300).tolist(), name=name) for name in names]
    members = [DatasetConfig(path, weight=w) for path, w in zip(paths, (2.0, 1.0), strict=True)]
    samples = {"train": num_samples, "valid": 10, "test": 0}
    return make_config(folder, *members, samples=samples, split="90,10,0", sequence_length=32)


def make_hostile_page(folder: Path, write_corpus: WriteCorpus, **settings: Any) -> str:
    """Return the page of a run with hostile names and texts."""
    return report(
        hostile_run(folder, write_corpus), tokenizer=HostileTokenizer(), **settings
    ).to_html()


class Page(HTMLParser):
    """Elements, attributes and texts of a page; raises if they are not nested."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names))
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def values(self, name: str) -> list[str]:
        """Return all values of an attribute."""
        return [value for _, own, value in self.attributes if own == name]
