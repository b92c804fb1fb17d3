"""Functions under other names of their parameters."""

import inspect

import pytest

from zindex.processing.renaming import rename_parameters
from zindex.streaming import ImageTextPairProcessFnBuilder, TextJonslProcessFnBuilder, TextPacking


def area(width: int, height: int = 2, *, unit: str = "m") -> None:
    """Print an area."""
    print(width, height, unit)


def test_names_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    renamed = rename_parameters(area, {"width": "w", "height": "h"}, unit="km")
    renamed(3)
    renamed(w=3, h=4, unit="cm")
    assert capsys.readouterr().out == "3 2 km\n3 4 cm\n"
    assert str(inspect.signature(renamed)) == "(w: int, h: int = 2, *, unit: str = 'km') -> None"
    with pytest.raises(TypeError, match="missing a required argument: 'w'"):
        renamed(h=4)
    with pytest.raises(TypeError, match="unexpected keyword argument 'width'"):
        renamed(3, width=3)


def test_upstreams_builders_have_the_other_settings() -> None:
    own, upstream = (
        [*inspect.signature(kind).parameters.values()]
        for kind in (TextPacking, TextJonslProcessFnBuilder)
    )
    assert [part.name for part in upstream[:2]] == ["max_sequence_length", "tokenizer_name"]
    assert [part.name for part in upstream[2:]] == [part.name for part in own[2:]]
    changed = [a.name for a, b in zip(own[2:], upstream[2:], strict=True) if a.default != b.default]
    assert changed == ["attention_mask"]
    assert "tokenizer_name" in inspect.signature(ImageTextPairProcessFnBuilder).parameters
