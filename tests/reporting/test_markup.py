"""Elements escape what they hold."""

from zindex.reporting.markup import Html, escape, join, tag


def test_texts_are_escaped() -> None:
    hostile = "\"><script>alert(1)</script>'&"
    safe = "&quot;&gt;&lt;script&gt;alert(1)&lt;/script&gt;&#x27;&amp;"
    assert escape(hostile) == safe
    assert tag("p", hostile, title=hostile) == f'<p title="{safe}">{safe}</p>'
    assert join(hostile, None, 7) == f"{safe}7"
    assert tag("p", tag("b", hostile)) == f"<p><b>{safe}</b></p>"
    assert tag("meta", charset="utf-8", hidden=False, lang=None) == '<meta charset="utf-8">'
    assert isinstance(tag("p"), Html)


def test_forbidden_characters_are_replaced() -> None:
    assert (
        escape("a\x00b\x1b\u202ec\ud800d\ufffee\tf\n") == "a\ufffdb\ufffd\ufffdc\ufffdd\ufffde\tf\n"
    )
    assert escape("\u05d0 \u4e2d \U0001f600") == "\u05d0 \u4e2d \U0001f600"
