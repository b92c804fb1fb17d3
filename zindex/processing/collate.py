"""Collate functions: a list of samples, stacked tensors, or padded tensors."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch.utils.data._utils.collate import collate

from zindex.errors import ConfigError, PlanError, check_choice, check_list, check_whole

Sample = dict[str, Any]
#: Fields of samples of a MergedDataset that hold its state.
STATE_FIELDS = frozenset({"__state__", "__states__"})
#: Side of padding.
Side = Literal["right", "left"]


def mixed_collate(batch: Sequence[Sample], possible_keys: Sequence[str] | None = None) -> Any:
    """Return the samples unchanged, as a list of dicts.

    Parameters
    ----------
    batch
        Samples.
    possible_keys
        Keys that are set to None in samples that lack them.

    Raises
    ------
    ConfigError
        If a sample is not a dict.
    """
    for sample in batch:
        if not isinstance(sample, dict):
            raise ConfigError(
                f"samples of a mixed batch must be dicts, got {type(sample).__name__}; let the "
                "dataset or its process_fn yield dicts"
            )
        for key in possible_keys or ():
            sample.setdefault(key, None)
    return batch


def collate_dicts(batch: Sequence[Sample], *, collate_fn_map: Mapping[Any, Any]) -> Any:
    """Collate dicts as torch's default function does, but refuse samples with a state.

    Raises
    ------
    ConfigError
        If they are of a MergedDataset.
    """
    if STATE_FIELDS.isdisjoint(batch[0]):
        others = {kind: each for kind, each in collate_fn_map.items() if kind is not dict}
        return collate(batch, collate_fn_map=others)
    raise ConfigError(
        "samples of a MergedDataset must be collated with their states, which torch's default "
        "collate function loses; pass collate_fn=mixed_collate (a list of samples), stack_collate "
        "or PadCollate of zindex.streaming to the DataLoader"
    )


def stack_collate(batch: Sequence[Sample]) -> dict[str, Any]:
    """Return one dict for the batch: tensors stacked, numbers as one tensor, others as lists.

    Fields named ``__like_this__`` become lists, with None for samples without them, so that
    ``to_state`` accepts the batch like a list of samples.

    Raises
    ------
    PlanError
        If samples differ in their other keys, or tensors of one key in shape or dtype.
    ConfigError
        If a sample is not a dict.
    """
    return _collate(mixed_collate(batch), {})


class PadCollate:
    """`stack_collate` with padding of fields of different lengths.

    Parameters
    ----------
    keys
        Fields to pad along their first dimension; each gets a mask (bool, True for real values,
        shape (samples, longest)) under its name with the suffix ``_mask``.
    side
        ``"right"`` or ``"left"``; by key, or for all keys.
    pad_value
        Padding value; by key, or for all keys.
    multiple_of
        The padded length is a multiple of this.

    Raises
    ------
    ConfigError
        If an argument is out of range.

    Examples
    --------
    >>> collate = PadCollate(["tokens"], side="left")
    >>> batch = collate([{"tokens": torch.tensor([1, 2])}, {"tokens": torch.tensor([3])}])
    >>> batch["tokens"].tolist(), batch["tokens_mask"].tolist()
    ([[1, 2], [0, 3]], [[True, True], [False, True]])
    """

    def __init__(
        self,
        keys: Sequence[str],
        *,
        side: Side | Mapping[str, Side] = "right",
        pad_value: float | Mapping[str, float] = 0,
        multiple_of: int = 1,
    ) -> None:
        check_list("keys", keys)
        self.keys = tuple(keys)
        self.sides = _by_key(side, self.keys, "side", "right")
        self.pad_values = _by_key(pad_value, self.keys, "pad_value", 0)
        self.multiple_of = check_whole("multiple_of", multiple_of, 1)
        for key, where in self.sides.items():
            check_choice(f"side of {key!r}", where, get_args(Side))

    def __call__(self, batch: Sequence[Sample]) -> dict[str, Any]:
        """Return one dict for the batch; PlanError if samples are incompatible."""
        mixed_collate(batch)
        filled: dict[str, Any] = {}
        for key in self.keys:
            if not any(key in sample for sample in batch):
                continue
            values = [_as_tensor(sample.get(key), key) for sample in batch]
            filled[key], filled[f"{key}_mask"] = self._fill(key, values)
        return _collate(batch, filled)

    def _fill(self, key: str, values: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return padded tensors as one, and the mask of real values."""
        if len({(value.shape[1:], value.dtype) for value in values}) > 1:
            raise _unlike(key, values)
        longest = max(len(value) for value in values)
        length = -(-longest // self.multiple_of) * self.multiple_of
        shape = (len(values), length, *values[0].shape[1:])
        tensor = torch.full(shape, self.pad_values[key], dtype=values[0].dtype)
        mask = torch.zeros(len(values), length, dtype=torch.bool)
        for row, value in enumerate(values):
            first = length - len(value) if self.sides[key] == "left" else 0
            tensor[row, first : first + len(value)] = value
            mask[row, first : first + len(value)] = True
        return tensor, mask


def _by_key(given: Any, keys: tuple[str, ...], what: str, default: Any) -> dict[str, Any]:
    """Return a setting by key."""
    if not isinstance(given, Mapping):
        return dict.fromkeys(keys, given)
    unknown = sorted(given.keys() - set(keys))
    if unknown:
        raise ConfigError(f"{what} must be of keys {list(keys)}, got {unknown}; add them to keys")
    return dict.fromkeys(keys, default) | dict(given)


def _as_tensor(value: Any, key: str) -> torch.Tensor:
    """Return a value to pad as a tensor."""
    if isinstance(value, list | tuple):
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        value = torch.from_numpy(value)
    if not isinstance(value, torch.Tensor) or value.dim() < 1:
        raise PlanError(
            f"every sample of the batch must have a tensor under {key!r} to fill up, one has "
            f"{type(value).__name__}; leave the key out, or use mixed_collate"
        )
    return value


def _collate(batch: Sequence[Sample], done: dict[str, Any]) -> dict[str, Any]:
    """Return one dict of samples, with the fields that are already collated."""
    keys = dict.fromkeys(key for sample in batch for key in sample)
    collated: dict[str, Any] = {}
    if "__states__" in keys:  # of a customized_yield_fn: one flat list for the whole batch
        states = (sample.get("__states__", [sample.get("__state__")]) for sample in batch)
        collated["__states__"] = list(chain.from_iterable(states))
        del keys["__states__"]
        keys.pop("__state__", None)
    for key in keys:
        if key in done:
            collated[key] = done[key]
        elif key.startswith("__") and key.endswith("__"):
            collated[key] = [sample.get(key) for sample in batch]
        elif lacking := sum(key not in sample for sample in batch):
            raise PlanError(
                f"samples of a stacked batch must have the same keys, {lacking} of {len(batch)} "
                f"lack {key!r}; use mixed_collate for samples of several kinds"
            )
        else:
            collated[key] = _join(key, [sample[key] for sample in batch])
    return collated | done


def _join(key: str, values: list[Any]) -> Any:
    """Return the values of a field as one tensor if possible, else as a list."""
    kinds = {type(value) for value in values}
    if kinds == {np.ndarray} and all(value.dtype.kind in "biuf" for value in values):
        values = [torch.from_numpy(value) for value in values]
    elif kinds <= {bool, int, float} or all(isinstance(value, np.number) for value in values):
        return torch.tensor(values)
    if not all(isinstance(value, torch.Tensor) for value in values):
        return values
    if len({(value.shape, value.dtype) for value in values}) > 1:
        raise _unlike(key, values)
    # In a loader worker it stacks straight into shared memory.
    return torch.utils.data.default_collate(values)


def _unlike(key: str, values: list[torch.Tensor]) -> PlanError:
    """Return the error for tensors that cannot be stacked."""
    forms = dict.fromkeys(f"{tuple(value.shape)} {value.dtype}" for value in values)
    return PlanError(
        f"tensors under {key!r} must be of one shape and dtype to be stacked, got "
        f"{', '.join(forms)}; fill them up by PadCollate, or use mixed_collate"
    )
