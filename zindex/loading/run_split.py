"""Open a split of a built run, to mix it with other datasets."""

import os
from collections import OrderedDict
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from zindex.errors import ConfigError, StoreNotFoundError


def open_run_split(
    config: str | os.PathLike[str],
    split: str = "train",
    *,
    tokenizer: Any = None,
    eod: int | None = None,
    vocab_size: int | None = None,
) -> Any:
    """Return the dataset of one split of a built run, without building anything.

    Parameters
    ----------
    config
        Path of the run's configuration, see `zindex.open_run`.
    split
        ``"train"``, ``"valid"`` or ``"test"``.
    tokenizer
        Tokenizer of the run, as of `zindex.open_run`; None uses ``eod`` and ``vocab_size``, or the
        one kept in the corpora.
    eod, vocab_size
        End-of-document id, and number of ids.

    Raises
    ------
    ConfigError
        If the run has no such split, or several datasets for it and no blend; or it has no
        tokenizer.
    StoreNotFoundError
        If the run is not built.
    """
    # Imported lazily, because the planning of runs is large and seldom needed.
    from zindex.config import as_config
    from zindex.datasets.run_datasets import open_run
    from zindex.indexing.run_plan import label_paths, plan_run
    from zindex.indexing.store_build import find_index

    if tokenizer is None and (eod, vocab_size) != (None, None):
        if eod is None or vocab_size is None:
            raise ConfigError(
                "a run needs its tokenizer, both eod and vocab_size, or none of them, got "
                f"eod={eod} and vocab_size={vocab_size}; give them"
            )
        identifiers = OrderedDict(eod=eod, vocab_size=vocab_size)
        tokenizer = SimpleNamespace(eod=eod, vocab_size=vocab_size, unique_identifiers=identifiers)
    run = as_config(config)
    plans = plan_run(run)
    labels = label_paths([dataset.path for dataset in run.members])
    missing = [
        item.name(labels) for item in plans if find_index(item.plan.store_plan(run.index)) is None
    ]
    if missing:  # opening datasets must not write
        raise StoreNotFoundError(
            f"a run must be built to be mixed, {config} lacks {', '.join(missing)}; run "
            "`zindex build` on it first"
        )
    return choose_dataset(open_run(run, tokenizer), split)


def choose_dataset(datasets: Mapping[str, Any], split: str) -> Any:
    """Return the only dataset of a split.

    Parameters
    ----------
    datasets
        What `zindex.open_run` returned.
    split
        The split.

    Raises
    ------
    ConfigError
        If the split has no samples, or several datasets.
    """
    found = datasets.get(split)
    if not found:
        raise ConfigError(
            f"split must be one that the run has samples of, {', '.join(datasets)}, got {split!r}; "
            "give it a share in the run's split"
        )
    if not isinstance(found, list):
        return found
    if len(found) > 1:
        raise ConfigError(
            f"a split must be one dataset, {split!r} of the run has {len(found)} that are not "
            "blended; give them weights, set blend: sizes, or choose one of open_run(...)"
        )
    return found[0]
