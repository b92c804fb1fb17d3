"""Committed stores, opened by place."""

import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from tests.store.stores import ONE, TWO, build_arrays, count_up
from zindex.errors import (
    FingerprintMismatchError,
    NotReadyError,
    StoreError,
    StoreNotFoundError,
    VerificationError,
)
from zindex.store.commit import StorePlan, begin_store
from zindex.store.open import Store, open_store

ARRAYS = {ONE: count_up(10), TWO: count_up(4, num_columns=2)}


@pytest.fixture
def plan(tmp_path: Path) -> StorePlan:
    return build_arrays(tmp_path / "my store", ARRAYS)


def test_an_opened_store_says_what_it_is(plan: StorePlan) -> None:
    store = open_store(plan.root, kind="index", expected=plan.fingerprint)
    assert (store.root, store.kind, store.fingerprint) == (plan.root, "index", plan.fingerprint)
    assert store.spec == plan.spec
    assert tuple(store.layouts.values()) == plan.layouts
    assert "one" in store
    assert "three" not in store
    assert 1 not in store
    assert "root_sha256" not in store.attributes


def test_a_store_is_opened_by_path_text_or_url(
    plan: StorePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(plan.root.parent)
    places = [plan.root, str(plan.root), f"{plan.root}/", "my store"]
    places.append(plan.root.as_uri())
    assert "my%20store" in places[-1]
    assert {open_store(place).root for place in places} == {plan.root}


def test_an_opened_store_is_pickled(plan: StorePlan) -> None:
    store = open_store(plan.root)
    copy = pickle.loads(pickle.dumps(store))
    assert isinstance(copy, Store)
    assert copy == store
    np.testing.assert_array_equal(copy["two"], ARRAYS[TWO])


def test_an_array_that_is_not_there(plan: StorePlan) -> None:
    with pytest.raises(KeyError, match=r"my store has no array 'three', it has \['one', 'two'\]"):
        open_store(plan.root)["three"]


def test_another_kind_is_refused(plan: StorePlan) -> None:
    with pytest.raises(StoreError, match=r"my store must hold tokens, it holds index; check"):
        open_store(plan.root, kind="tokens")


def test_other_content_is_refused(plan: StorePlan) -> None:
    expected = "0123456789abcdef" * 4
    message = f"must have fingerprint 0123456789abcdef, it has {plan.fingerprint[:16]}: its data"
    with pytest.raises(FingerprintMismatchError, match=re.escape(message)):
        open_store(plan.root, expected=expected)


def test_nothing_there(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "a" / "b"):
        with pytest.raises(StoreNotFoundError, match=re.escape(f"no zindex store at {place};")):
            open_store(place)
    (tmp_path / "file").touch()
    with pytest.raises(StoreNotFoundError, match=r"no zindex store at .*file"):
        open_store(tmp_path / "file")


def test_a_store_whose_commit_is_taken_back_is_not_ready(plan: StorePlan) -> None:
    (plan.root / "zarr.json").unlink()
    with pytest.raises(NotReadyError, match=r"my store is not built yet: 3 of 3 shards"):
        open_store(plan.root)
    begin_store(plan)


def test_a_store_may_be_moved(plan: StorePlan, tmp_path: Path) -> None:
    plan.root.rename(tmp_path / "moved")
    store = open_store(tmp_path / "moved", expected=plan.fingerprint)
    np.testing.assert_array_equal(store["one"], ARRAYS[ONE])


def test_a_missing_shard_is_found_when_it_is_read(plan: StorePlan) -> None:
    (plan.root / "one" / "c" / "1").unlink()
    array = open_store(plan.root)["one"]
    assert array[5] == 5
    with pytest.raises(VerificationError, match=r"my store/one/c/1 is missing; `zindex verify`"):
        array[6]
