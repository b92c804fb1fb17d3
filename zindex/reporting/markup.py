"""HTML elements that escape their content, so that no name or document can inject markup."""

import html
import re
from typing import Any

# Characters that HTML forbids, and those that change the direction of the text around them.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff"
    "\ufdd0-\ufdef\ufffe\uffff]"
)
_VOID = ("meta", "br")


class Html(str):
    """Text that is HTML already; only `tag` and `join` make it from other texts."""

    __slots__ = ()


def escape(text: object) -> Html:
    """Return a text as HTML; forbidden characters become U+FFFD.

    Examples
    --------
    >>> escape("<b>&"), escape(Html("<b>"))
    ('&lt;b&gt;&amp;', '<b>')
    """
    if isinstance(text, Html):
        return text
    return Html(html.escape(_UNSAFE.sub("\ufffd", str(text))))


def tag(name: str, *children: object, **attributes: Any) -> Html:
    """Return an element.

    Parameters
    ----------
    name
        Name of the element.
    children
        Elements and texts, which are escaped; None is left out.
    attributes
        Attributes, which are escaped: ``class_`` is ``class``, ``_`` is ``-``, True has no value,
        and None is left out.

    Examples
    --------
    >>> tag("a", "x < y", class_="b", data_n=1, hidden=True)
    '<a class="b" data-n="1" hidden>x &lt; y</a>'
    """
    parts = [name]
    for key, value in attributes.items():
        if value is not None and value is not False:
            key = key.rstrip("_").replace("_", "-")
            parts.append(key if value is True else f'{key}="{escape(value)}"')
    opening = f"<{' '.join(parts)}>"
    if name in _VOID:
        return Html(opening)
    return Html(f"{opening}{join(*children)}</{name}>")


def join(*children: object) -> Html:
    """Return elements and texts one after the other; None is left out."""
    return Html("".join(escape(child) for child in children if child is not None))
