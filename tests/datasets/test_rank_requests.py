"""The requests of builders and runs, and the first field in which those of two ranks differ."""

import json
from typing import Any

import numpy as np
import pytest

from tests.datasets.configs import plain_config
from zindex.config import RunConfig
from zindex.datasets.blend_requests import request_splits
from zindex.datasets.fim_dataset import GPTFIMDataset
from zindex.datasets.gpt_dataset import GPTDataset
from zindex.datasets.rank_requests import describe_run, describe_splits
from zindex.execution.rank_agreement import as_text, find_difference

BLEND = {"blend": (["a", "b"], [3.0, 1.0]), "split": "90,10,0"}


def describe(cls: Any = GPTDataset, sizes: Any = (10, 5, 0), **settings: Any) -> Any:
    """Return a request as other ranks see it."""
    config = plain_config(**(BLEND | settings))
    request = describe_splits(cls, request_splits(sizes, config), config)
    return json.loads(as_text(request))


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"cls": GPTFIMDataset}, ("class", "GPTDataset", "GPTFIMDataset")),
        ({"blend": (["a"], [1.0])}, ("the number of train.paths", 2, 1)),
        ({"blend": (["a", "c"], [3.0, 1.0])}, ("train.paths[1]", "b", "c")),
        ({"blend": (["b", "a"], [3.0, 1.0])}, ("train.paths[0]", "a", "b")),
        ({"blend": (["a", "b"], [1.0, 1.0])}, ("train.num_samples[0]", 9, 6)),
        ({"blend": (["a", "b"], None)}, ("train.num_samples[0]", 9, None)),
        ({"split": "90,5,5"}, ("valid.bookends[1]", 0.9 + 0.1, 0.9 + 0.05)),
        ({"split": "100,0,0"}, ("train.bookends[1]", 0.9, 1.0)),
        ({"sizes": (10, 50, 0)}, ("valid.num_samples[0]", 5, 39)),
        ({"random_seed": 2}, ("random_seed", 1, 2)),
        ({"sequence_length": 4}, ("sequence_length", 8, 4)),
        ({"order": "scalable"}, ("train.size", 11, 10)),
        ({"add_extra_token_to_sequence": False}, ("add_extra_token_to_sequence", True, False)),
        ({"max_computed_rows": 7}, ("max_computed_rows", 4194304, 7)),
    ],
)
def test_differences(changed: dict[str, Any], difference: Any) -> None:
    assert find_difference(describe(), describe(**changed)) == difference


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"blend": (["a", "b"], np.array([3, 1], np.float32))},
        {"blend": (["a", "b"], [0.75, 0.25])},
        {"path_to_cache": "elsewhere", "index_timeout": 3.0, "num_dataset_builder_threads": 4},
    ],
)
def test_requests_of_the_same_datasets_are_equal(changed: dict[str, Any]) -> None:
    assert find_difference(describe(), describe(**changed)) is None


def test_splits_without_data() -> None:
    own = describe(blend=None, split=None, blend_per_split=[(["a"], None), None, None])
    other = describe(blend=None, split=None, blend_per_split=[(["a"], None), (["b"], None), None])
    assert own["valid"] is None
    assert find_difference(own, other) == ("valid", None, other["valid"])


def test_runs() -> None:
    settings = plain_config(**BLEND)

    def describe(**changed: Any) -> Any:
        values = {"datasets": ["a", "b"], "sequence_length": 4} | changed
        return json.loads(as_text(describe_run(RunConfig.from_json(values), settings)))

    assert find_difference(describe(), describe(index="elsewhere")) is None
    assert find_difference(describe(), describe(seed=3)) == ("seed", 1234, 3)
    found = find_difference(describe(), describe(datasets=["a"]))
    assert found == ("the number of datasets", 2, 1)
    found = find_difference(describe(), describe(packing={"max_documents": 3}))
    assert found is not None
    assert found[0] == "packing"
