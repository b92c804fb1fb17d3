"""Find the stores that a user names: one by its path, those of a directory, or those of a run."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from zindex.config import RunConfig, load_config
from zindex.errors import StoreNotFoundError, ZindexError
from zindex.indexing.run_plan import PlannedStore, plan_run
from zindex.ingest.length_source import is_store
from zindex.io import files
from zindex.io.objects import Place, PlaceLike, place_of
from zindex.plan.inverse_plan import InversePlan
from zindex.store.commit import StorePlan, read_plan
from zindex.store.folder_group import is_group
from zindex.store.layout import parse_layouts

_YAML = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class NamedStore:
    """One store, and the plan of a run for it, if given by a run."""

    root: Place
    item: PlannedStore | None = None
    plan: StorePlan | None = None

    @property
    def is_begun(self) -> bool:
        """Whether a store was begun at this location."""
        return is_store(str(self.root))

    @property
    def num_shards(self) -> int:
        """Shards of the store; 0 if its plan cannot be read."""
        try:
            layouts = parse_layouts(read_plan(self.root)["arrays"], self.root)
            return sum(layout.num_shards for layout in layouts)
        except ZindexError:
            return 0


def find_stores(path: PlaceLike | RunConfig) -> list[NamedStore]:
    """Return the stores that a path names.

    Parameters
    ----------
    path
        A store; a directory of stores, such as a run's ``index``; or a run, as its configuration
        or YAML file: its indices and blends, begun or not, and their inverses, if begun.

    Raises
    ------
    StoreNotFoundError
        If there is no store.
    """
    if isinstance(path, RunConfig):
        return list(_stores_of_run(path))
    if str(path).endswith(_YAML) and os.path.isfile(str(path)):
        return list(_stores_of_run(load_config(str(path))))
    root = place_of(path)
    if is_store(str(root)) and not is_group(root):
        return [NamedStore(root)]
    below = [root / name for name in sorted(files.list_names(root))]
    stores = [NamedStore(place) for place in below if is_store(str(place))]
    if not stores:
        raise StoreNotFoundError(
            f"no zindex store at {root}, nor directly below it; check the path or build it"
        )
    return stores


def _stores_of_run(config: RunConfig) -> Iterator[NamedStore]:
    """Yield the indices and blends of a run, and their inverses if begun, each store once."""
    seen = set()
    for item in plan_run(config):
        plan, inverse = item.plan.store_plan(config.index), InversePlan.of(item.plan)
        if plan.root in seen:
            continue
        seen.add(plan.root)
        yield NamedStore(plan.root, item, plan)
        if inverse is not None:
            named = NamedStore(inverse.store_plan(config.index).root)
            if named.is_begun:
                yield named
