"""Random generators of samples, for augmentations that resuming repeats exactly."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from zindex.errors import ConfigError
from zindex.plan.keys import Stage, stream_key

#: Fields that name a sample, with those of its place.
GENERATOR_FIELDS = ("__seed__", "__datasetname__", "__epoch__")


def sample_generator(sample: Mapping[str, Any], *, use: str = "") -> np.random.Generator:
    """Return the random generator of a sample of a stream in its epoch.

    Its numbers do not depend on ranks, loader workers, or where a run was resumed. Call it in a
    ``process_fn``, a ``customized_yield_fn`` or a collate function. For torch, seed a generator
    with ``int(generator.integers(1 << 63))``.

    Parameters
    ----------
    sample
        A sample of a ``MergedDataset``, or a raw one that a process function gets from it.
    use
        Name of the random choice: each has numbers of its own.

    Raises
    ------
    ConfigError
        If the sample lacks the fields that name it, because it is not of a ``MergedDataset``.

    Notes
    -----
    Key: ``__seed__``, ``__datasetname__``, ``__epoch__``, and ``__url__`` and ``__key__`` or
    ``__index__``.

    Examples
    --------
    >>> sample = {"__seed__": 1, "__datasetname__": "images", "__epoch__": 0, "__index__": 7}
    >>> sample_generator(sample).integers(100, size=3).tolist()
    [96, 93, 11]
    """
    place = ("__index__",) if "__index__" in sample else ("__url__", "__key__")
    fields = *GENERATOR_FIELDS, *place
    missing = [name for name in fields if name not in sample]
    if missing:
        raise ConfigError(
            f"a generator needs a sample of a MergedDataset, with {', '.join(fields)}, this one "
            f"lacks {', '.join(missing)}; keep these fields, and iterate over a "
            "MergedDataset"
        )
    name = json.dumps([use, sample["__datasetname__"], *(str(sample[each]) for each in place)])
    seed, epoch = int(sample["__seed__"]), int(sample["__epoch__"])
    words = stream_key(seed, Stage.STREAM_SAMPLE, name, epoch, num_words=2)
    return np.random.Generator(np.random.Philox(key=words))
