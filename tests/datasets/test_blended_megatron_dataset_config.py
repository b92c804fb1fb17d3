"""What a configuration derives and what it refuses."""

import re
from typing import Any

import pytest

from zindex.datasets.blended_megatron_dataset_config import (
    BlendedMegatronDatasetConfig,
    convert_split_vector_to_split_matrix,
    parse_and_normalize_split,
)
from zindex.errors import ConfigError
from zindex.store.layout import ChunkGrid


def make(**settings: Any) -> BlendedMegatronDatasetConfig:
    return BlendedMegatronDatasetConfig(random_seed=1, sequence_length=8, **settings)


def test_blend_gives_a_split_matrix() -> None:
    config = make(blend=(["a", "b"], [1.0, 2.0]), split="70,20,10")
    assert not config.mock
    assert config.split_matrix == [
        (0, 0.7),
        (0.7, 0.8999999999999999),
        (0.8999999999999999, 0.9999999999999999),
    ]
    assert repr(config.split_matrix[0]) == "(0, 0.7)"


@pytest.mark.parametrize("blends", [None, [None, None, None], []])
def test_without_data_it_is_a_mock(blends: Any) -> None:
    config = make(blend_per_split=blends, split="99,1,0")
    assert config.mock
    assert config.split == "1,1,1"
    assert config.split_matrix is not None
    assert [round(stop, 3) for _, stop in config.split_matrix if stop] == [0.333, 0.667, 1.0]


def test_blend_per_split_has_no_split_matrix() -> None:
    config = make(blend_per_split=[(["a"], None), None, (["b", "c"], [1.0, 2.0])])
    assert (config.mock, config.split, config.split_matrix) == (False, None, None)


def test_our_own_settings_keep_megatrons_behaviour() -> None:
    config = make()
    assert (config.order, config.store, config.grid) == ("megatron", "all", ChunkGrid())
    assert (config.shuffle, config.renormalize_blend_weights) == ("keyed", False)
    assert (config.index_timeout, config.index_takeover) == (3600, 60)


BLENDS = [(["a"], None), None, None]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"blend": (["a"], None)}, "split must be given with blend, got None"),
        (
            {"blend": (["a", "b"], [1.0]), "split": "1"},
            "blend must have a weight for each prefix, got 2 prefixes and 1 weights",
        ),
        (
            {"blend": (["a"], None), "split": "1,2,3,4"},
            "split must hold one to three numbers with a sum above 0, got '1,2,3,4'",
        ),
        (
            {"blend_per_split": BLENDS, "split": "1,1,1"},
            "split must be None with blend_per_split, got '1,1,1'",
        ),
        (
            {"blend_per_split": BLENDS, "blend": (["z"], None)},
            "blend must be None with blend_per_split, got (['z'], None)",
        ),
        ({"blend_per_split": BLENDS[:2]}, "blend_per_split must hold 3 blends"),
        ({"blend_per_split": BLENDS[:2]}, "got 2; put None where there is none"),
        (
            {"blend_per_split": [None, (["a"], [1.0, 2.0]), None]},
            "blend_per_split of valid must have a weight for each prefix, got 1 prefixes and 2",
        ),
        ({"fast_cache_load": True}, "fast_cache_load needs path_to_cache, got None"),
        ({"defer_npy_index_mmap": True}, "defer_npy_index_mmap needs path_to_cache, got None"),
        ({"index_timeout": 0}, "index_timeout must be above 0 seconds, got 0"),
        ({"index_takeover": float("nan")}, "index_takeover must be above 0 seconds, got nan"),
        (
            {"fast_cache_load": True, "path_to_cache": "c", "blend": (["a"], None), "split": "1"},
            "fast_cache_load needs blend_per_split, got blend",
        ),
    ],
)
def test_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        make(**settings)


def test_two_vectors_overlap() -> None:
    vector = parse_and_normalize_split("99,1,0")
    other = parse_and_normalize_split("98,2,0")
    assert convert_split_vector_to_split_matrix(vector, other) == [(0, 0.98), (0.99, 1.0), None]
