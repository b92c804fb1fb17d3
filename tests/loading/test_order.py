"""Orders of passes: the keyed one, upstream's and none."""

import numpy as np
import pytest

from zindex.errors import ConfigError
from zindex.loading.order import Order, SampleOrder, astrai_randperm


def test_the_golden_orders_of_upstream() -> None:
    assert astrai_randperm(10, 42, 1).tolist() == [8, 4, 9, 0, 5, 1, 6, 7, 2, 3]
    assert astrai_randperm(10, 3407, 0).tolist() == [9, 1, 5, 7, 3, 2, 8, 6, 4, 0]


@pytest.mark.parametrize("kind", ["keyed", "astrai_randperm", None])
def test_each_pass_is_a_permutation_however_it_is_asked_for(kind: Order | None) -> None:
    order = SampleOrder(1000, kind, 7, "dataset")
    passes = []
    for epoch in range(3):
        places = np.arange(1000)
        whole = order.open_pass(epoch)(places)
        assert sorted(whole.tolist()) == places.tolist()
        some = np.array([999, 0, 500, 500])
        assert order.open_pass(epoch)(some).tolist() == whole[some].tolist()
        assert order.find_range(epoch, 3, 70) == whole[3:70].tolist()
        passes.append(whole.tolist())
    assert (passes[0] == passes[1]) == (kind is None)
    assert (passes[0] == list(range(1000))) == (kind is None)


def test_the_keyed_order_depends_on_dataset_seed_and_pass_and_is_part_of_the_format() -> None:
    places = np.arange(8)
    found = {
        (dataset, seed, epoch): SampleOrder(8, "keyed", seed, dataset)
        .open_pass(epoch)(places)
        .tolist()
        for dataset in ("a", "b")
        for seed in (1, 2)
        for epoch in (0, 1)
    }
    assert len({tuple(order) for order in found.values()}) == len(found)
    assert found["a", 1, 0] == [3, 0, 1, 7, 2, 6, 4, 5]


def test_the_fingerprint_covers_everything_that_determines_the_order() -> None:
    kinds: list[Order | None] = ["keyed", "astrai_randperm", None]
    orders = [SampleOrder(8, kind, seed, "x") for kind in kinds for seed in (1, 2)]
    # Without shuffling the seed decides nothing.
    assert len({order.fingerprint for order in orders}) == 5


def test_seeds_that_torch_cannot_take() -> None:
    assert sorted(astrai_randperm(3, (1 << 64) - 2, 1).tolist()) == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"must add up to less than 2\*\*64, got \d+ and 2"):
        astrai_randperm(3, (1 << 64) - 2, 2)
