"""One rank that begins the build of a run: ``-m tests.indexing.rank_build RUN RANK TAKEOVER``.

It says ``web`` once that dataset is committed, ``waiting`` if the run is not done then, and
``done`` once it is. Rank 0 commits the blend after a line of its standard input.
"""

import sys
from typing import Any

from zindex.config import load_config
from zindex.indexing import store_build
from zindex.indexing.coordination import Rank
from zindex.indexing.run_build import RunBuild


def hold_blend() -> None:
    """Have the blend committed after a line of the standard input only."""
    commit_store = store_build.commit_store

    def commit(plan: Any, *args: Any) -> None:
        if plan.root.name.startswith("blend"):
            sys.stdin.readline()
        commit_store(plan, *args)

    store_build.commit_store = commit


def main() -> None:
    config, number = load_config(sys.argv[1]), int(sys.argv[2])
    if number == 0:
        hold_blend()
    building = RunBuild(config, Rank(number, timeout=120.0, takeover=float(sys.argv[3])))
    result = building.futures["train"]["web"].result()
    assert result is not None
    assert result.store.attributes["num_samples"]
    print("web", flush=True)
    if not building.is_done and not building.futures["train"]["blend"].done():
        print("waiting", flush=True)
    results = building.wait()
    assert building.is_done
    blend = building.futures["train"]["blend"].result()
    assert blend is not None
    assert blend.store == results[None, "train"].store
    print("done", sorted(done.store.root.name for done in results.values()), flush=True)
    assert building.futures["test"]["blend"].result() is None


if __name__ == "__main__":
    main()
