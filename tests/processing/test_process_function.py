"""Process functions get labelled samples, and must keep the names of these."""

from collections.abc import Iterator
from typing import Any

import pytest

from zindex.errors import ConfigError
from zindex.processing.process_function import call_process_fn


def raw() -> Iterator[dict[str, Any]]:
    yield {"__url__": "a", "__key__": "1", "text": "b"}


def test_labels_are_added_before_the_call() -> None:
    [made] = call_process_fn(lambda samples: samples, raw(), {"__epoch__": 3})
    assert made == {"__url__": "a", "__key__": "1", "text": "b", "__epoch__": 3}


@pytest.mark.parametrize(
    ("output", "what"), [({"__key__": "1"}, r"yields \['__key__'\]"), (5, "yields int; copy both")]
)
def test_outputs_without_a_name_are_refused(output: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        list(call_process_fn(lambda _: [output], raw(), {}))
