"""Process functions get labelled samples, and must keep the names of these."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import pytest

from zindex.errors import ConfigError
from zindex.processing.process_function import call_process_fn


class OneToOne:
    """Declares that it makes one output of each input, in order."""

    one_to_one = True

    def __init__(self, function: Callable[[Iterator[Any]], Iterable[Any]]) -> None:
        self.function = function

    def __call__(self, samples: Iterator[Any]) -> Iterable[Any]:
        return self.function(samples)


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


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda samples: (one for one in samples if one["__key__"] != "1"), "yields '2' for '1'"),
        (lambda samples: islice(samples, 2), "yields none for '2' of a; remove one_to_one"),
        (lambda samples: list(samples)[:2], "yields none for '2' of a"),
        (lambda samples: (one for one in samples for _ in range(2)), "yields '0' after all inputs"),
        (lambda samples: reversed(list(samples)), "yields '2' for '0' of a"),
        (lambda samples: [*samples, {"__url__": "a", "__key__": "3"}], "yields '3' after all inpu"),
    ],
)
def test_other_outputs_than_declared_are_refused(
    function: Callable[[Iterator[Any]], Iterable[Any]], message: str
) -> None:
    samples = [{"__url__": "a", "__key__": str(number)} for number in range(3)]
    with pytest.raises(ConfigError, match=message):
        list(call_process_fn(OneToOne(function), iter(samples), {}))
    assert len(list(call_process_fn(OneToOne(list), iter(samples), {}))) == 3
    # The rest may be left.
    assert next(call_process_fn(OneToOne(iter), iter(samples), {}))["__key__"] == "0"
