"""Forged metadata with valid digests: a table of what was once believed, and random changes."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.harnesses.running import run_trials
from tests.harnesses.schema_fuzz import seal_again, trial
from tests.store.stores import ONE, build_arrays, count_up
from zindex.errors import SourceError, StoreError, VerificationError
from zindex.store.commit import StorePlan, begin_store, commit_store
from zindex.store.open import open_store
from zindex.store.tokens import LINK, open_tokens
from zindex.store.verify import verify_store

HUGE = 1 << 62


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("arrays.0.name", "../canary", r"must have a name of letters, digits"),
        ("arrays.0.name", "/etc", r"must have a name of letters, digits"),
        ("arrays.0.name", 7, r"as name a value of type str, it holds 7;"),
        ("arrays.0.chunk_length", 0, r"must have shards of whole chunks"),
        ("arrays.0.shard_length", 7, r"must have shards of whole chunks"),
        ("arrays.0.length", HUGE, r"must hold at most 4,611,686,018,427,387,904 bytes of numbers"),
        ("arrays.0.length", 1 << 58, r"shards, and 1,073,741,824 in all"),
        ("arrays.0.length", -1, r"must hold at most"),
        ("arrays.0.length", None, r"as length a value of type int, it holds None"),
        ("arrays.0.num_columns", 1 << 40, r"must have a name|must hold at most"),
        ("arrays.0.num_columns", 2, r"one for each dimension"),
        ("arrays.0.dtype", "O", r"numbers of a known dtype"),
        ("arrays.0.codec", "pickle", r"as codec one of none, zstd, it holds 'pickle'"),
        ("arrays.0.more", 1, r"an object with chunk_length|an object with name"),
        ("arrays", 3, r"as arrays must hold a value of type list"),
        ("arrays.1", None, r"must name each array once"),
        ("spec", [], r"as spec must hold a value of type dict"),
        ("spec.num_tokens", "9", r"a count as num_tokens"),
        ("spec.token_dtype", "O", r"a dtype as token_dtype"),
        ("format_version", None, r"has format version None"),
        ("manifest_sha256", [], r"as manifest_sha256 must hold a value"),
    ],
    ids=str,
)
def test_a_forged_root_is_refused(tmp_path: Path, path: str, value: Any, message: str) -> None:
    root = tmp_path / "store"
    build_arrays(root, {ONE: count_up(10)})
    content = json.loads((root / "zarr.json").read_bytes())
    facts: Any = content["attributes"]["zindex"]
    if path == "arrays.1":
        facts["arrays"].append(facts["arrays"][0])
    else:
        *above, last = path.split(".")
        for name in above:
            facts = facts[int(name) if isinstance(facts, list) else name]
        facts[last] = value
    seal_again(root, "zarr.json", content, renamed=True)
    with pytest.raises(StoreError, match=message):
        open_store(root)
    with suppress(StoreError):
        assert not verify_store(root).is_sound


def test_a_fingerprint_is_that_of_the_description(tmp_path: Path) -> None:
    build_arrays(tmp_path / "store", {ONE: count_up(10)})
    content = json.loads((tmp_path / "store" / "zarr.json").read_bytes())
    content["attributes"]["zindex"]["spec"] = {"seed": 2}
    seal_again(tmp_path / "store", "zarr.json", content, renamed=False)
    with pytest.raises(VerificationError, match="must have the fingerprint of its description"):
        open_store(tmp_path / "store")


def test_a_link_leads_to_a_corpus_only(tmp_path: Path) -> None:
    """A store from somebody else must not read the files of its reader."""
    secret = tmp_path / "home" / "secret.bin"
    secret.parent.mkdir()
    np.arange(4, dtype=np.int32).tofile(secret)
    (tmp_path / "received").mkdir()
    spec = {"token_dtype": "int32", "num_sequences": 1, "num_documents": 1, "link": True}
    for number, path in enumerate((secret, tmp_path / "received" / ".." / "home" / "secret.bin")):
        root = tmp_path / "received" / f"{number}.zarr"
        plan = StorePlan(root, "tokens", {"token_dtype": spec["token_dtype"]}, ())
        begin_store(plan)
        commit_store(plan, [], {LINK: {"path": str(path), "nbytes": 16}})
        store = open_store(root)
        with pytest.raises(SourceError, match=r"it is the .bin of another corpus, or of none"):
            open_tokens(store)
        assert "no .idx agrees" in verify_store(root).damages[0].problem


def test_random_forgeries() -> None:
    outcomes = run_trials(trial, 40, seed=260)
    assert not outcomes["wrong"]
    assert not outcomes["hangs"]
    assert outcomes["refused"] > 5
