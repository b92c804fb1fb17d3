"""Sentences: abbreviations, paragraphs, nothing lost but white space."""

import pickle

from zindex.text.sentences import SentenceSplitter


def test_texts_are_split_into_sentences() -> None:
    splitter = SentenceSplitter("en")
    text = " Mr. Smith paid 3.5 dollars. Why?  Nobody knows!\nA line.\n\nAnother paragraph "
    found = splitter.split(text)
    assert found[:3] == ["Mr. Smith paid 3.5 dollars.", "Why?", "Nobody knows!"]
    assert "".join("".join(found).split()) == "".join(text.split())
    assert splitter.split("  \n ") == splitter.split("") == []
    again = pickle.loads(pickle.dumps(splitter))
    assert again.split(text) == found
    assert again.identity() == splitter.identity()
    assert splitter.identity()["language"] == "en"
    assert SentenceSplitter("ja").split("\u6771\u4eac\u3002\u5927\u962a\u3002") == [
        *("\u6771\u4eac\u3002", "\u5927\u962a\u3002")
    ]
